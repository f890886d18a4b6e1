//! The bytes of an object: read, written and cleared in the frames of its pages.
//!
//! Programs access the same bytes through their maps at the same time. So each access here is
//! atomic, of a word where one is whole, else of a byte; and a page keeps its frame as long as this
//! code has a reference to it.

use core::{
    ops::Range,
    sync::atomic::{AtomicU8, AtomicU64, Ordering},
};

use machine::{Frame, Machine};
use vma::PAGE_SIZE;

use crate::{
    ObjectError,
    fault::frame_ref::Reference,
    fault::zero_page::zero,
    object::cache::{PAGE, PageCache},
    object::page_index::{MAX_PAGES, PageSlot},
};

impl<M: Machine> PageCache<M> {
    /// Fills bytes with zeros, where there are pages.
    pub(super) fn clear(&self, bytes: Range<u64>) {
        self.each_part(bytes, |part, _| {
            // Relaxed: a program's memory orders nothing here.
            part.iter().for_each(|byte| byte.store(0, Ordering::Relaxed));
        });
    }

    /// Calls `each` with the parts of a range that have pages, and their places in the range.
    fn each_part(&self, bytes: Range<u64>, each: impl FnMut(&[AtomicU8], usize)) {
        let hold = |index| Ok(self.index.hold(index).ok());
        let done = self.each_held(bytes, hold, each);
        debug_assert!(done.is_ok(), "nothing fails");
    }

    /// Calls `each` with the parts of a range for which `hold` takes a reference to a frame, and
    /// their places in the range. A page that is held is not evicted.
    pub(super) fn each_held(
        &self,
        bytes: Range<u64>,
        mut hold: impl FnMut(u64) -> Result<Option<Frame>, ObjectError>,
        mut each: impl FnMut(&[AtomicU8], usize),
    ) -> Result<(), ObjectError> {
        let mut at = bytes.start;
        while at < bytes.end {
            let end = bytes.end.min((at / PAGE + 1) * PAGE);
            if let Some(frame) = hold(at / PAGE)? {
                // SAFETY: `hold` took this reference.
                let held = unsafe { Reference::new(&self.machine, frame) };
                if let Some(part) = self.bytes_of(&held, at..end) {
                    each(part, (at - bytes.start) as usize);
                }
            }
            at = end;
        }
        Ok(())
    }

    /// Reads bytes, up to the end; absent pages are zeros. Returns how many. Bytes that were cut
    /// off meanwhile are not among them: they may be zeros that were never there.
    pub(super) fn read(&self, at: u64, into: &mut [u8]) -> usize {
        let len = self.size().saturating_sub(at).min(into.len() as u64);
        let into = &mut into[..len as usize];
        let mut done = 0;
        // A page that is going has its contents until it is gone: a map may show them as long.
        let hold = |index| Ok(self.index.hold_going(index).ok());
        let held = self.each_held(at..at + len, hold, |part, place| {
            into[done..place].fill(0);
            done = place + part.len();
            load(part, &mut into[place..done]);
        });
        debug_assert!(held.is_ok(), "nothing fails");
        into[done..].fill(0);
        self.left_of(at, len as usize)
    }

    /// How many of the bytes from `at` on that were read are within the size now.
    pub(super) fn left_of(&self, at: u64, len: usize) -> usize {
        self.size().saturating_sub(at).min(len as u64) as usize
    }

    /// Writes bytes of one page. If it is absent, it comes in with them: no map shows it without.
    /// `may` gets the size, and the size that the write needs: first to refuse before anything is
    /// allocated, then (`true`) with the lock held. The same with the two exchanged undoes that.
    pub(super) fn write_page(
        &self,
        at: u64,
        from: &[u8],
        may: impl Fn(u64, u64, bool) -> Result<(), ObjectError>,
    ) -> Result<(), ObjectError> {
        let (index, end) = (at / PAGE, at + from.len() as u64);
        if index >= MAX_PAGES {
            return Err(ObjectError::BeyondEnd);
        }
        let size = self.size();
        may(size, end.max(size), false)?;
        let mut new = None;
        loop {
            if new.is_none() && !self.is_present(index) {
                new = Some(self.page_with(at, from)?);
                self.index.prepare(index).map_err(ObjectError::OutOfMemory)?;
            }
            let _locked = self.lock();
            let size = self.size();
            // With the lock held, only a panic leaves a page that goes.
            if let PageSlot::Going(_) = self.index.get(index) {
                return Err(ObjectError::Failed);
            }
            match (self.index.hold(index), &new) {
                (Ok(frame), _) => {
                    // SAFETY: `hold` took this reference.
                    let page = unsafe { Reference::new(&self.machine, frame) };
                    may(size, end.max(size), true)?;
                    self.store(&page, at, from);
                }
                (Err(ObjectError::Absent), Some(page)) => {
                    may(size, end.max(size), true)?;
                    // A fault may be first, also beyond the size, if it has looked at an older one.
                    if !self.put(index, page) {
                        may(end.max(size), size, true)?;
                        continue;
                    }
                    new.take().map(Reference::keep);
                }
                (Err(ObjectError::Absent), None) => continue,
                (Err(error), _) => return Err(error),
            }
            if end > size {
                self.store_size(end);
            }
            return Ok(());
        }
    }

    /// A new page of zeros with these bytes.
    fn page_with(&self, at: u64, from: &[u8]) -> Result<Reference<'_, M>, ObjectError> {
        let page = self.new_page()?;
        zero(&self.machine, page.frame()).map_err(ObjectError::OutOfMemory)?;
        self.store(&page, at, from);
        Ok(page)
    }

    /// Stores the bytes of one page.
    pub(super) fn store(&self, page: &Reference<'_, M>, at: u64, from: &[u8]) {
        let bytes = self.bytes_of(page, at..at + from.len() as u64).unwrap_or_default();
        let (first, words, last) = in_words(bytes);
        let (start, rest) = from.split_at(first.len().min(from.len()));
        let (middle, end) = rest.split_at((8 * words.len()).min(rest.len()));
        // Relaxed, here and below: as in `clear`.
        let one = |(byte, from): (&AtomicU8, &u8)| byte.store(*from, Ordering::Relaxed);
        first.iter().zip(start).for_each(one);
        for (word, from) in words.iter().zip(middle.as_chunks().0) {
            word.store(u64::from_ne_bytes(*from), Ordering::Relaxed);
        }
        last.iter().zip(end).for_each(one);
    }

    /// The bytes of a page that a range within it names.
    fn bytes_of<'p>(
        &self,
        page: &'p Reference<'_, M>,
        bytes: Range<u64>,
    ) -> Option<&'p [AtomicU8]> {
        let first = self.machine.frame_ptr(page.frame())?.cast::<AtomicU8>();
        let (within, len) = ((bytes.start % PAGE) as usize, (bytes.end - bytes.start) as usize);
        debug_assert!(within + len <= PAGE_SIZE, "the range leaves the page");
        // SAFETY: the bytes lie in the page, which the reference keeps. Other users access it by
        // translations or by atomic bytes.
        Some(unsafe { core::slice::from_raw_parts(first.add(within).as_ptr(), len) })
    }
}

/// The same bytes: up to the first whole word, as words, and after the last one.
fn in_words(bytes: &[AtomicU8]) -> (&[AtomicU8], &[AtomicU64], &[AtomicU8]) {
    // SAFETY: a word is eight bytes of any value, and `align_to` aligns it. The memory is shared
    // with programs, which access it in words, too.
    unsafe { bytes.align_to() }
}

/// Loads bytes. As many as there are in both.
pub(super) fn load(bytes: &[AtomicU8], into: &mut [u8]) {
    let (first, words, last) = in_words(bytes);
    let (start, rest) = into.split_at_mut(first.len().min(into.len()));
    let (middle, end) = rest.split_at_mut((8 * words.len()).min(rest.len()));
    // Relaxed, here and below: a program's memory orders nothing here.
    let one = |(byte, into): (&AtomicU8, &mut u8)| *into = byte.load(Ordering::Relaxed);
    first.iter().zip(start).for_each(one);
    for (word, into) in words.iter().zip(middle.as_chunks_mut().0) {
        *into = word.load(Ordering::Relaxed).to_ne_bytes();
    }
    last.iter().zip(end).for_each(one);
}
