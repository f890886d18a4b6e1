//! Times of operations: batches by processor time, single ones by the wall clock.

use crate::lab::Disturbed;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use report::{Row, median, spread};

/// Rounds with a larger spread than this, in per cent, are refused.
pub(crate) const APART: f64 = 25.0;
/// The rounds that are tried, as a multiple of those needed, if some are refused.
pub(crate) const TRIES: usize = 3;

/// Clock reads that find the cost of one.
const LOOKS: usize = 101;

/// The values of a measurement, one for each round.
#[derive(Default)]
pub(crate) struct Rounds(Vec<f64>);

impl Rounds {
    pub(crate) const fn new() -> Rounds {
        Rounds(Vec::new())
    }

    /// Adds the value of a round.
    pub(crate) fn push(&mut self, value: f64) {
        self.0.push(value);
    }

    /// The number of rounds.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// The reason why these values are no measurement, if there is one.
    pub(crate) fn refused(&self) -> Option<String> {
        if self.0.is_empty() {
            return Some("no round took longer than a clock read".into());
        }
        let spread = self.spread();
        // NaN is refused, too.
        let settled = self.0.iter().all(|value| *value > 0.0) && spread <= APART;
        (!settled).then(|| format!("the rounds have a spread of {spread:.0} %"))
    }

    /// The median.
    pub(crate) fn median(&self) -> f64 {
        median(&self.0)
    }

    /// The mean.
    pub(crate) fn mean(&self) -> f64 {
        self.0.iter().sum::<f64>() / self.0.len() as f64
    }

    /// The spread in per cent.
    pub(crate) fn spread(&self) -> f64 {
        spread(&self.0)
    }

    /// Whether the middle half of the values is on one side of the bound.
    pub(crate) fn clear_of(&self, bound: f64) -> bool {
        let median = self.median();
        // False if there are no values.
        (median - bound).abs() >= median * self.spread() / 100.0
    }

    /// Two rows like this one: the median, and the spread.
    pub(crate) fn rows(&self, like: &Row, metric: &str, unit: &str) -> [Row; 2] {
        let apart = like.with("spread of the time", self.spread(), "%");
        [like.with(metric, self.median(), unit), apart]
    }

    /// The largest value.
    pub(crate) fn most(&self) -> f64 {
        self.0.iter().copied().fold(f64::NAN, f64::max)
    }

    /// The mean of the two values in each round.
    pub(crate) fn between(&self, other: &Rounds) -> Rounds {
        Rounds(self.0.iter().zip(&other.0).map(|(one, other)| (one + other) / 2.0).collect())
    }

    /// The factor from `other` to these values: the median of the rounds' ratios.
    pub(crate) fn times(&self, other: &Rounds) -> f64 {
        let ratios: Vec<f64> =
            self.0.iter().zip(&other.0).map(|(one, other)| one / other).collect();
        median(&ratios)
    }
}

/// The text of a note about a refused measurement, with the host's disturbances since `before`.
pub(crate) fn because(reason: &str, before: Disturbed, now: Disturbed) -> String {
    format!(
        "not measured: {reason}; the host is busy: {} involuntary context switches, {} ms of \
         steal time meanwhile",
        now.switches.saturating_sub(before.switches),
        now.stolen.saturating_sub(before.stolen)
    )
}

/// Times batches, less the cost of reading the clock, which is some hundred nanoseconds if that is
/// a system call.
#[derive(Clone, Copy)]
pub(crate) struct Timer {
    time: fn() -> u64,
    /// The time between two reads with nothing in between.
    empty: f64,
}

impl Timer {
    /// Measures the cost of a clock read. Runs on the CPU that will measure.
    pub(crate) fn new(time: fn() -> u64) -> Timer {
        let looks: Vec<f64> = (0..LOOKS)
            .map(|_| {
                let began = time();
                time().saturating_sub(began) as f64
            })
            .collect();
        Timer { time, empty: median(&looks) }
    }

    /// Nanoseconds for each of the `operations` that `batch` makes.
    pub(crate) fn each(&self, operations: usize, batch: impl FnOnce()) -> f64 {
        let began = (self.time)();
        batch();
        let took = (self.time)().saturating_sub(began) as f64;
        (took - self.empty).max(0.0) / operations as f64
    }
}

/// Times two halves of an operation, taking and giving back, which may be shorter than a clock
/// read.
///
/// Each half is timed alone. A clock read with nothing in between comes right before it, and its
/// cost is subtracted. The medians are accepted if their sum agrees with a second measurement: both
/// halves in a span so long that the cost of the clock does not matter.
pub(crate) struct Halves {
    clock: fn() -> u64,
    first: Rounds,
    second: Rounds,
    both: Rounds,
    /// The cost of a clock read.
    empty: Rounds,
}

/// The sum of the halves and the time in a long span differ at most by this factor.
const FIT: f64 = 2.0;
/// The length of a long span, in clock reads.
const LONG: f64 = 128.0;
/// Operations in a long span at most: a millisecond on an idle host.
const MOST: usize = 1 << 14;

impl Halves {
    pub(crate) fn new(clock: fn() -> u64) -> Halves {
        let empty = Rounds::default;
        Halves { clock, first: empty(), second: empty(), both: empty(), empty: empty() }
    }

    /// Runs and times each half once.
    pub(crate) fn apart<E>(
        &mut self,
        first: impl FnOnce() -> Result<(), E>,
        second: impl FnOnce() -> Result<(), E>,
    ) -> Result<(), E> {
        let before = (self.clock)();
        let began = (self.clock)();
        let done = first();
        let between = (self.clock)();
        done?;
        let done = second();
        let ended = (self.clock)();
        done?;
        let since = |now: u64, then: u64| now.saturating_sub(then) as f64;
        let empty = since(began, before);
        self.empty.push(empty);
        self.first.push(since(between, began) - empty);
        self.second.push(since(ended, between) - empty);
        Ok(())
    }

    /// Times both halves together, repeated until the span is long enough.
    pub(crate) fn together<E>(&mut self, mut both: impl FnMut() -> Result<(), E>) -> Result<(), E> {
        let long = (self.empty.median().max(1.0) * LONG) as u64;
        let mut times = 8;
        loop {
            let began = (self.clock)();
            (0..times).try_for_each(|_| both())?;
            let took = (self.clock)().saturating_sub(began);
            if took >= long || times >= MOST {
                self.both.push(took as f64 / times as f64);
                return Ok(());
            }
            times *= 2;
        }
    }

    /// The time of each half, or the reason why it cannot be told.
    pub(crate) fn shares(&self) -> Result<[f64; 2], String> {
        let [first, second, both] =
            [&self.first, &self.second, &self.both].map(|rounds| rounds.median());
        let fits = first + second > both / FIT && first + second < both * FIT;
        if !(first > 0.0 && second > 0.0 && fits) {
            let clock = self.empty.median();
            return Err(format!(
                "the halves took {first:.0} and {second:.0} ns, both together {both:.1} ns, a \
                 clock read {clock:.0} ns"
            ));
        }
        Ok([first, second])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::thread_local;

    thread_local! { static NOW: Cell<u64> = const { Cell::new(0) }; }

    #[test]
    fn rounds_are_clear_of_a_bound_if_their_middle_half_is() {
        let clear = |values: &[f64]| Rounds(values.into()).clear_of(0.9);
        assert!(clear(&[0.95, 0.96, 0.97]) && clear(&[0.8, 0.81, 0.82]));
        // An outlier is none of the middle half.
        assert!(clear(&[0.94, 0.95, 0.95, 0.96, 0.5]));
        assert!(!clear(&[0.86, 0.91, 0.96]) && !clear(&[]));
    }

    fn pass(nanos: u64) {
        NOW.set(NOW.get() + nanos);
    }

    /// A clock with a read cost of 50 ns.
    fn dear() -> u64 {
        pass(50);
        NOW.get()
    }

    fn halves(first: u64, second: u64) -> Result<[f64; 2], String> {
        let mut halves = Halves::new(dear);
        let work = |nanos: u64| {
            pass(nanos);
            Ok::<_, ()>(())
        };
        for _ in 0..9 {
            halves.apart(|| work(first), || work(second)).unwrap();
            halves.together(|| work(first).and_then(|()| work(second))).unwrap();
        }
        halves.shares()
    }

    #[test]
    fn a_dear_clock_takes_nothing_away() {
        let [first, second] = halves(3, 9).unwrap();
        assert!((first - 3.0).abs() < 0.1 && (second - 9.0).abs() < 0.3, "{first}, {second}");
    }

    #[test]
    fn a_time_below_the_clocks_resolution_is_refused() {
        let why = halves(0, 9).unwrap_err();
        assert!(why.contains("a clock read 50"), "{why}");
    }

    #[test]
    fn rounds_apart_are_no_measure() {
        let rounds = |values: &[f64]| Rounds(values.to_vec()).refused();
        assert_eq!(rounds(&[10.0, 11.0, 12.0]), None);
        assert!(rounds(&[]).is_some_and(|why| why.contains("clock")));
        assert!(rounds(&[10.0, 20.0, 40.0]).is_some_and(|why| why.contains("spread")));
        assert!(rounds(&[0.0, 0.0, 0.0]).is_some() && rounds(&[-1.0, 5.0, 5.0]).is_some());
    }
}
