//! Times of operations: in batches by processor time, one by one by the clock.

use alloc::vec::Vec;
use report::{Row, median, spread};

/// Looks at the clock to find out what one takes.
const LOOKS: usize = 101;

/// Times of something and of what it is compared with, taken in turns.
#[derive(Default)]
pub(crate) struct Rounds(Vec<f64>);

impl Rounds {
    /// Adds a round's.
    pub(crate) fn push(&mut self, value: f64) {
        self.0.push(value);
    }

    /// The value in the middle.
    pub(crate) fn median(&self) -> f64 {
        median(&self.0)
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

/// The time of batches, without what it takes to look at the clock: some hundred nanoseconds where that is a system call.
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
