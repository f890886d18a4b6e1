//! Times of operations: in batches by processor time, one by one by the clock.

use crate::lab::Disturbed;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use report::{Row, median, spread};

/// Rounds that lie further apart than this, in per cent, are no measure of anything.
pub(crate) const APART: f64 = 25.0;
/// So many times the rounds that are wanted are tried, where some are refused.
pub(crate) const TRIES: usize = 3;

/// Looks at the clock to find out what one takes.
const LOOKS: usize = 101;

/// Times of something and of what it is compared with, taken in turns.
#[derive(Default)]
pub(crate) struct Rounds(Vec<f64>);

impl Rounds {
    pub(crate) const fn new() -> Rounds {
        Rounds(Vec::new())
    }

    /// Adds a round's.
    pub(crate) fn push(&mut self, value: f64) {
        self.0.push(value);
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Why these are no measure, if they are none.
    pub(crate) fn refused(&self) -> Option<String> {
        if self.0.is_empty() {
            return Some("no round has taken longer than the clock does".into());
        }
        let spread = self.spread();
        // What is not a number is no measure, either.
        let settled = self.0.iter().all(|value| *value > 0.0) && spread <= APART;
        (!settled).then(|| format!("the rounds lie {spread:.0} % apart"))
    }

    /// The value in the middle.
    pub(crate) fn median(&self) -> f64 {
        median(&self.0)
    }

    /// All of them together, over their number.
    pub(crate) fn mean(&self) -> f64 {
        self.0.iter().sum::<f64>() / self.0.len() as f64
    }

    /// How far they lie apart, in per cent.
    pub(crate) fn spread(&self) -> f64 {
        spread(&self.0)
    }

    /// Two rows like this one: the time in the middle, and how far they lie apart.
    pub(crate) fn rows(&self, like: &Row, metric: &str, unit: &str) -> [Row; 2] {
        let apart = like.with("spread of the time", self.spread(), "%");
        [like.with(metric, self.median(), unit), apart]
    }

    /// The largest.
    pub(crate) fn most(&self) -> f64 {
        self.0.iter().copied().fold(f64::NAN, f64::max)
    }

    /// The means of each round's two.
    pub(crate) fn between(&self, other: &Rounds) -> Rounds {
        Rounds(self.0.iter().zip(&other.0).map(|(one, other)| (one + other) / 2.0).collect())
    }

    /// How many times as much the first is, by the median of the rounds' ratios.
    pub(crate) fn times(&self, other: &Rounds) -> f64 {
        let ratios: Vec<f64> =
            self.0.iter().zip(&other.0).map(|(one, other)| one / other).collect();
        median(&ratios)
    }
}

/// The reason of a refusal, with what the host has done meanwhile.
pub(crate) fn because(reason: &str, before: Disturbed, now: Disturbed) -> String {
    format!(
        "not measured: {reason}; the host is busy: {} involuntary context switches, {} ms stolen \
         meanwhile",
        now.switches.saturating_sub(before.switches),
        now.stolen.saturating_sub(before.stolen)
    )
}

/// The time of batches, without what it takes to look at the clock: some hundred nanoseconds where
/// that is a system call.
#[derive(Clone, Copy)]
pub(crate) struct Timer {
    time: fn() -> u64,
    /// Between two looks with nothing in between.
    empty: f64,
}

impl Timer {
    /// Finds out what a look takes; for the CPU that will look.
    pub(crate) fn new(time: fn() -> u64) -> Timer {
        let looks: Vec<f64> = (0..LOOKS)
            .map(|_| {
                let began = time();
                time().saturating_sub(began) as f64
            })
            .collect();
        Timer { time, empty: median(&looks) }
    }

    /// Nanoseconds that each of `operations` takes, of those that `batch` makes at once.
    pub(crate) fn each(&self, operations: usize, batch: impl FnOnce()) -> f64 {
        let began = (self.time)();
        batch();
        let took = (self.time)().saturating_sub(began) as f64;
        (took - self.empty).max(0.0) / operations as f64
    }
}

/// Times the two halves of something that takes no longer than the clock itself: taking and giving
/// back.
///
/// Each half alone is measured with a look at the clock right before it, of which nothing is in
/// between, as that look costs what the next one does; the medians of these differences are
/// believed if together they are what both take in spans so long that the clock's cost is nothing
/// beside them.
pub(crate) struct Halves {
    clock: fn() -> u64,
    first: Rounds,
    second: Rounds,
    both: Rounds,
    /// Of a look at the clock.
    empty: Rounds,
}

/// The halves together are at most so many times what both take in a long span, and the other way
/// round.
const FIT: f64 = 2.0;
/// A span is so many times as long as a look at the clock takes.
const LONG: f64 = 128.0;
/// What is in it is done no more often than this: on an idle host that takes a millisecond.
const MOST: usize = 1 << 14;

impl Halves {
    pub(crate) fn new(clock: fn() -> u64) -> Halves {
        let empty = Rounds::default;
        Halves { clock, first: empty(), second: empty(), both: empty(), empty: empty() }
    }

    /// Once each, timed apart.
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

    /// Both, one after the other, as often as it takes for a long span.
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

    /// The time of each half; or why it cannot be told.
    pub(crate) fn shares(&self) -> Result<[f64; 2], String> {
        let [first, second, both] =
            [&self.first, &self.second, &self.both].map(|rounds| rounds.median());
        let fits = first + second > both / FIT && first + second < both * FIT;
        if !(first > 0.0 && second > 0.0 && fits) {
            let clock = self.empty.median();
            return Err(format!(
                "a half took {first:.0} and {second:.0} ns, both {both:.1}, and a look at the clock \
                 {clock:.0}"
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

    fn pass(nanos: u64) {
        NOW.set(NOW.get() + nanos);
    }

    /// A clock of which each look takes 50 ns.
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
    fn what_takes_no_time_by_the_clock_is_refused() {
        let why = halves(0, 9).unwrap_err();
        assert!(why.contains("a look at the clock 50"), "{why}");
    }

    #[test]
    fn rounds_apart_are_no_measure() {
        let rounds = |values: &[f64]| Rounds(values.to_vec()).refused();
        assert_eq!(rounds(&[10.0, 11.0, 12.0]), None);
        assert!(rounds(&[]).is_some_and(|why| why.contains("clock")));
        assert!(rounds(&[10.0, 20.0, 40.0]).is_some_and(|why| why.contains("% apart")));
        assert!(rounds(&[0.0, 0.0, 0.0]).is_some() && rounds(&[-1.0, 5.0, 5.0]).is_some());
    }
}
