//! An entry that records the range that it was stored at, and detects reads after its drop.

use maple::Index;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

const KEY: u64 = 0x9e37_79b9_7f4a_7c15;

/// The number of live entries.
pub(crate) static LIVE: AtomicI64 = AtomicI64::new(0);

#[derive(Debug)]
pub(crate) struct Tag {
    first: Index,
    last: Index,
    pub(crate) version: u64,
    seal: AtomicU64,
}

impl Tag {
    pub(crate) fn new(range: &RangeInclusive<Index>, version: u64) -> Self {
        // Relaxed, here and below: counts and checks only; no other data depends on them.
        LIVE.fetch_add(1, Ordering::Relaxed);
        let (first, last) = (*range.start(), *range.end());
        Tag { first, last, version, seal: AtomicU64::new(Self::digest(first, last, version)) }
    }

    fn digest(first: Index, last: Index, version: u64) -> u64 {
        (first as u64).rotate_left(17)
            ^ (last as u64).rotate_left(41)
            ^ version.wrapping_mul(KEY)
            ^ KEY
    }

    /// Checks that the entry is alive and intact, and that the found range lies in the stored one.
    pub(crate) fn check(&self, found: &RangeInclusive<Index>) {
        let seal = self.seal.load(Ordering::Relaxed);
        assert_eq!(
            seal,
            Self::digest(self.first, self.last, self.version),
            "an entry was read after its drop, or overwritten"
        );
        assert!(
            self.first <= *found.start() && *found.end() <= self.last,
            "found at {found:x?}, stored at {:x}..={:x}",
            self.first,
            self.last
        );
    }

    /// As [`Tag::check`], and checks that no part of the entry was cut off.
    pub(crate) fn check_whole(&self, found: &RangeInclusive<Index>) {
        self.check(found);
        assert_eq!(*found, self.first..=self.last);
    }
}

impl Clone for Tag {
    fn clone(&self) -> Self {
        Tag::new(&(self.first..=self.last), self.version)
    }
}

impl Drop for Tag {
    fn drop(&mut self) {
        LIVE.fetch_sub(1, Ordering::Relaxed);
        let seal = self.seal.swap(0, Ordering::Relaxed);
        assert_eq!(
            seal,
            Self::digest(self.first, self.last, self.version),
            "an entry was dropped twice, or overwritten"
        );
    }
}
