//! The order in which a program uses its pages.

use alloc::vec::Vec;
use oorandom::Rand64;

/// The pages of the program.
pub(super) const PAGES: usize = 4096;

/// How a program uses its pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Pattern {
    /// Page n is used as often as 1/n: a cache, a heap.
    Zipf,
    /// Nine of ten accesses are to a fifth of the pages.
    HotAndCold,
    /// Zipf, and at times a scan of many pages that are used once: a backup.
    Scans,
}

impl Pattern {
    pub(super) const ALL: [Pattern; 3] = [Pattern::Zipf, Pattern::HotAndCold, Pattern::Scans];

    pub(super) fn name(self) -> &'static str {
        match self {
            Pattern::Zipf => "zipf",
            Pattern::HotAndCold => "hot and cold",
            Pattern::Scans => "zipf and scans",
        }
    }

    /// So many accesses, the same ones each time.
    pub(super) fn accesses(self, count: usize, memory: usize) -> Vec<usize> {
        let mut random = Rand64::new(4711);
        // Neighbours in the order of use are not neighbours in memory.
        let mut places: Vec<usize> = (0..PAGES).collect();
        for last in (1..PAGES).rev() {
            places.swap(last, random.rand_range(0..last as u64 + 1) as usize);
        }
        let mut sums = Vec::with_capacity(PAGES);
        let mut sum = 0.0;
        for page in 1..=PAGES {
            sum += 1.0 / page as f64;
            sums.push(sum);
        }
        let zipf = |random: &mut Rand64| {
            let drawn = random.rand_float() * sum;
            sums.partition_point(|sum| *sum < drawn).min(PAGES - 1)
        };
        let hot = PAGES as u64 / 5;
        let mut accesses = Vec::with_capacity(count);
        for number in 0..count {
            let page = match self {
                Pattern::Zipf => zipf(&mut random),
                Pattern::HotAndCold if random.rand_range(0..10) != 0 => {
                    random.rand_range(0..hot) as usize
                }
                Pattern::HotAndCold => random.rand_range(hot..PAGES as u64) as usize,
                // Two of ten accesses, in scans of the length of memory.
                Pattern::Scans if number % (5 * memory) < memory => number % PAGES,
                Pattern::Scans => zipf(&mut random),
            };
            accesses.push(places[page]);
        }
        accesses
    }
}
