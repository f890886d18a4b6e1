//! The use of the machine's memory by an address space, as the kernel counted it.

use std::{collections::BTreeMap, ops::Range, time::Duration};

use serde_json::{Value, json};

use super::picture::VmaKind;

/// The use of memory by an address space, read right before its end.
///
/// ```
/// use trace::report::Usage;
/// assert_eq!(Usage::default().resident_peak, 0);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// The most bytes that were resident at once.
    pub resident_peak: u64,
    /// Page faults that found their page in memory.
    pub minor_faults: u64,
    /// Page faults that waited for a disk.
    pub major_faults: u64,
    /// The resident pages at the end.
    pub(crate) kinds: ResidencyByKind,
}

/// The resident pages of an address space at a moment.
///
/// ```
/// use trace::report::ResidentSet;
/// assert_eq!(ResidentSet::default().bytes, 0);
/// ```
#[derive(Clone, Debug, Default)]
pub struct ResidentSet {
    /// The time since the run began.
    pub at: Duration,
    /// The resident bytes: the sum of the ranges, if they are known.
    pub bytes: u64,
    /// The resident ranges, in order. `None`: this kernel does not tell them.
    pub resident: Option<Vec<Range<usize>>>,
    /// The VMAs by kind.
    pub(crate) kinds: ResidencyByKind,
}

/// The resident bytes of the VMAs of each kind.
pub(super) type ResidencyByKind = BTreeMap<VmaKind, Residency>;

/// The resident bytes of some VMAs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Residency {
    pub(crate) vmas: u64,
    /// In bytes, as all that follow.
    pub(crate) mapped: u64,
    pub(crate) resident: u64,
    /// Written, and mapped by this process alone.
    pub(crate) private_dirty: u64,
    /// Mapped by other processes, too.
    pub(crate) shared: u64,
    pub(crate) swapped: u64,
    /// In huge pages.
    pub(crate) huge: u64,
}

impl Residency {
    /// Adds a line of smaps, such as `Rss:  4 kB`. Lines of no interest are ignored.
    pub(crate) fn add_line(&mut self, key: &str, value: &str) {
        let Some(kib) = value.trim().strip_suffix(" kB").and_then(|kib| kib.parse::<u64>().ok())
        else {
            return;
        };
        let field = match key {
            "Size" => &mut self.mapped,
            "Rss" => &mut self.resident,
            "Private_Dirty" => &mut self.private_dirty,
            "Shared_Clean" | "Shared_Dirty" => &mut self.shared,
            "Swap" => &mut self.swapped,
            "AnonHugePages" | "ShmemPmdMapped" | "FilePmdMapped" => &mut self.huge,
            _ => return,
        };
        *field = field.saturating_add(kib.saturating_mul(1024));
    }

    fn add(&mut self, other: &Residency) {
        self.vmas += other.vmas;
        self.mapped = self.mapped.saturating_add(other.mapped);
        self.resident = self.resident.saturating_add(other.resident);
        self.private_dirty = self.private_dirty.saturating_add(other.private_dirty);
        self.shared = self.shared.saturating_add(other.shared);
        self.swapped = self.swapped.saturating_add(other.swapped);
        self.huge = self.huge.saturating_add(other.huge);
    }
}

impl ResidentSet {
    /// A moment with so many resident bytes, these ranges and these VMAs.
    pub(crate) fn new(
        bytes: usize,
        resident: Option<Vec<Range<usize>>>,
        vmas: impl IntoIterator<Item = (VmaKind, Residency)>,
    ) -> ResidentSet {
        let sum = resident.iter().flatten().map(|range| range.end - range.start).sum();
        let bytes = if resident.is_some() { sum } else { bytes };
        let mut kinds = ResidencyByKind::new();
        vmas.into_iter().for_each(|(kind, one)| kinds.entry(kind).or_default().add(&one));
        ResidentSet { at: Duration::ZERO, bytes: bytes as u64, resident, kinds }
    }
}

/// The VMAs by kind, as a JSON object.
pub(super) fn kinds(kinds: &ResidencyByKind) -> Value {
    let one = |(kind, residency): (&VmaKind, &Residency)| {
        let Residency { vmas, mapped, resident, private_dirty, shared, swapped, huge } = residency;
        let value = json!({
            "vmas": vmas, "mapped": mapped, "resident": resident,
            "private_dirty": private_dirty, "shared": shared, "swapped": swapped,
            "huge": huge,
        });
        (kind.name().to_owned(), value)
    };
    Value::Object(kinds.iter().map(one).collect())
}

impl Usage {
    /// The resident bytes at the end.
    pub(crate) fn resident(&self) -> u64 {
        self.kinds.values().map(|one| one.resident).fold(0, u64::saturating_add)
    }

    /// Adds the residency of a VMA.
    pub(crate) fn add_vma(&mut self, kind: VmaKind, residency: &Residency) {
        self.kinds.entry(kind).or_default().add(residency);
    }

    /// Adds another address space. The resident pages stay those of the one with the highest peak.
    pub(super) fn add(&mut self, other: &Usage) {
        if other.resident_peak > self.resident_peak {
            self.resident_peak = other.resident_peak;
            self.kinds.clone_from(&other.kinds);
        }
        self.minor_faults += other.minor_faults;
        self.major_faults += other.major_faults;
    }

    /// Whether the kernel was asked: a replay has no kernel.
    pub(super) fn is_known(&self) -> bool {
        self.resident_peak > 0
    }

    /// As a JSON object; null if it is not known.
    pub(super) fn object(&self) -> Value {
        if !self.is_known() {
            return Value::Null;
        }
        json!({
            "resident_peak": self.resident_peak,
            "minor_faults": self.minor_faults,
            "major_faults": self.major_faults,
            "kinds": kinds(&self.kinds),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_smaps_add_up() {
        let mut one = Residency { vmas: 1, ..Residency::default() };
        let lines = [
            ("Size", "       64 kB"),
            ("Rss", "  12 kB"),
            ("Shared_Clean", "4 kB"),
            ("Shared_Dirty", "4 kB"),
            ("Private_Dirty", "4 kB"),
            ("AnonHugePages", "0 kB"),
            ("THPeligible", "0"),
            ("Swap", "8 kB"),
        ];
        lines.iter().for_each(|(key, value)| one.add_line(key, value));
        let kib = |kib: u64| kib * 1024;
        let expected = Residency {
            vmas: 1,
            mapped: kib(64),
            resident: kib(12),
            private_dirty: kib(4),
            shared: kib(8),
            swapped: kib(8),
            huge: 0,
        };
        assert_eq!(one, expected);
    }

    #[test]
    fn faults_add_up_and_the_largest_is_shown() {
        let usage = |resident_peak, kind| {
            let mut usage =
                Usage { resident_peak, minor_faults: 2, major_faults: 1, ..Usage::default() };
            usage.add_vma(
                kind,
                &Residency { vmas: 1, resident: resident_peak, ..Default::default() },
            );
            usage
        };
        let mut total = Usage::default();
        assert_eq!((total.is_known(), total.object()), (false, Value::Null));
        for one in [usage(10, VmaKind::Heap), usage(30, VmaKind::Anon), usage(20, VmaKind::Stack)] {
            total.add(&one);
        }
        assert_eq!((total.resident_peak, total.minor_faults, total.major_faults), (30, 6, 3));
        assert_eq!(total.object()["kinds"]["anon"]["resident"], 30);
        assert_eq!(total.kinds.len(), 1);
    }
}
