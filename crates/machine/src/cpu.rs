//! CPUs, and sets of them.

use core::fmt;

mod shared;

pub use shared::AtomicCpuSet;

/// The number of CPUs that a [`CpuSet`] can hold.
pub const MAX_CPUS: usize = 256;

const WORDS: usize = MAX_CPUS / 64;

/// A CPU, by its number: 0 to [`Cpus::count`] - 1.
///
/// ```
/// use machine::CpuId;
/// assert_eq!(CpuId::new(3).unwrap().index(), 3);
/// assert_eq!(CpuId::new(machine::MAX_CPUS), None);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct CpuId(u8);

impl CpuId {
    /// The CPU with this number. `None` for [`MAX_CPUS`] or more.
    #[inline]
    pub const fn new(index: usize) -> Option<CpuId> {
        if index < MAX_CPUS { Some(CpuId(index as u8)) } else { None }
    }

    /// The number.
    #[inline]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Debug for CpuId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cpu{}", self.0)
    }
}

impl fmt::Display for CpuId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// The number of CPUs, and the current one.
///
/// # Safety
/// - [`current`](Cpus::current) is less than [`count`](Cpus::count). `count` is 1 to [`MAX_CPUS`]
///   and never changes.
/// - No two threads of execution have the same `current` at the same time, except that an interrupt
///   has the `current` of the code it interrupted.
///
/// Unsafe code relies on both: see [`CpuLocal`](crate::CpuLocal).
///
/// # How a CPU comes online and goes offline
/// It comes online with empty TLBs and interrupts disabled: it is added to
/// [`online`](Cpus::online), then [polls](crate::CrossCall::poll) once, since an IPI that was sent
/// before may be lost. It starts with the engine of deferred frees (`start`), activates a page
/// table, and takes part in grace periods (`TlbGrace::idle_exit`).
///
/// It goes offline in this order:
/// 1. No program runs there any more. The kernel's tables are active, and no space keeps the CPU
///    (`paging`'s `PageTables::leave`).
/// 2. It is idle for each grace period that it takes part in, so that none waits for it:
///    `idle_enter` of `vmap`'s `TlbGrace`, and of the [engine](https://docs.rs/samara-grace) of
///    deferred frees. Other CPUs free what it has deferred.
/// 3. With interrupts disabled, it is removed from `online` with Release, or stronger, and makes no
///    access by a translation that may change. From then on nothing waits for it:
///    [`CrossCall`](crate::CrossCall) withdraws the requests that it has not taken.
///
/// Frames in its [cache](crate::Frames) stay there, and count as free. Another CPU takes them when
/// it finds no others.
pub unsafe trait Cpus {
    /// The number of CPUs, including those that are not running. Constant.
    fn count(&self) -> usize;

    /// The current CPU. The result is valid while the caller cannot be migrated: within an
    /// [`Irqs`](crate::Irqs) section, or always on a host that never migrates. May be called
    /// anywhere.
    fn current(&self) -> CpuId;

    /// The CPUs that are online. The set may be out of date when it is returned. Read with Acquire:
    /// the accesses of a CPU that is missing in it come before.
    fn online(&self) -> CpuSet;

    /// Makes each of these CPUs take its timer interrupt soon. Call it if other code waits for the
    /// work of that interrupt, such as reporting a quiescent state. The set may contain this CPU.
    /// Sends an interrupt to each CPU and does not wait. May be called in any context.
    ///
    /// A host may do nothing: the CPUs then take the interrupt when it is due.
    fn hurry(&self, cpus: &CpuSet) {
        let _ = cpus;
    }
}

/// A set of CPUs.
///
/// ```
/// use machine::{CpuId, CpuSet};
/// let mut set = CpuSet::first(4);
/// set.remove(CpuId::new(2).unwrap());
/// assert_eq!(set.iter().map(CpuId::index).collect::<Vec<_>>(), [0, 1, 3]);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct CpuSet([u64; WORDS]);

impl CpuSet {
    /// The empty set.
    pub const EMPTY: CpuSet = CpuSet([0; WORDS]);

    /// The first `count` CPUs, at most [`MAX_CPUS`].
    pub fn first(count: usize) -> CpuSet {
        (0..count.min(MAX_CPUS)).filter_map(CpuId::new).collect()
    }

    /// The set of this one CPU.
    pub fn only(cpu: CpuId) -> CpuSet {
        let mut set = Self::EMPTY;
        set.insert(cpu);
        set
    }

    /// Adds a CPU.
    #[inline]
    pub fn insert(&mut self, cpu: CpuId) {
        let (word, bit) = place(cpu);
        self.0[word] |= bit;
    }

    /// Removes a CPU.
    #[inline]
    pub fn remove(&mut self, cpu: CpuId) {
        let (word, bit) = place(cpu);
        self.0[word] &= !bit;
    }

    /// Whether the CPU is in the set.
    #[inline]
    pub fn contains(&self, cpu: CpuId) -> bool {
        let (word, bit) = place(cpu);
        self.0[word] & bit != 0
    }

    /// The number of CPUs in the set.
    pub fn len(&self) -> usize {
        self.0.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// Whether the set is empty.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.0 == [0; WORDS]
    }

    /// The CPUs that are in both sets.
    pub fn intersection(&self, other: &CpuSet) -> CpuSet {
        CpuSet(core::array::from_fn(|i| self.0[i] & other.0[i]))
    }

    /// The CPUs that are in this set, and not in the other.
    pub fn difference(&self, other: &CpuSet) -> CpuSet {
        CpuSet(core::array::from_fn(|i| self.0[i] & !other.0[i]))
    }

    /// The CPUs in the set, in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = CpuId> + use<> {
        let mut words = self.0;
        let mut at = 0;
        core::iter::from_fn(move || {
            while at < WORDS {
                let bit = words[at].trailing_zeros() as usize;
                if bit < 64 {
                    words[at] &= words[at] - 1;
                    return CpuId::new(at * 64 + bit);
                }
                at += 1;
            }
            None
        })
    }
}

impl FromIterator<CpuId> for CpuSet {
    fn from_iter<I: IntoIterator<Item = CpuId>>(cpus: I) -> Self {
        let mut set = Self::EMPTY;
        cpus.into_iter().for_each(|cpu| set.insert(cpu));
        set
    }
}

impl fmt::Debug for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

#[inline]
fn place(cpu: CpuId) -> (usize, u64) {
    (cpu.index() / 64, 1 << (cpu.index() % 64))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cpu(index: usize) -> CpuId {
        CpuId::new(index).unwrap()
    }

    #[test]
    fn sets() {
        for count in [0, 1, 63, 64, 65, MAX_CPUS, MAX_CPUS + 1] {
            let set = CpuSet::first(count);
            assert_eq!(set.len(), count.min(MAX_CPUS));
            assert!(set.iter().map(CpuId::index).eq(0..count.min(MAX_CPUS)));
        }
        let mut set: CpuSet = [cpu(0), cpu(63), cpu(64), cpu(255)].into_iter().collect();
        assert!(set.contains(cpu(255)) && !set.contains(cpu(254)));
        set.remove(cpu(63));
        assert_eq!(set.intersection(&CpuSet::first(100)).iter().last(), Some(cpu(64)));
        assert_eq!(CpuSet::only(cpu(9)).len(), 1);
        assert!(CpuSet::EMPTY.is_empty() && !set.is_empty());
    }

    #[test]
    fn shared_set() {
        let set = AtomicCpuSet::new();
        assert!(!set.insert(cpu(1)) && set.insert(cpu(1)));
        set.insert(cpu(200));
        set.remove(cpu(1));
        assert_eq!(set.load(), CpuSet::only(cpu(200)));
        set.clear();
        assert!(set.load().is_empty() && !set.insert(cpu(200)));
    }

    /// The bits of CPUs in one word, and in the next.
    #[test]
    fn idle_cpus() {
        let set = AtomicCpuSet::new();
        let of = |cpus: &[usize]| cpus.iter().map(|index| cpu(*index)).collect::<CpuSet>();
        for index in [0, 31, 32, 63, 64, 255] {
            set.idle(cpu(index));
            assert!(!set.load().contains(cpu(index)) && !set.insert(cpu(index)));
        }
        for index in [31, 32, 64] {
            set.idle(cpu(index));
        }
        set.remove(cpu(64));
        assert_eq!(set.load(), of(&[0, 63, 255]));
        assert!(set.insert(cpu(31)) && !set.insert(cpu(64)));
        assert_eq!(set.targets(), (of(&[0, 31, 63, 64, 255]), of(&[32])));
        assert_eq!(set.targets(), (of(&[0, 31, 63, 64, 255]), CpuSet::EMPTY));
        assert!(!set.insert(cpu(32)) && set.insert(cpu(31)));
    }
}
