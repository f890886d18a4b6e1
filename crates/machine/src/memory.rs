//! Physical memory: pointers to frames, and the entries of page tables.

use crate::word::EntryWord;
use crate::{EntryOp, Frame, SharedAccess, Step};
use core::fmt;
use core::ops::Range;
use core::ptr::NonNull;

/// The number of entries of a page table in one frame: 512 words of 64 bits. A table of a larger
/// granule is a block of frames, with so many entries in each. Models use only the first eight of
/// each frame, so that a loop over all takes few steps.
pub const ENTRIES: usize = if cfg!(loom) { 8 } else { 512 };

/// Access to the contents of a frame.
///
/// ```
/// use machine::{Frame, Memory, Step};
/// use std::ptr::NonNull;
///
/// /// Two frames, numbers 0 and 1.
/// struct Host(NonNull<[u64; 1024]>);
/// // SAFETY: the defaults do nothing.
/// unsafe impl Step for Host {}
/// // SAFETY: the frames are consecutive in one block, which is aligned and never freed.
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
/// // SAFETY: no other code uses the frame.
/// let entry = unsafe { host.entry(table, 5) }.unwrap();
/// entry.store(page.start().get() | 1);
/// assert_eq!(entry.fetch_or(2), 0x1001);
/// assert_eq!(entry.compare_exchange(0x1001, 0), Err(0x1003));
/// assert!(unsafe { host.entry(table, 512) }.is_none());
/// ```
///
/// # Safety
/// A pointer that [`frame_ptr`](Memory::frame_ptr) returns is valid for reads and writes of 4096
/// bytes, and aligned to 4096. It is always the same for the same frame, and its bytes overlap no
/// other frame's. The pointers of consecutive frames of one allocation are consecutive and have one
/// provenance.
pub unsafe trait Memory: Step {
    /// A pointer to the frame's 4096 bytes. `None` if there is no memory behind the number.
    ///
    /// Costs an addition and a compare. May be called anywhere.
    fn frame_ptr(&self, frame: Frame) -> Option<NonNull<u8>>;

    /// The entry `index` of the page table in frame `table`. `None` if there is no such memory or
    /// entry.
    ///
    /// # Safety
    /// While the entry is used, no other code uses the frame's bytes except by atomic accesses to
    /// whole words: the frame stays a page table, or unused. A reader without a lock relies on a
    /// grace period for that (I3).
    #[inline]
    unsafe fn entry(&self, table: Frame, index: usize) -> Option<Entry<'_, Self>> {
        // SAFETY: the caller's promise.
        unsafe { self.entries(table) }?.get(index)
    }

    /// All entries of the page table in frame `table`. `None` if there is no such memory. For loops
    /// over entries.
    ///
    /// # Safety
    /// As for [`entry`](Memory::entry).
    #[inline]
    unsafe fn entries(&self, table: Frame) -> Option<Entries<'_, Self>> {
        // SAFETY: the caller's promise.
        unsafe { self.entries_in(table, 0) }
    }

    /// As [`entries`](Memory::entries), of a page table that is a block of `1 << order` frames.
    /// `None` also if there is no memory behind the last one.
    ///
    /// # Safety
    /// As for [`entry`](Memory::entry), for all frames of the block, which are of one allocation.
    #[inline]
    unsafe fn entries_in(&self, table: Frame, order: u8) -> Option<Entries<'_, Self>> {
        let base = self.frame_ptr(table)?;
        if order != 0 {
            self.frame_ptr(table.checked_add((1 << order) - 1)?)?;
        }
        // SAFETY: the pointer is to a frame, which has this size and alignment; those of the other
        // frames follow. By the caller's promise, all other accesses are atomic.
        let cells = unsafe { core::slice::from_raw_parts(base.cast().as_ptr(), ENTRIES << order) };
        Some(Entries { machine: self, cells, table })
    }
}

/// The entries of a page table in memory; see [`Memory::entries`].
pub struct Entries<'m, M: ?Sized> {
    machine: &'m M,
    cells: &'m [EntryWord],
    table: Frame,
}

impl<'m, M: Step + ?Sized> Entries<'m, M> {
    /// The entry with this number. `None` if the table has no such entry.
    #[inline]
    pub fn get(&self, index: usize) -> Option<Entry<'m, M>> {
        let cell = self.cells.get(index)?;
        Some(Entry { machine: self.machine, cell, table: self.table, index })
    }

    /// The entries of a range of numbers, which is cut at the end of the table.
    #[inline]
    pub fn range(&self, range: Range<usize>) -> impl Iterator<Item = Entry<'m, M>> + use<'m, M> {
        let &Entries { machine, cells, table } = self;
        let first = range.start;
        let cells = cells.get(first..range.end.min(cells.len())).unwrap_or_default();
        let place = move |(at, cell)| Entry { machine, cell, table, index: first + at };
        cells.iter().enumerate().map(place)
    }

    /// The first entry of a range of numbers that is not zero, and its value. The range is cut at
    /// the end of the table.
    ///
    /// Cost: a load of each entry up to the one that is returned, and of at most eight after it; a
    /// branch for eight.
    #[inline(always)]
    pub fn first_set(&self, mut range: Range<usize>) -> Option<(Entry<'m, M>, u64)> {
        loop {
            let entry = self.get(range.start).filter(|entry| entry.index < range.end)?;
            match entry.load() {
                0 => range.start = self.beyond_zeros(entry.index + 1, range.end),
                value => return Some((entry, value)),
            }
        }
    }

    /// The entries of a range of numbers that are not zero when they are reached, and their values.
    ///
    /// Cost: that of [`first_set`](Self::first_set) for each.
    #[inline(always)]
    pub fn set(
        &self,
        mut range: Range<usize>,
    ) -> impl Iterator<Item = (Entry<'m, M>, u64)> + use<'_, 'm, M> {
        core::iter::from_fn(move || {
            let found = self.first_set(range.clone())?;
            range.start = found.0.index + 1;
            Some(found)
        })
    }

    /// The number of the first entry of a range that is not zero, or one after the range.
    #[inline(never)]
    fn beyond_zeros(&self, mut next: usize, end: usize) -> usize {
        const BATCH: usize = 8;
        let load = |(index, cell): (usize, &EntryWord)| {
            self.machine.step(SharedAccess::Entry { table: self.table, index, op: EntryOp::Load });
            cell.load()
        };
        let range = self.cells.get(next..end.min(self.cells.len())).unwrap_or_default();
        let (batches, last) = range.as_chunks::<BATCH>();
        for batch in batches {
            let batch = batch.each_ref();
            let values: [u64; BATCH] = core::array::from_fn(|at| load((next + at, batch[at])));
            // No branch for each: most entries of a sparse range are zero.
            if values.iter().fold(0, |all, value| all | value) != 0 {
                return next + values.iter().take_while(|value| **value == 0).count();
            }
            next += BATCH;
        }
        next + (next..).zip(last).take_while(|entry| load(*entry) == 0).count()
    }
}

impl<M: ?Sized> fmt::Debug for Entries<'_, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "entries of table {:?}", self.table)
    }
}

/// An entry of a page table in memory, shared by CPUs and their page walkers.
///
/// Each operation is one [`step`](Step::step) and one atomic instruction (`word.rs`). On hardware,
/// the step does nothing. The orderings are fixed, because every user needs the same: a store
/// *releases*, so a CPU that follows the entry to a table sees the table's contents; a load
/// *acquires*, which pairs with that. A hardware walker follows the entry that it read, so it needs
/// only the release.
pub struct Entry<'m, M: ?Sized> {
    machine: &'m M,
    cell: &'m EntryWord,
    table: Frame,
    index: usize,
}

impl<'m, M: Step + ?Sized> Entry<'m, M> {
    /// The table that contains the entry.
    #[inline]
    pub fn table(&self) -> Frame {
        self.table
    }

    /// The entry's number in the table.
    #[inline]
    pub fn index(&self) -> usize {
        self.index
    }

    #[inline(always)]
    fn step(&self, op: EntryOp) {
        self.machine.step(SharedAccess::Entry { table: self.table, index: self.index, op });
    }

    /// Reads the entry.
    #[inline]
    pub fn load(&self) -> u64 {
        self.step(EntryOp::Load);
        self.cell.load()
    }

    /// Stores `value`. If hardware sets an accessed or dirty bit at the same moment, that bit is
    /// lost. To change a present entry, use [`swap`](Self::swap) or
    /// [`compare_exchange`](Self::compare_exchange).
    #[inline]
    pub fn store(&self, value: u64) {
        self.step(EntryOp::Store(value));
        self.cell.store(value)
    }

    /// Stores `value` and returns the old value, accessed and dirty bits included.
    #[inline]
    pub fn swap(&self, value: u64) -> u64 {
        self.step(EntryOp::Swap(value));
        self.cell.swap(value)
    }

    /// Stores `new` if the entry is `old`. Otherwise returns the entry's value.
    ///
    /// # Errors
    /// The entry's value, if it is not `old`.
    #[inline]
    pub fn compare_exchange(&self, old: u64, new: u64) -> Result<(), u64> {
        self.step(EntryOp::CompareExchange(old, new));
        self.cell.compare_exchange(old, new)
    }

    /// Clears the bits outside `mask`, and returns the old value.
    #[inline]
    pub fn fetch_and(&self, mask: u64) -> u64 {
        self.step(EntryOp::And(mask));
        self.cell.fetch_and(mask)
    }

    /// Sets the bits of `mask`, and returns the old value.
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
        last: Cell<Option<SharedAccess>>,
    }

    // SAFETY: it records the access, and calls nothing.
    unsafe impl Step for Host {
        fn step(&self, access: SharedAccess) {
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
    fn every_access_is_one_step_of_its_kind() {
        let host = Host { frame: UnsafeCell::new([0; ENTRIES]), last: Cell::new(None) };
        let table = Frame::new(7).unwrap();
        // SAFETY: no other code uses the frame.
        let entry = |index| unsafe { host.entry(table, index) };
        assert!(entry(ENTRIES).is_none());
        // SAFETY: there is no such frame.
        assert!(unsafe { host.entry(Frame::new(8).unwrap(), 0) }.is_none());
        // SAFETY: as above.
        assert!(unsafe { host.entries_in(table, 2) }.is_none(), "memory ends within the table");
        let entry = entry(ENTRIES - 1).unwrap();
        assert_eq!((entry.table(), entry.index()), (table, ENTRIES - 1));
        let said = |op| {
            assert_eq!(
                host.last.take(),
                Some(SharedAccess::Entry { table, index: ENTRIES - 1, op })
            )
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

    #[repr(align(4096))]
    struct Plain(UnsafeCell<[u64; ENTRIES]>);

    // SAFETY: the defaults do nothing.
    unsafe impl Step for Plain {}

    // SAFETY: one frame, aligned.
    unsafe impl Memory for Plain {
        fn frame_ptr(&self, _: Frame) -> Option<NonNull<u8>> {
            NonNull::new(self.0.get().cast())
        }
    }

    /// Wherever a set entry is, and where the range begins and ends.
    #[test]
    fn the_first_set_entry_of_a_range() {
        let host = Plain(UnsafeCell::new([0; ENTRIES]));
        // SAFETY: no other code uses the frame.
        let entries = unsafe { host.entries(Frame::default()) }.unwrap();
        let numbers = || [0, 1, 2, 7, 8, 9, 10, 16, 17, 60, ENTRIES - 1, ENTRIES, ENTRIES + 1];
        let check = |set: &[usize]| {
            for (start, end) in numbers().into_iter().flat_map(|a| numbers().map(|b| (a, b))) {
                let found = entries.first_set(start..end).map(|(at, value)| (at.index(), value));
                let set = set.iter().find(|at| (start..end).contains(*at));
                assert_eq!(found, set.map(|at| (*at, 5)), "{start}..{end}");
            }
        };
        check(&[]);
        for at in 0..ENTRIES.min(if cfg!(miri) { 3 } else { 70 }) {
            entries.get(at).unwrap().store(5);
            check(&[at]);
            entries.get(ENTRIES - 1).unwrap().store(5);
            check(&[at, ENTRIES - 1]);
            entries.get(ENTRIES - 1).unwrap().store(0);
            entries.get(at).unwrap().store(0);
        }
    }
}
