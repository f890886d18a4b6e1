//! Compares a concurrent run with the sequential ones.

use std::{
    collections::HashMap,
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
};

use crate::{
    laws,
    orders::{self, Span},
    run::{self, Move, Run, Script, Seen, Split},
    tables::{Stale, stale_accesses, weaken},
};
use sim::Failure;

/// The fault of a script.
pub(crate) struct Wrong {
    pub(crate) script: Script,
    pub(crate) seed: u64,
    pub(crate) what: What,
}

pub(crate) enum What {
    /// A violation of a check of the machine, a panic, or a call that never ends.
    Failed(String),
    /// A law that an order of steps breaks.
    Law(String),
    /// A result that no order of steps has.
    Unexplained { seen: Seen, possible: Vec<Seen> },
}

impl What {
    /// The kind of fault: a shorter script fails in the same way.
    pub(crate) fn sort(&self) -> u8 {
        match self {
            What::Failed(_) => 0,
            What::Law(_) => 1,
            What::Unexplained { .. } => 2,
        }
    }
}

/// The known results of a script's orders.
pub(crate) struct Sequential<'s> {
    script: &'s Script,
    results: HashMap<(Split, Vec<Move>, Vec<u8>), Seen>,
}

/// The most orders that are tried for one result.
const MOST: usize = 50_000;
/// The orders that the laws are tried in.
const LAWS: usize = 3;

/// The text of a failure, or of a panic.
fn caught<T>(run: impl FnOnce() -> Result<T, Failure>) -> Result<T, String> {
    match catch_unwind(AssertUnwindSafe(run)) {
        Ok(done) => done.map_err(|failure| failure.to_string()),
        Err(panic) => {
            let text = panic.downcast_ref::<&str>().map(ToString::to_string);
            Err(text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default())
        }
    }
}

impl<'s> Sequential<'s> {
    pub(crate) fn new(script: &'s Script) -> Self {
        Sequential { script, results: HashMap::new() }
    }

    /// The number of orders whose result is known.
    pub(crate) fn orders(&self) -> usize {
        self.results.len()
    }

    /// The results of sequential runs, each once.
    fn possible(&self) -> Vec<Seen> {
        let mut possible = Vec::new();
        for seen in self.results.values() {
            if !possible.contains(seen) {
                possible.push(seen.clone());
            }
        }
        possible
    }

    fn wrong(&self, seed: u64, what: What) -> Wrong {
        Wrong { script: self.script.clone(), seed, what }
    }

    /// Runs some orders with the laws, if a law is about the script.
    pub(crate) fn check_laws(&self) -> Result<(), Wrong> {
        if !self.script.is_chain() && !self.script.ops().any(laws::is_subject) {
            return Ok(());
        }
        let spans = self.script.threads.iter().map(|thread| {
            let span = Span { begun: 0, ended: 1, is_access: false, steps: 1 };
            vec![span; thread.ops.len()]
        });
        let (mut wrong, mut tried) = (None, 0);
        orders::any(&spans.collect::<Vec<_>>(), &mut |order| {
            tried += 1;
            match caught(|| run::sequential(self.script, (0, &[]), order, true)) {
                Err(failure) => wrong = Some(What::Failed(failure)),
                Ok((_, Some(law))) => wrong = Some(What::Law(law)),
                Ok(_) => {}
            }
            wrong.is_some() || tried == LAWS
        });
        wrong.map_or(Ok(()), |what| Err(self.wrong(0, what)))
    }

    /// Runs the script from a seed, and looks for an order of its steps that explains the result.
    /// Returns whether the first thread has stopped.
    pub(crate) fn check(&mut self, seed: u64) -> Result<bool, Wrong> {
        let Run { seen, spans, has_stopped } = match caught(|| run::concurrent(self.script, seed)) {
            Ok(run) => Run { seen: weaken(self.script, run.seen), ..run },
            Err(failure) => return Err(self.wrong(seed, What::Failed(failure))),
        };
        let (mut explained, mut failed, mut tried) = (false, None, 0);
        for (moves, split) in each_pair(&ways(&spans), &self.splits()) {
            let mut spans = spans.clone();
            for (spans, parts) in spans.iter_mut().zip(&run::parts(self.script, split)) {
                spans.iter_mut().zip(parts).for_each(|(span, parts)| span.steps = parts.ops.len());
            }
            for &Move { thread, from, to, since } in &moves {
                let span = spans[thread].remove(from);
                spans[thread].insert(to, Span { begun: since, ..span });
            }
            orders::any(&spans, &mut |order| {
                tried += 1;
                let key = (split, moves.clone(), order.to_vec());
                if !self.results.contains_key(&key) {
                    let ways = (split, &moves[..]);
                    match caught(|| run::sequential(self.script, ways, order, false)) {
                        Ok((seen, _)) => {
                            self.results.insert(key.clone(), weaken(self.script, seen));
                        }
                        Err(failure) => failed = Some(failure),
                    }
                }
                explained = self.results.get(&key) == Some(&seen);
                explained || failed.is_some() || tried == MOST
            });
            if explained || failed.is_some() || tried == MOST {
                break;
            }
        }
        match failed {
            Some(text) => Err(self.wrong(seed, What::Failed(text))),
            None if explained || tried == MOST => Ok(has_stopped),
            None => {
                let possible = self.possible();
                Err(self.wrong(seed, What::Unexplained { seen, possible }))
            }
        }
    }

    /// The choices of up to two operations that are split, none first.
    fn splits(&self) -> Vec<Split> {
        let ops: Vec<_> = self.script.ops().collect();
        let several: Split = (0..ops.len())
            .filter(|&number| ops[number].parts(self.script.kind).ops.len() > 1)
            .map(|number| 1 << number)
            .sum();
        let mut splits: Vec<Split> = (0..1 << ops.len())
            .filter(|split: &Split| split & !several == 0 && split.count_ones() <= 2)
            .collect();
        splits.sort_by_key(|split| split.count_ones());
        splits
    }
}

/// The ways to see the stale accesses of a run: none is early, one of them, or all of one thread.
fn ways(spans: &[Vec<Span>]) -> Vec<Vec<Move>> {
    let stale = stale_accesses(spans);
    // Only earlier than what other threads have seen, or also than its own thread has.
    let in_place = |&Stale { thread, op, since }: &Stale| Move { thread, from: op, to: op, since };
    let early = |stale: &Stale| {
        let before = &spans[stale.thread][..stale.op];
        let to = before.iter().position(|span| span.ended >= stale.since).unwrap_or(stale.op);
        Move { to, ..in_place(stale) }
    };
    let alone = stale.iter().flat_map(|stale| [vec![early(stale)], vec![in_place(stale)]]);
    let all = (0..spans.len()).map(|thread| {
        stale.iter().filter(|stale| stale.thread == thread).map(early).collect::<Vec<_>>()
    });
    let mut ways = vec![Vec::new()];
    for way in alone.chain(all) {
        if !ways.contains(&way) {
            ways.push(way);
        }
    }
    ways
}

/// Each of the first with each of the second.
fn each_pair<A: Clone, B: Copy>(first: &[A], second: &[B]) -> Vec<(A, B)> {
    first.iter().flat_map(|a| second.iter().map(move |b| (a.clone(), *b))).collect()
}

/// The lines of a result that differ from another one.
fn differences(seen: &Seen, other: &Seen) -> Vec<String> {
    let lines = |seen: &Seen| -> Vec<String> {
        let outs = seen.outs.iter().enumerate().flat_map(|(thread, outs)| {
            let line = move |(op, out)| format!("thread {thread}, operation {op}: {out}");
            outs.iter().enumerate().map(line)
        });
        outs.chain(seen.state.iter().cloned()).collect()
    };
    let (ours, theirs) = (lines(seen), lines(other));
    let mut all = Vec::new();
    for number in 0..ours.len().max(theirs.len()) {
        let (a, b) = (ours.get(number), theirs.get(number));
        if a != b {
            let none = String::from("(nothing)");
            all.push(format!("{}\n        not {}", a.unwrap_or(&none), b.unwrap_or(&none)));
        }
    }
    all
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "seed {}, {}", self.seed, self.script)?;
        match &self.what {
            What::Failed(text) => writeln!(f, "  {text}"),
            What::Law(text) => writeln!(f, "  a law is broken: {text}"),
            What::Unexplained { seen, possible } => {
                writeln!(f, "  results:")?;
                for (thread, outs) in seen.outs.iter().enumerate() {
                    let outs: Vec<_> = outs.iter().map(ToString::to_string).collect();
                    writeln!(f, "    thread {thread}: {}", outs.join("; "))?;
                }
                let mut possible: Vec<_> =
                    possible.iter().map(|other| differences(seen, other)).collect();
                possible.sort_by_key(|lines| lines.iter().map(String::len).sum::<usize>());
                writeln!(f, "  no order of steps has this result; {} others are:", possible.len())?;
                for lines in possible.iter().take(4) {
                    writeln!(f, "    - {}", lines.join("\n      "))?;
                }
                Ok(())
            }
        }
    }
}
