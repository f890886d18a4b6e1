//! Two CPUs, each of which is one thread of a model.

use grace::quiescent::{CpuSlot, Domain, Periods, Quiescent, Shared};
use std::cell::RefCell;
// Not loom's `Arc`, which cannot be dropped after a model has failed.
use std::sync::Arc;

pub(crate) struct Cpus {
    shared: Shared,
    slots: [CpuSlot; 2],
}

loom::thread_local! {
    static HERE: RefCell<Option<(Arc<Cpus>, usize)>> = RefCell::new(None);
}

/// The CPUs, with or without preemption between guards.
pub(crate) struct Host<const PREEMPTED: bool>;

// SAFETY: each model gives every CPU to one thread, and nothing interrupts it.
unsafe impl<const PREEMPTED: bool> Domain for Host<PREEMPTED> {
    const PREEMPTED: bool = PREEMPTED;
    type Exclusive = ();
    fn cpu() -> usize {
        HERE.with(|here| here.borrow().as_ref().unwrap().1)
    }
    fn exclusive() {}
    fn with<T>(f: impl FnOnce(Periods<'_>) -> T) -> T {
        let cpus = HERE.with(|here| here.borrow().as_ref().unwrap().0.clone());
        f(Periods::new(&cpus.shared, &cpus.slots))
    }
}

pub(crate) type Grace<const PREEMPTED: bool> = Quiescent<Host<PREEMPTED>>;

impl Cpus {
    pub(crate) fn new() -> Arc<Cpus> {
        Arc::new(Cpus { shared: Shared::new(), slots: [CpuSlot::new(), CpuSlot::new()] })
    }

    /// Runs `f` as this CPU.
    pub(crate) fn on<T>(self: &Arc<Self>, cpu: usize, f: impl FnOnce() -> T) -> T {
        HERE.with(|here| *here.borrow_mut() = Some((self.clone(), cpu)));
        let result = f();
        HERE.with(|here| *here.borrow_mut() = None);
        result
    }
}
