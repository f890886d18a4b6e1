//! `vread` and `vwrite`: access to the bytes of areas through their frames, without a lock,
//! skipping holes.
//!
//! # Why it is correct
//! Areas may be unmapped at any moment, so the calls do not use their addresses. For each page they
//! walk the tables, pin the frame, walk again to confirm, and then copy. A pinned frame is not
//! freed. So a page is read as it was mapped at some moment during the call. A page that was
//! unmapped meanwhile counts as a hole, or the walk is repeated.
//!
//! Words are copied one at a time by atomic accesses, so concurrent users of the memory neither see
//! nor cause torn words.

use crate::PAGE;
use crate::space::Vmap;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use grace::Concurrent;
use machine::{Frame, Machine, PageSize, SharedAccess, VirtAddr};
use paging::Format;

impl<M: Machine, F: Format, G: Concurrent> Vmap<M, F, G> {
    /// Reads bytes from `at` on, of any kind of area. Holes read as 0. So do devices, pages without
    /// read permission, and addresses outside of the space. Returns the number of bytes that were
    /// not in holes.
    ///
    /// Cost: for each page two walks, and two locked instructions on the frame's reference count.
    /// Takes no lock; any context.
    ///
    /// # Safety
    /// The mapped memory may be read as bytes: it is ordinary memory to which no `&mut` exists, and
    /// which is written only through translations or by atomic accesses.
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

    /// Writes bytes from `at` on, to any kind of area. Skips holes and pages without write
    /// permission. Returns the number of bytes written. Cost and context as for
    /// [`vread`](Vmap::vread).
    ///
    /// # Safety
    /// As for [`vread`](Vmap::vread). In addition, all users of the memory tolerate the change. For
    /// frames that a caller has mapped, the write may happen until this call returns, even if the
    /// caller has unmapped them meanwhile.
    pub unsafe fn vwrite(&self, at: VirtAddr, from: &[u8]) -> usize {
        let mut written = 0;
        let mut rest = from;
        for (at, len) in pieces(at, rest.len()) {
            let (part, others) = rest.split_at(len);
            let found = self.with_page(at, true, |memory| {
                // SAFETY: `len` bytes from there on lie in the page, which is pinned; the caller
                // guarantees the rest.
                unsafe { copy_in(memory, part) }
            });
            written += if found.is_some() { len } else { 0 };
            rest = others;
        }
        written
    }

    /// Calls `f` with a pointer to the byte at `at`, with its page pinned. `None` if there is no
    /// such page.
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
        self.machine().step(SharedAccess::Other);
        let memory = self.machine().frame_ptr(frame)?;
        // SAFETY: the offset lies within the frame.
        Some(f(unsafe { memory.add(at.offset_in(PageSize::Size4K) as usize) }))
    }
}

/// Splits `bytes` bytes from an address on at page boundaries, up to the last address there is.
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
/// `into.len()` bytes from `from` on are memory that other code accesses atomically or through
/// translations only.
unsafe fn copy_out(from: NonNull<u8>, into: &mut [u8]) {
    let head = from.align_offset(8).min(into.len());
    let (first, rest) = into.split_at_mut(head);
    let byte = |at: usize| {
        // SAFETY: the caller guarantees it. Relaxed: users that need an order establish it by other
        // means.
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
/// `from.len()` bytes from `to` on are memory as for [`copy_out`].
unsafe fn copy_in(to: NonNull<u8>, from: &[u8]) {
    let head = to.align_offset(8).min(from.len());
    let (first, rest) = from.split_at(head);
    let byte = |at: usize, value: u8| {
        // SAFETY: the caller guarantees it. Relaxed: users that need an order establish it by other
        // means.
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
