//! Two threads on two processors at full speed, alone and together.
//!
//! The speed of each is by its own processor time, so that other programs do not count. That
//! includes waiting for cache lines, and spinning for a lock. It leaves out sleeping for a lock,
//! which shows only in the other thread's figures. Where both threads take a lock for each
//! operation, use the figures of the wall clock.

mod lane;
mod lines;
mod report;

pub(crate) use report::{Outcome, print, targets};

use crate::cpus;
use crate::maps::{Concurrent, Locked, Malloc, Mimalloc, Shared, SharedEach};
use crate::peer::Peer;
use crate::workload::{Span, Workload};
use lane::{Lane, Reads, Speed, Writes, run};
use lines::Lines;
use maple::Nodes;

/// The work of the two threads.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum PairKind {
    /// One looks up, the other erases and inserts.
    ReaderWriter,
    /// The same, but each in a map of its own. The threads pass each other a word for each range,
    /// on a line of its own, and nothing else. No map that shows its readers the changes of its
    /// writer can keep more speed.
    Passing,
    /// Both erase and insert in one map, each in its own half of the index space.
    TwoWriters,
    /// The same, but each half is a map of its own.
    TwoMaps,
}

impl PairKind {
    pub(crate) const ALL: [PairKind; 4] =
        [PairKind::ReaderWriter, PairKind::Passing, PairKind::TwoWriters, PairKind::TwoMaps];

    pub(crate) fn name(self) -> &'static str {
        match self {
            PairKind::ReaderWriter => "reader+writer",
            PairKind::Passing => "passing-words",
            PairKind::TwoWriters => "two-writers",
            PairKind::TwoMaps => "two-writers-two-maps",
        }
    }
}

/// Plays so many rounds of so many milliseconds on a map of this size.
type Play = fn(PairKind, usize, usize, u64) -> Result<Vec<Round>, String>;

/// The maps that two threads can use.
pub(crate) const MAPS: [(&str, Play); 7] = [
    (Shared::<Nodes>::NAME, rounds_of::<Shared>),
    (SharedEach::<Nodes>::NAME, rounds_of::<SharedEach>),
    (Locked::NAME, rounds_of::<Locked>),
    (Shared::<Malloc>::NAME, rounds_of::<Shared<Malloc>>),
    (Shared::<Mimalloc>::NAME, rounds_of::<Shared<Mimalloc>>),
    (SharedEach::<Malloc>::NAME, rounds_of::<SharedEach<Malloc>>),
    (SharedEach::<Mimalloc>::NAME, rounds_of::<SharedEach<Mimalloc>>),
];

/// One round: each thread alone, then both.
#[derive(Clone, Copy)]
pub(crate) struct Round {
    pub(crate) alone: [Speed; 2],
    pub(crate) together: [Speed; 2],
}

/// Answers `pair KIND MAP SIZE ROUNDS MILLISECONDS`. The answer has eight numbers for each round:
/// nanoseconds an operation by processor time and by the wall clock, of each thread alone and then
/// together.
pub(crate) fn answer(request: &str) -> Option<String> {
    let words: Vec<&str> = request.split_whitespace().collect();
    let ["pair", kind, map, size, rounds, time] = words[..] else { return None };
    let kind = PairKind::ALL.into_iter().find(|known| known.name() == kind)?;
    let [size, rounds, time] = [size, rounds, time].map(|word| word.parse::<usize>().ok());
    let (size, rounds, time) = (size.filter(|&size| size >= 8)?, rounds?, time? as u64);
    let (_, play) = MAPS.get(map.parse::<usize>().ok()?)?;
    Some(match play(kind, size, rounds, time) {
        Ok(rounds) => {
            let speeds =
                rounds.iter().flat_map(|round| round.alone.into_iter().chain(round.together));
            let words: Vec<String> =
                speeds.map(|speed| format!("{} {}", speed.processor, speed.wall)).collect();
            words.join(" ")
        }
        Err(cause) => format!("error {cause}"),
    })
}

fn rounds_of<P: Concurrent>(
    kind: PairKind,
    size: usize,
    rounds: usize,
    time: u64,
) -> Result<Vec<Round>, String> {
    let all = cpus::allowed()?;
    let [first, .., second] = all[..] else {
        return Err(format!("two processors are needed, but only {all:?} are allowed"));
    };
    match kind {
        PairKind::ReaderWriter => {
            let work = Workload::new(size);
            let map = build::<P>(&work.shuffled);
            let mut reads = Reads::new(&map, &work.keys, |_| ());
            let mut writes = Writes::new(&map, work.moves.clone(), |_| ());
            Ok(play([first, second], [&mut reads, &mut writes], rounds, time))
        }
        PairKind::Passing => {
            let work = Workload::new(size);
            let (one, other) = (build::<P>(&work.shuffled), build::<P>(&work.shuffled));
            let lines = Lines::new(&work);
            let mut reads = Reads::new(&one, &work.keys, |key| lines.read(key));
            let mut writes = Writes::new(&other, work.moves.clone(), |start| lines.write(start));
            Ok(play([first, second], [&mut reads, &mut writes], rounds, time))
        }
        PairKind::TwoWriters | PairKind::TwoMaps => {
            // Halves far from each other, each with half of the ranges.
            let work = Workload::new(size / 2);
            let far = |span: Span| Span {
                start: span.start + (1 << 44),
                end: span.end + (1 << 44),
                ..span
            };
            let mut spans = work.shuffled.clone();
            let far_spans: Vec<Span> = spans.iter().map(|&span| far(span)).collect();
            let far_moves = work
                .moves
                .iter()
                .map(|step| crate::workload::Move { from: far(step.from), to: far(step.to) });
            let other = (kind == PairKind::TwoMaps).then(|| build::<P>(&far_spans));
            if other.is_none() {
                spans.extend(far_spans);
            }
            let map = build::<P>(&spans);
            let mut low = Writes::new(&map, work.moves.clone(), |_| ());
            let mut high = Writes::new(other.as_ref().unwrap_or(&map), far_moves.collect(), |_| ());
            Ok(play([first, second], [&mut low, &mut high], rounds, time))
        }
    }
}

fn build<P: Concurrent>(spans: &[Span]) -> P {
    crate::subject::build(spans)
}

/// Runs the rounds. A change of the machine's load affects all parts of a round.
fn play(cpus: [usize; 2], lanes: [&mut dyn Lane; 2], rounds: usize, time: u64) -> Vec<Round> {
    let [one, other] = lanes;
    (0..rounds)
        .map(|_| Round {
            alone: [
                run(&mut [(cpus[0], &mut *one)], time)[0],
                run(&mut [(cpus[1], &mut *other)], time)[0],
            ],
            together: {
                let speeds = run(&mut [(cpus[0], &mut *one), (cpus[1], &mut *other)], time);
                [speeds[0], speeds[1]]
            },
        })
        .collect()
}
