//! The pages of a block: in use, waiting, or free. One CPU takes runs; any CPU gives them back.
//!
//! # The words
//! There are three bits per page, in words of 64 pages. A run never crosses a word.
//!
//! | word | written by | meaning of a set bit |
//! |---|---|---|
//! | `busy` | the owner | the page is in use or waits: it must not be taken |
//! | `ends` | the owner | the page is the last of its run; valid only where `busy` is set |
//! | `freed` | any CPU that unmaps, by *or*; the owner, by *swap* | the page was unmapped since the owner last collected |
//!
//! Only the owner knows which busy pages wait for the end of a TLB grace period (`waiting`, and the
//! number of the period, `target`).
//!
//! # Why it is correct
//! *Runs never overlap.* A page is taken only if its `busy` bit is clear, and only the owner writes
//! these bits.
//!
//! *No page is reused too early (I4).* The owner clears a `busy` bit in three steps: it finds the
//! page in `freed`, numbers a grace period after that, and waits for its end. A CPU that sets a bit
//! of `freed` has cleared the page's PTE before, with Release, and the owner's swap is Acquire. So
//! the period is numbered after the PTE was cleared.
//!
//! *A run is checked before it is unmapped* ([`Bits::is_run`]). The owner may be changing the same
//! words, but not the bits of the run, nor the `ends` bit of the page before it: that page was the
//! end of a run when this run was taken, and stays one. For a caller that names a run which it does
//! not have, the order matters: the owner writes `ends` before `busy`, and the check reads them in
//! the opposite order. If the check sees the `busy` bits of a new run, it sees the end of that run,
//! too, and does not take a part of it for a run of its own.
//!
//! Cost: taking a run writes two words of a cache line that other CPUs read when they unmap. Giving
//! a run back is one locked instruction on another line.

use crate::sync::{AtomicU64, Ordering};
use core::panic::Location;
#[cfg(debug_assertions)]
use core::sync::atomic::AtomicPtr;
use paging::Leaf;
use spin::Once;

/// Pages of a block: as many as one page-table page maps. So the PTEs of a block have a page-table
/// page, and its lock, to themselves. Fewer under loom, to keep models small.
pub(crate) const PAGES: usize = if cfg!(loom) { 64 } else { 512 };
/// The maximum number of pages of a run.
pub(crate) const MOST: usize = 64;
const WORDS: usize = PAGES / 64;

type Words = [AtomicU64; WORDS];

fn words() -> Words {
    core::array::from_fn(|_| AtomicU64::new(0))
}

/// The words that other CPUs write.
#[repr(align(64))]
struct Freed(Words);

/// The bits of a block.
#[repr(align(64))]
pub(crate) struct Bits {
    busy: Words,
    ends: Words,
    waiting: Words,
    /// The grace period that the pages of `waiting` wait for; 0 if none do.
    target: AtomicU64,
    /// The block's page-table page; set before the first run is taken.
    leaf: Once<Leaf>,
    /// The call site that took the run beginning at each page.
    #[cfg(debug_assertions)]
    callers: [AtomicPtr<Location<'static>>; PAGES],
    freed: Freed,
}

impl Bits {
    pub(crate) fn new() -> Bits {
        let (target, leaf) = (AtomicU64::new(0), Once::new());
        Bits {
            busy: words(),
            ends: words(),
            waiting: words(),
            target,
            leaf,
            #[cfg(debug_assertions)]
            callers: core::array::from_fn(|_| AtomicPtr::new(core::ptr::null_mut())),
            freed: Freed(words()),
        }
    }

    /// Records the call site that took the run at this page, in debug builds. Owner only.
    #[inline]
    pub(crate) fn note(&self, page: usize, caller: &'static Location<'static>) {
        #[cfg(debug_assertions)]
        if let Some(slot) = self.callers.get(page) {
            // Relaxed: only for diagnostics.
            slot.store(core::ptr::from_ref(caller).cast_mut(), Ordering::Relaxed);
        }
        let _ = (page, caller);
    }

    /// The call site that took the run at this page, if known.
    pub(crate) fn caller(&self, page: usize) -> Option<&'static Location<'static>> {
        #[cfg(debug_assertions)]
        if let Some(slot) = self.callers.get(page) {
            // SAFETY: null, or made from a `&'static`. Relaxed: only for diagnostics.
            return unsafe { slot.load(Ordering::Relaxed).as_ref() };
        }
        let _ = page;
        None
    }

    /// The block's page-table page; `None` before it is set.
    #[inline]
    pub(crate) fn leaf(&self) -> Option<Leaf> {
        self.leaf.get().copied()
    }

    pub(crate) fn set_leaf(&self, leaf: Leaf) {
        self.leaf.call_once(|| leaf);
    }

    /// Takes the lowest run of so many pages, at most [`MOST`], searching from word `from` on.
    /// Returns its first page. Owner only.
    pub(crate) fn take(&self, from: usize, pages: usize) -> Option<usize> {
        (0..WORDS).map(|step| (from + step) % WORDS).find_map(|word| {
            // Relaxed, all loads: only the owner writes them.
            let busy = self.busy[word].load(Ordering::Relaxed);
            let bit = run(!busy, pages)?;
            let mask = mask(bit, pages);
            let ends = self.ends[word].load(Ordering::Relaxed) & !mask | 1 << (bit + pages - 1);
            // Relaxed: the Release store below orders it.
            self.ends[word].store(ends, Ordering::Relaxed);
            // Release: a CPU that sees a page busy sees the end of its run; pairs with the Acquire
            // of `is_run`.
            self.busy[word].store(busy | mask, Ordering::Release);
            Some(word * 64 + bit)
        })
    }

    /// Whether exactly these pages are a run that is in use or waits.
    pub(crate) fn is_run(&self, first: usize, pages: usize) -> bool {
        let (word, bit) = (first / 64, first % 64);
        if pages == 0 || word >= WORDS || bit + pages > 64 {
            return false;
        }
        let mask = mask(bit, pages);
        // Acquire: pairs with the Release of `take`.
        let busy = self.busy[word].load(Ordering::Acquire);
        // Relaxed: the Acquire load above orders it.
        let ends = self.ends[word].load(Ordering::Relaxed);
        run_begins(busy, ends, bit) && busy & mask == mask && ends & mask == 1 << (bit + pages - 1)
    }

    /// Whether a run begins at this page.
    pub(crate) fn begins(&self, page: usize) -> bool {
        // Relaxed, both: only for diagnostics.
        let word =
            |words: &Words| words.get(page / 64).map_or(0, |word| word.load(Ordering::Relaxed));
        self.is_busy(page) && run_begins(word(&self.busy), word(&self.ends), page % 64)
    }

    /// Whether the page is in use or waits.
    pub(crate) fn is_busy(&self, page: usize) -> bool {
        // Relaxed: only for diagnostics.
        let word = self.busy.get(page / 64).map_or(0, |busy| busy.load(Ordering::Relaxed));
        word >> (page % 64) & 1 != 0
    }

    /// Gives back a run whose PTEs have been cleared. Any CPU. Cost: one locked instruction.
    pub(crate) fn give(&self, first: usize, pages: usize) {
        // Release: the PTEs were cleared before; pairs with the Acquire of `take_all`.
        self.freed.0[first / 64].fetch_or(mask(first % 64, pages), Ordering::Release);
    }

    /// Collects the given-back pages, if none wait yet. `target` numbers the period that they wait
    /// for. Returns how many pages were collected. Owner only.
    pub(crate) fn gather(&self, target: impl FnOnce() -> u64) -> usize {
        // Relaxed: only the owner accesses it.
        if self.target.load(Ordering::Relaxed) != 0 {
            return 0;
        }
        self.gather_all(target)
    }

    /// As [`gather`](Bits::gather), also if pages wait already: all of them then wait for the new,
    /// later period. For a caller that is about to end that period. Owner only.
    pub(crate) fn gather_all(&self, target: impl FnOnce() -> u64) -> usize {
        // Relaxed, all of `target` and `waiting`: only the owner accesses them.
        let mut gathered = 0;
        for (freed, waiting) in self.freed.0.iter().zip(&self.waiting) {
            // Relaxed: a hint; the swap decides.
            if freed.load(Ordering::Relaxed) != 0 {
                let pages = take_all(freed);
                waiting.store(waiting.load(Ordering::Relaxed) | pages, Ordering::Relaxed);
                gathered += pages.count_ones() as usize;
            }
        }
        if gathered != 0 {
            self.target.store(target(), Ordering::Relaxed);
        }
        gathered
    }

    /// The period that pages wait for; 0 if none wait. Owner only.
    pub(crate) fn target(&self) -> u64 {
        // Relaxed: only the owner writes it.
        self.target.load(Ordering::Relaxed)
    }

    /// Frees the waiting pages if their period is at most `done`, the last that has ended. Returns
    /// how many pages it freed. Owner only.
    pub(crate) fn settle(&self, done: u64) -> usize {
        // Relaxed, all: only the owner accesses them. A page that is taken again is published by
        // other means.
        let target = self.target.load(Ordering::Relaxed);
        if target == 0 || target > done {
            return 0;
        }
        let mut settled = 0;
        for (busy, waiting) in self.busy.iter().zip(&self.waiting) {
            let free = waiting.load(Ordering::Relaxed);
            if free != 0 {
                waiting.store(0, Ordering::Relaxed);
                busy.store(busy.load(Ordering::Relaxed) & !free, Ordering::Relaxed);
                settled += free.count_ones() as usize;
            }
        }
        self.target.store(0, Ordering::Relaxed);
        settled
    }

    /// The number of waiting pages. Owner only.
    pub(crate) fn waiting(&self) -> usize {
        // Relaxed: only the owner writes them.
        let waiting = self.waiting.iter().map(|waiting| waiting.load(Ordering::Relaxed));
        waiting.map(|waiting| waiting.count_ones() as usize).sum()
    }

    /// Whether all pages are free. Owner only.
    pub(crate) fn is_free(&self) -> bool {
        // Relaxed: only the owner writes them.
        self.busy.iter().all(|busy| busy.load(Ordering::Relaxed) == 0)
    }

    /// The number of pages in use, and of pages given back but not yet free. Exact for the owner
    /// only.
    pub(crate) fn count(&self) -> (usize, usize) {
        // Relaxed, all: only for statistics.
        let words = self.busy.iter().zip(&self.waiting).zip(&self.freed.0);
        words.fold((0, 0), |(used, waits), ((busy, waiting), freed)| {
            let gone = waiting.load(Ordering::Relaxed) | freed.load(Ordering::Relaxed);
            let busy = busy.load(Ordering::Relaxed);
            let ones = |bits: u64| bits.count_ones() as usize;
            (used + ones(busy & !gone), waits + ones(busy & gone))
        })
    }
}

/// Takes all bits from a word that other CPUs set bits of.
fn take_all(freed: &AtomicU64) -> u64 {
    // Acquire: pairs with the Release of `give`. The stored 0 publishes nothing, so no Release.
    freed.swap(0, Ordering::Acquire)
}

/// Whether a busy page at this bit begins a run: it is the first of a word, follows a free page, or
/// follows the end of another run.
fn run_begins(busy: u64, ends: u64, bit: usize) -> bool {
    let before = 1 << bit >> 1;
    busy & before == 0 || ends & before != 0
}

fn mask(bit: usize, pages: usize) -> u64 {
    (u64::MAX >> (64 - pages)) << bit
}

/// The lowest bit at which so many ones begin. Cost: a shift and an AND for each doubling of
/// `pages`.
fn run(free: u64, pages: usize) -> Option<usize> {
    let (mut starts, mut have) = (free, 1);
    while have < pages && starts != 0 {
        let step = have.min(pages - have);
        starts &= starts >> step;
        have += step;
    }
    (starts != 0).then(|| starts.trailing_zeros() as usize)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn runs_of_ones() {
        for pages in 1..=64 {
            assert_eq!(run(u64::MAX, pages), Some(0));
            assert_eq!(run(u64::MAX << (64 - pages), pages), Some(64 - pages));
            assert_eq!(run(!(1 << 40), pages), if pages <= 40 { Some(0) } else { None });
        }
        assert_eq!(run(0, 1), None);
        assert_eq!(run(0b0111_0110, 3), Some(4));
        assert_eq!(run(0b0111_0110, 2), Some(1));
    }

    #[test]
    fn each_run_is_known_by_both_ends() {
        let bits = Bits::new();
        let (one, two) = (bits.take(0, 4).unwrap(), bits.take(0, 4).unwrap());
        assert_eq!((one, two), (0, 4));
        for first in 0..70 {
            for pages in 0..70 {
                let known = bits.is_run(first, pages);
                assert_eq!(known, pages == 4 && (first == one || first == two), "{first} {pages}");
            }
        }
    }

    #[test]
    fn a_run_waits_for_its_period_and_comes_back() {
        let bits = Bits::new();
        let all: std::vec::Vec<_> = core::iter::from_fn(|| bits.take(0, 64)).collect();
        assert_eq!(all, (0..PAGES).step_by(64).collect::<std::vec::Vec<_>>());
        assert_eq!(bits.gather(|| unreachable!("nothing was given back")), 0);
        bits.give(64, 64);
        assert_eq!(bits.gather(|| 7), 64);
        bits.give(128, 64);
        assert_eq!(bits.gather(|| unreachable!("one period at a time")), 0);
        assert_eq!(bits.count(), (PAGES - 128, 128));
        assert_eq!(bits.settle(6), 0);
        assert_eq!(bits.take(0, 1), None);
        assert_eq!(bits.settle(7), 64);
        assert_eq!(bits.take(0, 64), Some(64));
        assert_eq!(bits.take(0, 1), None);
        assert_eq!((bits.gather(|| 8), bits.settle(9)), (64, 64));
        assert_eq!(bits.take(0, 64), Some(128));
        bits.give(0, 64);
        assert_eq!(bits.gather(|| 10), 64);
        bits.give(448, 64);
        assert_eq!((bits.gather_all(|| 11), bits.settle(10), bits.settle(11)), (64, 0, 128));
    }
}
