//! Waiting for what takes a moment, and never comes if the code is wrong. Tests of all crates use
//! this instead of bounds of their own.

use std::env;
use std::thread;
use std::time::{Duration, Instant};

/// Seconds. An idle host needs less than one for each wait. A busy one may need hundreds of times
/// as long, and the bound says nothing about correctness. `campaign/mutants` has less patience, by
/// `SAMARA_PATIENCE`: there a wait often never ends.
pub(crate) fn patience() -> u64 {
    let named = env::var("SAMARA_PATIENCE").ok();
    named.map_or(600, |seconds| seconds.parse().expect("SAMARA_PATIENCE is a number of seconds"))
}

/// Whether `done` returns true in time.
pub(crate) fn comes(mut done: impl FnMut() -> bool) -> bool {
    let (begun, patience) = (Instant::now(), Duration::from_secs(patience()));
    let mut rounds = 0;
    while !done() {
        if begun.elapsed() > patience {
            return false;
        }
        rounds += 1;
        // A near event takes some turns of other threads. After them, each look costs a CPU that
        // the others need.
        if rounds < 100 {
            thread::yield_now();
        } else {
            thread::sleep(Duration::from_millis(1));
        }
    }
    true
}

/// Waits until `done` returns true. Panics with `what` if it never does.
pub(crate) fn until(what: &str, done: impl FnMut() -> bool) {
    assert!(comes(done), "{what}: {}", late());
}

/// The cause of a wait that was too long.
pub(crate) fn late() -> std::string::String {
    std::format!("not within {} s: it hangs, or this host is very busy", patience())
}
