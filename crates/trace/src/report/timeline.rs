//! The course of a run: calls, mapped and resident bytes, and VMAs of all its address spaces over
//! time. Recordings have no resident bytes.
//!
//! Time is cut into bins of equal length. A run has 64 bins at most: when it needs more, each two
//! become one. So the size is bounded, and a call takes constant time on average.

use std::{collections::HashMap, time::Duration};

use serde_json::{Value, json};

use super::style::{Style, bytes, count};
use crate::record::MmId;

/// The most bins. It is even.
const BINS: usize = 64;

/// The course of a run.
#[derive(Clone, Debug)]
pub(crate) struct Timeline {
    /// The length of a bin in nanoseconds.
    length: u64,
    bins: Vec<Bin>,
    /// The size of each address space, and of all.
    sizes: HashMap<MmId, Size>,
    total: Size,
}

/// The VMAs, the mapped and the resident bytes of an address space, or of all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Size {
    vmas: usize,
    mapped: usize,
    resident: usize,
}

impl Size {
    fn max(self, other: Size) -> Size {
        Size {
            vmas: self.vmas.max(other.vmas),
            mapped: self.mapped.max(other.mapped),
            resident: self.resident.max(other.resident),
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Bin {
    calls: u64,
    /// The peak.
    size: Size,
}

impl Default for Timeline {
    fn default() -> Self {
        let (bins, sizes) = (Vec::new(), HashMap::new());
        Timeline { length: 100_000, bins, sizes, total: Size::default() }
    }
}

impl Timeline {
    /// A call was made at this time, in nanoseconds since the run began. Its address space has that
    /// many VMAs and mapped bytes now.
    pub(crate) fn call(&mut self, at: u64, mm: MmId, (vmas, mapped): (usize, usize)) {
        let resident = self.sizes.get(&mm).map_or(0, |size| size.resident);
        self.set(mm, Size { vmas, mapped, resident });
        let bin = self.bin(at);
        bin.calls += 1;
    }

    /// So many bytes of an address space are resident. The next call tells when.
    pub(crate) fn resident(&mut self, mm: MmId, resident: usize) {
        let size = self.sizes.get(&mm).copied().unwrap_or_default();
        self.set(mm, Size { resident, ..size });
    }

    /// An address space has ended. The next call tells when.
    pub(crate) fn end(&mut self, mm: MmId) {
        self.set(mm, Size::default());
        self.sizes.remove(&mm);
    }

    fn set(&mut self, mm: MmId, size: Size) {
        let old = self.sizes.insert(mm, size).unwrap_or_default();
        self.total.vmas = self.total.vmas + size.vmas - old.vmas;
        // Address spaces are large, and there may be many.
        self.total.mapped = self.total.mapped.wrapping_add(size.mapped).wrapping_sub(old.mapped);
        self.total.resident =
            self.total.resident.wrapping_add(size.resident).wrapping_sub(old.resident);
    }

    /// The bin of this time, with the current size. Those before it that saw no call had the size
    /// of the last one.
    fn bin(&mut self, at: u64) -> &mut Bin {
        while at / self.length >= BINS as u64 {
            let two = |two: &[Bin]| {
                let other = two.get(1).copied().unwrap_or_default();
                Bin { calls: two[0].calls + other.calls, size: two[0].size.max(other.size) }
            };
            self.bins = self.bins.chunks(2).map(two).collect();
            self.length *= 2;
        }
        // Times of several threads may be out of order by a little.
        let index = (at / self.length) as usize;
        let before = self.bins.last().map_or(Size::default(), |bin| bin.size);
        while self.bins.len() <= index {
            self.bins.push(Bin { calls: 0, size: before });
        }
        let bin = &mut self.bins[index];
        // A bin without a call has no peak of its own.
        bin.size = if bin.calls == 0 { self.total } else { bin.size.max(self.total) };
        bin
    }

    pub(super) fn is_empty(&self) -> bool {
        self.bins.is_empty()
    }

    fn has_resident(&self) -> bool {
        self.bins.iter().any(|bin| bin.size.resident > 0)
    }

    /// One object for each bin. `resident` is null in a recording.
    pub(super) fn object(&self) -> Value {
        let known = self.has_resident();
        let one = |(i, bin): (usize, &Bin)| {
            json!({
                "at_us": i as u64 * self.length / 1000,
                "calls": bin.calls,
                "mapped": bin.size.mapped,
                "resident": known.then_some(bin.size.resident),
                "vmas": bin.size.vmas,
            })
        };
        self.bins.iter().enumerate().map(one).collect()
    }

    /// A line each for calls, mapped and resident bytes, and VMAs, with a newline at the end.
    /// `most_resident`: the peak of the largest process, as the kernel counts it. The samples here
    /// miss it, and add up the processes.
    pub(super) fn render(&self, most_resident: u64, style: Style) -> String {
        let last = Duration::from_nanos(self.bins.len() as u64 * self.length);
        let each = Duration::from_nanos(self.length);
        let row = |name: &str, of: &dyn Fn(&Bin) -> u64, most: &dyn Fn(u64) -> String| {
            let values: Vec<u64> = self.bins.iter().map(of).collect();
            let peak = values.iter().copied().max().unwrap_or(0);
            let bars = style.paint("36", &bars(&values, peak));
            format!("{name:>8} {bars}  at most {}\n", most(peak))
        };
        let calls = |peak| format!("{} in {each:?}", count(peak));
        let size = |peak| bytes(peak as usize);
        let all_resident = |peak: u64| match peak > most_resident && most_resident > 0 {
            true => format!("{} together", size(peak)),
            false => size(peak.max(most_resident)),
        };
        let resident = row("resident", &|bin| bin.size.resident as u64, &all_resident);
        row("calls", &|bin| bin.calls, &calls)
            + &row("mapped", &|bin| bin.size.mapped as u64, &size)
            + if self.has_resident() { &resident } else { "" }
            + &row("VMAs", &|bin| bin.size.vmas as u64, &count)
            + &format!("{:>8} 0{:>width$.2?}\n", "time", last, width = self.bins.len().max(8) - 1)
    }
}

/// A bar for each value. Only 0 has none.
fn bars(values: &[u64], peak: u64) -> String {
    const BARS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let height = |value: u64| (u128::from(value) * 8).div_ceil(u128::from(peak.max(1))) as usize;
    values.iter().map(|&value| BARS[height(value).min(8)]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn bins_merge_as_a_run_goes_on() {
        let mut timeline = Timeline::default();
        for ms in 0..1000 {
            timeline.call(ms * MS, 1, (ms as usize, 4096));
        }
        assert!((BINS / 2..=BINS).contains(&timeline.bins.len()), "{}", timeline.bins.len());
        assert_eq!(timeline.bins.iter().map(|bin| bin.calls).sum::<u64>(), 1000);
        assert_eq!(
            timeline.bins.last().unwrap().size,
            Size { vmas: 999, mapped: 4096, resident: 0 }
        );
        assert!(timeline.bins.is_sorted_by_key(|bin| bin.size.vmas));
        // A much later call.
        timeline.call(u64::MAX, 1, (5, 0));
        assert!(timeline.bins.len() <= BINS);
        assert_eq!(timeline.bins.iter().map(|bin| bin.calls).sum::<u64>(), 1001);
    }

    #[test]
    fn address_spaces_add_up_until_they_end() {
        let mut timeline = Timeline::default();
        timeline.call(0, 1, (10, 100));
        timeline.call(MS / 5, 2, (5, 50));
        timeline.end(1);
        timeline.call(MS, 2, (6, 60));
        let sizes: Vec<_> = timeline.bins.iter().map(|bin| (bin.size.vmas, bin.calls)).collect();
        let idle = (15, 0);
        let expected =
            [(10, 1), (10, 0), (15, 1), idle, idle, idle, idle, idle, idle, idle, (6, 1)];
        assert_eq!(sizes, expected);
        assert_eq!(timeline.object()[10]["mapped"], 60);
    }

    #[test]
    fn resident_bytes_are_those_of_the_newest_look() {
        let mut timeline = Timeline::default();
        timeline.call(0, 1, (1, 100));
        assert!(timeline.object()[0]["resident"].is_null());
        assert!(!timeline.render(0, Style::PLAIN).contains("resident"));
        timeline.resident(1, 70);
        timeline.resident(2, 5);
        timeline.call(MS / 10, 1, (1, 100));
        timeline.call(2 * MS / 10, 1, (2, 200));
        timeline.resident(1, 30);
        timeline.end(2);
        timeline.call(3 * MS / 10, 1, (2, 200));
        let resident: Vec<_> = timeline.bins.iter().map(|bin| bin.size.resident).collect();
        assert_eq!(resident, [0, 75, 75, 30]);
        assert_eq!(timeline.object()[3]["resident"], 30);
        // One number for one process, although the samples missed its peak.
        let most = |of_one| {
            let text = timeline.render(of_one, Style::PLAIN);
            let line = text.lines().find(|line| line.contains("resident")).unwrap().to_owned();
            line.split_once("at most ").unwrap().1.to_owned()
        };
        assert_eq!(most(0), "75 B");
        assert_eq!((most(90).as_str(), most(40).as_str()), ("90 B", "75 B together"));
    }

    #[test]
    fn bars_are_as_high_as_the_values() {
        assert_eq!(bars(&[0, 1, 4, 8, 100], 100), " ▁▁▁█");
        assert_eq!(bars(&[0, 0], 0), "  ");
        let mut timeline = Timeline::default();
        timeline.call(3 * MS, 1, (10, 1 << 20));
        let text = timeline.render(0, Style::PLAIN);
        assert!(text.contains("at most 1 in 100µs") && text.contains("at most 1.00 MiB"), "{text}");
        assert_eq!(text.lines().count(), 4);
    }
}
