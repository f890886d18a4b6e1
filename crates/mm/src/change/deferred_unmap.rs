//! Unmapping by TLB grace periods: unmapped pages wait until no CPU can have a translation.
//!
//! Threads that map, touch and unmap pay for the shootdown: each munmap interrupts every CPU of the
//! space. Under [`UnmapPolicy::Grace`] a munmap of private anonymous memory interrupts none. Its
//! frames, its unlinked page tables and its addresses *wait* for a TLB grace period
//! ([`paging::TlbGrace`]).
//!
//! # Why it is right
//! *Frames and tables* (I3, I5). The period is numbered after the entries were cleared. When it has
//! ended, every CPU that takes part has flushed everything since. A CPU that is idle then has no
//! tables of the space active, and flushes before it takes part again
//! ([`AddressSpace::activate`](crate::AddressSpace::activate)). A frame keeps the reference of its
//! entry while it waits. So no fault takes it over from a forked sibling, and pins stay as they
//! are.
//!
//! *Addresses* (I4). No VMA overlaps a range that waits. Maps without an address are placed next to
//! it ([`vma::Host::waiting`]). Each step that gives a range a VMA claims it
//! ([`vma::Host::admit`]): pages that wait there are flushed first, with IPIs. A fault at such an
//! address finds a hole.
//!
//! *Other spaces.* The entries are cleared already, so a child that shares tables after a fork does
//! not reach what waits; it stays with the parent. exec and the end of the space flush it.
//!
//! *Objects are left out.* Truncation, write-back and seals promise that no CPU uses a page any
//! more when they return. They find the spaces that map an object by their VMAs. A range that waits
//! has none, so a CPU could still write to a page that is being written back.
//!
//! *All other calls flush at once*: mprotect, MADV_DONTNEED, mremap, brk, maps over others. They
//! promise an effect at their return, and some of them use the range again.
//!
//! # When a munmap interrupts nevertheless
//!
//! | case | code |
//! |---|---|
//! | a part of the range is a map of an object, also a private map of a file | `may_wait` of `vma::Work::Unmap` |
//! | the range cuts a huge page, which is split first | `PageHost::split_ends` |
//! | after a fork, tables of the range or at its ends are still shared with the other space | `Core::leave_shared`; `unshare_ends` of `paging` |
//! | the bounds below are reached, or there is no memory for the lists | `Waiting::defer`, `WaitLists::is_full` |
//! | a call lacks memory while something waits | `PageHost::prepare`, `AddressSpace::ends_wait` |
//!
//! Each interrupts only the CPUs that have the space active. `unmap_policy/effects.rs` counts them.
//!
//! # Bounds
//! [`WAITING_PAGES`](crate::thresholds::WAITING_PAGES) frames and tables wait at most, so that
//! memory that is free for the program is not missing elsewhere, and
//! [`WAITING_RANGES`](crate::thresholds::WAITING_RANGES) ranges in each of two lists, so that an
//! insertion moves at most 4 KiB. Beyond that, one flush of the CPUs that use the space ends the
//! wait: an IPI for each of them, for thousands of pages. So a CPU that does not tick does no harm.
//! Without memory for the lists a munmap flushes at once (I7). Not more tables stay empty than
//! pages have waited in the last periods.
//!
//! # Empty tables
//! A munmap that waits leaves its lowest tables linked, though they are empty. The maps that come
//! next are placed next to it, mostly in the same tables; and when the period has ended, in the
//! same addresses again. So threads that map and unmap make no tables, and none wait. A range that
//! nothing has used for another period loses its empty tables: they are unlinked, and wait for a
//! period in turn. A flush that ends the wait unlinks all. Tables do not stay empty that a fork
//! shares, since a sweep would copy them, nor where huge pages may come.
//!
//! While an unlinked table waits, another one may be linked in its place. A CPU that still reaches
//! the old one finds it empty, and its fault drops the way there
//! ([`FaultOutcome::Spurious`](crate::FaultOutcome::Spurious)). So the addresses of tables need not
//! wait.
//!
//! # Cost
//! A munmap: a fence and a load for the number of the period, an uncontended lock, a search in the
//! list of ranges. Ranges that touch are one, so threads that map and unmap have a few. A map: one
//! more search for a gap. When a period has ended, the next call gives back what waited for it,
//! after it has released the mmap lock.

use alloc::sync::Arc;
use core::{
    mem,
    ops::Range,
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
};

use grace::Concurrent;
use machine::{Machine, SharedAccess, Step, lock};
use paging::{DeferredFlush, Format, PageTables, PendingFlush, TlbGrace};
use spin::{Once, mutex::SpinMutex};

use crate::{
    UnmapPolicy,
    addresses::{HUGE, virt},
    change::gather::Gather,
    change::range_list::Ranges,
    change::release::release,
    change::wait_lists::{EndedWait, WaitList, WaitLists, unlink_empty},
    thresholds::KEPT_RANGE_BYTES,
};

/// The unmappings of a space that wait, and its policy. Methods that change or search them need
/// the mmap lock.
pub(crate) struct Waiting<M: Machine, F: Format, G: Concurrent> {
    /// The grace periods of the machine, as soon as they have been set.
    periods: Once<Arc<TlbGrace<M>>>,
    /// Whether munmap waits.
    on: AtomicBool,
    /// Whether empty tables may be linked.
    has_kept: AtomicBool,
    /// The pages and tables that wait; 0 if nothing does.
    pages: AtomicUsize,
    /// Hardly ever waited for: its holder has the mmap lock, or reads a number.
    lists: SpinMutex<WaitLists<M, F, G>>,
}

// Relaxed, for `on`, `has_kept` and `pages` everywhere: the mmap lock orders the accesses of its
// holders, and others only read a number.
impl<M: Machine, F: Format, G: Concurrent> Waiting<M, F, G> {
    pub(crate) fn new() -> Self {
        let lists = SpinMutex::new(WaitLists { idle: Ranges::new(), old: None, new: None });
        let (on, has_kept) = (AtomicBool::new(false), AtomicBool::new(false));
        Waiting { periods: Once::new(), on, has_kept, pages: AtomicUsize::new(0), lists }
    }

    /// That of a forked child: the same policy, and nothing waits.
    pub(crate) fn fork(&self) -> Self {
        let child = Waiting::new();
        if let Some(periods) = self.periods.get() {
            child.periods.call_once(|| Arc::clone(periods));
        }
        child.on.store(self.is_on(), Ordering::Relaxed);
        child
    }

    /// Sets the policy. Returns false, and changes nothing, if it names other periods than before.
    pub(super) fn set(&self, policy: UnmapPolicy<M>) -> bool {
        let on = match policy {
            UnmapPolicy::Immediate => false,
            UnmapPolicy::Grace(periods) => {
                let ours = self.periods.call_once(|| Arc::clone(&periods));
                if !Arc::ptr_eq(ours, &periods) {
                    return false;
                }
                true
            }
        };
        self.on.store(on, Ordering::Relaxed);
        true
    }

    /// The periods, if the space has ever had some.
    pub(crate) fn periods(&self) -> Option<&TlbGrace<M>> {
        self.periods.get().map(|periods| &**periods)
    }

    #[inline]
    pub(super) fn is_on(&self) -> bool {
        self.on.load(Ordering::Relaxed)
    }

    /// The pages and tables that wait. A snapshot.
    #[inline]
    pub(super) fn pages(&self) -> usize {
        self.pages.load(Ordering::Relaxed)
    }

    /// Whether something waits, or empty tables may be linked. A snapshot.
    pub(super) fn has_any(&self) -> bool {
        self.pages() != 0 || self.has_kept.load(Ordering::Relaxed)
    }

    /// The period of the last unmapped range, if it waits. Takes the lock without the mmap lock.
    pub(super) fn newest(&self) -> Option<u64> {
        let lists = self.lists.try_lock()?;
        let newest = lists.new.as_ref().or(lists.old.as_ref());
        newest.map(|list| list.period)
    }

    fn with<T>(&self, machine: &impl Step, work: impl FnOnce(&mut WaitLists<M, F, G>) -> T) -> T {
        let mut lists = lock(machine, &self.lists);
        let done = work(&mut lists);
        self.pages.store(lists.size(), Ordering::Relaxed);
        done
    }

    /// Lets the pages that a sweep of `range` has removed wait. They stay in the gather if its
    /// flush interrupts no other CPU, or if there is no memory.
    pub(super) fn defer<'p>(
        &self,
        gather: &mut Gather<'p, M, F, G>,
        tables: &'p PageTables<M, F, G>,
        range: Range<usize>,
    ) {
        let Some(periods) = self.periods().filter(|_| gather.interrupts_others()) else { return };
        // After the entries were cleared: the period that ends later than all that CPUs have
        // cached.
        let period = periods.target();
        let is_full = self.with(tables.machine(), |lists| {
            let Some(list) = lists.room(tables, period, gather.frames()) else { return false };
            // There is room: `room` has reserved it.
            list.ranges.insert(range);
            gather.wait_in(list);
            lists.is_full()
        });
        if is_full {
            self.relieve(periods, tables);
        }
    }

    /// Too much waits: gives back what waits no more, or ends the wait by a flush.
    fn relieve(&self, periods: &TlbGrace<M>, tables: &PageTables<M, F, G>) {
        let oldest =
            self.with(tables.machine(), |lists| lists.iter().next().map(|list| list.period));
        if oldest.is_some_and(|period| periods.advance(period))
            && let Some(over) = self.take_over(tables)
        {
            over.give_back(tables);
        }
        if self.with(tables.machine(), |lists| lists.is_full()) {
            self.flush(tables);
        }
    }

    /// Takes what waits for periods that have ended. Its addresses are free from now on.
    #[inline]
    pub(crate) fn take_over(&self, tables: &PageTables<M, F, G>) -> Option<EndedWait<M, F, G>> {
        if self.pages() == 0 {
            return None;
        }
        let periods = self.periods()?;
        let (over, unused) = self.with(tables.machine(), |lists| {
            let is_over = |list: &mut WaitList<M, F, G>| periods.is_over(list.period);
            let mut over = [lists.old.take_if(is_over), lists.new.take_if(is_over)];
            let mut unused = [Ranges::new(), Ranges::new()];
            for (list, unused) in over.iter_mut().flatten().zip(&mut unused) {
                list.check_reuse(tables);
                *unused = mem::replace(&mut lists.idle, mem::take(&mut list.ranges));
            }
            (over, unused)
        });
        let any = over.iter().any(Option::is_some);
        if any && self.has_kept.load(Ordering::Relaxed) {
            self.unlink_unused(periods, tables, &unused);
        }
        any.then_some(EndedWait(over))
    }

    /// Unlinks the empty tables of ranges that have been free for a period, where nothing has
    /// waited since. They wait in turn.
    fn unlink_unused(
        &self,
        periods: &TlbGrace<M>,
        tables: &PageTables<M, F, G>,
        unused: &[Ranges],
    ) {
        let mut pending = tables.no_flush();
        for mut range in unused.iter().flat_map(Ranges::iter) {
            while !range.is_empty() {
                let used = self.with(tables.machine(), |lists| {
                    let all = lists.ranges().filter_map(|ranges| ranges.overlapping(&range));
                    all.min_by_key(|used| used.start)
                });
                // The tables that it shares with what is used stay.
                let until = used.as_ref().map_or(range.end, |used| used.start & !(HUGE - 1));
                unlink_empty(tables, range.start..until.max(range.start), &mut pending);
                range.start = used.map_or(range.end, |used| used.end.next_multiple_of(HUGE));
            }
        }
        self.defer_tables(periods, pending, tables);
    }

    /// Unlinks all empty tables that were kept. They wait.
    pub(crate) fn unlink_kept(&self, tables: &PageTables<M, F, G>) {
        let Some(periods) = self.periods() else { return };
        if !self.has_kept.swap(false, Ordering::Relaxed) {
            return;
        }
        let mut pending = tables.no_flush();
        self.with(tables.machine(), |lists| {
            lists.ranges().flat_map(Ranges::iter).for_each(|range| {
                unlink_empty(tables, range, &mut pending);
            });
            lists.idle = Ranges::new();
        });
        self.defer_tables(periods, pending, tables);
    }

    /// Lets unlinked tables wait. Their addresses need not: a CPU that still reaches one finds it
    /// empty, and its fault drops the way there.
    fn defer_tables<'p>(
        &self,
        periods: &TlbGrace<M>,
        pending: PendingFlush<'p, M, F, G>,
        tables: &'p PageTables<M, F, G>,
    ) {
        if !pending.interrupts_others() {
            return;
        }
        let period = periods.target();
        self.with(tables.machine(), |lists| {
            if let Some(list) = lists.room(tables, period, 0) {
                pending.defer_to(&mut list.flush);
            }
        });
    }

    /// Whether a munmap that waits leaves empty tables linked, for the maps that come next: not if
    /// a fork shares them, not where a huge page could take their place, and not of a long range,
    /// whose sweeps would look at each of their entries.
    pub(super) fn keeps_tables(
        &self,
        tables: &PageTables<M, F, G>,
        range: &Range<usize>,
        huge: bool,
    ) -> bool {
        let mut others = tables.cpus();
        others.remove(tables.machine().current());
        let short = range.len() <= KEPT_RANGE_BYTES;
        let keeps = short && !huge && !tables.forks() && !others.is_empty();
        if keeps {
            self.has_kept.store(true, Ordering::Relaxed);
        }
        keeps
    }

    /// Ends the wait: flushes on the CPUs that use the space, and gives everything back. Returns
    /// the pages.
    pub(crate) fn flush(&self, tables: &PageTables<M, F, G>) -> usize {
        if !self.has_any() {
            return 0;
        }
        self.unlink_kept(tables);
        let [old, new] = self.with(tables.machine(), |lists| [lists.old.take(), lists.new.take()]);
        let mut pages = 0;
        let mut all: Option<DeferredFlush<M, F, G>> = None;
        let mut rest = [const { None }; 2];
        for (list, place) in old.into_iter().chain(new).zip(&mut rest) {
            pages += list.size();
            let WaitList { frames, ranges, flush, .. } = list;
            match &mut all {
                Some(all) => all.join(flush),
                None => all = Some(flush),
            }
            *place = Some((frames, ranges));
        }
        if let Some(all) = all {
            tables.flush_deferred(all);
        }
        for (frames, ranges) in rest.into_iter().flatten() {
            for range in ranges.iter().filter_map(virt) {
                tables.check_reuse(range);
            }
            // SAFETY: the flush is done. Only CPUs that use the space can have had translations.
            unsafe { release(tables, frames) };
        }
        pages
    }

    /// A range that waits and overlaps `range`, with all that touches it.
    #[inline]
    pub(super) fn overlapping(
        &self,
        machine: &impl Step,
        range: &Range<usize>,
    ) -> Option<Range<usize>> {
        if self.pages() == 0 {
            return None;
        }
        machine.step(SharedAccess::Other);
        self.with(machine, |lists| {
            let mut found = lists.iter().find_map(|list| list.ranges.overlapping(range))?;
            // The lists of two periods take turns.
            for _ in 0..2 {
                for list in lists.iter() {
                    found = list.ranges.extended(found);
                }
            }
            Some(found)
        })
    }

    /// The range from the lowest to the highest address that waits.
    pub(super) fn hull(&self, machine: &impl Step) -> Option<Range<usize>> {
        self.with(machine, |lists| {
            let hulls = lists.iter().filter_map(|list| list.ranges.hull());
            hulls.reduce(|one, other| one.start.min(other.start)..one.end.max(other.end))
        })
    }
}

impl<M: Machine, F: Format, G: Concurrent> Drop for Waiting<M, F, G> {
    fn drop(&mut self) {
        debug_assert_eq!(self.pages(), 0, "the space has ended without `flush`");
    }
}
