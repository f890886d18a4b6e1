//! Per-CPU storage: one value for each CPU, on cache lines of its own.
//!
//! Other CPUs may read a [`PerCpu`], which returns `&T`. Only the CPU itself uses its value of a
//! [`CpuLocal`], which gives `&mut T` without an atomic instruction.
//!
//! # Correctness of `CpuLocal`
//! [`CpuLocal::with`] disables interrupts, so the caller stays on its CPU, and no interrupt handler
//! runs. No other thread of execution has the same CPU number ([`Cpus`], [`Irqs`]). So only the
//! closure itself could reach the same value again, by calling `with`. A flag prevents that. Only
//! this CPU uses the flag, so it needs no atomic instruction. A `CpuLocal` owns a handle of its
//! machine, so that the current CPU is always that of the same machine.

use crate::storage::{NoMemory, Slice, Storage};
use crate::{CpuId, Cpus, Irqs, MAX_CPUS};
use alloc::collections::TryReserveError;
use alloc::vec::Vec;
use core::cell::{Cell, UnsafeCell};
use core::fmt;
use crossbeam_utils::CachePadded;

/// One `T` for each CPU, on cache lines of its own (128 bytes, since adjacent lines are fetched in
/// pairs).
///
/// ```
/// use machine::{CpuId, PerCpu};
/// let counts = PerCpu::try_new(4, |cpu| cpu.index() * 10).unwrap();
/// assert_eq!(counts.get(CpuId::new(3).unwrap()), Some(&30));
/// assert_eq!(counts.iter().sum::<usize>(), 60);
/// ```
pub struct PerCpu<T>(Slice<CachePadded<T>>);

impl<T> PerCpu<T> {
    /// Creates one `T` for each of the first `cpus` CPUs, at most [`MAX_CPUS`].
    /// Allocates once.
    ///
    /// # Errors
    /// There is not enough memory.
    pub fn try_new(cpus: usize, mut make: impl FnMut(CpuId) -> T) -> Result<Self, TryReserveError> {
        let mut all = Vec::new();
        all.try_reserve_exact(cpus)?;
        all.extend((0..cpus).filter_map(CpuId::new).map(|cpu| CachePadded::new(make(cpu))));
        Ok(PerCpu(all.into_boxed_slice().into()))
    }

    /// As [`try_new`](Self::try_new), with memory from `storage`.
    pub(crate) fn in_storage(
        storage: &Storage,
        cpus: usize,
        mut make: impl FnMut(CpuId) -> T,
    ) -> Result<Self, NoMemory> {
        let cpu = |at| CpuId::new(at).unwrap_or_default();
        storage.slice(cpus.min(MAX_CPUS), |at| CachePadded::new(make(cpu(at)))).map(PerCpu)
    }

    /// The value of this CPU. `None` if the CPU has none. One compare.
    #[inline]
    pub fn get(&self, cpu: CpuId) -> Option<&T> {
        self.0.get(cpu.index()).map(|slot| &**slot)
    }

    /// All values, in the order of the CPUs.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.0.iter().map(|slot| &**slot)
    }

    /// All values, by exclusive access.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.0.iter_mut().map(|slot| &mut **slot)
    }
}

impl<T: fmt::Debug> fmt::Debug for PerCpu<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

/// One `T` for each CPU of a machine, which only that CPU uses.
///
/// ```
/// # use machine::{CpuId, CpuLocal, Cpus, CpuSet, Irqs};
/// # struct One;
/// # unsafe impl Cpus for One {
/// #     fn count(&self) -> usize { 1 }
/// #     fn current(&self) -> CpuId { CpuId::default() }
/// #     fn online(&self) -> CpuSet { CpuSet::first(1) }
/// # }
/// # unsafe impl Irqs for One {
/// #     fn irq_enter(&self) {}
/// #     unsafe fn irq_leave(&self) {}
/// #     fn irqs_enabled(&self) -> bool { false }
/// # }
/// # let machine = One;
/// let local = CpuLocal::try_new(machine, |_| 0).unwrap();
/// assert_eq!(local.with(|count| { *count += 1; *count }), Some(1));
/// ```
pub struct CpuLocal<T, M> {
    machine: M,
    slots: PerCpu<CpuSlot<T>>,
}

struct CpuSlot<T> {
    taken: Cell<bool>,
    value: UnsafeCell<T>,
}

// SAFETY: one CPU at a time uses a slot (see the module's head). A `T` that was made on one CPU is
// used on another, hence `Send`.
unsafe impl<T: Send, M: Sync> Sync for CpuLocal<T, M> {}

impl<T, M: Cpus + Irqs> CpuLocal<T, M> {
    /// Creates one `T` for each CPU of `machine`. Allocates once.
    ///
    /// # Errors
    /// There is not enough memory.
    pub fn try_new(machine: M, mut make: impl FnMut(CpuId) -> T) -> Result<Self, TryReserveError> {
        let slots = PerCpu::try_new(machine.count(), |cpu| CpuSlot {
            taken: Cell::new(false),
            value: UnsafeCell::new(make(cpu)),
        })?;
        Ok(CpuLocal { machine, slots })
    }

    /// The machine whose CPUs these are.
    #[inline]
    pub fn machine(&self) -> &M {
        &self.machine
    }

    /// Calls `f` with this CPU's value, with interrupts disabled. Returns `None`, without a call,
    /// if it is called from within another `with` of the same value.
    ///
    /// Costs a section with interrupts disabled, two branches, and one cache line of this CPU
    /// besides the value. No atomic instruction. May be called anywhere.
    ///
    /// # Misuse
    /// In a closure that is running on this CPU already, also from an interrupt, it returns `None`.
    /// A closure that panics leaves the element free.
    #[inline(always)]
    pub fn with<R>(&self, f: impl FnOnce(&mut T) -> R) -> Option<R> {
        let _section = self.machine.irqs_off();
        let slot = self.slots.get(self.machine.current())?;
        if slot.taken.replace(true) {
            return None;
        }
        let _back = ClearTaken(&slot.taken);
        // SAFETY: this is the only `with` on this CPU (the flag), no other thread is this CPU, and
        // no interrupt handler runs: see the module's head.
        Some(f(unsafe { &mut *slot.value.get() }))
    }

    /// All values, by exclusive access: to take the structure apart.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.slots.iter_mut().map(|slot| slot.value.get_mut())
    }
}

// Shows no value, since another CPU may be using it.
impl<T, M> fmt::Debug for CpuLocal<T, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CpuLocal").finish_non_exhaustive()
    }
}

/// Clears the flag, also when the closure panics.
struct ClearTaken<'a>(&'a Cell<bool>);

impl Drop for ClearTaken<'_> {
    fn drop(&mut self) {
        self.0.set(false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Host;

    #[test]
    fn pieces_lie_apart() {
        let pieces = PerCpu::try_new(8, |cpu| cpu.index() as u8).unwrap();
        let at: Vec<_> = pieces.iter().map(|piece| core::ptr::from_ref(piece).addr()).collect();
        assert!(at.windows(2).all(|two| two[1] - two[0] >= 128) && at[0] % 128 == 0);
        assert_eq!(pieces.get(CpuId::new(8).unwrap()), None);
    }

    #[test]
    fn not_twice_at_once() {
        let machine = Host::new(2);
        let local = CpuLocal::try_new(machine.clone(), |_| 5).unwrap();
        let inner = local.with(|outer| {
            *outer += 1;
            assert!(!local.machine().irqs_enabled());
            local.with(|_| ())
        });
        assert_eq!(inner, Some(None));
        assert_eq!(local.with(|value| *value), Some(6));
        assert!(machine.irqs_enabled());
    }

    #[test]
    fn given_back_after_a_panic() {
        let machine = Host::new(1);
        let local = CpuLocal::try_new(machine.clone(), |_| 0).unwrap();
        let caught = std::panic::catch_unwind(core::panic::AssertUnwindSafe(|| {
            local.with(|value| {
                *value = 9;
                panic!("on purpose");
            })
        }));
        assert!(caught.is_err());
        assert_eq!(local.with(|value| *value), Some(9));
        assert!(machine.irqs_enabled());
    }

    #[test]
    fn each_cpu_has_its_own() {
        let machine = Host::new(3);
        let mut local = CpuLocal::try_new(machine.clone(), |_| 0u64).unwrap();
        std::thread::scope(|scope| {
            for cpu in 0..3 {
                let (machine, local) = (&machine, &local);
                scope.spawn(move || {
                    machine.be(cpu);
                    for _ in 0..100 {
                        local.with(|count| *count += cpu as u64 + 1).unwrap();
                        // It reads no value that other CPUs are using. Miri would report that.
                        assert_eq!(std::format!("{local:?}"), "CpuLocal { .. }");
                    }
                });
            }
        });
        assert!(local.iter_mut().map(|count| *count).eq([100, 200, 300]));
    }
}
