//! Pending invalidation after entries have changed: a TLB flush, and the tables to free after it
//! (Linux: `mmu_gather`).
//!
//! A changed entry is only half of the work. Until the CPUs have dropped their cached copies, they
//! use the old translation (I5). They may also still walk an unlinked table, from a cached
//! upper-level entry (I3). So the cursor returns a [`PendingFlush`]. It flushes, and then retires
//! the unlinked tables. After the flush no hardware walks them; after the last guard is gone, no
//! software does.
//!
//! # A dropped flush is performed
//! A [`PendingFlush`] flushes when it is dropped. A [`DeferredFlush`], which is kept for later,
//! knows its address space, and flushes when it is dropped, too. It flushes on every CPU then: the
//! tables may be gone, so it cannot ask them for their CPUs.
//!
//! # A forgotten flush leaks
//! Safe code can forget both ([`core::mem::forget`]). Then no flush is done, and:
//! - The tables in it are never retired. They stay unlinked, dead and empty. A walk that still
//!   reaches them finds nothing. They are never used again, so none is walked as something else
//!   (I3). [`Paging::waiting`] counts them from then on.
//! - The unmapped frames are not in it. Their owner learns them from the call that unmapped them.
//!   That call is unsafe: its caller promises not to give them back, nor to map the range again,
//!   before the flush is done. A forgotten value is not a flush, so a caller that forgets it has to
//!   leak the frames and the addresses.
//!
//! Why the tables do not record their own pending flush: the record would be a range, kept until
//! every change in it has been flushed. A bit in a table's word can be set under the lock that is
//! held anyway, but must be cleared under it again: a second walk and a second locked instruction
//! for each table, at each flush. Two changes of one table with separate flushes would need a
//! count. Kernel flushes that are left to a TLB grace period ([`PendingFlush::leave`]) would never
//! clear it. So `map` after `unmap` would flush needlessly, or pay for a count that a correct
//! caller does not need.
//!
//! # Where unlinked tables wait
//! In themselves: as a chain, linked by a [`note`] in word 0 of each table. A note is an absent
//! entry to hardware and software alike, and an unlinked table has nothing but absent entries. So
//! nothing is allocated. To the grace-period engine a chain is one piece, however long it is, and a
//! started CPU has memory in hand for some dozens of pieces (`grace::quiescent`). So no table is
//! lost when the heap is exhausted. After the grace period the notes are cleared, and the tables
//! are in their constructed state again (I6).

use crate::cursor::leave_table;
use crate::format::{Format, note, noted};
use crate::holder::Targets;
use crate::paging::Paging;
use crate::quick::QUICK_TABLE;
use crate::tables::PageTables;
use crate::tags::Whose;
use alloc::sync::Arc;
use core::marker::PhantomData;
use core::mem;
use core::num::NonZeroU64;
use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicU64, Ordering};
use grace::Concurrent;
use machine::{Asid, CpuId, CpuSet, Entry, Flush, Frame, Machine, PageSize, VirtRange};

/// Words of the tables in a chain. Each table holds the next table's frame plus one; the first
/// table holds the rest.
pub(crate) const NEXT: usize = 0;
const OWNER_LOW: usize = 1;
const OWNER_HIGH: usize = 2;
const SELF: usize = 3;
const KEPT: usize = 4;

/// Pending invalidation of one address space, without the identity of that space.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct TlbGather {
    /// The range to flush, and the smallest page size in it.
    what: Option<(VirtRange, PageSize)>,
    /// The first and the last table of the chain.
    chain: Option<(Frame, Frame)>,
    /// Whether a table was unlinked, or left to others.
    tables: bool,
    /// The CPUs that the flush must reach.
    targets: Targets,
    /// Whether tables that become empty stay linked.
    pub(crate) keeps_tables: bool,
    /// The tables of the chain.
    unlinked: u32,
    /// Shared tables that this space has left, with their levels. Their shares end after the flush.
    left: [LeftTable; LEFT],
}

/// The most shared tables that a space leaves before a flush: those of one way of four levels.
const LEFT: usize = 3;

/// A shared table that was left, and its level; or none. In one word, since a flush is often moved.
#[derive(Clone, Copy, Debug, Default)]
struct LeftTable(Option<NonZeroU64>);

impl LeftTable {
    fn new(table: Frame, level: u8) -> Self {
        LeftTable(NonZeroU64::new(table.number() << 4 | u64::from(level) << 1 | 1))
    }

    fn get(self) -> Option<(Frame, u8)> {
        let word = self.0?.get();
        Some((Frame::new(word >> 4)?, (word >> 1 & 7) as u8))
    }
}

impl TlbGather {
    /// Merges `other` into this one.
    fn join<M: Machine>(&mut self, machine: &M, other: TlbGather) {
        if let Some((range, stride)) = other.what {
            self.add(range, stride);
        }
        self.tables |= other.tables;
        self.targets.join(other.targets);
        self.unlinked = self.unlinked.saturating_add(other.unlinked);
        self.chain = match (self.chain, other.chain) {
            (Some((first, last)), Some((next, end))) => {
                // SAFETY: a table of this chain. It is unlinked and waits.
                if let Some(entry) = unsafe { machine.entry(last, NEXT) } {
                    entry.store(note(next.number() + 1));
                }
                Some((first, end))
            }
            (mine, theirs) => mine.or(theirs),
        };
    }

    /// Adds a changed page, of which any CPU may have a translation.
    pub(crate) fn add(&mut self, page: VirtRange, size: PageSize) {
        self.add_held(page, size, Targets::ALL);
    }

    /// Any CPU may have a translation of a page that was added.
    pub(crate) fn target_all(&mut self) {
        self.targets = Targets::ALL;
    }

    /// Adds a changed page, of which these CPUs may have a translation.
    pub(crate) fn add_held(&mut self, page: VirtRange, size: PageSize, targets: Targets) {
        self.targets.join(targets);
        let Some((before, stride)) = self.what else {
            self.what = Some((page, size));
            return;
        };
        let start = before.start().min(page.start());
        let last = before.last().max(page.last()).unwrap_or(start);
        // The very last byte of the address space may fall outside: the range still contains part
        // of its page.
        let len = (last.get() - start.get()).saturating_add(1);
        let hull = VirtRange::new(start, len).unwrap_or(before);
        self.what = Some((hull, stride.min(size)));
    }

    /// Adds an unlinked table. The caller also adds a page that the table decided about.
    pub(crate) fn add_table<M: Machine>(&mut self, machine: &M, table: Frame) {
        self.tables = true;
        self.unlinked = self.unlinked.saturating_add(1);
        // SAFETY: it is unlinked, and only the owner of this chain gives it back.
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

    /// Adds a shared table that this space has left. The caller also adds the addresses that the
    /// table decided about, and has asked whether there is room.
    pub(crate) fn add_left(&mut self, table: Frame, level: u8) {
        self.tables = true;
        let room = self.left.iter_mut().find(|left| left.0.is_none());
        debug_assert!(room.is_some(), "the caller has not asked for room");
        if let Some(room) = room {
            *room = LeftTable::new(table, level);
        }
    }

    /// Whether there is no room for another shared table.
    pub(crate) fn is_full(&self) -> bool {
        self.left.iter().all(|left| left.0.is_some())
    }

    /// Cached upper-level entries must go, too.
    pub(crate) fn drop_uppers(&mut self) {
        self.tables = true;
    }

    /// Whether it must be performed by itself, and not be joined to another one.
    fn is_alone(&self) -> bool {
        self.left.iter().any(|left| left.0.is_some())
    }

    /// The only CPUs that may have cached what has changed; `None` if any may have it. Any may have
    /// cached the way to an unlinked table.
    fn holders(&self) -> Option<CpuSet> {
        self.targets.cpus().filter(|_| !self.tables)
    }

    /// The TLB flush that this needs, if any.
    fn flush(&self, space: Option<Asid>) -> Option<Flush> {
        let (range, stride) = self.what?;
        Some(Flush::Range { space, range, stride, tables: self.tables })
    }

    /// Retires the tables, and ends the shares of those that were left. No hardware of this space
    /// walks them any more.
    pub(crate) fn retire<M: Machine, F: Format, G: Concurrent>(self, paging: &Arc<Paging<M, F>>) {
        for (table, level) in self.left.into_iter().filter_map(LeftTable::get) {
            leave_table::<M, F, G>(paging, table, level);
        }
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
        // SAFETY: the tables of the chain are unlinked, and each is in one chain. After the flush
        // no hardware walks them. `give_back` may run on any CPU.
        unsafe { G::retire(&guard, ptr.cast(), give_back::<M, F>) };
    }
}

/// A pending flush that is kept for later. It has no lifetime, so it can be stored beside the
/// tables.
///
/// [`PageTables::flush_deferred`] performs it, on the CPUs that use the space. Dropping it flushes
/// on all running CPUs: always correct, but expensive. Until the flush is done, unmapped frames
/// must not be given back, and addresses must not be reused (I4, I5). Unlinked tables wait in it.
///
/// Cost: making one takes a locked instruction on a cache line that all CPUs share. So make one
/// with [`PageTables::deferred_flush`], and add to it with [`PendingFlush::defer_to`], which needs
/// none.
#[must_use = "dropping it flushes on all CPUs; `PageTables::flush_deferred` does on those that \
     use the space"]
pub struct DeferredFlush<M: Machine, F: Format, G: Concurrent> {
    paging: Arc<Paging<M, F>>,
    /// It tells what to flush. With the root it identifies the tables.
    whose: Whose,
    root: Frame,
    gather: TlbGather,
    engine: PhantomData<fn() -> G>,
}

impl<M: Machine, F: Format, G: Concurrent> DeferredFlush<M, F, G> {
    /// Whether nothing is pending.
    pub fn is_nothing(&self) -> bool {
        self.gather.what.is_none()
    }

    /// The addresses that must be flushed; `None` if nothing is pending.
    pub fn range(&self) -> Option<VirtRange> {
        self.gather.what.map(|(range, _)| range)
    }

    /// The unlinked tables that wait in it.
    pub fn tables(&self) -> usize {
        self.gather.unlinked as usize
    }

    /// Merges another deferred flush of the same tables into this one. The range also covers the
    /// gap between the two. A deferred flush of other tables is performed at once instead, on all
    /// CPUs.
    pub fn join(&mut self, mut other: DeferredFlush<M, F, G>) {
        let same = Arc::ptr_eq(&self.paging, &other.paging);
        let same = same && (self.whose, self.root) == (other.whose, other.root);
        if same && !other.gather.is_alone() {
            let gather = mem::take(&mut other.gather);
            self.gather.join(self.paging.machine(), gather);
        }
    }

    fn is_of(&self, tables: &PageTables<M, F, G>) -> bool {
        Arc::ptr_eq(&self.paging, tables.paging())
            && (self.whose, self.root) == (tables.whose(), tables.root())
    }
}

impl<M: Machine, F: Format, G: Concurrent> Drop for DeferredFlush<M, F, G> {
    fn drop(&mut self) {
        let machine = self.paging.machine();
        let what = match self.whose {
            Whose::Kernel => self.gather.flush(None),
            Whose::Tag(asid) => self.gather.flush(Some(asid)),
            // The tag of tables that may be gone is not known.
            Whose::Number(_) => self.gather.what.map(|_| Flush::All),
        };
        if let Some(what) = what {
            machine.flush_on(&machine.online(), what);
        }
        mem::take(&mut self.gather).retire::<M, F, G>(&self.paging);
    }
}

impl<M: Machine, F: Format, G: Concurrent> core::fmt::Debug for DeferredFlush<M, F, G> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("DeferredFlush")
            .field("whose", &self.whose)
            .field("gather", &self.gather)
            .finish()
    }
}

/// A pending flush of page tables, and the unlinked tables that wait for it (Linux: `mmu_gather`).
///
/// Dropping it performs it, as [`flush`](PendingFlush::flush) does. Until then unmapped frames must
/// not be given back, and addresses must not be reused (I4, I5).
#[must_use = "stale translations remain until it is flushed"]
pub struct PendingFlush<'p, M: Machine, F: Format, G: Concurrent> {
    space: &'p PageTables<M, F, G>,
    pub(crate) gather: TlbGather,
}

impl<'p, M: Machine, F: Format, G: Concurrent> PendingFlush<'p, M, F, G> {
    pub(crate) fn nothing(space: &'p PageTables<M, F, G>) -> Self {
        PendingFlush { space, gather: TlbGather::default() }
    }

    /// Whether it is of these tables.
    pub(crate) fn is_of(&self, tables: &PageTables<M, F, G>) -> bool {
        ptr::eq(self.space, tables)
    }

    /// Whether nothing is pending.
    pub fn is_nothing(&self) -> bool {
        self.gather.what.is_none()
    }

    /// The addresses that must be flushed; `None` if nothing is pending.
    pub fn range(&self) -> Option<VirtRange> {
        self.gather.what.map(|(range, _)| range)
    }

    /// Whether sweeps that add to it from now on leave tables of programs linked that become empty,
    /// so that a new page there needs no table. At first they do not, and after a flush. A later
    /// sweep of the range that does not unlinks those that are empty then.
    pub fn keep_tables(&mut self, keep: bool) {
        self.gather.keeps_tables = keep;
    }

    /// Whether another CPU than this one uses the tables, so that the flush may interrupt it. A
    /// snapshot, which does not regard holders of pages. Cost: that of [`PageTables::cpus`].
    pub fn interrupts_others(&self) -> bool {
        !self.is_nothing() && self.space.has_other_users()
    }

    /// Performs what is pending so far.
    pub(crate) fn flush_now(&mut self) {
        self.space.flush_gather(mem::take(&mut self.gather));
    }

    /// Flushes on the CPUs that use the space, and waits for them; then retires the unlinked
    /// tables. Must not be called with a lock held that an interrupt handler takes.
    ///
    /// If all changed pages have a holder (`holder`), and no table was unlinked, it flushes only on
    /// the holders.
    ///
    /// Cost: one IPI for each of these CPUs; nothing if nothing is pending. If tables were
    /// unlinked, one more locked instruction on a cache line of this CPU, and one when they come
    /// back: these keep the [`Paging`] alive while they wait.
    pub fn flush(self) {}

    /// Keeps the flush for later: [`PageTables::flush_deferred`] or
    /// [`PageTables::flushed_elsewhere`] completes it.
    pub fn defer(mut self) -> DeferredFlush<M, F, G> {
        let mut deferred = self.space.deferred_flush();
        deferred.gather = mem::take(&mut self.gather);
        deferred
    }

    /// Leaves the flush to the caller. Returns the addresses to flush on all CPUs that use the
    /// space, as [`range`](PendingFlush::range) does. If tables were unlinked, they wait for the
    /// flush, so it is performed at once, and `None` is returned. No atomic read-modify-write, no
    /// allocation.
    ///
    /// For the kernel's tables, which stay: address space is plentiful, so a range can stay
    /// unflushed until it is reused.
    ///
    /// # Safety
    /// The caller ensures that all these CPUs flush before an unmapped frame goes to a user that a
    /// stale translation could harm, and before the addresses are reused (I4, I5).
    pub unsafe fn leave(mut self) -> Option<VirtRange> {
        if self.gather.tables {
            return None;
        }
        mem::take(&mut self.gather).what.map(|(range, _)| range)
    }

    /// Adds it to a deferred flush of the same tables: one flush for many changes. If `deferred` is
    /// of other tables, or if tables that a fork shares were left, this one is performed at once
    /// instead. No atomic read-modify-write, no
    /// allocation.
    pub fn defer_to(mut self, deferred: &mut DeferredFlush<M, F, G>) {
        if deferred.is_of(self.space) && !self.gather.is_alone() {
            deferred.gather.join(self.space.machine(), mem::take(&mut self.gather));
        }
    }
}

impl<M: Machine, F: Format, G: Concurrent> Drop for PendingFlush<'_, M, F, G> {
    #[inline]
    fn drop(&mut self) {
        // The common case of a fault.
        if !self.is_nothing() || self.gather.tables {
            self.flush_now();
        }
    }
}

impl<M: Machine, F: Format, G: Concurrent> core::fmt::Debug for PendingFlush<'_, M, F, G> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        self.gather.fmt(f)
    }
}

impl<M: Machine, F: Format, G: Concurrent> PageTables<M, F, G> {
    /// An empty pending flush of these tables, to be added to by [`sweep`](Self::sweep). Dropped
    /// empty, it does nothing.
    ///
    /// Cost: no atomic instruction, no allocation.
    pub fn no_flush(&self) -> PendingFlush<'_, M, F, G> {
        PendingFlush::nothing(self)
    }

    /// An empty deferred flush of these tables, to be added to by [`PendingFlush::defer_to`].
    pub fn deferred_flush(&self) -> DeferredFlush<M, F, G> {
        DeferredFlush {
            paging: Arc::clone(self.paging()),
            whose: self.whose(),
            root: self.root(),
            gather: TlbGather::default(),
            engine: PhantomData,
        }
    }

    /// Performs a deferred flush of these tables: flushes on the CPUs that use the space, and
    /// retires the unlinked tables. Context as for [`PendingFlush::flush`]. A deferred flush of
    /// other tables is performed on all CPUs.
    pub fn flush_deferred(&self, mut deferred: DeferredFlush<M, F, G>) {
        if deferred.is_of(self) {
            self.flush_gather(mem::take(&mut deferred.gather));
        }
    }

    fn flush_gather(&self, gather: TlbGather) {
        if gather.what.is_some() {
            self.flush_of(&gather);
        }
        gather.retire::<M, F, G>(self.paging());
    }

    fn flush_of(&self, gather: &TlbGather) {
        let (mut cpus, space) = self.users();
        // A space, not the kernel: its pages alone have holders.
        if let Some(holders) = gather.holders() {
            cpus = cpus.intersection(&holders);
        }
        if let Some(what) = gather.flush(space) {
            self.machine().flush_on(&cpus, what);
        }
    }

    /// Completes a deferred flush that was performed by other means: retires its unlinked tables.
    ///
    /// # Safety
    /// Since `deferred` was made, all CPUs that use the space have flushed
    /// [`DeferredFlush::range`], cached upper-level entries included.
    pub unsafe fn flushed_elsewhere(&self, mut deferred: DeferredFlush<M, F, G>) {
        mem::take(&mut deferred.gather).retire::<M, F, G>(&deferred.paging);
    }
}

/// Frees the tables of a chain after its grace period.
///
/// # Safety
/// `first` is the memory of the first table of a chain that [`TlbGather::retire`] prepared, and
/// nothing walks any of its tables.
unsafe fn give_back<M: Machine, F: Format>(first: NonNull<()>) {
    let word = |index| {
        // SAFETY: a word of the table. Tables are accessed as atomic words only.
        let word = unsafe { first.cast::<AtomicU64>().add(index).as_ref() };
        // Relaxed: the engine orders it after the writes before `retire`.
        noted(word.load(Ordering::Relaxed))
    };
    let owner = (word(OWNER_LOW) | word(OWNER_HIGH) << 32) as usize;
    let owner: *const Paging<M, F> = ptr::with_exposed_provenance(owner);
    let kept = CpuId::new(word(KEPT) as usize);
    // SAFETY: `retire` stored both. The `Paging` stays alive until `release` below.
    unsafe { give_back_to(&*owner, Frame::new(word(SELF))) };
    if let Some(kept) = kept {
        // SAFETY: `retire` stored it. Called once for each chain, and no reference is left.
        unsafe { Paging::release(owner, kept) };
    }
}

/// Gives back the tables of a chain, from `next` on.
///
/// # Safety
/// As for [`give_back`].
unsafe fn give_back_to<M: Machine, F: Format>(paging: &Paging<M, F>, mut next: Option<Frame>) {
    let mut words = 0..KEPT + 1;
    while let Some(table) = next {
        let entry = |index| -> Option<Entry<'_, M>> {
            // SAFETY: it is still a table, and ours alone.
            unsafe { paging.machine().entry(table, index) }
        };
        next =
            entry(NEXT).and_then(|entry| noted(entry.load()).checked_sub(1)).and_then(Frame::new);
        words.by_ref().filter_map(entry).for_each(|entry| entry.store(0));
        words = NEXT..NEXT + 1;
        paging.came_back();
        // SAFETY: it is empty again, and nothing walks it. An error would mean that it was never a
        // frame.
        let _ = unsafe { paging.lists().free(QUICK_TABLE, table) };
    }
}
