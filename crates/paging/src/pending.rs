//! What is owed after entries have changed: a flush, and after it the tables that were unlinked.
//!
//! Changing an entry is half of the work. Until the CPUs have dropped what they cached of it, they
//! go on with the old translation (I5); and a table that was unlinked may still be walked by them,
//! from a cached upper-level entry (I3). So the cursor returns an [`PendingFlush`], which flushes,
//! and then retires the tables: now no hardware walks them, and when the last guard is gone no
//! software does.
//!
//! # Nothing is forgotten
//! An [`PendingFlush`] that is dropped pays. A [`DeferredFlush`], which is kept for later, knows
//! whose it is, and pays when it is dropped too: with a flush on every CPU, as it cannot ask the
//! tables, which may be gone, who uses them.
//!
//! # What is forgotten is leaked
//! Both can be forgotten ([`core::mem::forget`]) by safe code. Then no flush is done, and:
//! - the tables in it are never retired. They stay unlinked, dead and empty, so a walk that still
//!   reaches them finds nothing; they are never used again, so none is walked as something else
//!   (I3). [`Paging::waiting`] counts them for ever;
//! - the frames that were unmapped are not in it. Their owner learns them from the call that
//!   unmapped them, and that call is unsafe: its caller has promised not to give them back, nor to
//!   map the range anew, before the flush is done. To forget the value does not do it, so a caller
//!   that forgets it has to leak the frames and the addresses.
//!
//! Why the tables do not remember it themselves: what must be remembered is a range, until all that
//! was changed in it is paid. A bit in the word of a table, set under the lock that is held anyway,
//! would have to be cleared under it again: a second walk and a second locked instruction for each
//! table, at each flush. Two changes of one table that are paid one after the other would need a
//! count. And the flushes of the kernel that are left to a TLB grace period
//! ([`PendingFlush::leave`]) clear it never. So `map` after `unmap` would flush without need, or
//! pay for a count that a right caller has no use for.
//!
//! # Where the tables wait
//! In themselves: a chain, by a [`note`] in word 0 of each. To hardware and software alike a note
//! is an absent entry, and a table that is unlinked has nothing but absent entries. Nothing is
//! allocated for it. To the engine a chain is one piece, however long it is, and a CPU that has
//! started has memory in hand to remember some dozens of them (`grace::quiescent`); so tables are
//! not lost when the heap gives out. When the grace period is over the notes are cleared, and the
//! tables are in their constructed state again (I6).

use crate::format::{Format, note, noted};
use crate::paging::Paging;
use crate::quick::QUICK_TABLE;
use crate::tables::PageTables;
use alloc::sync::Arc;
use core::marker::PhantomData;
use core::mem;
use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicU64, Ordering};
use grace::Concurrent;
use machine::{Asid, CpuId, CpuSet, Entry, Flush, Frame, Machine, PageSize, VirtRange};

/// Words of the tables in a chain: the next table's frame and one, in each; the rest in the first
/// of the chain.
pub(crate) const NEXT: usize = 0;
const OWNER_LOW: usize = 1;
const OWNER_HIGH: usize = 2;
const SELF: usize = 3;
const KEPT: usize = 4;

/// What is owed, without whose it is.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct TlbGather {
    what: Option<(VirtRange, PageSize)>,
    /// The first table of the chain and the last.
    chain: Option<(Frame, Frame)>,
    tables: bool,
}

impl TlbGather {
    /// Both, as one.
    fn join<M: Machine>(&mut self, machine: &M, other: TlbGather) {
        if let Some((range, stride)) = other.what {
            self.add(range, stride);
        }
        self.tables |= other.tables;
        self.chain = match (self.chain, other.chain) {
            (Some((first, last)), Some((next, end))) => {
                // SAFETY: a table of this chain, which waits.
                if let Some(entry) = unsafe { machine.entry(last, NEXT) } {
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

    fn flush(&self, space: Option<Asid>) -> Option<Flush> {
        let (range, stride) = self.what?;
        Some(Flush::Range { space, range, stride, tables: self.tables })
    }

    /// Retires the tables, which no hardware walks any more.
    fn retire<M: Machine, F: Format, G: Concurrent>(self, paging: &Arc<Paging<M, F>>) {
        let Some((first, _)) = self.chain else { return };
        let machine = paging.machine();
        let Some(ptr) = machine.frame_ptr(first) else { return };
        let Some(kept) = paging.keep() else { return };
        let owner = Arc::as_ptr(paging).expose_provenance() as u64;
        for (index, value) in [
            (OWNER_LOW, owner & 0xffff_ffff),
            (OWNER_HIGH, owner >> 32),
            (SELF, first.number()),
            (KEPT, kept.index() as u64),
        ] {
            // SAFETY: the table is unlinked, and ours until it is retired.
            if let Some(entry) = unsafe { machine.entry(first, index) } {
                entry.store(note(value));
            }
        }
        let guard = G::pin();
        // SAFETY: the tables of the chain are unlinked, each is in one chain, and no hardware walks
        // them any more: the flush. `give_back` may run on any CPU.
        unsafe { G::retire(&guard, ptr.cast(), give_back::<M, F>) };
    }
}

/// What is owed by page tables, kept for later. It has no lifetime, so it can be kept where the
/// tables are.
///
/// [`PageTables::pay`] pays it, on the CPUs that use the space. Dropping it pays it on all CPUs
/// that run: right in any case, and dear. Until then frames that were unmapped must not be given
/// back, nor addresses handed out (I4, I5), and tables that were unlinked wait in it.
///
/// Cost: one is made with a locked instruction on a line that all CPUs share. So make one, by
/// [`PageTables::deferred_flush`], and add to it, by [`PendingFlush::defer_to`], which costs none.
#[must_use = "dropping it flushes on all CPUs; `PageTables::pay` does on those that use the space"]
pub struct DeferredFlush<M: Machine, F: Format, G: Concurrent> {
    paging: Arc<Paging<M, F>>,
    /// Whose it is: the tag tells what to flush, both tell the tables from others.
    space: Option<Asid>,
    root: Frame,
    owing: TlbGather,
    engine: PhantomData<fn() -> G>,
}

impl<M: Machine, F: Format, G: Concurrent> DeferredFlush<M, F, G> {
    /// Whether nothing is owed.
    pub fn is_nothing(&self) -> bool {
        self.owing.what.is_none()
    }

    /// The addresses that must be flushed; `None` if nothing is owed.
    pub fn range(&self) -> Option<VirtRange> {
        self.owing.what.map(|(range, _)| range)
    }

    /// Takes another of the same tables into this one: the range reaches over what lies between.
    /// One of other tables is paid instead, on all CPUs.
    pub fn join(&mut self, mut other: DeferredFlush<M, F, G>) {
        let same = Arc::ptr_eq(&self.paging, &other.paging);
        if same && (self.space, self.root) == (other.space, other.root) {
            let owing = mem::take(&mut other.owing);
            self.owing.join(self.paging.machine(), owing);
        }
    }

    fn is_of(&self, tables: &PageTables<M, F, G>) -> bool {
        Arc::ptr_eq(&self.paging, tables.paging())
            && (self.space, self.root) == (tables.space(), tables.root())
    }
}

impl<M: Machine, F: Format, G: Concurrent> Drop for DeferredFlush<M, F, G> {
    fn drop(&mut self) {
        let machine = self.paging.machine();
        if let Some(what) = self.owing.flush(self.space) {
            machine.flush_on(&machine.online(), what);
        }
        mem::take(&mut self.owing).retire::<M, F, G>(&self.paging);
    }
}

impl<M: Machine, F: Format, G: Concurrent> core::fmt::Debug for DeferredFlush<M, F, G> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("DeferredFlush")
            .field("space", &self.space)
            .field("owing", &self.owing)
            .finish()
    }
}

/// A flush that is owed by page tables, and the tables that wait for it.
///
/// Dropping it pays it, as [`flush`](PendingFlush::flush) does. Until then frames that were
/// unmapped must not be given back, nor addresses handed out (I4, I5).
#[must_use = "stale translations remain until it is flushed"]
pub struct PendingFlush<'p, M: Machine, F: Format, G: Concurrent> {
    space: &'p PageTables<M, F, G>,
    pub(crate) gather: TlbGather,
}

impl<'p, M: Machine, F: Format, G: Concurrent> PendingFlush<'p, M, F, G> {
    pub(crate) fn nothing(space: &'p PageTables<M, F, G>) -> Self {
        PendingFlush { space, gather: TlbGather::default() }
    }

    /// Whether nothing is owed.
    pub fn is_nothing(&self) -> bool {
        self.gather.what.is_none()
    }

    /// The addresses that must be flushed; `None` if nothing is owed.
    pub fn range(&self) -> Option<VirtRange> {
        self.gather.what.map(|(range, _)| range)
    }

    /// Flushes on the CPUs that use the space, and waits for them; retires the tables. Not with a
    /// lock held that an interrupt handler takes. One interrupt for each of these CPUs; nothing if
    /// nothing is owed. Where tables went, a locked instruction more on a line of this CPU, and one
    /// when they come back: what they belong to stays as long as they wait.
    pub fn flush(self) {}

    /// Keeps the debt for later, to be paid by [`PageTables::pay`] or [`PageTables::paid`].
    pub fn defer(mut self) -> DeferredFlush<M, F, G> {
        let mut deferred = self.space.deferred_flush();
        deferred.owing = mem::take(&mut self.gather);
        deferred
    }

    /// Leaves the flush to somebody else: returns the addresses that must be flushed on all CPUs
    /// that use the space, as [`range`](PendingFlush::range) does. Where tables were unlinked they
    /// wait for it, so then it is paid here, and nothing is left to do. No atomic
    /// read-modify-write, no allocation.
    ///
    /// For the kernel's tables, which stay: addresses that are vast need not be flushed to be used
    /// no more.
    ///
    /// # Safety
    /// The caller sees to it that all these CPUs flush, before he gives the frames that were
    /// unmapped to anybody who does not bear a stale translation, or the addresses to anybody (I4,
    /// I5).
    pub unsafe fn leave(mut self) -> Option<VirtRange> {
        if self.gather.tables {
            return None;
        }
        mem::take(&mut self.gather).what.map(|(range, _)| range)
    }

    /// Adds it to a debt of the same tables: one flush for many changes. To one of other tables it
    /// is not added, but paid at once. No atomic read-modify-write, no allocation.
    pub fn defer_to(mut self, deferred: &mut DeferredFlush<M, F, G>) {
        if deferred.is_of(self.space) {
            deferred.owing.join(self.space.machine(), mem::take(&mut self.gather));
        }
    }
}

impl<M: Machine, F: Format, G: Concurrent> Drop for PendingFlush<'_, M, F, G> {
    fn drop(&mut self) {
        self.space.pay_owing(mem::take(&mut self.gather));
    }
}

impl<M: Machine, F: Format, G: Concurrent> core::fmt::Debug for PendingFlush<'_, M, F, G> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        self.gather.fmt(f)
    }
}

impl<M: Machine, F: Format, G: Concurrent> PageTables<M, F, G> {
    /// A debt of these tables in which nothing is owed yet: to add to, by
    /// [`PendingFlush::defer_to`].
    pub fn deferred_flush(&self) -> DeferredFlush<M, F, G> {
        DeferredFlush {
            paging: Arc::clone(self.paging()),
            space: self.space(),
            root: self.root(),
            owing: TlbGather::default(),
            engine: PhantomData,
        }
    }

    /// Pays a debt of these tables: flushes on the CPUs that use the space, and retires what was
    /// unlinked. Context as for [`PendingFlush::flush`]. A debt of other tables is paid on all
    /// CPUs.
    pub fn pay(&self, mut deferred: DeferredFlush<M, F, G>) {
        if deferred.is_of(self) {
            self.pay_owing(mem::take(&mut deferred.owing));
        }
    }

    fn pay_owing(&self, owing: TlbGather) {
        if let Some(what) = owing.flush(self.space()) {
            self.machine().flush_on(&self.users(), what);
        }
        owing.retire::<M, F, G>(self.paging());
    }

    /// A debt that somebody else has paid: all CPUs that use the space have flushed what
    /// [`DeferredFlush::range`] says, upper-level entries included.
    ///
    /// # Safety
    /// They have, since the debt came to be.
    pub unsafe fn paid(&self, mut deferred: DeferredFlush<M, F, G>) {
        mem::take(&mut deferred.owing).retire::<M, F, G>(&deferred.paging);
    }

    /// The CPUs that may hold translations of these tables.
    pub(crate) fn users(&self) -> CpuSet {
        match self.space() {
            Some(_) => self.cpus(),
            None => self.machine().online(),
        }
    }
}

/// The grace period of a chain is over.
///
/// # Safety
/// `first` is the memory of the first table of a chain that [`TlbGather::retire`] has made ready,
/// and nobody walks any of them.
unsafe fn give_back<M: Machine, F: Format>(first: NonNull<()>) {
    let word = |index| {
        // SAFETY: a word of the table, which only atomic words are made of.
        let word = unsafe { first.cast::<AtomicU64>().add(index).as_ref() };
        // Relaxed: the engine's promise orders what was written before `retire`.
        noted(word.load(Ordering::Relaxed))
    };
    let owner = (word(OWNER_LOW) | word(OWNER_HIGH) << 32) as usize;
    let owner: *const Paging<M, F> = ptr::with_exposed_provenance(owner);
    let kept = CpuId::new(word(KEPT) as usize);
    // SAFETY: `retire` left both here; the `Paging` stays until it is let go, below.
    unsafe { give_back_to(&*owner, Frame::new(word(SELF))) };
    if let Some(kept) = kept {
        // SAFETY: as `retire` left it here; once for each chain, and the reference is gone.
        unsafe { Paging::let_go(owner, kept) };
    }
}

/// Gives back the tables of a chain, from the first on.
///
/// # Safety
/// As for [`give_back`].
unsafe fn give_back_to<M: Machine, F: Format>(paging: &Paging<M, F>, mut next: Option<Frame>) {
    let mut words = 0..KEPT + 1;
    while let Some(table) = next {
        let entry = |index| -> Option<Entry<'_, M>> {
            // SAFETY: it is a table still, and ours alone.
            unsafe { paging.machine().entry(table, index) }
        };
        next =
            entry(NEXT).and_then(|entry| noted(entry.load()).checked_sub(1)).and_then(Frame::new);
        words.by_ref().filter_map(entry).for_each(|entry| entry.store(0));
        words = NEXT..NEXT + 1;
        paging.came_back();
        // SAFETY: it is empty, as it was; nobody walks it. An error would mean that it never was a
        // frame.
        let _ = unsafe { paging.lists().free(QUICK_TABLE, table) };
    }
}
