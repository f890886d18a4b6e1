//! Other threads that panic meanwhile hold the panic hook's lock, for which a forked child would
//! wait.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]
#![allow(missing_docs)]

use std::{
    panic::{self, catch_unwind},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use singlestep::{Error, operation};

#[test]
fn a_panic_in_another_thread_is_waited_for() {
    let (panicking, is_panicking) = mpsc::channel();
    panic::set_hook(Box::new(move |_| {
        panicking.send(()).unwrap();
        thread::sleep(Duration::from_millis(300));
    }));
    let beside = |limit| {
        let other = thread::spawn(|| catch_unwind(|| panic!("slowly")));
        is_panicking.recv().unwrap();
        let begin = Instant::now();
        let counted = operation(|| (), |_| ()).time_limit(limit).count();
        let took = begin.elapsed();
        assert!(other.join().unwrap().is_err());
        (counted, took)
    };
    let (counted, took) = beside(Duration::from_secs(30));
    assert!(counted.is_ok() && took > Duration::from_millis(200), "{counted:?} {took:?}");
    let (counted, took) = beside(Duration::from_millis(100));
    assert!(matches!(counted, Err(Error::TimedOut { .. })), "{counted:?} {took:?}");
}
