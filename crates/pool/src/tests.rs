//! Tests of depots and caches that no other test uses. Threads, and the promises of the whole pool,
//! are tested in `tests`.

use super::cache::{BATCH, Cache, KEEP};
use super::chunk::Chunks;
use super::depot::{Depot, SPARE};
use super::slab::{SLAB, blocks};
use super::{CLASSES, LARGE, LINE};
use core::ptr::NonNull;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

/// A depot, and its blocks that are out: by address, with the byte that fills the block.
struct Own {
    depot: Depot,
    size: usize,
    out: BTreeMap<NonNull<u8>, u8>,
    dice: u8,
}

impl Own {
    fn new(size: usize) -> Self {
        Own { depot: Depot::new(size), size, out: BTreeMap::new(), dice: 0 }
    }

    /// Takes up to `n` blocks. Grows the depot once if it has none.
    fn take(&mut self, n: usize) -> Vec<NonNull<u8>> {
        let mut batch = [NonNull::dangling(); BATCH];
        let mut taken = self.depot.take(&mut batch[..n]);
        if taken == 0 {
            let mut grown = Chunks::allocate(self.depot.growth());
            self.depot.grow(grown.pop().unwrap());
            taken = self.depot.take(&mut batch[..n]);
            assert!(taken > 0);
        }
        for &block in &batch[..taken] {
            self.dice = self.dice.wrapping_add(101);
            // SAFETY: the test owns the block, which has that size.
            unsafe { block.write_bytes(self.dice, self.size) };
            assert_eq!(block.addr().get() % LINE, 0);
            let below = self.out.range(..=block).next_back();
            assert!(below.is_none_or(|(at, _)| at.addr().get() + self.size <= block.addr().get()));
            let above = self.out.range(block..).next();
            assert!(above.is_none_or(|(at, _)| block.addr().get() + self.size <= at.addr().get()));
            self.out.insert(block, self.dice);
        }
        batch[..taken].to_vec()
    }

    fn give(&mut self, blocks: &[NonNull<u8>]) {
        for block in blocks {
            let fill = self.out.remove(block).unwrap();
            // SAFETY: the test owns the block, which has that size and is filled.
            let bytes = unsafe { core::slice::from_raw_parts(block.as_ptr(), self.size) };
            assert_eq!(bytes, &[fill; CLASSES * LINE][..self.size]);
        }
        for batch in blocks.chunks(BATCH) {
            // SAFETY: the blocks came from this depot.
            drop(unsafe { self.depot.give(batch) });
        }
    }

    fn check(&self) {
        self.depot.check();
        let stats = self.depot.stats();
        assert_eq!(stats.used, self.out.len() * self.size);
        assert!(stats.used <= stats.held);
        let slabs: BTreeSet<_> = self.out.keys().map(|block| block.addr().get() / SLAB).collect();
        assert!(slabs.len() * SLAB <= stats.held);
    }

    /// Gives all blocks back; the depot then holds nothing after a trim.
    fn end(mut self) {
        let all: Vec<_> = self.out.keys().copied().collect();
        self.give(&all);
        self.check();
        assert!(self.depot.stats().held <= SPARE);
        drop(self.depot.trim());
        self.depot.check();
        assert_eq!(self.depot.stats(), Default::default());
    }
}

#[test]
fn slabs_are_cut_without_waste() {
    for class in if cfg!(miri) { 3..4 } else { 0..CLASSES } {
        let size = (class + 1) * LINE;
        let mut own = Own::new(size);
        let count = blocks(size);
        assert!(count * size * 100 > SLAB * 99);
        own.take(1);
        while own.out.len() < count {
            let n = BATCH.min(count - own.out.len());
            assert_eq!(own.take(n).len(), n);
        }
        let got: Vec<_> = own.out.keys().copied().collect();
        own.check();
        assert_eq!(own.depot.stats().held, SLAB);
        // Blocks are adjacent, up to the slab's end.
        assert!(got.is_sorted_by(|a, b| a.addr().get() + size == b.addr().get()));
        assert_eq!((got[count - 1].addr().get() + size) % SLAB, 0);
        own.take(1);
        assert_eq!(own.depot.stats().held, 2 * SLAB);
        own.end();
    }
    assert_eq!((blocks(256), blocks(384)), (255, 170));
}

#[test]
fn blocks_come_in_ascending_order() {
    let mut own = Own::new(256);
    for _ in 0..5 {
        let got = own.take(BATCH);
        assert!(got.is_sorted());
        // A batch may consist of two runs: the rest of one slab, and a part of the next.
        assert_eq!(got[BATCH - 2].addr().get() - got[0].addr().get(), 256 * (BATCH - 2));
    }
    own.end();
}

#[test]
#[cfg_attr(miri, ignore = "long")]
fn chunks_grow_and_go_back() {
    let mut own = Own::new(512);
    let mut held = Vec::new();
    while own.depot.stats().held < 4 * LARGE {
        own.take(BATCH);
        if held.last() != Some(&own.depot.stats().held) {
            held.push(own.depot.stats().held);
        }
    }
    let mut expected: Vec<_> = (1..=16).map(|n| n * SLAB).collect();
    expected.extend((1..=4).map(|n| 16 * SLAB + n * LARGE));
    assert_eq!(held, expected);
    own.check();
    // Frees from the highest address down, so the chunks are freed one by one.
    let all: Vec<_> = own.out.keys().rev().copied().collect();
    for batch in all.chunks(BATCH) {
        own.give(batch);
        own.check();
        let stats = own.depot.stats();
        // Two chunks may be partly free: the one being emptied, and one whose blocks lie on the
        // shelf.
        let needed = stats.used + stats.used / 64 + 2 * LARGE;
        assert!(stats.held <= needed + SPARE, "{stats:?}");
    }
    own.end();
}

#[test]
#[cfg_attr(miri, ignore = "long")]
fn a_sparse_depot_has_nothing_on_its_shelf() {
    let mut own = Own::new(512);
    while own.depot.stats().held < 8 * LARGE {
        own.take(BATCH);
    }
    assert!(!own.depot.is_sparse());
    // Frees every other block, so no chunk becomes free. The depot then serves the free blocks from
    // the shelf and from the slabs.
    let held = own.depot.stats().held;
    let half: Vec<_> = own.out.keys().step_by(2).copied().collect();
    own.give(&half);
    own.check();
    assert_eq!(own.depot.stats().held, held);
    for n in half.chunks(BATCH).map(<[_]>::len) {
        own.take(n);
    }
    assert_eq!(own.depot.stats().held, held);
    // Frees all but one block of each chunk, and then these: the last frees release all chunks.
    let pins: BTreeMap<_, _> = own.out.keys().map(|at| (at.addr().get() / LARGE, *at)).collect();
    let pins: Vec<_> = pins.into_values().collect();
    let rest: Vec<_> = own.out.keys().filter(|block| !pins.contains(block)).copied().collect();
    own.give(&rest);
    assert!(own.depot.is_sparse());
    own.check();
    assert_eq!(own.depot.stats().held, held);
    own.give(&pins);
    assert!(own.depot.stats().held <= SPARE);
    own.end();
}

#[test]
fn a_cache_is_a_stack_that_can_be_closed() {
    let mut memory = [0u8; KEEP + 1];
    let blocks: Vec<_> = memory.iter_mut().map(NonNull::from).collect();
    let cache = Cache::new();
    let mut batch = [NonNull::dangling(); BATCH];
    // The cache is closed.
    assert!(!cache.push(blocks[0]));
    assert_eq!((cache.pop(), cache.oldest(&mut batch)), (None, 0));
    cache.open();
    assert_eq!((cache.pop(), cache.oldest(&mut batch)), (None, 0));
    assert!(blocks[..KEEP].iter().all(|&block| cache.push(block)));
    assert!(!cache.push(blocks[KEEP]));
    cache.open();
    assert_eq!(cache.pop(), Some(blocks[KEEP - 1]));
    assert_eq!(cache.oldest(&mut batch), BATCH);
    assert_eq!(batch, blocks[..BATCH]);
    assert!(cache.push(blocks[KEEP]));
    assert_eq!(cache.pop(), Some(blocks[KEEP]));
    assert_eq!(cache.oldest(&mut batch), KEEP - 1 - BATCH);
    assert_eq!(batch[..KEEP - 1 - BATCH], blocks[BATCH..KEEP - 1]);
    assert_eq!(cache.pop(), None);
    cache.close();
    assert!(!cache.push(blocks[0]));
}

#[derive(Clone, Debug)]
enum Step {
    Take(usize),
    /// Frees `.0` blocks, beginning at `.1`, with a distance of `.2`.
    Give(usize, usize, usize),
    Trim,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (1..=BATCH).prop_map(Step::Take),
        4 => (1..=3 * BATCH, any::<usize>(), 1..40usize).prop_map(|(n, at, by)| Step::Give(n, at, by)),
        1 => Just(Step::Trim),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if cfg!(miri) { 3 } else { 64 },
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn a_depot_is_as_its_model(
        class in 0..CLASSES,
        steps in prop::collection::vec(step(), 1..if cfg!(miri) { 30 } else { 300 }),
    ) {
        let mut own = Own::new((class + 1) * LINE);
        for step in steps {
            match step {
                Step::Take(n) => {
                    own.take(n);
                }
                Step::Give(n, at, by) => {
                    let all: Vec<_> = own.out.keys().copied().collect();
                    if !all.is_empty() {
                        let from = at % all.len();
                        let some: Vec<_> = all[from..].iter().step_by(by).take(n).copied().collect();
                        own.give(&some);
                    }
                }
                Step::Trim => {
                    drop(own.depot.trim());
                    if own.out.is_empty() {
                        prop_assert_eq!(own.depot.stats().held, 0);
                    }
                }
            }
            own.check();
        }
        own.end();
    }
}
