//! A set of CPUs that several CPUs change.

use super::{CpuId, CpuSet, MAX_CPUS};
use crate::mutant::{self, Mutant};
use crate::sync::{AtomicU64, Ordering, fence};

#[cfg(all(test, loom))]
mod loom_tests;

/// CPUs in a word. Each has a bit in the lower half, which says that it is in the set, and one in
/// the upper half, which says that it is idle. At most one of them is set.
const IN_WORD: usize = 32;
/// Loom's models have few CPUs, and take long for each word.
const WORDS: usize = if cfg!(loom) { 3 } else { MAX_CPUS / IN_WORD };
const LOWER: u64 = (1 << IN_WORD) - 1;

/// A set of CPUs that several CPUs change: the CPUs on which an address space is active, to which
/// its flushes must go.
///
/// A CPU adds itself *before* it can load a translation, and removes itself after it has flushed.
/// The CPU that flushes reads the set *after* it has changed the entries. Both execute a
/// sequentially consistent fence in between. So either the flushing CPU sees the other CPU in the
/// set, or the other CPU's later walks see the changed entries. (Loom checks this code in
/// `cpu/shared/loom_tests.rs`: without either fence, a flush misses a CPU.)
///
/// # Idle CPUs
/// A CPU that has other tables active keeps what it has cached, and need not be interrupted: it
/// becomes [idle](Self::idle). A flush passes over it and [takes](Self::targets) its mark of an
/// idle CPU. When the CPU comes back by [`insert`](Self::insert) and still has the mark, there was
/// no flush, and it keeps its translations. Else it flushes.
///
/// Both bits of a CPU are in one word, so the flush takes the marks and learns the targets by one
/// atomic instruction. A CPU that comes back meanwhile is a target, or it has lost its mark. With
/// two words, a CPU that leaves, comes back and leaves again could be in neither when it is looked
/// for there.
///
/// ```
/// use machine::{AtomicCpuSet, CpuId};
/// let (set, cpu) = (AtomicCpuSet::new(), CpuId::new(70).unwrap());
/// assert!(!set.insert(cpu));
/// assert_eq!(set.load().len(), 1);
/// set.idle(cpu);
/// assert!(set.load().is_empty());
/// assert!(set.insert(cpu), "no flush came meanwhile");
/// set.idle(cpu);
/// let (targets, idle) = set.targets();
/// assert_eq!((targets.len(), idle.len()), (0, 1));
/// assert!(!set.insert(cpu), "it must flush");
/// ```
///
/// # Misuse
/// A set belongs to its owner, which keeps it private: a CPU that is removed from it gets no
/// flushes (I5).
#[derive(Debug, Default)]
pub struct AtomicCpuSet([AtomicU64; WORDS]);

impl AtomicCpuSet {
    /// The empty set.
    #[cfg(not(loom))]
    pub const fn new() -> Self {
        AtomicCpuSet([const { AtomicU64::new(0) }; WORDS])
    }

    /// The empty set.
    #[cfg(loom)]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds the calling CPU. Returns whether no flush has passed over it since it added itself: it
    /// was in the set, or is [idle](Self::idle) and still has the mark. Costs a load if it is in
    /// the set, else a locked instruction; if it returns `false`, also a fence.
    pub fn insert(&self, cpu: CpuId) -> bool {
        let (word, member, idle) = place(cpu);
        // Relaxed: only this CPU sets its bits, so it sees its own last change; and it comes after
        // each `clear`, as the caller of that ensures.
        let mut now = self.0[word].load(Ordering::Relaxed);
        if now & member != 0 {
            return true;
        }
        while now & idle != 0 {
            let back = now & !idle | member;
            // Relaxed, both: if this finds the mark, no flush has passed over this CPU, and the
            // next one finds it in the set: it takes the marks by an atomic instruction.
            match self.0[word].compare_exchange_weak(
                now,
                back,
                Ordering::Relaxed,
                Ordering::Relaxed,
            ) {
                Ok(_) => return true,
                Err(found) => now = found,
            }
        }
        // Relaxed: the fence orders it.
        self.0[word].fetch_or(member, Ordering::Relaxed);
        // SeqCst fence: comes before this CPU's later walks. Pairs with the fences of `load` and
        // `targets`: at least one of the two CPUs sees what the other did before its fence.
        if !mutant::is(Mutant::InsertUnfenced) {
            fence(Ordering::SeqCst);
        }
        false
    }

    /// The calling CPU uses its translations no more until it [inserts](Self::insert) itself: it
    /// has other tables active. Does nothing if it is not in the set. Costs a locked instruction.
    pub fn idle(&self, cpu: CpuId) {
        let (word, member, idle) = place(cpu);
        // Relaxed: as in `insert`.
        let mut now = self.0[word].load(Ordering::Relaxed);
        // Not by an atomic `xor`: another CPU may `clear` the set meanwhile.
        while now & member != 0 {
            let away = now & !member | idle;
            // Release: comes after this CPU's last use of a translation. Pairs with the Acquire of
            // `targets`. Relaxed on failure: it tries again.
            let order = mutant::order(Ordering::Release, Mutant::IdleRelaxed);
            match self.0[word].compare_exchange_weak(now, away, order, Ordering::Relaxed) {
                Ok(_) => return,
                Err(found) => now = found,
            }
        }
    }

    /// Removes the calling CPU. Costs a locked instruction.
    pub fn remove(&self, cpu: CpuId) {
        let (word, member, idle) = place(cpu);
        // Release: comes after this CPU's flush. Pairs with the Acquire of `load`.
        let order = mutant::order(Ordering::Release, Mutant::RemoveRelaxed);
        self.0[word].fetch_and(!(member | idle), order);
    }

    /// Empties the set. No CPU inserts itself meanwhile, and the caller's next synchronization with
    /// each CPU orders this before its later [`insert`](Self::insert). Entries that the CPUs have
    /// cached will not be used.
    pub fn clear(&self) {
        for word in &self.0 {
            // Release: the caller's knowledge of the CPUs comes before it; pairs with the Acquire
            // of `load`.
            word.store(0, Ordering::Release);
        }
    }

    /// A snapshot of the set, without idle CPUs.
    pub fn load(&self) -> CpuSet {
        self.fence();
        let [members, _] = split(core::array::from_fn(|word| self.load_word(word)));
        members
    }

    /// The CPUs to which a flush goes, and the idle ones that it passes over: these flush when they
    /// come back. Costs a fence, and a locked instruction for each word of the set in which there
    /// are idle CPUs.
    pub fn targets(&self) -> (CpuSet, CpuSet) {
        self.fence();
        let [members, idle] = split(core::array::from_fn(|word| {
            let seen = self.load_word(word);
            if seen & !LOWER == 0 {
                return seen;
            }
            // Acquire: an idle CPU uses nothing that it has cached before; pairs with the Release
            // of `idle`. The old value counts: a CPU may have come back since the load.
            let order = mutant::order(Ordering::Acquire, Mutant::TakeIdleRelaxed);
            let old = self.0[word].fetch_and(LOWER, order);
            if mutant::is(Mutant::TargetsFromLoad) { seen } else { old }
        }));
        (members, idle)
    }

    /// SeqCst fence: the caller's changes of entries come before the loads that follow. Pairs with
    /// the fence of `insert`.
    fn fence(&self) {
        if !mutant::is(Mutant::LoadUnfenced) {
            fence(Ordering::SeqCst);
        }
    }

    fn load_word(&self, word: usize) -> u64 {
        // Acquire: a CPU that is no longer in the set has flushed. Pairs with the Release of
        // `remove`.
        self.0[word].load(mutant::order(Ordering::Acquire, Mutant::LoadRelaxed))
    }
}

/// The CPUs that are in the set, and those that are idle.
fn split(words: [u64; WORDS]) -> [CpuSet; 2] {
    let half = |shift: usize| {
        CpuSet(core::array::from_fn(|i| {
            let half = |word: usize| words.get(word).map_or(0, |word| word >> shift & LOWER);
            half(2 * i) | half(2 * i + 1) << IN_WORD
        }))
    };
    [half(0), half(IN_WORD)]
}

/// The word of a CPU, and its two bits.
#[inline]
fn place(cpu: CpuId) -> (usize, u64, u64) {
    let bit = 1 << (cpu.index() % IN_WORD);
    (cpu.index() / IN_WORD, bit, bit << IN_WORD)
}
