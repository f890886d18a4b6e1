//! Requests between CPUs under loom: two that ask each other, two that ask a third, one that is
//! asked while it waits for a lock with interrupts off; and the same with one thing done wrong.
//!
//! `RUSTFLAGS="--cfg loom" cargo test --release --target-dir target/loom -p samara-machine --lib
//! loom`
//!
//! These are the very lines of [`CrossCall`]. An interrupt is a flag that a CPU looks at where its
//! interrupts are on. It orders, as interrupts do: what was done before it is sent is seen by its
//! handler. So what the bits order by themselves is seen where no interrupt is waited for: by who
//! answers while it waits, and by who finds two bits and got one interrupt.

use crate::mutant::{Mutant, caught};
use crate::{CpuId, CpuSet, Cpus, CrossCall, Irqs, Step};
use core::cell::{Cell, RefCell};
use loom::cell::UnsafeCell;
use loom::sync::Notify;
use loom::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use loom::thread;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::string::String;
// Not loom's, which cannot be dropped when a model has failed.
use std::sync::Arc;
use std::vec::Vec;

const CPUS: usize = 3;

struct World {
    /// What is asked: that of this CPU.
    calls: CrossCall<usize, Machine>,
    /// An interrupt is on its way to this CPU.
    sent: [AtomicBool; CPUS],
    /// What wakes it, if it sleeps.
    wake: [Notify; CPUS],
    /// What each CPU has written before it asks, how often it has asked.
    before: [UnsafeCell<usize>; CPUS],
    /// What each has done, how often, for each that asks.
    done: [[UnsafeCell<usize>; CPUS]; CPUS],
    /// How often handlers have done what each asks, and counted down.
    handled: [AtomicUsize; CPUS],
    /// CPUs whose programs have ended.
    ended: AtomicUsize,
    lock: AtomicBool,
}

/// A CPU of the world: a thread that says which.
struct Here {
    world: Arc<World>,
    cpu: usize,
    /// Sections without interrupts that are open.
    depth: usize,
}

loom::thread_local! {
    static HERE: RefCell<Option<Here>> = RefCell::new(None);
}

fn with<T>(f: impl FnOnce(&mut Here) -> T) -> T {
    HERE.with(|here| f(here.borrow_mut().as_mut().unwrap()))
}

/// This CPU, and its world.
fn here() -> (Arc<World>, usize) {
    with(|here| (here.world.clone(), here.cpu))
}

std::thread_local! {
    /// A panic that is caught, and ends no model. All threads of a model are one thread of the
    /// host.
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
        CpuSet::first(CPUS)
    }
}

// SAFETY: interrupts are taken where the depth is 0, and a thread stays the CPU that it is.
unsafe impl Irqs for Machine {
    fn irq_enter(&self) {
        with(|here| here.depth += 1);
    }
    unsafe fn irq_leave(&self) {
        // A model that has failed is over: its atomics are gone.
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

// SAFETY: it lets others run.
unsafe impl Step for Machine {
    /// Answers by itself would hide who does not answer while it waits.
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
        })
    }
}

/// Takes the interrupt that has come, if interrupts are on.
fn interrupts() {
    let (world, cpu) = here();
    // Acquire: the handler sees what was done before it was sent; pairs with the Release of `call`.
    if Machine.irqs_enabled() && world.sent[cpu].swap(false, Ordering::Acquire) {
        let mut whose = Vec::new();
        world.calls.poll(|who| {
            act(who);
            whose.push(who);
        });
        for who in whose {
            // Relaxed: what wakes orders.
            world.handled[who].fetch_add(1, Ordering::Relaxed);
            world.wake[who].notify();
        }
    }
}

fn poll() {
    let (world, _) = here();
    world.calls.poll(act);
}

/// Does what the CPU `who` asks: looks at what it has written, and says so.
fn act(who: usize) {
    let (world, cpu) = here();
    // SAFETY: loom checks that nobody writes it beside this, or before it without order.
    let asked = world.before[who].with(|count| unsafe { *count });
    // SAFETY: as above; nobody else uses it.
    world.done[who][cpu].with_mut(|count| unsafe {
        *count += 1;
        assert_eq!(*count, asked, "left == right: once for each time");
    });
}

/// Asks these CPUs; they have done it when it returns. Loom does not see the end of two that wait
/// by turns: if it `sleeps`, it waits for a handler to have done it first.
fn call(whom: &[usize], sleeps: bool) {
    let (world, cpu) = here();
    let set: CpuSet = whom.iter().filter_map(|cpu| CpuId::new(*cpu)).collect();
    // SAFETY: loom checks it: all have seen what it was before.
    let asked = world.before[cpu].with_mut(|count| unsafe {
        *count += 1;
        *count
    });
    let interrupt = |sleeping: &CpuSet| {
        for other in sleeping.iter().map(CpuId::index) {
            // Release: pairs with the Acquire of `interrupts`.
            world.sent[other].swap(true, Ordering::Release);
            world.wake[other].notify();
        }
        while sleeps && world.handled[cpu].load(Ordering::Relaxed) != asked {
            world.wake[cpu].wait();
        }
    };
    world.calls.call(&set, cpu, interrupt, act);
    for other in whom {
        // SAFETY: loom checks that it was done before.
        let done = world.done[cpu][*other].with(|count| unsafe { *count });
        assert_eq!(done, asked, "left == right: done before it returns");
    }
}

/// Takes interrupts until all programs have ended.
fn idle(programs: usize) {
    let (world, cpu) = here();
    // AcqRel: who is the last to end comes after all others.
    if world.ended.fetch_add(1, Ordering::AcqRel) + 1 == programs {
        return world.wake.iter().for_each(Notify::notify);
    }
    loop {
        interrupts();
        // Acquire: pairs with that above.
        if world.ended.load(Ordering::Acquire) == programs {
            return;
        }
        world.wake[cpu].wait();
    }
}

/// Runs a program on each CPU, in all orders with so many preemptions.
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

/// Two ask each other, all at once; one of them asks again.
fn each_other() {
    model(3, &[|| (0..2).for_each(|_| call(&[0, 1], false)), || call(&[0, 1], false)]);
}

/// Two ask a third, which takes interrupts.
fn a_third() {
    model(2, &[|| call(&[2], true), || call(&[2], true), || ()]);
}

/// One asks another that waits, interrupts off, for a lock which the one who asks has; and asks
/// again, when it does not wait.
fn who_spins() {
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

/// Each asks the other, and once more from within: that is refused, and all else is as if it had
/// not been.
fn within() {
    fn refused() {
        let (world, cpu) = here();
        let set = CpuSet::only(CpuId::new(1 - cpu).unwrap());
        ON_PURPOSE.set(true);
        let again = || world.calls.call(&set, 7, |_| panic!("it was sent"), |_| ());
        let panic = catch_unwind(AssertUnwindSafe(again)).unwrap_err();
        ON_PURPOSE.set(false);
        let said = panic.downcast_ref::<String>().map(String::as_str).unwrap_or_default();
        assert!(said.contains("called from within itself"), "{said}");
    }
    fn asks() {
        let (world, cpu) = here();
        let set = CpuSet::only(CpuId::new(1 - cpu).unwrap());
        // SAFETY: as in `call`.
        world.before[cpu].with_mut(|count| unsafe { *count += 1 });
        let interrupt = |sleeping: &CpuSet| {
            refused();
            for other in sleeping.iter().map(CpuId::index) {
                // Release: pairs with the Acquire of `interrupts`.
                world.sent[other].swap(true, Ordering::Release);
                world.wake[other].notify();
            }
            refused();
        };
        let acts = |who| {
            refused();
            act(who);
        };
        world.calls.call(&set, cpu, interrupt, acts);
        // SAFETY: as in `call`.
        let done = world.done[cpu][1 - cpu].with(|count| unsafe { *count });
        assert_eq!(done, 1, "left == right: done before it returns");
    }
    model(3, &[asks, asks]);
}

/// One asks, and panics before it has interrupted anybody: what was not taken is withdrawn, what
/// was is done; then it asks again.
fn withdraws() {
    fn panics() {
        let (world, cpu) = here();
        let set = CpuSet::only(CpuId::new(1).unwrap());
        // SAFETY: as in `call`. If it is withdrawn, it counts as done.
        world.before[cpu].with_mut(|count| unsafe { *count += 1 });
        ON_PURPOSE.set(true);
        let fails = || world.calls.call(&set, cpu, |_| panic!("on purpose"), act);
        assert!(catch_unwind(AssertUnwindSafe(fails)).is_err());
        ON_PURPOSE.set(false);
        // SAFETY: nobody reads it any more: loom checks that.
        world.before[cpu].with_mut(|count| unsafe { *count += 1 });
        // SAFETY: nobody does it any more: loom checks that.
        world.done[cpu][1].with_mut(|count| unsafe { *count = 1 });
        let send = |sleeping: &CpuSet| {
            for other in sleeping.iter().map(CpuId::index) {
                // Release: pairs with the Acquire of `interrupts`.
                world.sent[other].swap(true, Ordering::Release);
                world.wake[other].notify();
            }
        };
        world.calls.call(&set, cpu, send, act);
        // SAFETY: as above.
        assert_eq!(world.done[cpu][1].with(|count| unsafe { *count }), 2);
    }
    fn answers() {
        poll();
        poll();
    }
    model(3, &[panics, answers]);
}

#[test]
fn two_ask_each_other() {
    each_other();
}

#[test]
fn two_ask_a_third() {
    a_third();
}

#[test]
fn who_is_asked_waits_for_who_asks() {
    who_spins();
}

#[test]
fn who_asks_from_within_is_refused() {
    within();
}

#[test]
fn who_panics_withdraws() {
    withdraws();
}

#[test]
fn orders_left_out_are_caught() {
    const UNORDERED: &str = "Causality violation";
    caught(Mutant::SetRelaxed, each_other, UNORDERED);
    caught(Mutant::SetRelaxed, a_third, UNORDERED);
    caught(Mutant::SetRelaxed, who_spins, UNORDERED);
    caught(Mutant::TakeRelaxed, each_other, UNORDERED);
    caught(Mutant::TakeRelaxed, a_third, UNORDERED);
    caught(Mutant::TakeRelaxed, who_spins, UNORDERED);
    caught(Mutant::CountRelaxed, each_other, UNORDERED);
    caught(Mutant::CountRelaxed, who_spins, UNORDERED);
    caught(Mutant::SeeRelaxed, each_other, UNORDERED);
    caught(Mutant::SeeRelaxed, who_spins, UNORDERED);
}

#[test]
fn who_is_overlooked_waits_for_ever() {
    caught(Mutant::TakenInTwo, a_third, "deadlock");
    // Two that wait by turns.
    caught(Mutant::WaitsDeaf, each_other, "maximum number of branches");
}
