//! The contents of a pending flush: the changed range, the CPUs that may have cached it, and the
//! unlinked tables that wait for the flush.
//!
//! # Where unlinked tables wait
//! In themselves: as a chain, linked by a [`note`] in word 0 of each table. A note is an absent
//! entry to hardware and software alike, and an unlinked table has nothing but absent entries. So
//! nothing is allocated. To the grace-period engine a chain is one piece, however long it is, and a
//! started CPU has memory in hand for some dozens of pieces (`grace::quiescent`). So no table is
//! lost when the heap is exhausted. After the grace period the notes are cleared, and the tables
//! are in their constructed state again (I6).

use crate::format::{Format, note, noted};
use crate::leave_table::leave_table;
use crate::quick::QUICK_TABLE;
use crate::shared::Paging;
use alloc::sync::Arc;
use core::num::NonZeroU64;
use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicU64, Ordering};
use grace::Concurrent;
use machine::{Asid, CpuId, Entry, Flush, Frame, Machine, PageSize, VirtRange};

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
    pub(crate) what: Option<(VirtRange, PageSize)>,
    /// The first and the last table of the chain.
    chain: Option<(Frame, Frame)>,
    /// Whether a table was unlinked, or left to others.
    pub(crate) tables: bool,
    pub(crate) state: GatherState,
    /// The tables of the chain.
    pub(crate) unlinked: u32,
    /// Shared tables that this space has left, with their levels. Their shares end after the flush.
    left: [LeftTable; LEFT],
}

bitflags::bitflags! {
    /// The state of a flush while it gathers. In one byte, since a flush is often moved.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub(crate) struct GatherState: u8 {
        /// Tables that become empty stay linked.
        const KEEPS_TABLES = 1;
        /// A page was cleared under a lock that is still held, where an entry must be broken before
        /// another one is made.
        const BROKE = 2;
    }
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
    pub(crate) fn join<M: Machine>(&mut self, machine: &M, other: TlbGather) {
        if let Some((range, stride)) = other.what {
            self.add(range, stride);
        }
        self.tables |= other.tables;
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

    /// Adds a changed page.
    #[inline]
    pub(crate) fn add(&mut self, page: VirtRange, size: PageSize) {
        let Some((before, stride)) = self.what else {
            self.what = Some((page, size));
            return;
        };
        // Most pages follow the one before.
        if size == stride
            && before.start().checked_add(before.len()) == Some(page.start())
            && let Some(both) = VirtRange::new(before.start(), before.len() + page.len())
        {
            self.what = Some((both, stride));
            return;
        }
        // No range wraps.
        let last = |range: VirtRange| range.start().get() + (range.len() - 1);
        let start = before.start().min(page.start());
        let last = last(before).max(last(page));
        // The very last byte of the address space may fall outside: the range still contains part
        // of its page.
        let len = (last - start.get()).saturating_add(1);
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
    pub(crate) fn is_alone(&self) -> bool {
        self.left.iter().any(|left| left.0.is_some())
    }

    /// The TLB flush that this needs, if any.
    pub(crate) fn flush(&self, space: Option<Asid>) -> Option<Flush> {
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
