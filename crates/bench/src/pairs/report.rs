//! The results of two threads: a table, and the share of its lone speed that each kept.

use super::{PairKind, Round};
use crate::results::SHARED;
use report::{Table, Target, median};
use std::io::{self, Write};

/// All rounds of one experiment.
pub(crate) struct Outcome {
    pub(crate) kind: PairKind,
    pub(crate) map: &'static str,
    pub(crate) size: usize,
    pub(crate) rounds: Vec<Round>,
}

impl Outcome {
    /// The rounds from a worker's answer.
    pub(crate) fn parse(
        kind: PairKind,
        map: &'static str,
        size: usize,
        answer: &str,
    ) -> Result<Self, String> {
        let bad = || format!("{} of {map} answered {answer}", kind.name());
        let numbers: Result<Vec<f64>, _> = answer.split(' ').map(str::parse).collect();
        let numbers = numbers.map_err(|_| bad())?;
        let rounds: Vec<Round> = numbers.chunks_exact(8).map(round).collect();
        if rounds.is_empty() || numbers.len() % 8 != 0 {
            return Err(bad());
        }
        Ok(Outcome { kind, map, size, rounds })
    }

    /// The share of its lone speed that a thread keeps, by processor time or by the wall clock.
    pub(crate) fn kept(&self, thread: usize, wall: bool) -> f64 {
        let pick = |speed: super::Speed| if wall { speed.wall } else { speed.processor };
        let parts: Vec<f64> = self
            .rounds
            .iter()
            .map(|round| pick(round.alone[thread]) / pick(round.together[thread]))
            .collect();
        median(&parts)
    }

    /// Nanoseconds an operation by processor time.
    pub(crate) fn time(&self, thread: usize, together: bool) -> f64 {
        let of = |round: &Round| if together { round.together } else { round.alone };
        let times: Vec<f64> = self.rounds.iter().map(|round| of(round)[thread].processor).collect();
        median(&times)
    }

    /// The names of the two threads, in order.
    pub(crate) fn threads(&self) -> [&'static str; 2] {
        match self.kind {
            PairKind::ReaderWriter | PairKind::Passing => ["reader", "writer"],
            PairKind::TwoWriters | PairKind::TwoMaps => ["low writer", "high writer"],
        }
    }
}

fn round(numbers: &[f64]) -> Round {
    let speed = |at: usize| super::Speed { processor: numbers[2 * at], wall: numbers[2 * at + 1] };
    Round { alone: [speed(0), speed(1)], together: [speed(2), speed(3)] }
}

/// Prints a line for each thread.
pub(crate) fn print(out: &mut impl Write, outcomes: &[Outcome]) -> io::Result<()> {
    if outcomes.is_empty() {
        return Ok(());
    }
    writeln!(out, "\nTwo threads on two processors, ns of processor time an operation\n")?;
    let head =
        ["experiment", "map", "ranges", "thread", "alone", "together", "kept", "kept, wall clock"];
    let mut lines = vec![head.map(String::from).to_vec()];
    for one in outcomes {
        for (at, thread) in one.threads().into_iter().enumerate() {
            lines.push(vec![
                one.kind.name().into(),
                one.map.into(),
                one.size.to_string(),
                thread.into(),
                format!("{:.1}", one.time(at, false)),
                format!("{:.1}", one.time(at, true)),
                format!("{:.0} %", 100.0 * one.kept(at, false)),
                format!("{:.0} %", 100.0 * one.kept(at, true)),
            ]);
        }
    }
    write!(out, "{}", Table(lines))
}

/// Up to so many ranges the reader has no target, because passing a word for each range costs more
/// than a target of 90 % allows.
const PASSING: usize = 10_000;

/// The targets of a reader concurrent with a writer.
///
/// The reader of 1,000 and of 10,000 ranges has none: no map lets it keep 90 %. Two threads that
/// share nothing but a word for each range (`passing-words`) leave it 41 to 72 % at 1,000 ranges,
/// and 80 to 89 % at 10,000, in four runs. The reason is that a written word comes from the other
/// processor's cache, which takes as long as ten lookups. The table shows the share that it keeps.
pub(crate) fn targets(outcomes: &[Outcome]) -> Vec<Target> {
    let ours = |one: &&Outcome| one.kind == PairKind::ReaderWriter && one.map == SHARED;
    let mut targets = Vec::new();
    for one in outcomes.iter().filter(ours) {
        let bounds = [(0, "reader", 0.9), (1, "writer", 0.8)];
        let in_reach = |(at, ..): &(usize, &str, f64)| *at == 1 || one.size > PASSING;
        for (at, name, bound) in bounds.into_iter().filter(in_reach) {
            let target = format!("{name} with the other, kept@{}", one.size);
            targets.push(Target::at_least("two-processors", target, one.kept(at, false), bound));
        }
    }
    targets
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kept_is_by_round() {
        let answer = "10 10 100 100 20 40 100 200 30 30 80 80 40 40 100 100 5 5 7 7 5 5 7 7";
        let outcome = Outcome::parse(PairKind::ReaderWriter, SHARED, 1000, answer).unwrap();
        assert_eq!((outcome.kept(0, false), outcome.kept(1, false)), (0.75, 1.0));
        assert_eq!((outcome.kept(0, true), outcome.kept(1, true)), (0.75, 0.8));
        let large = Outcome::parse(PairKind::ReaderWriter, SHARED, 100_000, answer).unwrap();
        let targets = targets(&[outcome, large]);
        // For 1,000 ranges only the writer's.
        assert_eq!(targets.iter().map(Target::met).collect::<Vec<_>>(), [true, false, true]);
        assert!(Outcome::parse(PairKind::TwoMaps, SHARED, 1000, "1 2 3").is_err());
        assert!(Outcome::parse(PairKind::TwoMaps, SHARED, 1000, "").is_err());
    }
}
