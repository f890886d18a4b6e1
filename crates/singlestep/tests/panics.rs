//! Other threads that panic meanwhile hold the panic hook's lock, for which a forked child would
//! wait.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]
#![allow(missing_docs)]

use std::{
    panic::{self, catch_unwind},
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread,
    time::Duration,
};

use singlestep::{Error, operation};

/// Whether a panic's hook has ended.
static OVER: AtomicBool = AtomicBool::new(false);

#[test]
fn a_panic_in_another_thread_is_waited_for() {
    let (panicking, is_panicking) = mpsc::channel();
    let (end, ended) = mpsc::channel::<Duration>();
    let ended = Mutex::new(ended);
    // A panic lasts until it is told to end, and for the time that it is told.
    panic::set_hook(Box::new(move |_| {
        panicking.send(()).unwrap();
        thread::sleep(ended.lock().unwrap().recv().unwrap());
        // Release: pairs with the Acquire below.
        OVER.store(true, Ordering::Release);
    }));
    let start = || {
        let other = thread::spawn(|| catch_unwind(|| panic!("slowly")));
        is_panicking.recv().unwrap();
        other
    };
    let count = |limit| operation(|| (), |_| ()).time_limit(limit).count();

    // The panic ends while the child waits, and the next child need not wait.
    let other = start();
    end.send(Duration::from_millis(300)).unwrap();
    let counted = count(Duration::from_secs(600));
    assert!(OVER.load(Ordering::Acquire), "the child did not wait");
    assert!(other.join().unwrap().is_err() && counted.is_ok(), "{counted:?}");
    // It does not end before the limit.
    let other = start();
    let counted = count(Duration::from_millis(100));
    end.send(Duration::ZERO).unwrap();
    assert!(other.join().unwrap().is_err());
    assert!(matches!(counted, Err(Error::TimedOut { .. })), "{counted:?}");
}
