//! Hostile or careless callers: hosts that panic, call back or lie, objects of other machines,
//! numbers at the ends of their types.

#[path = "../common/mod.rs"]
mod common;
mod files;
mod limits;
mod monitor;
mod numbers;
mod objects;
mod swap;

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Mutex,
};

use common::*;
use mm::MapFlags;

const AT: usize = 0x4000_0000;
const SHARED: MapFlags = MapFlags::SHARED.union(MapFlags::FIXED);

/// The work of a host's callback, which runs once.
type Work = Mutex<Option<Box<dyn FnOnce() + Send>>>;

fn run(work: &Work) {
    let work = work.lock().unwrap().take();
    work.into_iter().for_each(|work| work());
}

fn panics<T>(work: impl FnOnce() -> T) {
    assert!(catch_unwind(AssertUnwindSafe(|| drop(work()))).is_err(), "it did not panic");
}
