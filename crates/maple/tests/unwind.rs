//! Drops that panic in the middle of a write. In a process of its own: such a panic skips deferred
//! work of other tests.

use grace::Epoch;
use maple::{Index, MapleTree};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};

/// If set, the next drop panics.
static ARMED: AtomicBool = AtomicBool::new(false);

#[derive(Clone)]
struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        // Relaxed: one thread.
        assert!(!ARMED.swap(false, Ordering::Relaxed), "drop");
    }
}

/// Whether `write` panics in a drop.
fn panics(write: impl FnOnce()) -> bool {
    ARMED.store(true, Ordering::Relaxed);
    let panicked = catch_unwind(AssertUnwindSafe(write)).is_err();
    ARMED.store(false, Ordering::Relaxed);
    panicked
}

/// A single test, so that all drops are on one thread.
#[test]
fn drops_that_panic_within_a_write() {
    made_ahead();
    put_off();
}

/// `set_end` panics because the drop of a preallocated duplicate panics. The end has not moved, and
/// the next write of the same writer is correct.
fn made_ahead() {
    let tree = MapleTree::<Box<Bomb>, Epoch>::new();
    let mut writer = tree.lock();
    writer.store_range(0..=9, Box::new(Bomb)).unwrap();
    writer.store_range(100..=109, Box::new(Bomb)).unwrap();
    writer.preallocate(3..=4).unwrap();
    assert!(panics(|| drop(writer.set_end(100, 149))));
    writer.insert_range(150..=159, Box::new(Bomb)).unwrap();
    writer.validate().unwrap();
    let ranges: Vec<_> = writer.iter(0..=Index::MAX).map(|(range, _)| range).collect();
    assert_eq!(ranges, [0..=9, 100..=109, 150..=159]);
}

/// One writer inserts in no order and removes, and deferred drops panic in both. The tree stays
/// valid, including its gaps.
fn put_off() {
    const N: Index = if cfg!(miri) { 60 } else { 6007 };
    let mut tree = MapleTree::<Box<Bomb>, Epoch>::new();
    let (mut panicked, mut at) = (0, 0);
    let mut writer = tree.lock();
    for i in 0..N {
        let old = at;
        // Visits every place once.
        at = (i * 3571) % N;
        let mut failed =
            panics(|| writer.insert_range(at * 100..=at * 100 + 9, Box::new(Bomb)).unwrap());
        // Removes every second entry, whose drop is deferred.
        if i % 2 == 0 {
            failed |= panics(|| drop(writer.erase(old * 100).unwrap()));
        }
        if failed {
            panicked += 1;
            writer.validate().unwrap();
        }
    }
    drop(writer);
    tree.get_mut().validate().unwrap();
    assert!(cfg!(miri) || panicked > 10, "{panicked}");
}
