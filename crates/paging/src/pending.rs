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

use crate::format::Format;
use crate::shared::Paging;
use crate::tables::PageTables;
use crate::tags::Whose;
use crate::tlb_gather::{GatherState, TlbGather};
use alloc::sync::Arc;
use core::marker::PhantomData;
use core::mem;
use core::ptr;
use grace::Concurrent;
use machine::{Flush, Frame, Machine, VirtRange};

/// A pending flush that is kept for later. It has no lifetime, so it can be stored with the
/// tables.
///
/// [`PageTables::flush_deferred`] performs it, on the CPUs that use the space. Dropping it flushes
/// on all running CPUs: always correct, but expensive. Until the flush is done, unmapped frames
/// must not be given back, and addresses must not be reused (I4, I5). Unlinked tables wait in it.
///
/// Cost: making one takes a locked instruction on a cache line that all CPUs share. So make one
/// with [`PageTables::deferred_flush`], and add to it with [`PendingFlush::defer_to`], which needs
/// none.
///
/// # Misuse
/// It knows its tables: with other tables it flushes all running CPUs. Tables that were dropped
/// have flushed everything.
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
///
/// # Misuse
/// Forgotten, it leaks the tables that wait in it. The frames are covered by the promise to the
/// unsafe call that unmapped them. It may be dropped on another CPU, and under a guard.
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
        self.gather.state.set(GatherState::KEEPS_TABLES, keep);
    }

    /// Whether another CPU than this one uses the tables, so that the flush may interrupt it. Never
    /// where the hardware broadcasts flushes ([`machine::Tlb::interrupts`]). A snapshot, which does
    /// not regard holders of pages. Cost: that of [`PageTables::cpus`].
    pub fn interrupts_others(&self) -> bool {
        let interrupts = self.space.machine().interrupts();
        !self.is_nothing() && interrupts && self.space.has_other_users()
    }

    /// Flushes cleared pages with the lock of their table held, where an entry must be broken
    /// before another one is made: a fault may store a new page once the lock is given up. The
    /// flush stays pending for the tables that are unlinked next.
    ///
    /// Cost: nothing for other formats. For these, a second flush of the range, which interrupts
    /// no CPU where the hardware broadcasts flushes.
    #[inline(always)]
    pub(crate) fn flush_broken(&mut self) {
        if F::BREAK_BEFORE_MAKE && self.gather.state.contains(GatherState::BROKE) {
            self.gather.state.remove(GatherState::BROKE);
            self.space.flush_of(&self.gather);
        }
    }

    /// Flushes on this CPU only, at once, as [`PageTables::flush_page_here`] does. The flush of all
    /// CPUs stays pending.
    pub fn flush_here(&self) {
        if let Some(what) = self.gather.flush(self.space.space()) {
            self.space.machine().flush(what);
        }
    }

    /// Performs what is pending so far.
    pub(crate) fn flush_now(&mut self) {
        self.space.flush_gather(mem::take(&mut self.gather));
    }

    /// Flushes on the CPUs that use the space, and waits for them; then retires the unlinked
    /// tables. Must not be called with a lock held that an interrupt handler takes.
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
    /// instead. No atomic read-modify-write, no allocation.
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
        let (cpus, space) = self.users();
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
