//! `vread` and `vwrite`: bytes of areas by their frames, without a lock, past holes.
//!
//! They do not use the addresses, which may be unmapped at any moment: they walk the tables, pin
//! the frame, look again, and then copy. A frame that is pinned stays its owner's. So a page is
//! read as it was mapped at some moment of the call; one that was unmapped meanwhile is a hole, or
//! is read once more. Words are copied one by one, by atomic accesses: whoever uses the memory at
//! the same time sees, and leaves, no torn word.

use crate::vmap::{PAGE, Vmap};
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use grace::Concurrent;
use machine::{Access, Frame, Machine, PageSize, VirtAddr};
use paging::Format;

impl<M: Machine, F: Format, G: Concurrent> Vmap<M, F, G> {
    /// Reads bytes from `at` on, whoever mapped them. Holes read as 0, and so do devices, pages
    /// that may not be read, and what lies outside of the space. Returns how many bytes were not of
    /// holes.
    ///
    /// Cost: two walks and two locked instructions a page, on its own count. Takes no lock; any
    /// context.
    ///
    /// # Safety
    /// Whatever is mapped there may be read as bytes: it is ordinary memory that nobody holds a
    /// `&mut` to, nor writes but through translations or by atomic accesses.
    pub unsafe fn vread(&self, at: VirtAddr, into: &mut [u8]) -> usize {
        let mut read = 0;
        let mut rest = into;
        for (at, len) in pieces(at, rest.len()) {
            let (part, others) = rest.split_at_mut(len);
            let found = self.with_page(at, false, |memory| {
                // SAFETY: `len` bytes from there on lie in the page, which is pinned.
                unsafe { copy_out(memory, part) }
            });
            match found {
                Some(()) => read += len,
                None => part.fill(0),
            }
            rest = others;
        }
        rest.fill(0);
        read
    }

    /// Writes bytes from `at` on, whoever mapped them, past holes: what has no page, or one that
    /// may not be written, is left out. Returns how many bytes were written. Cost and context as
    /// for [`vread`](Vmap::vread).
    ///
    /// # Safety
    /// Whoever uses the memory bears that it changes, and as for [`vread`](Vmap::vread). Of frames
    /// that a caller has mapped, that may be until this returns, also if he has unmapped them
    /// meanwhile.
    pub unsafe fn vwrite(&self, at: VirtAddr, from: &[u8]) -> usize {
        let mut written = 0;
        let mut rest = from;
        for (at, len) in pieces(at, rest.len()) {
            let (part, others) = rest.split_at(len);
            let found = self.with_page(at, true, |memory| {
                // SAFETY: `len` bytes from there on lie in the page, which is pinned; the caller's
                // promise.
                unsafe { copy_in(memory, part) }
            });
            written += if found.is_some() { len } else { 0 };
            rest = others;
        }
        written
    }

    /// Calls `f` with where the byte at `at` is in memory, while its page is pinned; if there is
    /// one.
    fn with_page<T>(
        &self,
        at: VirtAddr,
        write: bool,
        f: impl FnOnce(NonNull<u8>) -> T,
    ) -> Option<T> {
        if !self.space.contains(at) {
            return None;
        }
        let mut frame = [Frame::default()];
        let pins = self.tables.pin_mapped(at, write, &mut frame);
        let frame = *pins.frames().first()?;
        self.machine().step(Access::Shared);
        let memory = self.machine().frame_ptr(frame)?;
        // SAFETY: within the frame.
        Some(f(unsafe { memory.add(at.offset_in(PageSize::Size4K) as usize) }))
    }
}

/// So many bytes from an address on, page by page, up to the last address there is.
fn pieces(at: VirtAddr, bytes: usize) -> impl Iterator<Item = (VirtAddr, usize)> {
    let (mut next, mut rest) = (Some(at), bytes);
    core::iter::from_fn(move || {
        let at = next.filter(|_| rest != 0)?;
        let len = rest.min((PAGE - at.offset_in(PageSize::Size4K)) as usize);
        next = at.checked_add(len as u64);
        rest -= len;
        Some((at, len))
    })
}

/// # Safety
/// As many bytes from `from` on are memory, which others access atomically or through translations
/// only.
unsafe fn copy_out(from: NonNull<u8>, into: &mut [u8]) {
    let head = from.align_offset(8).min(into.len());
    let (first, rest) = into.split_at_mut(head);
    let byte = |at: usize| {
        // SAFETY: the caller's promise. Relaxed: whoever wants an order has another way to say so.
        unsafe { from.add(at).cast::<AtomicU8>().as_ref() }.load(Ordering::Relaxed)
    };
    first.iter_mut().enumerate().for_each(|(at, to)| *to = byte(at));
    let mut words = rest.chunks_exact_mut(8);
    let mut at = head;
    for to in words.by_ref() {
        // SAFETY: as above; it is aligned. Relaxed: as above.
        let word = unsafe { from.add(at).cast::<AtomicU64>().as_ref() }.load(Ordering::Relaxed);
        to.copy_from_slice(&word.to_ne_bytes());
        at += 8;
    }
    words.into_remainder().iter_mut().enumerate().for_each(|(more, to)| *to = byte(at + more));
}

/// # Safety
/// As for [`copy_out`].
unsafe fn copy_in(to: NonNull<u8>, from: &[u8]) {
    let head = to.align_offset(8).min(from.len());
    let (first, rest) = from.split_at(head);
    let byte = |at: usize, value: u8| {
        // SAFETY: the caller's promise. Relaxed: whoever wants an order has another way to say so.
        unsafe { to.add(at).cast::<AtomicU8>().as_ref() }.store(value, Ordering::Relaxed);
    };
    first.iter().enumerate().for_each(|(at, value)| byte(at, *value));
    let (words, last) = rest.as_chunks::<8>();
    let mut at = head;
    for word in words {
        // SAFETY: as above; it is aligned. Relaxed: as above.
        let slot = unsafe { to.add(at).cast::<AtomicU64>().as_ref() };
        slot.store(u64::from_ne_bytes(*word), Ordering::Relaxed);
        at += 8;
    }
    last.iter().enumerate().for_each(|(more, value)| byte(at + more, *value));
}
