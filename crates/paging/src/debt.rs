//! What is owed after entries have changed: a flush, and after it the tables that were unlinked.
//!
//! Changing an entry is half of the work. Until the CPUs have dropped what they cached of it, they go on with the old
//! translation (I5); and a table that was unlinked may still be walked by them, from a cached upper-level entry (I3). So the
//! cursor returns an [`Owed`], which flushes, and then retires the tables: now no hardware walks them, and when the last
//! guard is gone no software does.
//!
//! # Where the tables wait
//! In themselves: a chain, by a [`note`] in word 0 of each. To hardware and software alike a note is an absent entry, and a
//! table that is unlinked has nothing but absent entries. Nothing is allocated, so nothing can fail. When the grace period
//! is over the notes are cleared, and the tables are in their constructed state again (I6).

use crate::format::{Format, note, noted};
use crate::paging::Paging;
use crate::quick::QUICK_TABLE;
use crate::tables::PageTables;
use alloc::sync::Arc;
use core::mem;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering};
use grace::Concurrent;
use machine::{CpuSet, Entry, Flush, Frame, Machine, PageSize, VirtRange};

/// Words of the tables in a chain: the next table's frame and one, in each; the rest in the first of the chain.
const NEXT: usize = 0;
const OWNER_LOW: usize = 1;
const OWNER_HIGH: usize = 2;
const SELF: usize = 3;

/// A flush that is owed, and the tables that wait for it. It has no lifetime, so it can be kept where the tables are: see
/// [`Owed::defer`].
#[must_use = "stale translations remain, and tables are lost, until this is paid"]
#[derive(Debug, Default)]
pub struct Debt {
    what: Option<(VirtRange, PageSize)>,
    /// The first table of the chain and the last.
    chain: Option<(Frame, Frame)>,
    tables: bool,
}

impl Debt {
    /// Whether nothing is owed.
    pub fn is_nothing(&self) -> bool {
        self.what.is_none()
    }

    /// The addresses that must be flushed; `None` if nothing is owed.
    pub fn range(&self) -> Option<VirtRange> {
        self.what.map(|(range, _)| range)
    }

    /// Both, as one: the range reaches over what lies between.
    pub fn join<M: Machine, F: Format, G: Concurrent>(
        &mut self,
        tables: &PageTables<M, F, G>,
        other: Debt,
    ) {
        if let Some((range, stride)) = other.what {
            self.add(range, stride);
        }
        self.tables |= other.tables;
        self.chain = match (self.chain, other.chain) {
            (Some((first, last)), Some((next, end))) => {
                // SAFETY: a table of this chain, which waits.
                if let Some(entry) = unsafe { tables.machine().entry(last, NEXT) } {
                    entry.store(note(next.number() + 1));
                }
                Some((first, end))
            }
            (mine, theirs) => mine.or(theirs),
        };
    }

    /// A page was changed.
    pub(crate) fn add(&mut self, page: VirtRange, size: PageSize) {
        let Some((before, stride)) = self.what else {
            self.what = Some((page, size));
            return;
        };
        let start = before.start().min(page.start());
        let last = before.last().max(page.last()).unwrap_or(start);
        // The very last byte of all may stay out: the page that it is part of is in.
        let len = (last.get() - start.get()).saturating_add(1);
        let hull = VirtRange::new(start, len).unwrap_or(before);
        self.what = Some((hull, stride.min(size)));
    }

    /// A table that was unlinked. Whoever adds it also adds a page that it decided about.
    pub(crate) fn add_table<M: Machine>(&mut self, machine: &M, table: Frame) {
        self.tables = true;
        // SAFETY: it is unlinked, and nobody gives it back but who has this.
        let Some(entry) = (unsafe { machine.entry(table, NEXT) }) else { return };
        let last = match self.chain {
            Some((first, last)) => {
                entry.store(note(first.number() + 1));
                last
            }
            None => table,
        };
        self.chain = Some((table, last));
    }

    fn flush(&self, space: Option<machine::Asid>) -> Option<Flush> {
        let (range, stride) = self.what?;
        Some(Flush::Range { space, range, stride, tables: self.tables })
    }
}

/// A flush that is owed by page tables, and the tables that wait for it.
///
/// Dropping it pays it, as [`flush`](Owed::flush) does. Until then frames that were unmapped must not be given back, nor
/// addresses handed out (I4, I5).
#[must_use = "stale translations remain until it is flushed"]
pub struct Owed<'p, M: Machine, F: Format, G: Concurrent> {
    space: &'p PageTables<M, F, G>,
    pub(crate) debt: Debt,
}

impl<'p, M: Machine, F: Format, G: Concurrent> Owed<'p, M, F, G> {
    pub(crate) fn nothing(space: &'p PageTables<M, F, G>) -> Self {
        Owed { space, debt: Debt::default() }
    }

    /// Whether nothing is owed.
    pub fn is_nothing(&self) -> bool {
        self.debt.is_nothing()
    }

    /// The addresses that must be flushed; `None` if nothing is owed.
    pub fn range(&self) -> Option<VirtRange> {
        self.debt.range()
    }

    /// Flushes on the CPUs that use the space, and waits for them; retires the tables. Not with a lock held that an interrupt
    /// handler takes. One interrupt for each of these CPUs; nothing if nothing is owed.
    pub fn flush(self) {}

    /// Keeps the debt for later, to be joined with others and paid by [`PageTables::pay`] or [`PageTables::paid`]: one
    /// flush for many changes.
    pub fn defer(mut self) -> Debt {
        mem::take(&mut self.debt)
    }
}

impl<M: Machine, F: Format, G: Concurrent> Drop for Owed<'_, M, F, G> {
    fn drop(&mut self) {
        self.space.pay(mem::take(&mut self.debt));
    }
}

impl<M: Machine, F: Format, G: Concurrent> core::fmt::Debug for Owed<'_, M, F, G> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        self.debt.fmt(f)
    }
}

impl<M: Machine, F: Format, G: Concurrent> PageTables<M, F, G> {
    /// Pays a debt of these tables: flushes on the CPUs that use the space, and retires what was unlinked. Context as for
    /// [`Owed::flush`].
    pub fn pay(&self, debt: Debt) {
        if let Some(what) = debt.flush(self.space()) {
            self.machine().flush_on(&self.users(), what);
        }
        self.retire(debt);
    }

    /// A debt that somebody else has paid: all CPUs that use the space have flushed what [`Debt::range`] says, upper-level
    /// entries included.
    ///
    /// # Safety
    /// They have, since the debt came to be.
    pub unsafe fn paid(&self, debt: Debt) {
        self.retire(debt);
    }

    /// The CPUs that may hold translations of these tables.
    pub(crate) fn users(&self) -> CpuSet {
        match self.space() {
            Some(_) => self.cpus().load(),
            None => self.machine().online(),
        }
    }

    fn retire(&self, debt: Debt) {
        let Some((first, _)) = debt.chain else { return };
        let machine = self.machine();
        let Some(ptr) = machine.frame_ptr(first) else { return };
        let owner = Arc::into_raw(Arc::clone(self.paging())) as usize as u64;
        for (index, value) in
            [(OWNER_LOW, owner & 0xffff_ffff), (OWNER_HIGH, owner >> 32), (SELF, first.number())]
        {
            // SAFETY: the table is unlinked, and ours until it is retired.
            if let Some(entry) = unsafe { machine.entry(first, index) } {
                entry.store(note(value));
            }
        }
        let guard = G::pin();
        // SAFETY: the tables of the chain are unlinked, each is in one chain, and no hardware walks them any more: the
        // flush. `give_back` may run on any CPU.
        unsafe { G::retire(&guard, ptr.cast(), give_back::<M, F>) };
    }
}

/// The grace period of a chain is over.
///
/// # Safety
/// `first` is the memory of the first table of a chain that [`PageTables::retire`] has made ready, and nobody walks any of
/// them.
unsafe fn give_back<M: Machine, F: Format>(first: NonNull<()>) {
    let word = |index| {
        // SAFETY: a word of the table, which only atomic words are made of.
        let word = unsafe { first.cast::<AtomicU64>().add(index).as_ref() };
        // Relaxed: the engine's promise orders what was written before `retire`.
        noted(word.load(Ordering::Relaxed))
    };
    let owner = (word(OWNER_LOW) | word(OWNER_HIGH) << 32) as usize as *const Paging<M, F>;
    // SAFETY: `retire` left it here, once.
    let paging = unsafe { Arc::from_raw(owner) };
    let mut next = Frame::new(word(SELF));
    let mut words = 0..SELF + 1;
    while let Some(table) = next {
        let entry = |index| -> Option<Entry<'_, M>> {
            // SAFETY: it is a table still, and ours alone.
            unsafe { paging.machine().entry(table, index) }
        };
        next =
            entry(NEXT).and_then(|entry| noted(entry.load()).checked_sub(1)).and_then(Frame::new);
        words.by_ref().filter_map(entry).for_each(|entry| entry.store(0));
        words = NEXT..NEXT + 1;
        // SAFETY: it is empty, as it was; nobody walks it. An error would mean that it never was a frame.
        let _ = unsafe { paging.quick().free(QUICK_TABLE, table) };
    }
}
