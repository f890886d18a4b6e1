//! Helpers of the tests: values on cache lines of their own, and exact figures.
#![allow(dead_code, unreachable_pub)]

use singlestep::{Area, Counts};

/// The lines of a part of memory: read only, written. They must be the same in every run.
pub fn lines(area: &Area) -> (u64, u64) {
    assert_eq!(area.read.least, area.read.largest);
    assert_eq!(area.written.least, area.written.largest);
    (area.read.largest, area.written.largest)
}

pub fn named(counts: &Counts, name: &str) -> (u64, u64) {
    lines(counts.region(name).unwrap())
}

#[derive(Default)]
#[repr(align(64))]
pub struct Line<T>(pub T);

#[derive(Clone, Copy)]
#[repr(align(64))]
pub struct Page(pub [u8; 4096]);
