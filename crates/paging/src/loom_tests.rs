//! Loom models of three protocols: a table's lock with linking and unlinking, faults beside sweeps,
//! and pins beside unmaps.
//!
//! `RUSTFLAGS="--cfg loom" cargo test --release --target-dir target/loom -p samara-paging --lib
//! loom`
//!
//! [`Locked`] with [`Locked::link`] and [`Locked::unlink`], [`hold`], entries and counts are the
//! real code, over loom's words. The loops around them, which walk and retry, are copied from
//! `cursor`: a table of loom's words would have 512 of them.

mod faults;

use crate::gup::{Held, hold};
use crate::lock::Locked;
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};
use loom::thread;
use machine::word::{EntryWord, RefCounts};

type Entry = EntryWord<AtomicU64>;

fn entry(value: u64) -> Entry {
    Entry::new(AtomicU64::new(value))
}

/// An upper table with one entry, and two tables that the entry may lead to. The words are the
/// locks. A lower table is named by its index plus one.
struct Tables {
    upper: AtomicU32,
    link: Entry,
    lower: [AtomicU32; 2],
    entries: [Entry; 2],
}

fn lock(word: &AtomicU32) -> Option<Locked<'_, AtomicU32>> {
    Locked::take(word, thread::yield_now)
}

impl Tables {
    /// As `cursor::map`: walk, lock, check that the table is alive, write. Links the second table
    /// if none is linked.
    fn map(&self) {
        loop {
            match self.link.load() {
                0 => {
                    let Some(mut upper) = lock(&self.upper) else { unreachable!("the top stays") };
                    let absent = |value| Ok::<_, ()>(value == 0);
                    let _ = upper.link(&self.link, 2, absent);
                }
                table => {
                    let table = table as usize - 1;
                    let Some(mut locked) = lock(&self.lower[table]) else {
                        thread::yield_now();
                        continue;
                    };
                    self.entries[table].store(7);
                    locked.count += 1;
                    return;
                }
            }
        }
    }

    /// As `cursor::unmap` of the page in the first table, then `prune`. The mutant (`locks` false)
    /// reads the count without the lock.
    fn unmap(&self, locks: bool) {
        if let Some(mut locked) = lock(&self.lower[0]) {
            locked.count -= 1;
        }
        let Some(mut upper) = lock(&self.upper) else { return };
        if locks {
            let first = |value| if value == 1 { Some((1, lock(&self.lower[0])?)) } else { None };
            upper.unlink(&self.link, first);
            return;
        }
        // The mutant.
        if self.link.load() != 1 || self.lower[0].load(Acquire) & 0xffff != 0 {
            return;
        }
        thread::yield_now();
        self.link.store(0);
        upper.count -= 1;
    }
}

/// A page that is mapped beside an unlinking is in a table that is linked.
fn link_and_unlink(locks: bool) {
    loom::model(move || {
        let tables = Arc::new(Tables {
            upper: AtomicU32::new(1),
            link: entry(1),
            lower: [AtomicU32::new(1), AtomicU32::new(0)],
            entries: [entry(0), entry(0)],
        });
        let mapper = {
            let tables = tables.clone();
            thread::spawn(move || tables.map())
        };
        tables.unmap(locks);
        mapper.join().unwrap();
        let linked = tables.link.load();
        assert_ne!(linked, 0, "a mapping is lost: nothing is linked");
        assert_eq!(tables.entries[linked as usize - 1].load(), 7, "a mapping is lost");
        assert_eq!(tables.upper.load(Acquire), 1);
        assert_eq!(tables.lower[linked as usize - 1].load(Acquire), 1);
    });
}

#[test]
fn tables_are_unlinked_empty() {
    link_and_unlink(true);
}

#[test]
#[should_panic(expected = "a mapping is lost")]
fn a_look_without_the_lock_is_caught() {
    link_and_unlink(false);
}

/// Two CPUs map the same page, each if it is absent. The next lock holder sees the changes of the
/// last.
#[test]
fn loom_one_of_two_maps_a_page() {
    loom::model(|| {
        let table = Arc::new((AtomicU32::new(0), entry(0), UnsafeCell::new(0)));
        let map = |frame| {
            let table = Arc::clone(&table);
            move || {
                let Some(mut locked) = lock(&table.0) else { unreachable!("it stays") };
                // SAFETY: the lock is held. Loom checks that there is no other user.
                table.2.with_mut(|times| unsafe { *times += 1 });
                locked.link(&table.1, frame, |value| Ok::<_, ()>(value == 0)) == Ok(true)
            }
        };
        let other = thread::spawn(map(7));
        let here = map(8)();
        assert!(here != other.join().unwrap(), "both have mapped the page");
        assert_eq!(table.0.load(Acquire), 1);
    });
}

/// A page with an entry, and its frame's count. The frame is allocated again by another owner,
/// which writes to it.
struct Page {
    entry: Entry,
    counts: RefCounts<AtomicU64>,
    owner: AtomicU64,
    /// The exclusive owner of the frame writes it.
    contents: UnsafeCell<u64>,
}

const FRAME: u64 = 5;
const MINE: u64 = 1;
const OTHERS: u64 = 2;

/// A frame that `gup::hold` has pinned is the mapped one, and stays so. `FrameInfo` does with its
/// counts what this model does.
fn pin_and_unmap(second_look: bool) {
    loom::model(move || {
        let page = Arc::new(Page {
            entry: entry(FRAME),
            counts: RefCounts::new(AtomicU64::new(0)),
            owner: AtomicU64::new(MINE),
            contents: UnsafeCell::new(MINE),
        });
        page.counts.begin();
        let unmapper = {
            let page = page.clone();
            thread::spawn(move || {
                page.entry.swap(0);
                if page.counts.sub(1, 0) == Some(true) {
                    // The next owner, as in `FrameInfo::allocate`.
                    page.owner.store(OTHERS, Relaxed);
                    // SAFETY: exclusive owner. Loom checks that.
                    page.contents.with_mut(|contents| unsafe { *contents = OTHERS });
                    page.counts.begin();
                }
            })
        };
        if page.entry.load() == FRAME {
            let look = || !second_look || page.entry.load() == FRAME;
            let unpin = |counts: &mut &RefCounts<_>| assert!(counts.sub(1, 1).is_some());
            let mut counts = &page.counts;
            let held = hold(&mut counts, |counts| counts.add(1, 1), look, unpin);
            if held == Held::Yes {
                assert_eq!(page.owner.load(Relaxed), MINE, "another owner's frame is pinned");
                if second_look {
                    // SAFETY: it is pinned. Loom checks that there is no writer.
                    page.contents.with(|contents| assert_eq!(unsafe { *contents }, MINE));
                }
                unpin(&mut counts);
            }
        }
        unmapper.join().unwrap();
        let (refs, pins) = page.counts.get();
        assert!(!second_look || (refs <= 1 && pins == 0), "a pin is left: {refs}, {pins}");
    });
}

#[test]
fn the_pinned_frame_was_mapped() {
    pin_and_unmap(true);
}

#[test]
#[should_panic(expected = "another owner's frame is pinned")]
fn an_entry_that_is_not_looked_at_twice_is_caught() {
    pin_and_unmap(false);
}
