//! Physical memory: frames as pointers, tables as entries.

use crate::word::EntryWord;
use crate::{Access, EntryOp, Frame, Step};
use core::fmt;
use core::ptr::NonNull;

/// The number of entries of a page table: 512 words of 64 bits, which fill a frame.
pub const ENTRIES: usize = 512;

/// How to get at the contents of a frame.
///
/// ```
/// use machine::{Frame, Memory, Step};
/// use std::ptr::NonNull;
///
/// /// Two frames, numbers 0 and 1.
/// struct Host(NonNull<[u64; 1024]>);
/// // SAFETY: the defaults do nothing.
/// unsafe impl Step for Host {}
/// // SAFETY: the frames lie one after the other in one block, which is aligned and is never freed.
/// unsafe impl Memory for Host {
///     fn frame_ptr(&self, frame: Frame) -> Option<NonNull<u8>> {
///         let number = usize::try_from(frame.number()).ok().filter(|number| *number < 2)?;
///         // SAFETY: within the block.
///         Some(unsafe { self.0.cast::<u8>().add(number * 4096) })
///     }
/// }
/// #[repr(align(4096))]
/// struct Block([u64; 1024]);
/// let host = Host(NonNull::from(&mut Box::leak(Box::new(Block([0; 1024]))).0));
///
/// let (table, page) = (Frame::new(0).unwrap(), Frame::new(1).unwrap());
/// // SAFETY: nobody else uses the frame.
/// let entry = unsafe { host.entry(table, 5) }.unwrap();
/// entry.store(page.start().get() | 1);
/// assert_eq!(entry.fetch_or(2), 0x1001);
/// assert_eq!(entry.compare_exchange(0x1001, 0), Err(0x1003));
/// assert!(unsafe { host.entry(table, 512) }.is_none());
/// ```
///
/// # Safety
/// A pointer that [`frame_ptr`](Memory::frame_ptr) returns is valid for reads and writes of 4096
/// bytes, aligned to 4096, always the same for the same frame, and shares no byte with that of
/// another frame. Frames that follow one another have pointers that follow one another, with one
/// provenance, as far as one allocation of frames reaches.
pub unsafe trait Memory: Step {
    /// Where the frame's 4096 bytes are, or `None` if there is no memory behind the number.
    ///
    /// An addition and a compare; may be called anywhere.
    fn frame_ptr(&self, frame: Frame) -> Option<NonNull<u8>>;

    /// Entry `index` of the table in `table`, or `None` if there is no such memory or entry.
    ///
    /// # Safety
    /// While the entry is used, the frame is in use as a page table or as nothing: nobody else uses
    /// its bytes but atomically, as words. For a reader without a lock that is what a grace period
    /// is for (I3).
    #[inline]
    unsafe fn entry(&self, table: Frame, index: usize) -> Option<Entry<'_, Self>> {
        // SAFETY: passed on.
        unsafe { self.entries(table) }?.get(index)
    }

    /// All entries of the table in `table`, or `None` if there is no such memory: for who goes from
    /// one to the next.
    ///
    /// # Safety
    /// As for [`entry`](Memory::entry).
    #[inline]
    unsafe fn entries(&self, table: Frame) -> Option<Entries<'_, Self>> {
        let base = self.frame_ptr(table)?;
        // SAFETY: a frame, which is aligned, is as long as this; by the caller's promise all other
        // accesses are atomic as well.
        let cells = unsafe { base.cast::<[EntryWord; ENTRIES]>().as_ref() };
        Some(Entries { machine: self, cells, table })
    }
}

/// The entries of a page table in memory; see [`Memory::entries`].
pub struct Entries<'m, M: ?Sized> {
    machine: &'m M,
    cells: &'m [EntryWord; ENTRIES],
    table: Frame,
}

impl<'m, M: Step + ?Sized> Entries<'m, M> {
    /// The entry with this number; `None` from [`ENTRIES`] on.
    #[inline]
    pub fn get(&self, index: usize) -> Option<Entry<'m, M>> {
        let cell = self.cells.get(index)?;
        Some(Entry { machine: self.machine, cell, table: self.table, index })
    }

    /// Those of a range of numbers, which ends at [`ENTRIES`] at the latest.
    #[inline]
    pub fn range(
        &self,
        range: core::ops::Range<usize>,
    ) -> impl Iterator<Item = Entry<'m, M>> + use<'m, M> {
        let &Entries { machine, cells, table } = self;
        let first = range.start;
        let cells = cells.get(first..range.end.min(ENTRIES)).unwrap_or_default();
        let place = move |(at, cell)| Entry { machine, cell, table, index: first + at };
        cells.iter().enumerate().map(place)
    }
}

impl<M: ?Sized> fmt::Debug for Entries<'_, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "entries of table {:?}", self.table)
    }
}

/// An entry of a page table in memory, which CPUs and their page walkers share.
///
/// Each operation is one [`step`](Step::step) and one atomic instruction (`word.rs`); on hardware
/// the step is nothing. The orderings are fixed, because they are the same for everyone: what is
/// stored *releases* (who follows an entry to a table sees the table's contents), what is loaded
/// *acquires* (pairs with that). A hardware walker follows the entry it read, so to it the release
/// alone matters.
pub struct Entry<'m, M: ?Sized> {
    machine: &'m M,
    cell: &'m EntryWord,
    table: Frame,
    index: usize,
}

impl<'m, M: Step + ?Sized> Entry<'m, M> {
    /// The table it is part of.
    #[inline]
    pub fn table(&self) -> Frame {
        self.table
    }

    /// Its number in the table.
    #[inline]
    pub fn index(&self) -> usize {
        self.index
    }

    #[inline(always)]
    fn step(&self, op: EntryOp) {
        self.machine.step(Access::Entry { table: self.table, index: self.index, op });
    }

    /// Reads it.
    #[inline]
    pub fn load(&self) -> u64 {
        self.step(EntryOp::Load);
        self.cell.load()
    }

    /// Stores `value`. An accessed or dirty bit that hardware sets at the same moment is lost:
    /// where the entry is present, that calls for [`swap`](Self::swap) or
    /// [`compare_exchange`](Self::compare_exchange).
    #[inline]
    pub fn store(&self, value: u64) {
        self.step(EntryOp::Store(value));
        self.cell.store(value)
    }

    /// Stores `value` and returns what was there, accessed and dirty bits included.
    #[inline]
    pub fn swap(&self, value: u64) -> u64 {
        self.step(EntryOp::Swap(value));
        self.cell.swap(value)
    }

    /// Stores `new` if `old` is there; otherwise returns what is there instead.
    ///
    /// # Errors
    /// The value that is there instead of `old`.
    #[inline]
    pub fn compare_exchange(&self, old: u64, new: u64) -> Result<(), u64> {
        self.step(EntryOp::CompareExchange(old, new));
        self.cell.compare_exchange(old, new)
    }

    /// Clears the bits outside of `mask`, and returns what was there.
    #[inline]
    pub fn fetch_and(&self, mask: u64) -> u64 {
        self.step(EntryOp::And(mask));
        self.cell.fetch_and(mask)
    }

    /// Sets the bits of `mask`, and returns what was there.
    #[inline]
    pub fn fetch_or(&self, mask: u64) -> u64 {
        self.step(EntryOp::Or(mask));
        self.cell.fetch_or(mask)
    }
}

impl<M: ?Sized> Clone for Entry<'_, M> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<M: ?Sized> Copy for Entry<'_, M> {}

impl<M: ?Sized> fmt::Debug for Entry<'_, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "entry {} of table {:?}", self.index, self.table)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::cell::{Cell, UnsafeCell};

    #[repr(align(4096))]
    struct Host {
        frame: UnsafeCell<[u64; ENTRIES]>,
        last: Cell<Option<Access>>,
    }

    // SAFETY: it remembers the access, and calls nothing.
    unsafe impl Step for Host {
        fn step(&self, access: Access) {
            assert_eq!(self.last.replace(Some(access)), None, "two steps for one access");
        }
    }

    // SAFETY: one frame, aligned.
    unsafe impl Memory for Host {
        fn frame_ptr(&self, frame: Frame) -> Option<NonNull<u8>> {
            (frame.number() == 7).then(|| NonNull::new(self.frame.get()).unwrap().cast())
        }
    }

    #[test]
    fn every_access_is_one_step_that_says_what_it_is() {
        let host = Host { frame: UnsafeCell::new([0; ENTRIES]), last: Cell::new(None) };
        let table = Frame::new(7).unwrap();
        // SAFETY: nobody else uses the frame.
        let entry = |index| unsafe { host.entry(table, index) };
        assert!(entry(ENTRIES).is_none());
        // SAFETY: there is no such frame.
        assert!(unsafe { host.entry(Frame::new(8).unwrap(), 0) }.is_none());
        let entry = entry(ENTRIES - 1).unwrap();
        assert_eq!((entry.table(), entry.index()), (table, ENTRIES - 1));
        let said = |op| {
            assert_eq!(host.last.take(), Some(Access::Entry { table, index: ENTRIES - 1, op }))
        };
        entry.store(0b1100);
        said(EntryOp::Store(0b1100));
        assert_eq!(entry.fetch_or(0b0011), 0b1100);
        said(EntryOp::Or(0b0011));
        assert_eq!(entry.fetch_and(0b0110), 0b1111);
        said(EntryOp::And(0b0110));
        assert_eq!(entry.compare_exchange(1, 2), Err(0b0110));
        said(EntryOp::CompareExchange(1, 2));
        assert_eq!(entry.compare_exchange(0b0110, 2), Ok(()));
        said(EntryOp::CompareExchange(0b0110, 2));
        assert_eq!(entry.swap(9), 2);
        said(EntryOp::Swap(9));
        assert_eq!(entry.load(), 9);
        said(EntryOp::Load);
        assert_eq!(host.last.take(), None);
    }
}
