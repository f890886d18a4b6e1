//! Readers that check I1 concurrently with writers, optimised, for any time.
//!
//! `cargo test --release -p samara-maple --test stress -- --nocapture` runs for some seconds, and
//! `SAMARA_STRESS_SECONDS=300` for minutes. `--cfg samara_small_nodes` in RUSTFLAGS makes the trees
//! deep.
#![cfg(not(loom))]
// There, casts of an index to `u64` do nothing.
#![cfg_attr(target_pointer_width = "32", allow(clippy::unnecessary_cast))]

#[path = "../../../trace/tests/common/patience.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod patience;
mod reader;
mod space;
mod tag;
mod writer;

use grace::{Epoch, Reclaim};
use maple::{Index, MapleTree};
use reader::Reads;
use space::{Dice, GROUPS, Group, TAIL};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use tag::{LIVE, Tag};
use writer::Writes;

type Tree = MapleTree<Box<Tag>, Epoch>;

/// The limit of a run: a time, or under Miri, where time is slow, a number of writes.
struct Limit {
    until: Instant,
    writes: usize,
}

impl Limit {
    fn new() -> Self {
        let seconds = std::env::var("SAMARA_STRESS_SECONDS");
        let seconds =
            seconds.map_or(3, |text| text.parse().expect("SAMARA_STRESS_SECONDS: a number"));
        Limit {
            until: Instant::now() + Duration::from_secs(seconds),
            writes: if cfg!(miri) { 30 } else { usize::MAX },
        }
    }

    fn reached(&self, writes: usize) -> bool {
        writes >= self.writes
            || (!cfg!(miri) && writes.is_multiple_of(64) && Instant::now() >= self.until)
    }
}

fn store(tree: &Tree, range: std::ops::RangeInclusive<Index>, version: u64) {
    tree.store_range(range.clone(), Box::new(Tag::new(&range, version))).unwrap();
}

#[test]
fn readers_beside_writers() {
    let tree = Tree::new();
    for group in (0..GROUPS).map(Group) {
        group.all_fixed().for_each(|range| store(&tree, range, 0));
        store(&tree, group.covered(), 0);
    }
    store(&tree, TAIL..=Index::MAX, 0);
    let (stop, limit) = (AtomicBool::new(false), Limit::new());
    let began = Instant::now();
    let (reads, writes) = thread::scope(|scope| {
        let readers = [0x1111, 0x2222].map(|seed| {
            let (tree, stop) = (&tree, &stop);
            scope.spawn(move || reader::run(tree, stop, Dice(seed)))
        });
        let writers = [0, 1].map(|half| {
            let (tree, limit) = (&tree, &limit);
            scope.spawn(move || writer::run(tree, limit, half))
        });
        // The writers are joined before the flag is set, so that the readers stop even if a writer
        // fails.
        let writes = writers.map(thread::ScopedJoinHandle::join);
        // Release: pairs with the readers' Acquire.
        stop.store(true, Ordering::Release);
        let reads = readers.map(|reader| reader.join().expect("a reader failed"));
        (reads, writes.map(|writes| writes.expect("a writer failed")))
    });
    let reads = reads.into_iter().fold(Reads::default(), Reads::plus);
    let writes = writes.into_iter().fold(Writes::default(), Writes::plus);
    let stats = tree.stats(&tree.pin());
    println!("{:.1?}: {reads:?}\n{writes:?}\n{stats:?}", began.elapsed());
    tree.validate().unwrap();
    assert!(reads.least() > 0 && writes.least() > 0, "some check or write never ran");
    drop(tree);
    patience::until("entries are dropped", || {
        Epoch::pin().flush();
        // Relaxed: only the last value matters.
        LIVE.load(Ordering::Relaxed) == 0
    });
}
