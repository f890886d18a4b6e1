//! [`EntryWord`] and [`RefCounts`] under loom: each operation that stores an entry publishes the
//! table behind it, each operation that reads an entry acquires it, and the last reference is
//! dropped after all others.
//!
//! Loom reports unordered accesses to a cell. `campaign/mutants.d/machine.toml` has a mutant for
//! each ordering.

use super::{EntryWord, RefCounts};
use loom::cell::UnsafeCell;
use loom::sync::atomic::AtomicU64;
use loom::thread;
use std::sync::Arc;

type Entry = EntryWord<AtomicU64>;

/// A bit that no other value has.
const LINKED: u64 = 0x1000;
/// A bit that is set from the start.
const OLD: u64 = 1;

struct Linked {
    entry: Entry,
    /// The table behind the entry.
    table: UnsafeCell<u64>,
}

/// One CPU writes a table and links it by `link`. Another reads the entry by `look` and, if it is
/// linked, owns the table.
fn publish(link: fn(&Entry), look: fn(&Entry) -> u64) {
    loom::model(move || {
        let linked =
            Arc::new(Linked { entry: Entry::new(AtomicU64::new(OLD)), table: UnsafeCell::new(0) });
        let writer = thread::spawn({
            let linked = Arc::clone(&linked);
            move || {
                // SAFETY: it is not linked yet. Loom checks that no other thread uses it.
                linked.table.with_mut(|table| unsafe { *table = 7 });
                link(&linked.entry);
            }
        });
        if look(&linked.entry) & LINKED != 0 {
            // SAFETY: the writer is done with it. Loom checks that.
            linked.table.with_mut(|table| assert_eq!(unsafe { *table }, 7));
        }
        writer.join().unwrap();
    });
}

/// Each way to read an entry acquires.
fn looks() -> [fn(&Entry) -> u64; 6] {
    [
        |entry| entry.load(),
        |entry| entry.swap(0),
        |entry| entry.fetch_and(0),
        |entry| entry.fetch_or(2),
        |entry| match entry.compare_exchange(LINKED, 0) {
            Ok(()) => LINKED,
            Err(_) => 0,
        },
        // A failed exchange returns the entry.
        |entry| entry.compare_exchange(OLD, OLD).err().unwrap_or(0),
    ]
}

#[test]
fn loom_a_read_sees_a_written_value() {
    looks().into_iter().for_each(|look| publish(|entry| entry.store(LINKED), look));
}

/// Each way to change an entry releases.
#[test]
fn loom_a_linked_table_was_initialised() {
    let links: [fn(&Entry); 5] = [
        |entry| entry.store(LINKED),
        |entry| _ = entry.swap(LINKED),
        |entry| assert_eq!(entry.compare_exchange(OLD, LINKED), Ok(())),
        |entry| _ = entry.fetch_or(LINKED),
        // Here the cleared bit signals the link.
        |entry| _ = entry.fetch_and(!OLD),
    ];
    for (number, link) in links.into_iter().enumerate() {
        match number {
            4 => publish(link, |entry| if entry.load() & OLD == 0 { LINKED } else { 0 }),
            _ => publish(link, Entry::load),
        }
    }
}

/// A frame with counts, and its contents.
struct Frame {
    counts: RefCounts<AtomicU64>,
    contents: UnsafeCell<u64>,
}

fn frame() -> Arc<Frame> {
    let counts = RefCounts::new(AtomicU64::new(0));
    let frame = Arc::new(Frame { counts, contents: UnsafeCell::new(0) });
    frame.counts.begin();
    frame
}

fn read(frame: &Frame) {
    // SAFETY: the reader holds a reference. Loom checks that no thread writes.
    frame.contents.with(|contents| assert!(unsafe { *contents } < 2));
}

/// Two holders read a frame and drop their references by `put`. The last one owns the frame.
fn last(put: fn(&Frame) -> bool) {
    loom::model(move || {
        let frame = frame();
        assert!(frame.counts.add(1, 0));
        let holder = |frame: Arc<Frame>| {
            move || {
                read(&frame);
                if put(&frame) {
                    // SAFETY: the last holder owns the frame. Loom checks that.
                    frame.contents.with_mut(|contents| unsafe { *contents += 1 });
                    return 1;
                }
                0
            }
        };
        let other = thread::spawn(holder(Arc::clone(&frame)));
        let here = holder(Arc::clone(&frame))();
        assert_eq!(here + other.join().unwrap(), 1, "one holder is the last");
    });
}

#[test]
fn loom_the_last_reference_comes_after_all_others() {
    last(|frame| frame.counts.sub(1, 0) == Some(true));
    // The owner waits until it holds the only reference, like code that frees a frame.
    last(|frame| {
        if frame.counts.sub_only().is_ok() {
            return true;
        }
        frame.counts.sub(1, 0) == Some(true)
    });
}

/// A CPU that reads one remaining reference by [`RefCounts::get`] comes after the CPUs that dropped
/// theirs.
#[test]
fn loom_the_only_reference_is_seen_after_all_others() {
    loom::model(|| {
        let frame = frame();
        assert!(frame.counts.add(1, 1));
        let holder = thread::spawn({
            let frame = Arc::clone(&frame);
            move || {
                read(&frame);
                assert_eq!(frame.counts.sub(1, 1), Some(false));
            }
        });
        // Loom does not reorder a load of this thread with later stores of others, so the other
        // thread runs first.
        thread::yield_now();
        if frame.counts.get() == (1, 0) {
            // SAFETY: this thread holds the only reference. Loom checks that.
            frame.contents.with_mut(|contents| unsafe { *contents = 1 });
        }
        holder.join().unwrap();
    });
}

/// A CPU that takes a reference through an old pointer sees the first writes of the frame's new
/// owner.
#[test]
fn loom_a_reference_to_a_new_frame_is_taken_after_it_began() {
    loom::model(|| {
        let counts = RefCounts::new(AtomicU64::new(0));
        let frame = Arc::new(Frame { counts, contents: UnsafeCell::new(0) });
        let owner = thread::spawn({
            let frame = Arc::clone(&frame);
            move || {
                // SAFETY: the frame is free. Loom checks that no other thread uses it.
                frame.contents.with_mut(|contents| unsafe { *contents = 1 });
                frame.counts.begin();
            }
        });
        if frame.counts.add(1, 0) {
            read(&frame);
        }
        owner.join().unwrap();
    });
}
