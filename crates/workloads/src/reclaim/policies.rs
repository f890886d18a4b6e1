//! Policies of reclaim without pages: which of a program's accesses would read a page back.
//!
//! Each takes pages in batches as long as ours, when memory is full. Only [`best`], which knows the
//! future, takes them one by one: no policy is better.

use super::BATCH;
use super::pattern::PAGES;
use alloc::collections::{BTreeSet, VecDeque};
use alloc::vec;
use alloc::vec::Vec;
use oorandom::Rand64;

/// A baseline.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Policy {
    /// The page that came first goes first.
    Fifo,
    /// Any page goes.
    Random,
    /// The page goes that was not used for the longest time.
    Lru,
    /// New pages wait in a list; those that are used again there go to a second one, of half of
    /// memory at most, as in Linux before 6.1.
    TwoLists,
    /// The page goes that is not needed for the longest time.
    Best,
}

impl Policy {
    pub(super) const ALL: [Policy; 5] =
        [Policy::Fifo, Policy::Random, Policy::Lru, Policy::TwoLists, Policy::Best];

    pub(super) fn name(self) -> &'static str {
        match self {
            Policy::Fifo => "FIFO",
            Policy::Random => "random",
            Policy::Lru => "LRU",
            Policy::TwoLists => "two lists",
            Policy::Best => "optimum",
        }
    }

    /// The accesses that read a page back, with so many pages of memory.
    pub(super) fn read_back(self, accesses: &[usize], memory: usize) -> usize {
        match self {
            Policy::Fifo => fifo(accesses, memory),
            Policy::Random => random(accesses, memory),
            Policy::Lru => lru(accesses, memory),
            Policy::TwoLists => two_lists(accesses, memory),
            Policy::Best => best(accesses, memory),
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

fn random(accesses: &[usize], memory: usize) -> usize {
    let (mut missed, mut present, mut pages) = (Missed::new(), vec![false; PAGES], Vec::new());
    let mut random = Rand64::new(42);
    for &page in accesses {
        if present[page] {
            continue;
        }
        missed.add(page);
        if pages.len() == memory {
            for _ in 0..BATCH {
                let any = random.rand_range(0..pages.len() as u64) as usize;
                present[pages.swap_remove(any)] = false;
            }
        }
        present[page] = true;
        pages.push(page);
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

#[derive(Clone, Copy, PartialEq, Eq)]
enum At {
    Nowhere,
    New { used: bool },
    Active { used: bool },
}

fn two_lists(accesses: &[usize], memory: usize) -> usize {
    let (mut missed, mut at) = (Missed::new(), vec![At::Nowhere; PAGES]);
    let (mut new, mut active) = (VecDeque::new(), VecDeque::new());
    for &page in accesses {
        match &mut at[page] {
            At::New { used } | At::Active { used } => {
                *used = true;
                continue;
            }
            At::Nowhere => missed.add(page),
        }
        let mut left = if new.len() + active.len() == memory { BATCH } else { 0 };
        while left != 0 {
            if active.len() > memory / 2 || new.is_empty() {
                let Some(oldest) = active.pop_front() else { break };
                let keep = at[oldest] == At::Active { used: true };
                if keep {
                    at[oldest] = At::Active { used: false };
                    active.push_back(oldest);
                } else {
                    at[oldest] = At::New { used: false };
                    new.push_back(oldest);
                }
            } else if let Some(oldest) = new.pop_front() {
                if at[oldest] == (At::New { used: true }) {
                    at[oldest] = At::Active { used: false };
                    active.push_back(oldest);
                } else {
                    at[oldest] = At::Nowhere;
                    left -= 1;
                }
            }
        }
        at[page] = At::New { used: false };
        new.push_back(page);
    }
    missed.count
}

/// Belady's optimum.
fn best(accesses: &[usize], memory: usize) -> usize {
    let mut next = vec![usize::MAX; accesses.len()];
    let mut later = vec![usize::MAX; PAGES];
    for (number, &page) in accesses.iter().enumerate().rev() {
        next[number] = later[page];
        later[page] = number;
    }
    let (mut missed, mut order) = (Missed::new(), BTreeSet::new());
    for (number, &page) in accesses.iter().enumerate() {
        if !order.remove(&(number, page)) {
            missed.add(page);
            if order.len() == memory {
                order.pop_last();
            }
        }
        order.insert((next[number], page));
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
    let read_back = |policy: Policy| policy.read_back(&accesses, memory);
    assert_eq!((read_back(Policy::Lru), read_back(Policy::Best)), (0, 0));
    assert!(read_back(Policy::Fifo) > BATCH && read_back(Policy::Random) > BATCH);
    assert!(read_back(Policy::TwoLists) < read_back(Policy::Fifo));
    // A loop is the worst for LRU: each access reads a page back. The optimum keeps most.
    let around: Vec<usize> = (0..20 * memory).map(|access| access % (memory + BATCH)).collect();
    assert_eq!(Policy::Lru.read_back(&around, memory), around.len() - memory - BATCH);
    assert!(Policy::Best.read_back(&around, memory) < around.len() / 2);
}
