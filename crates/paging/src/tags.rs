//! Tags that the machine's spaces share: an allocator that takes a tag back without a broadcast.
//!
//! A space with [`Tag::Assigned`] gets a tag when a CPU first activates it, and keeps it while
//! there are enough. When none is free, the allocator begins a new *generation*: it takes back each
//! tag that is active on no CPU, all in one pass. A space that has lost its tag gets another one
//! when it is next activated. So a host may have more spaces than tags.
//!
//! # One tag for all CPUs
//! A flush names one tag for all its targets ([`machine::Flush`]), so a space has the same tag on
//! all CPUs. Tags of each CPU's own, as Linux has them on x86-64, need fewer tags, but each target
//! of a flush must look its tag up, and hardware that broadcasts flushes knows only one. Hardware
//! has 4096 tags on x86-64, 256 or 65,536 on AArch64, and the largest machine 256 CPUs.
//!
//! # Why it is right
//! *Entries cached under a tag that was taken back are void: no CPU uses them any more.* So they
//! need no flush, neither when the tag changes hands nor when the old space changes its entries.
//!
//! - **A new owner drops it.** With a new tag, a space's set of CPUs becomes empty. A CPU that is
//!   not in the set activates the space without keeping what is cached under the tag
//!   ([`PageTables::activate`](crate::PageTables::activate)). No CPU flushes more than this tag.
//! - **An active tag is not taken back.** A CPU that activates a space stores the tag in a slot of
//!   its own, executes a fence, and looks whether the space still has the tag. A new generation
//!   marks the tags, executes a fence, and looks at all slots. So either the CPU sees the mark and
//!   waits for the lock, or the generation sees the slot and leaves the tag to its space.
//! - **The old space stays in a slot until the hardware has left it.** Each CPU has two slots, used
//!   in turn. The new space is in one before the other is cleared, which comes after the hardware's
//!   switch. Otherwise flushes of the old space would pass over a CPU that still walks its tables.
//! - **A flush of a space without a tag reaches no CPU**, and needs none: no CPU has the space
//!   active, and each will drop what it has cached. A CPU that activates it meanwhile stores the
//!   new tag, then executes the fence of [`AtomicCpuSet::insert`], then walks. The flush executes
//!   its fence after the changes of entries and then looks for the tag. Either it finds the new
//!   tag, and the CPU in the set, or the CPU's walks see the changed entries. A mark counts as a
//!   tag that the space has.
//!
//! Loom checks the orders (`tags/loom_tests.rs`); `sim` checks that nothing void is used, and that
//! no active tag is taken back (`tests/tags.rs`).
//!
//! # Fixed tags
//! [`Tag::Fixed`] tags are never handed out. The allocator takes over all others when the first
//! space with an assigned tag is made; from then on, a fixed tag that no space has had before is
//! refused ([`Error::Tag`](crate::Error::Tag)). Otherwise a caller could name the tag that another
//! space has.
//!
//! # Too few tags
//! A CPU has at most two tags in its slots. With at least two tags for each CPU, a new generation
//! always finds one. A machine with fewer gives all its spaces with assigned tags the same one, and
//! keeps nothing that is cached under it from one activation to the next.
//!
//! # Cost
//! An activation in the steady state: one fence, two stores in a cache line of this CPU, and a load
//! of the tag's word, which is written when the tag changes hands. A new tag: a lock, and a look at
//! the tags from the last one on until one is free. A new generation: a pass over the tags and the
//! slots of all CPUs, at most once for as many new tags as were free after the last one. No IPI.

#[cfg(all(test, loom))]
mod loom_tests;

use crate::sync::{AtomicBool, AtomicU64, fence};
use alloc::collections::TryReserveError;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64 as Plain, Ordering};
use machine::{Asid, AtomicCpuSet, Checker, CpuId, PerCpu, SharedAccess, Step, Tlb};

/// The tag that a new space gets.
///
/// ```
/// use machine::Asid;
/// use paging::Tag;
/// assert_eq!(Tag::from(Asid(3)), Tag::Fixed(Asid(3)));
/// ```
///
/// # Misuse
/// A fixed tag that another space has matters only in active tables:
/// [`PageTables::activate`](crate::PageTables::activate) promises that there is no other. More
/// spaces than tags cannot exclude each other: a tag is taken back from a space that is active
/// nowhere, and there are two for each CPU; with fewer, the spaces share one that keeps nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Tag {
    /// This tag, as long as the space lives. The host sees to it that no two spaces that are active
    /// have the same.
    Fixed(Asid),
    /// One that the machine's spaces share. It changes while the space is not active. See
    /// [`Paging::tag_generations`](crate::Paging::tag_generations).
    Assigned,
}

impl From<Asid> for Tag {
    fn from(asid: Asid) -> Tag {
        Tag::Fixed(asid)
    }
}

/// In a tag's word: the tag is free, or no space with an assigned tag can have it. Other values are
/// the number of the space that has it, which is even.
const FREE: u64 = 0;
const FIXED: u64 = 1;
/// In a tag's word: a new generation decides whether the space loses it.
const MARK: u64 = 1;

/// Values of `Tags::mode`: no space with an assigned tag was made yet; each has a tag of its own;
/// all have the tag that the rest of the word says.
const CLOSED: u64 = 0;
const OWN: u64 = 1;
const SHARED: u64 = 2;

/// The tags that a CPU has active, or is about to.
#[derive(Default)]
struct Slots([AtomicU64; 2]);

/// The tag of a space.
#[derive(Debug)]
pub(crate) struct Assigned {
    /// The number of the space. No other one has had it.
    id: u64,
    /// The tag that the space had last, or 0. Stored with the lock held.
    tag: AtomicU64,
}

/// How page tables are tagged.
#[derive(Debug)]
pub(crate) enum Tagged {
    Kernel,
    Fixed(Asid),
    /// Other spaces have the tag, too.
    Shared(Asid),
    Own(Assigned),
}

/// Which tables a flush belongs to, together with their root.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Whose {
    Kernel,
    Tag(Asid),
    /// The number of a space with an assigned tag.
    Number(u64),
}

impl Tagged {
    pub(crate) fn whose(&self) -> Whose {
        match self {
            Tagged::Kernel => Whose::Kernel,
            Tagged::Fixed(asid) | Tagged::Shared(asid) => Whose::Tag(*asid),
            Tagged::Own(space) => Whose::Number(space.id),
        }
    }

    /// The tag of a user space, or the last one that it had.
    pub(crate) fn last(&self) -> Option<Asid> {
        match self {
            Tagged::Kernel => None,
            Tagged::Fixed(asid) | Tagged::Shared(asid) => Some(*asid),
            Tagged::Own(space) => Some(Tags::last(space)),
        }
    }
}

pub(crate) struct Tags {
    /// For each tag its word.
    holders: Vec<AtomicU64>,
    slots: PerCpu<Slots>,
    locked: AtomicBool,
    // The rest is changed with the lock held.
    mode: Plain,
    /// The tag at which the search for a free one goes on.
    hand: Plain,
    last_id: Plain,
    generations: Plain,
}

/// The lock, while it is held.
struct Locked<'t>(&'t Tags);

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        // Release: the next holder sees what this one has changed; pairs with `Tags::lock`.
        self.0.locked.store(false, Ordering::Release);
    }
}

impl Tags {
    /// Allocates from the heap.
    pub(crate) fn try_new(tags: u32, cpus: usize) -> Result<Self, TryReserveError> {
        let mut holders = Vec::new();
        holders.try_reserve_exact(tags as usize)?;
        holders.extend((0..tags).map(|tag| {
            // The kernel's.
            AtomicU64::new(if tag == 0 { FIXED } else { FREE })
        }));
        let zero = || Plain::new(0);
        Ok(Tags {
            holders,
            slots: PerCpu::try_new(cpus, |_| Slots::default())?,
            locked: AtomicBool::new(false),
            mode: zero(),
            hand: zero(),
            last_id: zero(),
            generations: zero(),
        })
    }

    fn lock(&self, machine: &impl Step) -> Locked<'_> {
        machine.step(SharedAccess::Other);
        let (free, taken) = (Ordering::Acquire, Ordering::Relaxed);
        // Acquire: sees what the last holder has changed. Relaxed on failure: nothing is read then.
        while self.locked.compare_exchange(false, true, free, taken).is_err() {
            machine.relax();
        }
        Locked(self)
    }

    /// Marks a fixed tag, so that it is never handed out. Returns whether the host may have it.
    pub(crate) fn fix(&self, machine: &impl Step, asid: Asid) -> bool {
        let Some(holder) = self.holders.get(usize::from(asid.0)) else { return false };
        // Relaxed: it stays once it is set.
        if holder.load(Ordering::Relaxed) == FIXED {
            return true;
        }
        let _locked = self.lock(machine);
        // Relaxed, all: the lock orders them.
        if self.mode.load(Ordering::Relaxed) != CLOSED {
            return holder.load(Ordering::Relaxed) == FIXED;
        }
        holder.store(FIXED, Ordering::Relaxed);
        true
    }

    /// How a new space with an assigned tag is tagged. `None` if all tags are fixed.
    pub(crate) fn open(&self, machine: &impl Step) -> Option<Tagged> {
        let _locked = self.lock(machine);
        // Relaxed, all: the lock orders them.
        let mut mode = self.mode.load(Ordering::Relaxed);
        if mode == CLOSED {
            let is_free = |holder: &&AtomicU64| holder.load(Ordering::Relaxed) == FREE;
            let free = self.holders.iter().filter(is_free).count();
            let first = self.holders.iter().position(|holder| is_free(&holder))?;
            mode = match free >= 2 * self.slots.iter().count() {
                true => OWN,
                false => SHARED | (first as u64) << 2,
            };
            self.mode.store(mode, Ordering::Relaxed);
        }
        if mode != OWN {
            return Some(Tagged::Shared(Asid((mode >> 2) as u16)));
        }
        let id = self.last_id.load(Ordering::Relaxed) + 2;
        self.last_id.store(id, Ordering::Relaxed);
        Some(Tagged::Own(Assigned { id, tag: AtomicU64::new(0) }))
    }

    /// The generations that were begun.
    pub(crate) fn generations(&self) -> u64 {
        // Relaxed: a statistic.
        self.generations.load(Ordering::Relaxed)
    }

    /// Gives the space a tag, if it has none, and keeps it for the space until
    /// [`activated`](Self::activated) is called for another one on this CPU. Returns the tag, and
    /// the slot for `activated`. `cpus` is the set of CPUs that have the space's translations under
    /// its tag. Interrupts are disabled.
    pub(crate) fn hold<M: Tlb + Step>(
        &self,
        machine: &M,
        cpu: CpuId,
        space: &Assigned,
        cpus: &AtomicCpuSet,
    ) -> (Asid, usize) {
        // There is no other CPU.
        let Some(Slots(slots)) = self.slots.get(cpu) else { return (Self::last(space), 0) };
        // Relaxed: only this CPU stores its slots. The space that is active now is in the other.
        let free = usize::from(slots[0].load(Ordering::Relaxed) != 0);
        machine.step(SharedAccess::Other);
        // Relaxed: if it is not the latest tag, its word does not have this space's number, or it
        // has the number again, and then Acquire below orders it.
        let tag = space.tag.load(Ordering::Relaxed);
        if tag != 0 {
            machine.step(SharedAccess::Other);
            // Relaxed: the fence orders it.
            slots[free].store(tag, Ordering::Relaxed);
            // SeqCst fence: pairs with that of `begin_generation`. At least one of the two CPUs
            // sees what the other has stored before.
            fence(Ordering::SeqCst);
            machine.step(SharedAccess::Other);
            // Acquire: sees the set of CPUs as it was emptied when the tag was handed out; pairs
            // with the Release of `hand_out`.
            if self.holder(tag).load(Ordering::Acquire) == space.id {
                return (Asid(tag as u16), free);
            }
            // Relaxed: the tag is another space's, which may lose it.
            slots[free].store(0, Ordering::Relaxed);
        }
        let _locked = self.lock(machine);
        // Relaxed, all: the lock orders them.
        let mut tag = space.tag.load(Ordering::Relaxed);
        if tag == 0 || self.holder(tag).load(Ordering::Relaxed) != space.id {
            tag = loop {
                match self.find_free() {
                    Some(tag) => break tag,
                    None => self.begin_generation(machine),
                }
            };
            self.hand_out(tag, space, cpus);
        }
        // A new generation takes the lock first.
        slots[free].store(tag, Ordering::Relaxed);
        (Asid(tag as u16), free)
    }

    /// The CPU has made the tables active whose tag [`hold`](Self::hold) has put into `slot`, or
    /// tables without an assigned tag. Interrupts have been disabled since.
    pub(crate) fn activated(&self, cpu: CpuId, slot: Option<usize>) {
        // Relaxed: if a slot of this CPU is in use, the CPU has seen a space with a tag.
        if self.mode.load(Ordering::Relaxed) != OWN {
            return;
        }
        let Some(slots) = self.slots.get(cpu) else { return };
        for (index, word) in slots.0.iter().enumerate() {
            // Relaxed: only this CPU stores its slots.
            if Some(index) != slot && word.load(Ordering::Relaxed) != 0 {
                // Release: comes after the hardware's last walk of the old tables; pairs with the
                // Acquire of `begin_generation`.
                word.store(0, Ordering::Release);
            }
        }
    }

    /// The tag of a space; `None` if it has none. Called after the fence that follows the changes
    /// of entries. If it is `None`, no CPU uses what it has cached before that fence.
    pub(crate) fn get(&self, space: &Assigned) -> Option<Asid> {
        // Relaxed: if a CPU has stored a later tag, and this misses it, that CPU's fence comes
        // after the caller's.
        let tag = space.tag.load(Ordering::Relaxed);
        // Acquire: a CPU that had the space active has left it; pairs with the Release of
        // `begin_generation`.
        let holder = self.holder(tag).load(Ordering::Acquire);
        (tag != 0 && holder & !MARK == space.id).then_some(Asid(tag as u16))
    }

    /// The tag that the space had last.
    pub(crate) fn last(space: &Assigned) -> Asid {
        // Relaxed: it is no more than a number.
        Asid(space.tag.load(Ordering::Relaxed) as u16)
    }

    /// Takes the tag of a space that is active on no CPU, and never will be again.
    pub(crate) fn give_back<M: Tlb + Step>(&self, machine: &M, space: &Assigned) {
        let _locked = self.lock(machine);
        // Relaxed, both: the lock orders them.
        let tag = space.tag.load(Ordering::Relaxed);
        let holder = self.holder(tag);
        if tag != 0 && holder.load(Ordering::Relaxed) == space.id {
            machine.checker().check_tag_taken(Asid(tag as u16));
            // Relaxed: the space is gone, and the lock orders the next owner.
            holder.store(FREE, Ordering::Relaxed);
        }
    }

    fn holder(&self, tag: u64) -> &AtomicU64 {
        &self.holders[tag as usize]
    }

    /// The first free tag from the hand on. The lock is held.
    fn find_free(&self) -> Option<u64> {
        let tags = self.holders.len();
        // Relaxed, all: the lock orders them.
        let hand = self.hand.load(Ordering::Relaxed) as usize;
        let tag = (0..tags)
            .map(|step| (hand + step) % tags)
            .find(|&tag| self.holders[tag].load(Ordering::Relaxed) == FREE)?;
        self.hand.store((tag + 1) as u64, Ordering::Relaxed);
        Some(tag as u64)
    }

    /// Gives a free tag to a space that has none. The lock is held.
    fn hand_out(&self, tag: u64, space: &Assigned, cpus: &AtomicCpuSet) {
        // Entries that CPUs have cached are void.
        cpus.clear();
        // Relaxed: see `hold` and `get`.
        space.tag.store(tag, Ordering::Relaxed);
        // Release: the emptied set comes before it; pairs with the Acquire of `hold`.
        self.holder(tag).store(space.id, Ordering::Release);
    }

    /// Takes back all tags that are active on no CPU. The lock is held.
    fn begin_generation<M: Tlb + Step>(&self, machine: &M) {
        let taken = |holder: &AtomicU64| {
            // Relaxed: the lock orders it.
            let value = holder.load(Ordering::Relaxed);
            (value > FIXED).then_some(value)
        };
        for holder in &self.holders {
            if let Some(id) = taken(holder) {
                // Relaxed: the fence orders it.
                holder.store(id | MARK, Ordering::Relaxed);
            }
        }
        machine.step(SharedAccess::Other);
        // SeqCst fence: pairs with that of `hold`.
        fence(Ordering::SeqCst);
        for slot in self.slots.iter().flat_map(|slots| &slots.0) {
            machine.step(SharedAccess::Other);
            // Acquire: a CPU that has left the tables walks them no more; pairs with the Release of
            // `activated`.
            let tag = slot.load(Ordering::Acquire);
            if let Some(id) = Some(self.holder(tag)).filter(|_| tag != 0).and_then(taken) {
                // Relaxed: the space has kept it all the time.
                self.holder(tag).store(id & !MARK, Ordering::Relaxed);
            }
        }
        for (tag, holder) in self.holders.iter().enumerate() {
            if taken(holder).is_some_and(|id| id & MARK != 0) {
                machine.checker().check_tag_taken(Asid(tag as u16));
                // Release: comes after the last walks of the space's tables; pairs with the Acquire
                // of `get`.
                holder.store(FREE, Ordering::Release);
            }
        }
        let generations = self.generations.load(Ordering::Relaxed);
        self.generations.store(generations + 1, Ordering::Relaxed);
    }
}
