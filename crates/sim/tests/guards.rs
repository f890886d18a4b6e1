//! Guards stay on the CPU that took them, and a machine works only on threads that are its CPUs.

use grace::Reclaim;
use machine::{CpuLocal, Cpus, Irqs};
use sim::{Bare, BareGrace, Cause, Config, Grace, Program, Sim, seeded, threads};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// The message of the panic of `f`.
fn panics<R>(f: impl FnOnce() -> R) -> String {
    let panic = catch_unwind(AssertUnwindSafe(f)).err().expect("it must panic");
    let text = panic.downcast_ref::<&str>().map(|text| text.to_string());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default()
}

fn bare() -> Bare {
    Bare::new(2, 16).unwrap()
}

fn sim() -> Sim {
    Sim::new(Config::default()).unwrap()
}

const ENDS: &str = "open at the end";
const BEGINS: &str = "open on the CPU that this thread is";
const NOT_A_CPU: &str = "not a CPU of this machine";

#[test]
fn a_thread_that_is_no_cpu_has_no_number() {
    let (bare, other) = (bare(), bare());
    assert!(panics(|| bare.current()).contains(NOT_A_CPU));
    assert!(panics(BareGrace::pin).contains(NOT_A_CPU));
    other.on_cpu(1, || assert!(panics(|| bare.current()).contains(NOT_A_CPU)));
    let inside =
        other.on_cpu(1, || bare.on_cpu(0, || (bare.current().index(), panics(|| other.current()))));
    assert_eq!(inside.0, 0);
    assert!(inside.1.contains(NOT_A_CPU));
    assert!(panics(|| sim().current()).contains(NOT_A_CPU));
}

/// Two threads that are no CPUs would share one piece of the storage.
#[test]
fn storage_of_a_cpu_is_for_cpus() {
    let bare = bare();
    let local = CpuLocal::try_new(bare.clone(), |_| 0u64).unwrap();
    std::thread::scope(|scope| {
        let threads: Vec<_> =
            (0..2).map(|_| scope.spawn(|| panics(|| local.with(|value| *value += 1)))).collect();
        for thread in threads {
            assert!(thread.join().unwrap().contains(NOT_A_CPU));
        }
    });
    assert_eq!(bare.on_cpu(0, || local.with(|value| *value)), Some(0));
}

#[test]
fn no_guard_leaves_its_cpu() {
    let (bare, sim) = (bare(), sim());
    assert!(panics(|| bare.on_cpu(1, BareGrace::pin)).contains(ENDS));
    assert!(panics(|| bare.on_cpu(1, || bare.irqs_off())).contains(ENDS));
    assert!(panics(|| sim.on_cpu(1, Grace::pin)).contains(ENDS));
    assert!(panics(|| sim.on_cpu(1, || sim.irqs_off())).contains(ENDS));
    // The guards were dropped on their CPUs, so these are unchanged.
    bare.on_cpu(1, || assert!(bare.irqs_enabled() && BareGrace::quiescent_state()));
    sim.on_cpu(1, || assert!(sim.irqs_enabled() && Grace::quiescent_state()));
}

#[test]
fn no_guard_is_taken_along_to_another_cpu() {
    let (bare, sim) = (bare(), sim());
    bare.on_cpu(0, || {
        let guard = BareGrace::pin();
        assert!(panics(|| bare.on_cpu(1, || ())).contains(BEGINS));
        assert!(!BareGrace::quiescent_state(), "the section has ended");
        drop(guard);
        let section = bare.irqs_off();
        assert!(panics(|| bare.on_cpu(1, || ())).contains(BEGINS));
        drop(section);
        bare.on_cpu(1, || assert!(BareGrace::quiescent_state()));
    });
    sim.on_cpu(0, || {
        let guard = Grace::pin();
        assert!(panics(|| sim.on_cpu(1, || ())).contains(BEGINS));
        let program = || vec![Box::new(|| ()) as Program];
        assert!(panics(|| seeded(&self::sim(), 0, program())).contains(BEGINS));
        drop(guard);
        let section = sim.irqs_off();
        assert!(panics(|| sim.on_cpu(1, || ())).contains(BEGINS));
        drop(section);
        sim.on_cpu(1, || assert!(Grace::quiescent_state()));
    });
}

/// A driver's program cannot return a guard, but can forget it.
#[test]
fn drivers_tell_of_sections_that_never_end() {
    let forget = || std::mem::forget(Grace::pin());
    for run in [
        seeded(&sim(), 0, vec![Box::new(forget) as Program]).map(drop),
        threads(&sim(), vec![Box::new(forget) as Program]),
    ] {
        let Err(failure) = run else { panic!("nothing was found") };
        assert!(matches!(failure.cause, Cause::Panic(_, text) if text.contains(ENDS)));
    }
}

/// A guard that outlives a panic has no CPU on which to be dropped: both machines abort.
#[test]
#[cfg_attr(miri, ignore = "Miri starts no processes")]
fn a_guard_that_outlives_its_cpu_ends_the_program() {
    use std::process::Command;
    const WHICH: &str = "SAMARA_TEST_GUARD";
    let escape = |which: &str| {
        let (mut of_bare, mut of_sim) = (None, None);
        let _ = catch_unwind(AssertUnwindSafe(|| match which {
            "bare" => bare().on_cpu(1, || of_bare = Some(BareGrace::pin())),
            _ => sim().on_cpu(1, || of_sim = Some(Grace::pin())),
        }));
        println!("it goes on");
    };
    if let Ok(which) = std::env::var(WHICH) {
        return escape(&which);
    }
    for which in ["bare", "sim"] {
        let test = "a_guard_that_outlives_its_cpu_ends_the_program";
        let run = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", test, "--nocapture"])
            .env(WHICH, which)
            .output()
            .unwrap();
        let (out, err) =
            (String::from_utf8_lossy(&run.stdout), String::from_utf8_lossy(&run.stderr));
        assert!(!run.status.success() && !out.contains("it goes on"), "{which}: {out}");
        assert!(err.contains(ENDS), "{which}: {err}");
    }
}
