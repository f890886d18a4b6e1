//! [`CrossCall`] under loom: two CPUs that call each other, two that call a third, and one that is
//! called while it spins for a lock with interrupts disabled. The mutants do one step wrong.
//!
//! `RUSTFLAGS="--cfg loom" cargo test --release --target-dir target/loom -p samara-machine --lib
//! loom`
//!
//! The model runs the real code. An interrupt is a flag that a CPU checks where its interrupts are
//! enabled. It orders memory, as interrupts do: the handler sees all writes before the interrupt
//! was sent. So the ordering of the bits themselves matters where a CPU takes a request without an
//! interrupt of its own: when it polls while it waits, and when it finds two bits after one
//! interrupt.

use crate::mutant::{Mutant, caught};
use crate::{CpuId, CpuSet, Cpus, CrossCall, Irqs, Step};
use core::cell::{Cell, RefCell};
use loom::cell::UnsafeCell;
use loom::sync::Notify;
use loom::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use loom::thread;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::string::String;
// Not loom's `Arc`, which cannot be dropped after a model has failed.
use std::sync::Arc;
use std::vec::Vec;

const CPUS: usize = 3;

struct World {
    /// A request is the number of its caller.
    calls: CrossCall<usize, Machine>,
    /// An interrupt to this CPU is pending.
    sent: [AtomicBool; CPUS],
    /// Wakes the CPU if it sleeps.
    wake: [Notify; CPUS],
    /// Written by each CPU before it calls: the number of its calls.
    before: [UnsafeCell<usize>; CPUS],
    /// Written by each CPU when it performs a request, for each caller: the number of times.
    done: [[UnsafeCell<usize>; CPUS]; CPUS],
    /// The number of each caller's requests that handlers have performed and acknowledged.
    handled: [AtomicUsize; CPUS],
    /// The number of CPUs whose programs have ended.
    ended: AtomicUsize,
    lock: AtomicBool,
    /// The CPUs that are offline.
    offline: [AtomicBool; CPUS],
}

/// The CPU that a thread acts as.
struct Here {
    world: Arc<World>,
    cpu: usize,
    /// The number of open sections with interrupts disabled.
    depth: usize,
}

loom::thread_local! {
    static HERE: RefCell<Option<Here>> = RefCell::new(None);
}

fn with<T>(f: impl FnOnce(&mut Here) -> T) -> T {
    HERE.with(|here| f(here.borrow_mut().as_mut().unwrap()))
}

/// The current CPU, and its world.
fn here() -> (Arc<World>, usize) {
    with(|here| (here.world.clone(), here.cpu))
}

std::thread_local! {
    /// A panic that the test catches, and that does not fail the model. All threads of a model run
    /// on one host thread.
    static ON_PURPOSE: Cell<bool> = const { Cell::new(false) };
}

/// Whether the model has failed.
pub(crate) fn is_over() -> bool {
    std::thread::panicking() && !ON_PURPOSE.get()
}

struct Machine;

// SAFETY: each model gives every CPU to one thread.
unsafe impl Cpus for Machine {
    fn count(&self) -> usize {
        CPUS
    }
    fn current(&self) -> CpuId {
        CpuId::new(here().1).unwrap()
    }
    fn online(&self) -> CpuSet {
        let (world, _) = here();
        // Acquire: as the trait demands.
        let is_online = |cpu: &CpuId| !world.offline[cpu.index()].load(Ordering::Acquire);
        CpuSet::first(CPUS).iter().filter(is_online).collect()
    }
}

// SAFETY: interrupts are taken only where the depth is 0, and a thread does not change its CPU.
unsafe impl Irqs for Machine {
    fn irq_enter(&self) {
        with(|here| here.depth += 1);
    }
    unsafe fn irq_leave(&self) {
        // A model that has failed has lost its atomics.
        if is_over() {
            return;
        }
        with(|here| here.depth -= 1);
        interrupts();
    }
    fn irqs_enabled(&self) -> bool {
        with(|here| here.depth == 0)
    }
}

// SAFETY: it yields to other threads.
unsafe impl Step for Machine {
    /// It does not poll: that would hide a CPU that fails to poll while it waits.
    fn relax(&self) {
        thread::yield_now();
    }
}

impl World {
    fn new() -> Arc<World> {
        let counts = || core::array::from_fn(|_| UnsafeCell::new(0));
        Arc::new(World {
            calls: CrossCall::try_new(Machine).unwrap(),
            sent: core::array::from_fn(|_| AtomicBool::new(false)),
            wake: core::array::from_fn(|_| Notify::new()),
            before: counts(),
            done: core::array::from_fn(|_| counts()),
            handled: core::array::from_fn(|_| AtomicUsize::new(0)),
            ended: AtomicUsize::new(0),
            lock: AtomicBool::new(false),
            offline: core::array::from_fn(|_| AtomicBool::new(false)),
        })
    }
}

/// Takes the pending interrupt, if interrupts are enabled.
fn interrupts() {
    let (world, cpu) = here();
    // Acquire: the handler sees the writes before the interrupt was sent. Pairs with the Release of
    // `call`.
    if Machine.irqs_enabled() && world.sent[cpu].swap(false, Ordering::Acquire) {
        let mut callers = Vec::new();
        world.calls.poll(|caller| {
            act(caller);
            callers.push(caller);
        });
        for caller in callers {
            // Relaxed: the wake-up orders it.
            world.handled[caller].fetch_add(1, Ordering::Relaxed);
            world.wake[caller].notify();
        }
    }
}

/// Sends an interrupt to each of these CPUs.
fn interrupt(sleeping: &CpuSet) {
    let (world, _) = here();
    for other in sleeping.iter().map(CpuId::index) {
        // Release: pairs with the Acquire of `interrupts`.
        world.sent[other].swap(true, Ordering::Release);
        world.wake[other].notify();
    }
}

fn poll() {
    let (world, _) = here();
    world.calls.poll(act);
}

/// Performs the request of CPU `caller`: reads the value that it wrote, and records the fact.
fn act(caller: usize) {
    let (world, cpu) = here();
    // SAFETY: loom checks that no write is concurrent or unordered.
    let requests = world.before[caller].with(|count| unsafe { *count });
    // SAFETY: as above. No other CPU uses it.
    world.done[caller][cpu].with_mut(|count| unsafe {
        *count += 1;
        assert_eq!(*count, requests, "left == right: each request is performed once");
    });
}

/// Calls these CPUs, and checks that they have performed the request when it returns. Loom does not
/// terminate when two threads wait in turns, so with `sleeps` it waits first until a handler has
/// performed the request.
fn call(targets: &[usize], sleeps: bool) {
    let (world, cpu) = here();
    let set: CpuSet = targets.iter().filter_map(|cpu| CpuId::new(*cpu)).collect();
    // SAFETY: all CPUs have read the old value. Loom checks that.
    let requests = world.before[cpu].with_mut(|count| unsafe {
        *count += 1;
        *count
    });
    let send = |sleeping: &CpuSet| {
        interrupt(sleeping);
        while sleeps && world.handled[cpu].load(Ordering::Relaxed) != requests {
            world.wake[cpu].wait();
        }
    };
    world.calls.call(&set, cpu, send, act);
    for other in targets {
        // SAFETY: the request was performed before. Loom checks that.
        let done = world.done[cpu][*other].with(|count| unsafe { *count });
        assert_eq!(done, requests, "left == right: performed before the call returns");
    }
}

/// Takes interrupts until all programs have ended.
fn idle(programs: usize) {
    let (world, cpu) = here();
    // AcqRel: the last program to end comes after all others.
    if world.ended.fetch_add(1, Ordering::AcqRel) + 1 == programs {
        return world.wake.iter().for_each(Notify::notify);
    }
    loop {
        interrupts();
        // Acquire: pairs with the Release above.
        if world.ended.load(Ordering::Acquire) == programs {
            return;
        }
        world.wake[cpu].wait();
    }
}

/// Runs a program on each CPU, in all interleavings with this many preemptions.
fn model(preemptions: usize, programs: &'static [fn()]) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(move || {
        let world = World::new();
        let start = |(cpu, program): (usize, &fn())| {
            let (world, program) = (world.clone(), *program);
            move || {
                HERE.with(|here| *here.borrow_mut() = Some(Here { world, cpu, depth: 0 }));
                program();
                idle(programs.len());
            }
        };
        let mut cpus = programs.iter().enumerate().map(start);
        let first = cpus.next().unwrap();
        let others: Vec<_> = cpus.map(thread::spawn).collect();
        first();
        others.into_iter().for_each(|cpu| cpu.join().unwrap());
    });
}

/// Two CPUs call each other at once. One of them calls again.
fn each_other() {
    model(3, &[|| (0..2).for_each(|_| call(&[0, 1], false)), || call(&[0, 1], false)]);
}

/// Two CPUs call a third, which takes interrupts.
fn a_third() {
    model(2, &[|| call(&[2], true), || call(&[2], true), || ()]);
}

/// One CPU holds a lock and calls another, which spins for the lock with interrupts disabled. Then
/// it calls again, when the other does not spin.
fn spinning_cpu() {
    fn holds() {
        let (world, _) = here();
        let _section = Machine.irqs_off();
        // Acquire, and Release: a lock.
        while world.lock.load(Ordering::Relaxed) || world.lock.swap(true, Ordering::Acquire) {
            poll();
            thread::yield_now();
        }
        call(&[1 - here().1], false);
        world.lock.store(false, Ordering::Release);
    }
    model(3, &[holds, holds]);
}

/// Each CPU calls the other, and makes a nested call. That is refused, and changes nothing.
fn within() {
    fn refused() {
        let (world, cpu) = here();
        let set = CpuSet::only(CpuId::new(1 - cpu).unwrap());
        ON_PURPOSE.set(true);
        let again = || world.calls.call(&set, 7, |_| panic!("a nested call sent an IPI"), |_| ());
        let panic = catch_unwind(AssertUnwindSafe(again)).unwrap_err();
        ON_PURPOSE.set(false);
        let said = panic.downcast_ref::<String>().map(String::as_str).unwrap_or_default();
        assert!(said.contains("called from within itself"), "{said}");
    }
    fn calls() {
        let (world, cpu) = here();
        let set = CpuSet::only(CpuId::new(1 - cpu).unwrap());
        // SAFETY: as in `call`.
        world.before[cpu].with_mut(|count| unsafe { *count += 1 });
        let send = |sleeping: &CpuSet| {
            refused();
            interrupt(sleeping);
            refused();
        };
        let acts = |caller| {
            refused();
            act(caller);
        };
        world.calls.call(&set, cpu, send, acts);
        // SAFETY: as in `call`.
        let done = world.done[cpu][1 - cpu].with(|count| unsafe { *count });
        assert_eq!(done, 1, "left == right: performed before the call returns");
    }
    model(3, &[calls, calls]);
}

/// One CPU calls, and panics before it has sent an IPI. Requests that were not taken are withdrawn,
/// and the others are performed. Then it calls again.
fn withdraws() {
    fn panics() {
        let (world, cpu) = here();
        let set = CpuSet::only(CpuId::new(1).unwrap());
        // SAFETY: as in `call`. A withdrawn request counts as performed.
        world.before[cpu].with_mut(|count| unsafe { *count += 1 });
        ON_PURPOSE.set(true);
        let fails = || world.calls.call(&set, cpu, |_| panic!("on purpose"), act);
        assert!(catch_unwind(AssertUnwindSafe(fails)).is_err());
        ON_PURPOSE.set(false);
        // SAFETY: no CPU reads it any more. Loom checks that.
        world.before[cpu].with_mut(|count| unsafe { *count += 1 });
        // SAFETY: no CPU performs it any more. Loom checks that.
        world.done[cpu][1].with_mut(|count| unsafe { *count = 1 });
        world.calls.call(&set, cpu, interrupt, act);
        // SAFETY: as above.
        assert_eq!(world.done[cpu][1].with(|count| unsafe { *count }), 2);
    }
    fn polls() {
        poll();
        poll();
    }
    model(3, &[panics, polls]);
}

/// A CPU goes offline while another one calls it. Afterwards the caller changes what that CPU has
/// used until then.
fn goes_offline() {
    fn calls() {
        let (world, cpu) = here();
        let set = CpuSet::only(CpuId::new(1).unwrap());
        world.calls.call(&set, cpu, |_| {}, |_| {});
        // SAFETY: no other CPU uses it any more. Loom checks that.
        world.before[1].with_mut(|count| unsafe { *count += 1 });
    }
    fn leaves() {
        let (world, cpu) = here();
        // SAFETY: no other CPU has changed it. Loom checks that.
        world.before[cpu].with(|count| assert_eq!(unsafe { *count }, 0));
        // Release: as the trait demands.
        world.offline[cpu].store(true, Ordering::Release);
    }
    model(3, &[calls, leaves]);
}

#[test]
fn a_cpu_that_goes_offline_is_not_waited_for() {
    goes_offline();
}

#[test]
fn two_cpus_call_each_other() {
    each_other();
}

#[test]
fn two_cpus_call_a_third() {
    a_third();
}

#[test]
fn cpus_that_call_each_other_do_not_deadlock() {
    spinning_cpu();
}

#[test]
fn nested_calls_are_refused() {
    within();
}

#[test]
fn a_panic_withdraws_the_requests() {
    withdraws();
}

#[test]
fn orders_left_out_are_caught() {
    const UNORDERED: &str = "Causality violation";
    caught(Mutant::SetRelaxed, each_other, UNORDERED);
    caught(Mutant::SetRelaxed, a_third, UNORDERED);
    caught(Mutant::SetRelaxed, spinning_cpu, UNORDERED);
    caught(Mutant::TakeRelaxed, each_other, UNORDERED);
    caught(Mutant::TakeRelaxed, a_third, UNORDERED);
    caught(Mutant::TakeRelaxed, spinning_cpu, UNORDERED);
    caught(Mutant::CountRelaxed, each_other, UNORDERED);
    caught(Mutant::CountRelaxed, spinning_cpu, UNORDERED);
    caught(Mutant::SeeRelaxed, each_other, UNORDERED);
    caught(Mutant::SeeRelaxed, spinning_cpu, UNORDERED);
}

#[test]
fn a_lost_request_is_a_deadlock() {
    caught(Mutant::TakenInTwo, a_third, "deadlock");
    // The two CPUs wait in turns.
    caught(Mutant::WaitsDeaf, each_other, "maximum number of branches");
    caught(Mutant::AwaitsOffline, goes_offline, "maximum number of branches");
}
