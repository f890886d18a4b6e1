//! Whether one system is ahead of another in a loop.
//!
//! Times in an emulator vary, and a lead that is smaller than the variation says nothing. Half the
//! distance between the quartiles of the rounds is the spread of a system. A lead is one only if it
//! is larger than the spreads of both systems together: then the middle halves of their rounds do
//! not meet. Less than one per cent is no lead: counts have no spread, but a compiler moves them by
//! as much.

use std::fmt;

/// The least rounds of each system for a verdict.
pub(super) const ENOUGH: u32 = 5;

/// The least lead, in per cent.
const LEAST: f64 = 1.0;

/// The result of a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Ahead,
    Behind,
    Tie,
    /// There are too few rounds to tell.
    Open,
}

impl Verdict {
    /// `times` is how many times better the first system is, `spreads` the sum of both spreads in
    /// per cent, and `rounds` the smaller number of rounds.
    pub(super) fn new(times: f64, spreads: f64, rounds: usize) -> Verdict {
        let lead = 100.0 * (times.max(1.0 / times) - 1.0);
        match lead > spreads && lead >= LEAST {
            _ if rounds < ENOUGH as usize => Verdict::Open,
            false => Verdict::Tie,
            true if times > 1.0 => Verdict::Ahead,
            true => Verdict::Behind,
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Verdict::Ahead => "ahead",
            Verdict::Behind => "behind",
            Verdict::Tie => "tie",
            Verdict::Open => "too few rounds",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lead_within_the_spread_is_a_tie() {
        for (times, spreads, rounds, expected) in [
            (1.10, 9.0, 5, Verdict::Ahead),
            (1.10, 11.0, 5, Verdict::Tie),
            (0.90, 11.0, 5, Verdict::Behind),
            (0.90, 12.0, 5, Verdict::Tie),
            (1.0, 0.0, 5, Verdict::Tie),
            (1.011, 0.0, 5, Verdict::Ahead),
            (0.989, 1.0, 5, Verdict::Behind),
            (1.009, 0.0, 5, Verdict::Tie),
            (0.992, 0.0, 5, Verdict::Tie),
            (9.0, 1.0, 4, Verdict::Open),
            (f64::NAN, 1.0, 5, Verdict::Tie),
            (1.5, f64::NAN, 5, Verdict::Tie),
        ] {
            assert_eq!(Verdict::new(times, spreads, rounds), expected, "{times} {spreads}");
        }
    }
}
