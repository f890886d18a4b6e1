//! The counts of a run.

use std::{collections::BTreeMap, fmt, time::Duration};

use super::{
    Mismatch, Outcome, ResidentSet, Timing, Usage, lifetimes::LifetimeClasses, stacks::Stacks,
    style::count, timeline::Timeline,
};
use crate::record::{MmId, Op};

/// The counts of a whole run. Its size is bounded, however many address spaces a program makes:
/// beyond some thousand, only the busiest are kept one by one. All of them count in the total.
///
/// ```
/// use trace::{record::Op, report::{SpaceReport, Summary, json}};
///
/// let mut space = SpaceReport { mm: 2, pid: 7, exe: "/bin/x".into(), ..SpaceReport::default() };
/// space.stats.call(Op::Mmap, false);
/// let mut summary = Summary::default();
/// summary.add(space);
/// assert_eq!(json::object(&summary)["calls"], 1);
/// ```
#[derive(Clone, Debug, Default)]
pub struct Summary {
    /// The sum over all address spaces. Peaks are the highest of any.
    pub total: SpaceStats,
    /// The number of address spaces.
    pub address_spaces: u64,
    /// The bytes and the errors of each kind of call, over all address spaces.
    pub outcomes: BTreeMap<Op, Outcome>,
    /// The cost of each kind of call, over all address spaces.
    pub timing: BTreeMap<Op, Timing>,
    /// The peak: the moment with the most resident memory. In a recording, the address space with
    /// the most VMAs, near its peak.
    pub largest: Option<SpaceSnapshot>,
    /// The first mismatch of the run.
    pub first_mismatch: Option<Mismatch>,
    /// Missing facilities and unchecked settings of this kernel, each once.
    pub notices: Vec<Notice>,
    /// The number of processes that were not followed to their end.
    pub unfollowed: u64,
    /// The duration of the run.
    pub elapsed: Duration,
    /// The calls that tables show one by one; `None` for all. The counts have all calls.
    pub shown: Option<Vec<Op>>,
    /// Whether tables show the end next to the peak.
    pub shows_end: bool,
    /// The call stacks, if they were recorded.
    pub stacks: Stacks,
    pub(crate) timeline: Timeline,
    pub(crate) lives: LifetimeClasses,
    spaces: Vec<SpaceReport>,
}

impl Summary {
    /// The number of address spaces that are always kept one by one.
    const KEPT: usize = 1000;

    /// Adds an address space that has ended, or that still exists when the run ends.
    pub fn add(&mut self, space: SpaceReport) {
        self.address_spaces += 1;
        self.total.add(&space.stats);
        self.keep([space]);
    }

    /// Adds another run: the totals of several recordings.
    pub fn merge(&mut self, other: Summary) {
        // `other` may have dropped spaces, which only its total contains. So the totals are added,
        // not the spaces.
        self.total.add(&other.total);
        self.address_spaces += other.address_spaces;
        self.keep(other.spaces);
        for (op, outcome) in other.outcomes {
            self.outcomes.entry(op).or_default().merge(&outcome);
        }
        for (op, timing) in other.timing {
            let ours = self.timing.entry(op).or_default();
            ours.ours.merge(&timing.ours);
            ours.kernel.merge(&timing.kernel);
        }
        if let Some(portrait) = other.largest
            && self.is_largest(portrait.vmas)
        {
            self.largest = Some(portrait);
        }
        self.first_mismatch = self.first_mismatch.take().or(other.first_mismatch);
        for notice in &other.notices {
            self.notice(&notice.text);
            self.count_notice(&notice.text, notice.times - 1);
        }
        self.unfollowed += other.unfollowed;
        // Runs that were recorded one by one have no common time.
        if self.timeline.is_empty() {
            self.timeline = other.timeline;
        }
        self.lives.merge(&other.lives);
        self.stacks.merge(other.stacks);
        self.elapsed += other.elapsed;
    }

    /// Whether tables show calls of this kind one by one.
    pub(super) fn shows(&self, op: Op) -> bool {
        self.shown.as_ref().is_none_or(|shown| shown.contains(&op))
    }

    fn keep(&mut self, spaces: impl IntoIterator<Item = SpaceReport>) {
        self.spaces.extend(spaces);
        if self.spaces.len() >= 2 * Self::KEPT {
            self.spaces.sort_by_key(|space| {
                std::cmp::Reverse((space.stats.mismatches, space.stats.calls()))
            });
            self.spaces.truncate(Self::KEPT);
        }
    }

    /// The address spaces by number. If there are very many, only the busiest and those with
    /// mismatches.
    pub fn spaces(&self) -> Vec<&SpaceReport> {
        let mut spaces: Vec<&SpaceReport> = self.spaces.iter().collect();
        spaces.sort_by_key(|space| space.mm);
        spaces
    }

    /// Offers a picture of an address space without resident memory. It is kept if no earlier one
    /// had more VMAs. `listing` is called only then.
    pub fn offer(&mut self, mm: MmId, exe: &str, vmas: usize, listing: impl FnOnce() -> String) {
        if self.is_largest(vmas) {
            let (exe, listing) = (exe.to_string(), listing());
            self.largest = Some(SpaceSnapshot { mm, exe, vmas, listing, moment: None });
        }
    }

    fn is_largest(&self, vmas: usize) -> bool {
        self.largest.as_ref().is_none_or(|largest| largest.vmas < vmas)
    }

    /// Adds the cost of one call. Either side may be unknown: a replay has no kernel.
    pub fn time(&mut self, op: Op, ours: Option<Duration>, kernel: Option<Duration>) {
        let timing = self.timing.entry(op).or_default();
        if let Some(ours) = ours {
            timing.ours.add(ours);
        }
        if let Some(kernel) = kernel {
            timing.kernel.add(kernel);
        }
    }

    /// Adds a notice, or counts it if an equal one exists. Notices that differ only in numbers are
    /// equal. Returns whether it is new.
    pub fn notice(&mut self, text: &str) -> bool {
        let known = self.count_notice(text, 1);
        if !known {
            self.notices.push(Notice { text: text.to_string(), times: 1 });
        }
        !known
    }

    fn count_notice(&mut self, text: &str, times: u64) -> bool {
        let notice = self.notices.iter_mut().find(|notice| notice.is_like(text));
        notice.map(|notice| notice.times += times).is_some()
    }
}

/// A message that the user must see.
///
/// ```
/// use trace::report::Summary;
/// let mut summary = Summary::default();
/// assert!(summary.notice("address space 7 is lost"));
/// assert!(!summary.notice("address space 12 is lost"));
/// assert_eq!((summary.notices.len(), summary.notices[0].times), (1, 2));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    /// The text of the first one.
    pub text: String,
    /// The number of equal ones.
    pub times: u64,
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.times {
            1 => f.write_str(&self.text),
            times => write!(f, "{} ({} times)", self.text, count(times)),
        }
    }
}

impl Notice {
    /// Whether `text` is equal, apart from words with a digit.
    fn is_like(&self, text: &str) -> bool {
        let words = |text| {
            str::split(text, ' ').map(|word: &str| {
                if word.contains(|c: char| c.is_ascii_digit()) { "#" } else { word }
            })
        };
        self.text == text || words(&self.text).eq(words(text))
    }
}

/// One address space.
///
/// ```
/// use trace::report::*;
/// let mut summary = Summary::default();
/// summary.add(SpaceReport { mm: 1, pid: 7, exe: "/bin/x".into(), ..SpaceReport::default() });
/// assert_eq!(summary.address_spaces, 1);
/// ```
#[derive(Clone, Debug, Default)]
pub struct SpaceReport {
    /// Its number.
    pub mm: MmId,
    /// The process or thread that made it.
    pub pid: u32,
    /// The program it runs.
    pub exe: String,
    /// The counts of its events.
    pub stats: SpaceStats,
}

/// The counts of one address space, or of all.
///
/// ```
/// use trace::{record::Op, report::SpaceStats};
/// let mut stats = SpaceStats::default();
/// stats.call(Op::Brk, false);
/// assert_eq!(stats.calls(), 1);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SpaceStats {
    /// The memory calls by kind.
    pub by_kind: BTreeMap<Op, u64>,
    /// The calls that failed in the kernel.
    pub refused: u64,
    /// The listings that were compared with the kernel's.
    pub listings: u64,
    /// Comparisons of the VMAs around what a call has changed.
    pub neighbourhoods: u64,
    /// The failed comparisons of any sort.
    pub mismatches: u64,
    /// The failed comparisons where the order of events is uncertain.
    pub cannot_tell: u64,
    /// The addresses that we chose as the kernel did.
    pub predicted: u64,
    /// The addresses that the rules determine.
    pub predictable: u64,
    /// The peak number of VMAs.
    pub vmas_peak: usize,
    /// The peak size of the tree that holds the VMAs.
    pub tree: TreeSize,
    /// Its use of the machine's memory, if the kernel was asked.
    pub usage: Usage,
}

impl SpaceStats {
    /// All memory calls.
    pub fn calls(&self) -> u64 {
        self.by_kind.values().sum()
    }

    /// Counts one call.
    pub fn call(&mut self, op: Op, refused: bool) {
        *self.by_kind.entry(op).or_default() += 1;
        self.refused += u64::from(refused);
    }

    /// Updates the peaks with the current size.
    pub fn size(&mut self, vmas: usize, tree: TreeSize) {
        self.vmas_peak = self.vmas_peak.max(vmas);
        self.tree = self.tree.max(tree);
    }

    fn add(&mut self, other: &SpaceStats) {
        for (&op, count) in &other.by_kind {
            *self.by_kind.entry(op).or_default() += count;
        }
        self.refused += other.refused;
        self.listings += other.listings;
        self.neighbourhoods += other.neighbourhoods;
        self.mismatches += other.mismatches;
        self.cannot_tell += other.cannot_tell;
        self.predicted += other.predicted;
        self.predictable += other.predictable;
        self.size(other.vmas_peak, other.tree);
        self.usage.add(&other.usage);
    }
}

/// The size of a tree.
///
/// ```
/// use trace::report::*;
/// let mut stats = SpaceStats::default();
/// stats.size(3, TreeSize { height: 1, nodes: 1, bytes: 256 });
/// stats.size(2, TreeSize::default());
/// assert_eq!((stats.vmas_peak, stats.tree.height), (3, 1));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TreeSize {
    /// The number of levels.
    pub height: usize,
    /// The number of nodes.
    pub nodes: usize,
    /// The bytes of all nodes.
    pub bytes: usize,
}

impl TreeSize {
    /// The larger value of each field.
    fn max(self, other: TreeSize) -> TreeSize {
        TreeSize {
            height: self.height.max(other.height),
            nodes: self.nodes.max(other.nodes),
            bytes: self.bytes.max(other.bytes),
        }
    }
}

/// An address space for the picture.
///
/// ```
/// use trace::report::*;
/// let mut summary = Summary::default();
/// summary.offer(1, "/bin/x", 4, || "listing".into());
/// summary.offer(2, "/bin/y", 3, || unreachable!("smaller"));
/// assert_eq!(summary.largest.unwrap().exe, "/bin/x");
/// ```
#[derive(Clone, Debug)]
pub struct SpaceSnapshot {
    /// Its number.
    pub mm: MmId,
    /// The program it runs.
    pub exe: String,
    /// The number of its VMAs.
    pub vmas: usize,
    /// Its listing, as in `/proc/PID/maps`.
    pub listing: String,
    /// The resident pages. `None`: they are not known, as in a recording.
    pub moment: Option<ResidentSet>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn totals_include_spaces_dropped_from_the_list() {
        let mut summary = Summary::default();
        for mm in 0..5000 {
            let mut space = SpaceReport { mm, pid: mm, ..SpaceReport::default() };
            space.stats.call(Op::Brk, mm % 2 == 0);
            if mm == 17 {
                space.stats.mismatches = 1;
            }
            space.stats.size(mm as usize, TreeSize { height: 2, nodes: 3, bytes: 768 });
            summary.add(space);
        }
        assert_eq!(
            (summary.address_spaces, summary.total.calls(), summary.total.refused),
            (5000, 5000, 2500)
        );
        assert_eq!((summary.total.vmas_peak, summary.total.tree.nodes), (4999, 3));
        assert!(summary.spaces().len() < 2 * Summary::KEPT);
        assert!(
            summary.spaces().iter().any(|space| space.mm == 17),
            "a space with a mismatch was dropped"
        );
    }

    #[test]
    fn merging_equals_adding() {
        let mut first = Summary::default();
        for (mm, file) in [(1, "/a"), (2, "/b")] {
            let mut other = Summary::default();
            let mut space = SpaceReport { mm, exe: file.into(), ..SpaceReport::default() };
            space.stats.call(Op::Mmap, false);
            space.stats.size(mm as usize, TreeSize::default());
            other.add(space);
            other.time(Op::Mmap, Some(Duration::from_nanos(100)), None);
            other.offer(mm, file, mm as usize, || file.into());
            other.notice("the same");
            first.merge(other);
        }
        assert_eq!((first.address_spaces, first.total.calls(), first.total.vmas_peak), (2, 2, 2));
        assert_eq!(
            (first.spaces().len(), first.notices.len(), first.timing[&Op::Mmap].ours.len()),
            (2, 1, 2)
        );
        assert_eq!(first.largest.unwrap().exe, "/b");
    }

    #[test]
    fn the_largest_is_kept_and_its_listing_made_once() {
        let mut summary = Summary::default();
        summary.offer(1, "/a", 5, || "five".into());
        summary.offer(2, "/b", 5, || unreachable!());
        summary.offer(3, "/c", 6, || "six".into());
        assert_eq!(summary.largest.unwrap().listing, "six");
    }
}
