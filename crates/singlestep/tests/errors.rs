//! Operations that cannot be counted. Each is an error that names the cause, and none hangs.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]
#![allow(missing_docs)]

#[path = "../../trace/tests/common/needs.rs"]
mod needs;

use std::{arch::asm, hint::black_box, thread, time::Duration};

use singlestep::{Error, Phase, operation};

/// The error of an operation without state.
fn error(op: impl FnMut(&mut ())) -> Error {
    operation(|| (), op).warm_up(0).runs(2).count().unwrap_err()
}

fn dereference(address: usize) {
    // SAFETY: faults on purpose, in a process that is discarded. The address is never mapped.
    unsafe { asm!("mov byte ptr [{0}], 1", in(reg) address) };
}

#[test]
fn a_crash_says_where() {
    match error(|_| dereference(0x42)) {
        Error::Crashed { phase: Phase::Measuring, signal, instruction: Some(_), address } => {
            assert_eq!((signal.as_str(), address), ("SIGSEGV", Some(0x42)));
        }
        other => panic!("{other}"),
    }
    let setup = operation(|| dereference(0x42), |_| ()).count();
    assert!(matches!(setup, Err(Error::Crashed { phase: Phase::SettingUp, .. })), "{setup:?}");
    let prepare = operation(|| 0, |_| ()).warm_up(1).prepare(|n| {
        *n += 1;
        if *n == 3 {
            dereference(0x42);
        }
    });
    let prepare = prepare.count();
    assert!(matches!(prepare, Err(Error::Crashed { phase: Phase::Preparing, .. })), "{prepare:?}");
}

#[test]
fn every_way_to_crash_is_told() {
    let signal = |op: fn(&mut ())| match error(op) {
        Error::Crashed { signal, .. } => signal,
        other => panic!("{other}"),
    };
    // SAFETY: raises SIGILL.
    assert_eq!(signal(|_| unsafe { asm!("ud2") }), "SIGILL");
    // SAFETY: raises SIGTRAP. It is not a marker.
    assert_eq!(signal(|_| unsafe { asm!("int3") }), "SIGTRAP");
    assert_eq!(signal(|_| std::process::abort()), "SIGABRT");
    // SAFETY: ends the process.
    assert_eq!(signal(|_| unsafe { assert_eq!(libc::raise(libc::SIGKILL), 0) }), "SIGKILL");
}

#[test]
fn a_panic_brings_its_message() {
    for warm_up in [0, 1] {
        let panics =
            operation(|| 7, |n| assert_eq!(*n, 8, "the sky fell")).warm_up(warm_up).count();
        match panics.unwrap_err() {
            Error::Panicked { phase, message } => {
                assert_eq!(phase == Phase::Measuring, warm_up == 0);
                assert!(
                    message.contains("the sky fell") && message.contains("errors.rs"),
                    "{message}"
                );
            }
            other => panic!("{other}"),
        }
    }
}

#[test]
fn an_exit_is_told() {
    // SAFETY: ends the child.
    let exit = |_: &mut ()| unsafe { libc::_exit(3) };
    assert!(matches!(error(exit), Error::Exited { phase: Phase::Measuring, code: 3 }));
    let setup = operation(|| std::process::exit(4), |_: &mut ()| ()).count();
    assert!(matches!(setup, Err(Error::Exited { phase: Phase::SettingUp, code: 4 })), "{setup:?}");
}

#[test]
fn an_endless_operation_is_ended() {
    let forever = |_: &mut ()| loop {
        black_box(0);
    };
    let sleep = |_: &mut ()| loop {
        thread::sleep(Duration::from_secs(1000));
    };
    let limit = Duration::from_millis(1);
    for warm_up in [0, 1] {
        let both = [
            operation(|| (), forever).warm_up(warm_up).time_limit(limit).count(),
            operation(|| (), sleep).warm_up(warm_up).time_limit(limit).count(),
        ];
        for result in both {
            assert!(matches!(result, Err(Error::TimedOut { .. })), "{result:?}");
        }
    }
}

/// The instruction that the error names.
fn unknown(error: &Error) -> &str {
    match error {
        Error::Unknown { instruction, .. } => instruction,
        other => panic!("{other}"),
    }
}

#[test]
fn an_unknown_instruction_is_an_error() {
    let found = std::arch::is_x86_feature_detected!("avx2");
    if !needs::has("avx2", found, None) {
        return;
    }
    let gathers = error(|_| {
        let table = [0u32; 8];
        // SAFETY: all indices are zero, within the table. The processor has AVX2.
        unsafe {
            asm!("vpxor xmm1, xmm1, xmm1", "vpcmpeqd xmm2, xmm2, xmm2",
                "vpgatherdd xmm0, [{0} + xmm1*4], xmm2",
                in(reg) &table, out("xmm0") _, out("xmm1") _, out("xmm2") _);
        }
    });
    assert_eq!(unknown(&gathers), "vpgatherdd");
    let masked = error(|_| {
        let mut room = [0u8; 32];
        // SAFETY: the vector is not longer than the array. The processor has AVX2.
        unsafe { asm!("vmaskmovdqu xmm1, xmm2", in("rdi") &mut room) };
    });
    assert_eq!(unknown(&masked), "vmaskmovdqu");
}

#[test]
fn new_threads_and_processes_are_refused() {
    let starts = error(|_| drop(thread::spawn(|| ())));
    assert!(matches!(starts, Error::Spawns { .. }), "{starts}");
    // SAFETY: refused before it happens.
    let forks = error(|_| unsafe { assert_eq!(libc::fork(), 0) });
    assert!(matches!(forks, Error::Spawns { .. }), "{forks}");
    // They are allowed in setup, and their crash is not attributed to the operation.
    let other_thread =
        operation(|| drop(thread::spawn(|| dereference(0x42)).join()), |_| ()).count();
    match other_thread {
        Err(Error::Crashed { phase: Phase::SettingUp, signal, instruction: None, .. }) => {
            assert_eq!(signal, "SIGSEGV");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn no_runs_are_no_measurement() {
    assert!(matches!(operation(|| (), |_| ()).runs(0).count(), Err(Error::NoRuns)));
}

#[test]
fn signals_from_outside_do_not_disturb() {
    // SAFETY: the call has no arguments.
    let raise = |_: &mut ()| unsafe {
        libc::raise(libc::SIGUSR1);
        libc::raise(libc::SIGSTOP);
    };
    let counts = operation(|| (), raise).warm_up(1).runs(2).count().unwrap();
    assert!(counts.syscalls.largest >= 2);
}

#[test]
fn no_child_is_left() {
    drop(error(|_| dereference(0x42)));
    operation(|| (), |_| ()).count().unwrap();
    let mut status = 0;
    // Only children of this thread: other tests have children of their own. SAFETY: `status` is
    // ours.
    let found = unsafe { libc::waitpid(-1, &mut status, libc::__WALL | libc::__WNOTHREAD) };
    assert_eq!((found, std::io::Error::last_os_error().raw_os_error()), (-1, Some(libc::ECHILD)));
}
