//! The times of calls.

use std::time::Duration;

use hdrhistogram::Histogram;

/// The cost of calls of one kind.
///
/// ```
/// use trace::report::*;
/// let mut timing = Timing::default();
/// timing.ours.add(std::time::Duration::from_nanos(900));
/// assert_eq!((timing.ours.len(), timing.kernel.median()), (1, None));
/// ```
#[derive(Clone, Debug, Default)]
pub struct Timing {
    /// Our operation.
    pub ours: Nanoseconds,
    /// The kernel's call, without the cost of tracing it.
    pub kernel: Nanoseconds,
}

impl Timing {
    /// The time in the kernel of so many calls. Those that could not be timed count like the
    /// others. `None` if none was timed.
    pub fn kernel_time(&self, calls: u64) -> Option<Duration> {
        let timed = self.kernel.len();
        (timed > 0).then(|| self.kernel.total().mul_f64(calls as f64 / timed as f64))
    }

    /// The median of the kernel's times. `None` also for 0: the difference of two times that vary
    /// by more than the call takes says nothing.
    pub fn kernel_median(&self) -> Option<u64> {
        self.kernel.median().filter(|ns| *ns > 0)
    }
}

/// A distribution of durations, exact to 1%. It has a fixed size of about 15 KiB.
///
/// ```
/// use std::time::Duration;
/// use trace::report::Nanoseconds;
///
/// let mut cost = Nanoseconds::default();
/// cost.add(Duration::from_nanos(80));
/// assert_eq!((cost.median(), cost.len()), (Some(80), 1));
/// ```
#[derive(Clone, Debug)]
pub struct Nanoseconds {
    histogram: Histogram<u32>,
    total: Duration,
}

impl Nanoseconds {
    /// The longest distinguishable duration in nanoseconds: one minute.
    const LONGEST: u64 = 60_000_000_000;

    /// Adds a duration. Constant time, no allocation.
    pub fn add(&mut self, duration: Duration) {
        self.histogram.saturating_record(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX));
        self.total = self.total.saturating_add(duration);
    }

    pub(super) fn merge(&mut self, other: &Nanoseconds) {
        // Both have the same fixed range, so every value fits.
        self.histogram.add(&other.histogram).expect("the same bounds");
        self.total = self.total.saturating_add(other.total);
    }

    /// The median in nanoseconds, if anything was added.
    pub fn median(&self) -> Option<u64> {
        (!self.is_empty()).then(|| self.histogram.value_at_quantile(0.5))
    }

    /// The number of durations.
    pub fn len(&self) -> u64 {
        self.histogram.len()
    }

    /// Whether there is no duration.
    pub fn is_empty(&self) -> bool {
        self.histogram.is_empty()
    }

    /// The sum of the durations.
    pub fn total(&self) -> Duration {
        self.total
    }
}

impl Default for Nanoseconds {
    fn default() -> Self {
        // The library accepts two digits and this fixed range.
        let histogram = Histogram::new_with_max(Self::LONGEST, 2).expect("fixed bounds");
        Nanoseconds { histogram, total: Duration::ZERO }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_without_a_time_count_like_the_others() {
        let mut timing = Timing::default();
        assert_eq!(timing.kernel_time(3), None);
        timing.kernel.add(Duration::from_nanos(70));
        timing.kernel.add(Duration::from_nanos(30));
        assert_eq!(timing.kernel_time(3), Some(Duration::from_nanos(150)));
    }

    #[test]
    fn a_median_of_nothing_is_none() {
        let mut timing = Timing::default();
        timing.kernel.add(Duration::ZERO);
        assert_eq!((timing.kernel.median(), timing.kernel_median()), (Some(0), None));
        timing.kernel.add(Duration::from_nanos(70));
        timing.kernel.add(Duration::from_nanos(70));
        assert_eq!(timing.kernel_median(), Some(70));
    }

    #[test]
    fn medians_are_exact_to_one_per_cent() {
        let mut ns = Nanoseconds::default();
        assert_eq!((ns.median(), ns.is_empty()), (None, true));
        for value in 1..=999u64 {
            ns.add(Duration::from_nanos(value * 100));
        }
        let median = ns.median().unwrap();
        assert!((49_500..=50_500).contains(&median), "{median}");
        assert_eq!(ns.total(), Duration::from_nanos(999 * 1000 / 2 * 100));
        ns.add(Duration::MAX);
        assert_eq!(ns.len(), 1000);
    }
}
