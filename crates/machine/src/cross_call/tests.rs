//! Nested calls, and closures that panic.

use super::*;
use crate::patience::late;
use crate::testing::Host;
use core::panic::AssertUnwindSafe;
use std::panic::catch_unwind;
use std::string::String;
use std::sync::atomic::AtomicBool;
use std::thread;

fn only(cpu: usize) -> CpuSet {
    CpuSet::only(CpuId::new(cpu).unwrap())
}

/// The message of the panic of `call`, if it panics.
fn panics(call: impl FnOnce()) -> Option<String> {
    let panic = catch_unwind(AssertUnwindSafe(call)).err()?;
    let said = panic.downcast_ref::<String>().cloned();
    Some(said.or(panic.downcast_ref::<&str>().map(|said| String::from(*said))).unwrap_or_default())
}

/// Stops the polling threads, also when the test panics.
struct Done<'a>(&'a AtomicBool);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        // Release: pairs with the Acquire of the polling threads.
        self.0.store(true, Ordering::Release);
    }
}

/// Runs `f` as CPU 0 while CPU 1 polls. Returns the sum of the requests that CPU 1 performed.
fn concurrently(f: impl FnOnce(&CrossCall<u64, Host>)) -> u64 {
    let host = Host::new(2);
    let calls = CrossCall::try_new(host.clone()).unwrap();
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let other = scope.spawn(|| {
            host.be(1);
            let mut sum = 0;
            // Acquire: pairs with the Release of `Done`.
            while !done.load(Ordering::Acquire) {
                calls.poll(|what| sum += what);
                host.relax();
            }
            sum
        });
        host.be(0);
        let ends = Done(&done);
        f(&calls);
        drop(ends);
        other.join().unwrap()
    })
}

/// A call from a closure of another call is refused. The outer call is performed once, and so are
/// later calls.
#[test]
fn a_call_within_a_call_is_refused() {
    let sum = concurrently(|calls| {
        let both = CpuSet::first(2);
        let again = || {
            let said = panics(|| calls.call(&only(1), 1000, |_| (), |_| ())).unwrap();
            assert!(
                said.contains("CrossCall::call on cpu0 was called from within itself"),
                "{said}"
            );
        };
        let mut here = 0;
        let act = |what| {
            again();
            here += what;
        };
        calls.call(&both, 1, |_| again(), act);
        calls.call(&only(1), 2, |_| again(), |_| ());
        calls.call(&only(0), 4, |_| (), |_| again());
        calls.call(&both, 8, |_| (), |what| here += what);
        assert_eq!(here, 9);
        assert!(calls.machine().irqs_enabled());
    });
    assert_eq!(sum, 11);
}

/// A call from the closure of a `poll` is not nested.
#[test]
fn a_polling_cpu_may_call() {
    let host = Host::new(3);
    let calls = CrossCall::try_new(host.clone()).unwrap();
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let answers = |cpu: usize, next: Option<usize>| {
            let (host, calls, done) = (&host, &calls, &done);
            move || {
                host.be(cpu);
                let mut sum = 0;
                // Acquire: pairs with the Release of `Done`.
                while !done.load(Ordering::Acquire) {
                    calls.poll(|what: u64| {
                        sum += what;
                        if let Some(next) = next {
                            calls.call(&only(next), what * 10, |_| (), |_| ());
                        }
                    });
                    host.relax();
                }
                sum
            }
        };
        let others = [scope.spawn(answers(1, Some(2))), scope.spawn(answers(2, None))];
        host.be(0);
        let ends = Done(&done);
        (1..4).for_each(|what| calls.call(&only(1), what, |_| (), |_| ()));
        drop(ends);
        assert_eq!(others.map(|other| other.join().unwrap()), [6, 60]);
    });
}

/// A closure of a call panics. The call has ended on all CPUs when the panic continues, and the
/// next call works.
#[test]
fn a_call_that_panics_has_ended() {
    let sum = concurrently(|calls| {
        for round in 0..if cfg!(miri) { 4 } else { 100 } {
            let end = |_: &CpuSet| panic!("on purpose");
            assert_eq!(
                panics(|| calls.call(&only(1), 1, end, |_| ())).as_deref(),
                Some("on purpose")
            );
            assert_eq!(
                calls.slots.get(CpuId::new(0).unwrap()).unwrap().waiting.load(Ordering::Relaxed),
                0
            );
            let act = |_| panic!("on purpose");
            assert!(panics(|| calls.call(&CpuSet::first(2), 1, |_| (), act)).is_some(), "{round}");
            calls.call(&only(1), 1 << 20, |_| (), |_| ());
        }
    });
    let rounds = if cfg!(miri) { 4 } else { 100 };
    // The requests of calls that panicked were performed or withdrawn.
    assert_eq!(sum >> 20, rounds);
    assert!(sum % (1 << 20) <= 2 * rounds);
}

/// The CPUs whose requests CPU 2 has not taken.
fn callers_of_2(calls: &CrossCall<u64, Host>) -> u64 {
    let slot = calls.slots.get(CpuId::new(2).unwrap()).unwrap();
    slot.callers[0].load(Ordering::Relaxed)
}

/// A call relies on the IPI of an earlier call, which panics instead of sending it. The second call
/// sends it.
#[test]
fn an_ipi_that_a_panic_prevents_is_sent_by_another_call() {
    let host = Host::new(3);
    let calls = CrossCall::try_new(host.clone()).unwrap();
    let ipi = AtomicBool::new(false);
    let until = |done: &dyn Fn() -> bool| {
        crate::patience::comes(|| {
            host.relax();
            done()
        })
    };
    thread::scope(|scope| {
        let panics = scope.spawn(|| {
            host.be(0);
            let never_sends = |_: &CpuSet| {
                assert!(until(&|| callers_of_2(&calls) == 0b11), "no second call: {}", late());
                panic!("on purpose");
            };
            panics(|| calls.call(&only(2), 1, never_sends, |_| ()))
        });
        let waits = scope.spawn(|| {
            host.be(1);
            assert!(until(&|| callers_of_2(&calls) == 0b01), "no first call: {}", late());
            // Release: pairs with the Acquire below. The contents of an IPI are seen by the CPU
            // that it interrupts.
            calls.call(&only(2), 2, |to| ipi.store(!to.is_empty(), Ordering::Release), |_| ());
        });
        host.be(2);
        let sent = until(&|| ipi.load(Ordering::Acquire));
        let mut sum = 0;
        calls.poll(|what| sum += what);
        assert_eq!(panics.join().unwrap().as_deref(), Some("on purpose"));
        waits.join().unwrap();
        assert!(sent, "no call sent the IPI: {}", late());
        assert_eq!(sum, 2, "the call that panicked was not withdrawn");
    });
}

/// A CPU that panics while it performs a request does not lose it.
#[test]
fn a_request_that_panics_is_performed_again() {
    let host = Host::new(2);
    let calls = CrossCall::try_new(host.clone()).unwrap();
    thread::scope(|scope| {
        let other = scope.spawn(|| {
            host.be(1);
            let mut tries = 0;
            while tries < 2 {
                let _ = panics(|| {
                    calls.poll(|what| {
                        assert_eq!(what, 7);
                        tries += 1;
                        assert_ne!(tries, 1, "on purpose");
                    })
                });
                host.relax();
            }
        });
        host.be(0);
        calls.call(&only(1), 7, |_| (), |_| ());
        other.join().unwrap();
    });
}

/// CPUs that do not exist are ignored.
#[test]
fn cpus_that_do_not_exist_are_not_waited_for() {
    let host = Host::new(1);
    let calls = CrossCall::try_new(host.clone()).unwrap();
    host.be(0);
    let mut here = 0;
    calls.call(
        &CpuSet::first(MAX_CPUS),
        3,
        |_| panic!("an IPI to a CPU that does not exist"),
        |what| here += what,
    );
    assert_eq!(here, 3);
}
