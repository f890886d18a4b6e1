//! The protocols under loom: the lock of a table with the unlinking of tables, pins beside unmaps, and the set of the CPUs that a
//! flush goes to.
//!
//! `RUSTFLAGS="--cfg loom" cargo test --release --target-dir target/loom -p paging --lib loom`
//!
//! The lock, pins, entries and counts are the very code, over loom's words. The set of CPUs is that of the crate `machine`, which
//! loom cannot see into: here it is a word, with the orderings that [`machine::AtomicCpuSet`] documents.

use crate::gup::{Held, hold};
use crate::lock::Locked;
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering::*, fence};
use loom::thread;
use machine::word::{Counts, EntryWord};

type Entry = EntryWord<AtomicU64>;

fn entry(value: u64) -> Entry {
    Entry::new(AtomicU64::new(value))
}

/// An upper table with one entry, and the table below it. Words are locks; a table below is named by its number.
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
    /// `cursor::map`: walk, lock, look whether the table is alive, write. Links the second table where there is none.
    fn map(&self) {
        loop {
            match self.link.load() {
                0 => {
                    let Some(mut upper) = lock(&self.upper) else { unreachable!("the top stays") };
                    if self.link.load() == 0 {
                        self.link.store(2);
                        upper.count += 1;
                    }
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

    /// `cursor::unmap` of what is in the first table, and `prune`.
    fn unmap(&self, locks: bool) {
        if let Some(mut locked) = lock(&self.lower[0]) {
            locked.count -= 1;
        }
        let Some(mut upper) = lock(&self.upper) else { return };
        if self.link.load() != 1 {
            return;
        }
        if !locks {
            // The mutant looks without the lock.
            if self.lower[0].load(Acquire) & 0xffff != 0 {
                return;
            }
            thread::yield_now();
        }
        let Some(lower) = lock(&self.lower[0]) else { return };
        if locks && lower.count != 0 {
            return;
        }
        self.link.store(0);
        upper.count -= 1;
        lower.kill();
    }
}

/// What is mapped beside an unlinking is in a table that is linked.
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
        assert_ne!(linked, 0, "what was mapped is lost: nothing is linked");
        assert_eq!(tables.entries[linked as usize - 1].load(), 7, "what was mapped is lost");
        assert_eq!(tables.upper.load(Acquire), 1);
        assert_eq!(tables.lower[linked as usize - 1].load(Acquire), 1);
    });
}

#[test]
fn tables_are_unlinked_empty() {
    link_and_unlink(true);
}

#[test]
#[should_panic(expected = "what was mapped is lost")]
fn a_look_without_the_lock_is_caught() {
    link_and_unlink(false);
}

/// A page with an entry, and its frame's count; the frame is allocated again by somebody else, who writes in it.
struct Page {
    entry: Entry,
    counts: Counts<AtomicU64>,
    owner: AtomicU64,
    /// Whoever has the frame alone writes it.
    contents: UnsafeCell<u64>,
}

const FRAME: u64 = 5;
const MINE: u64 = 1;
const OTHERS: u64 = 2;

/// What `gup::hold` has pinned is what was mapped, and stays. With its counts `FrameInfo` does what is done here.
fn pin_and_unmap(second_look: bool) {
    loom::model(move || {
        let page = Arc::new(Page {
            entry: entry(FRAME),
            counts: Counts::new(AtomicU64::new(0)),
            owner: AtomicU64::new(MINE),
            contents: UnsafeCell::new(MINE),
        });
        page.counts.begin();
        let unmapper = {
            let page = page.clone();
            thread::spawn(move || {
                page.entry.swap(0);
                if page.counts.sub(1, 0) == Some(true) {
                    // The next owner's: `FrameInfo::allocate`.
                    page.owner.store(OTHERS, Relaxed);
                    // SAFETY: nobody else has it: loom looks whether that is so.
                    page.contents.with_mut(|contents| unsafe { *contents = OTHERS });
                    page.counts.begin();
                }
            })
        };
        if page.entry.load() == FRAME {
            let look = || !second_look || page.entry.load() == FRAME;
            let unpin = |counts: &mut &Counts<_>| assert!(counts.sub(1, 1).is_some());
            let mut counts = &page.counts;
            let held = hold(&mut counts, |counts| counts.add(1, 1), look, unpin);
            if held == Held::Yes {
                assert_eq!(page.owner.load(Relaxed), MINE, "somebody else's frame is pinned");
                if second_look {
                    // SAFETY: it is pinned: loom looks whether somebody writes.
                    page.contents.with(|contents| assert_eq!(unsafe { *contents }, MINE));
                }
                unpin(&mut counts);
            }
        }
        unmapper.join().unwrap();
    });
}

#[test]
fn what_is_pinned_is_what_was_mapped() {
    pin_and_unmap(true);
}

#[test]
#[should_panic(expected = "somebody else's frame is pinned")]
fn an_entry_that_is_not_looked_at_twice_is_caught() {
    pin_and_unmap(false);
}

/// [`machine::AtomicCpuSet`]: a CPU begins to use a space while another unmaps a page of it and reads the set. `fences`: whether
/// the one that enters has its fence, and the one that flushes.
fn enter_and_flush(fences: (bool, bool)) {
    loom::model(move || {
        let page = Arc::new((AtomicU64::new(FRAME), AtomicU64::new(0)));
        let walker = {
            let page = page.clone();
            thread::spawn(move || {
                page.1.fetch_or(1, Relaxed);
                if fences.0 {
                    fence(SeqCst);
                }
                page.0.load(Acquire) == FRAME
            })
        };
        page.0.store(0, Release);
        if fences.1 {
            fence(SeqCst);
        }
        let asked = page.1.load(Acquire) == 1;
        let cached = walker.join().unwrap();
        assert!(asked || !cached, "a CPU has cached the page and is not asked to flush");
    });
}

#[test]
fn who_has_cached_is_asked_to_flush() {
    enter_and_flush((true, true));
}

#[test]
#[should_panic(expected = "is not asked to flush")]
fn entering_without_a_fence_is_caught() {
    enter_and_flush((false, true));
}

#[test]
#[should_panic(expected = "is not asked to flush")]
fn reading_the_set_without_a_fence_is_caught() {
    enter_and_flush((true, false));
}
