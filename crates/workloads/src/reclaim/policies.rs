//! Policies of reclaim without pages: which of a program's accesses would read a page back.
//!
//! Each takes pages in batches as long as ours, when memory is full.

use super::BATCH;
use super::pattern::PAGES;
use alloc::collections::{BTreeSet, VecDeque};
use alloc::vec;
use alloc::vec::Vec;

/// A baseline.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Policy {
    /// The page that came first goes first.
    Fifo,
    /// The page goes that was not used for the longest time.
    Lru,
}

impl Policy {
    pub(super) const ALL: [Policy; 2] = [Policy::Fifo, Policy::Lru];

    pub(super) fn name(self) -> &'static str {
        match self {
            Policy::Fifo => "FIFO",
            Policy::Lru => "LRU",
        }
    }

    /// The accesses that read a page back, with so many pages of memory.
    pub(super) fn read_back(self, accesses: &[usize], memory: usize) -> usize {
        match self {
            Policy::Fifo => fifo(accesses, memory),
            Policy::Lru => lru(accesses, memory),
        }
    }
}

/// Counts the accesses to pages that were in memory before and have gone.
struct Missed {
    known: Vec<bool>,
    count: usize,
}

impl Missed {
    fn new() -> Missed {
        Missed { known: vec![false; PAGES], count: 0 }
    }

    fn add(&mut self, page: usize) {
        self.count += usize::from(self.known[page]);
        self.known[page] = true;
    }
}

fn fifo(accesses: &[usize], memory: usize) -> usize {
    let (mut missed, mut present, mut queue) = (Missed::new(), vec![false; PAGES], VecDeque::new());
    for &page in accesses {
        if present[page] {
            continue;
        }
        missed.add(page);
        if queue.len() == memory {
            queue.drain(..BATCH).for_each(|gone| present[gone] = false);
        }
        present[page] = true;
        queue.push_back(page);
    }
    missed.count
}

fn lru(accesses: &[usize], memory: usize) -> usize {
    // The pages by the numbers of their last accesses.
    let (mut missed, mut last, mut order) = (Missed::new(), vec![None; PAGES], BTreeSet::new());
    for (number, &page) in accesses.iter().enumerate() {
        match last[page] {
            Some(before) => drop(order.remove(&(before, page))),
            None => {
                missed.add(page);
                if order.len() == memory {
                    for (_, gone) in (0..BATCH).filter_map(|_| order.pop_first()) {
                        last[gone] = None;
                    }
                }
            }
        }
        last[page] = Some(number);
        order.insert((number, page));
    }
    missed.count
}

#[test]
fn policies_do_as_they_say() {
    // Memory for four batches; one is used all the time.
    let memory = 4 * BATCH;
    let mut accesses = Vec::new();
    for round in 0..16 {
        for page in 0..BATCH {
            accesses.extend([page, BATCH + round * BATCH + page]);
        }
    }
    assert_eq!(Policy::Lru.read_back(&accesses, memory), 0);
    assert!(Policy::Fifo.read_back(&accesses, memory) > BATCH);
    // A loop is the worst for LRU: each access reads a page back.
    let around: Vec<usize> = (0..20 * memory).map(|access| access % (memory + BATCH)).collect();
    assert_eq!(Policy::Lru.read_back(&around, memory), around.len() - memory - BATCH);
}
