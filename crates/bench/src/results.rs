//! The results: a series of times for each case, map and size.

use crate::case::Case;
use crate::layouts::Layout;
use report::median;

/// The names of maps that the targets and the table use.
pub(crate) const BTREE: &str = "BTreeMap";
/// `BTreeMap` again, where many ranges are erased one by one.
pub(crate) const BY_KEY: &str = "BTreeMap, key by key";
/// `BTreeMap` again, with the last index of a range as the key.
pub(crate) const BY_END: &str = "BTreeMap, by last index";
pub(crate) const BRIE: &str = "brie_tree";
pub(crate) const OWNED: &str = "maple, one owner";
pub(crate) const SHARED: &str = "maple, shared, held";
pub(crate) const EACH: &str = "maple, shared, each";
/// Our tree with nodes from the pool, from the C library's `malloc` and from mimalloc.
pub(crate) const NODES: [&str; 9] = [
    OWNED,
    "malloc, one owner",
    "mimalloc, one owner",
    SHARED,
    "malloc, shared, held",
    "mimalloc, shared, held",
    EACH,
    "malloc, shared, each",
    "mimalloc, shared, each",
];
/// The suffix for the build that chooses its instructions at run time.
pub(crate) const PORTABLE: &str = " (portable)";
/// The suffix for the build without vector instructions.
pub(crate) const SCALAR: &str = " (no SIMD)";

/// The results on each layout.
pub(crate) type Layouts = Vec<(Layout, Results)>;

/// The times of a map on a case at a size.
pub(crate) struct Series {
    pub(crate) case: Case,
    pub(crate) map: String,
    pub(crate) size: usize,
    /// Whether the map scans range after range.
    pub(crate) scan: bool,
    /// Nanoseconds an operation, by round.
    pub(crate) times: Vec<f64>,
}

/// The bytes for each range of a map.
pub(crate) struct Memory {
    pub(crate) map: String,
    pub(crate) size: usize,
    pub(crate) touching: bool,
    pub(crate) bytes: f64,
}

/// All results on a layout, in the order of measurement.
#[derive(Default)]
pub(crate) struct Results {
    /// The numbers of ranges.
    pub(crate) sizes: Vec<usize>,
    pub(crate) series: Vec<Series>,
    pub(crate) memory: Vec<Memory>,
}

impl Results {
    pub(crate) fn find(&self, case: Case, map: &str, size: usize) -> Option<&Series> {
        self.series.iter().find(|one| one.case == case && one.map == map && one.size == size)
    }

    /// Nanoseconds an operation.
    pub(crate) fn time(&self, case: Case, map: &str, size: usize) -> Option<f64> {
        self.find(case, map, size).map(|series| median(&series.times))
    }

    /// The factor from the second time to the first: the median of the rounds' ratios.
    pub(crate) fn ratio(
        &self,
        (case, map): (Case, &str),
        (base_case, base): (Case, &str),
        size: usize,
    ) -> Option<f64> {
        let (one, other) = (self.find(case, map, size)?, self.find(base_case, base, size)?);
        let ratios: Vec<f64> =
            one.times.iter().zip(&other.times).map(|(time, base)| time / base).collect();
        Some(median(&ratios))
    }

    /// Bytes for each range.
    pub(crate) fn bytes(&self, map: &str, touching: bool, size: usize) -> Option<f64> {
        let fits = |one: &&Memory| one.map == map && one.touching == touching && one.size == size;
        self.memory.iter().find(fits).map(|one| one.bytes)
    }
}
