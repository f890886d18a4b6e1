//! [`EntryWord`] and [`RefCounts`] under loom: each operation that stores an entry publishes what
//! the entry leads to, each that reads one acquires it, and the last reference comes after all
//! others.
//!
//! Loom reports a cell that is read or written without order. `campaign/mutants.d/machine.toml` has
//! each ordering weakened.

use super::{EntryWord, RefCounts};
use loom::cell::UnsafeCell;
use loom::sync::atomic::AtomicU64;
use loom::thread;
use std::sync::Arc;

type Entry = EntryWord<AtomicU64>;

/// A bit that no other value has.
const LINKED: u64 = 0x1000;
/// A bit that is there from the start.
const OLD: u64 = 1;

struct Linked {
    entry: Entry,
    /// The table that the entry leads to.
    table: UnsafeCell<u64>,
}

/// One CPU writes a table and links it by `link`; another reads the entry by `look` and, if it is
/// linked, takes the table for itself.
fn publish(link: fn(&Entry), look: fn(&Entry) -> u64) {
    loom::model(move || {
        let linked =
            Arc::new(Linked { entry: Entry::new(AtomicU64::new(OLD)), table: UnsafeCell::new(0) });
        let writer = thread::spawn({
            let linked = Arc::clone(&linked);
            move || {
                // SAFETY: it is not linked yet: loom checks that nobody else uses it.
                linked.table.with_mut(|table| unsafe { *table = 7 });
                link(&linked.entry);
            }
        });
        if look(&linked.entry) & LINKED != 0 {
            // SAFETY: the writer is done with it: loom checks that.
            linked.table.with_mut(|table| assert_eq!(unsafe { *table }, 7));
        }
        writer.join().unwrap();
    });
}

/// All ways to read an entry acquire.
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
        // One that fails tells what is there.
        |entry| entry.compare_exchange(OLD, OLD).err().unwrap_or(0),
    ]
}

#[test]
fn loom_what_is_read_was_written_before() {
    looks().into_iter().for_each(|look| publish(|entry| entry.store(LINKED), look));
}

/// All ways to change an entry release.
#[test]
fn loom_what_is_linked_was_written_before() {
    let links: [fn(&Entry); 5] = [
        |entry| entry.store(LINKED),
        |entry| _ = entry.swap(LINKED),
        |entry| assert_eq!(entry.compare_exchange(OLD, LINKED), Ok(())),
        |entry| _ = entry.fetch_or(LINKED),
        // The bit that goes is what says so, here.
        |entry| _ = entry.fetch_and(!OLD),
    ];
    for (number, link) in links.into_iter().enumerate() {
        match number {
            4 => publish(link, |entry| if entry.load() & OLD == 0 { LINKED } else { 0 }),
            _ => publish(link, Entry::load),
        }
    }
}

/// A frame that is counted, and its contents.
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
    // SAFETY: the reader holds a reference: loom checks that nobody writes.
    frame.contents.with(|contents| assert!(unsafe { *contents } < 2));
}

/// Two holders read a frame and give up their references, by `put`; the last one has it alone.
fn last(put: fn(&Frame) -> bool) {
    loom::model(move || {
        let frame = frame();
        assert!(frame.counts.add(1, 0));
        let holder = |frame: Arc<Frame>| {
            move || {
                read(&frame);
                if put(&frame) {
                    // SAFETY: the last holder has it alone: loom checks that.
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
    // The owner waits until it has the only reference, as who frees a frame does.
    last(|frame| {
        if frame.counts.sub_only().is_ok() {
            return true;
        }
        frame.counts.sub(1, 0) == Some(true)
    });
}

/// Who sees one reference left by [`RefCounts::get`] comes after those who gave theirs up.
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
        // Loom does not go back behind a load by the thread itself: so the other comes first here.
        thread::yield_now();
        if frame.counts.get() == (1, 0) {
            // SAFETY: this has the only reference: loom checks that.
            frame.contents.with_mut(|contents| unsafe { *contents = 1 });
        }
        holder.join().unwrap();
    });
}

/// Who gets a reference by an old pointer sees what the frame's new owner wrote first.
#[test]
fn loom_a_reference_to_a_new_frame_is_taken_after_it_began() {
    loom::model(|| {
        let counts = RefCounts::new(AtomicU64::new(0));
        let frame = Arc::new(Frame { counts, contents: UnsafeCell::new(0) });
        let owner = thread::spawn({
            let frame = Arc::clone(&frame);
            move || {
                // SAFETY: the frame is free: loom checks that nobody else uses it.
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
