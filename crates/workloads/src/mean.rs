//! Times of operations: in batches by processor time, one by one by the clock.

use alloc::vec::Vec;
use report::median;

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

    /// The largest.
    pub(crate) fn most(&self) -> f64 {
        self.0.iter().copied().fold(f64::NAN, f64::max)
    }

    /// How many times as much the first is, by the median of the rounds' ratios.
    pub(crate) fn times(&self, other: &Rounds) -> f64 {
        let ratios: Vec<f64> =
            self.0.iter().zip(&other.0).map(|(one, other)| one / other).collect();
        median(&ratios)
    }
}

/// Nanoseconds that each of `operations` takes, of those that `batch` makes at once.
pub(crate) fn each(time: fn() -> u64, operations: usize, batch: impl FnOnce()) -> f64 {
    let began = time();
    batch();
    time().saturating_sub(began) as f64 / operations as f64
}
