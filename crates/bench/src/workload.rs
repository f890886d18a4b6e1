//! The work of every map: the same ranges, keys and moves, in the same order, from one seed.
//!
//! Usually the ranges resemble a dense address space: 1 to 16 pages each, with holes of 1 to 8
//! pages between them. One place in nine is left empty, which makes a larger hole. One
//! place in 1,024 is followed by a hole of [`RARE`] bytes. [`Layout`] has others.
//!
//! This file, `case.rs`, `peer.rs`, `subject` and `worker.rs` need no operating system: the
//! freestanding program (`freestanding/`) includes them, too.

use alloc::vec::Vec;
use core::num::NonZeroUsize;
use core::ops::Range;

pub(crate) const PAGE: usize = 0x1000;
/// A length that fits in most holes.
pub(crate) const COMMON: usize = 2 * PAGE;
/// A length that fits in one hole of about 1,024, and outside of the ranges.
pub(crate) const RARE: usize = 256 * PAGE;
/// The start of the ranges. All below is one hole.
pub(crate) const BASE: usize = 1 << 32;
/// Operations of a batch at least, so that the cost of the clock does not matter.
pub(crate) const BATCH: usize = 1 << 14;
/// Operations of a batch of searches for a rare hole, which take some maps long.
pub(crate) const RARE_BATCH: usize = 1 << 10;
/// Ranges that are erased at once, in the case that erases several.
pub(crate) const GROUP: usize = 16;
/// Random keys at least, more than a branch predictor can learn.
const KEYS: usize = 1 << 18;
const SEED: u64 = 0x5eed_0f5a_ada7_a1e5;

/// The value of a range: as large as a pointer, never zero.
pub(crate) type Value = NonZeroUsize;

/// A range and its value.
#[derive(Clone, Copy)]
pub(crate) struct Span {
    pub(crate) start: usize,
    /// The last index.
    pub(crate) end: usize,
    pub(crate) value: Value,
}

/// Where the ranges lie.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Layout {
    /// Next to each other, with small holes.
    Dense,
    /// 1 to 16 pages each, at random pages below 2^47.
    Spread,
    /// 1 to 16 indices each, at random 64-bit indices.
    Keys,
    /// First and last indices, in ascending order. Ranges may touch.
    Listed(Vec<(usize, usize)>),
}

/// Erases one range, inserts another elsewhere.
#[derive(Clone, Copy)]
pub(crate) struct Move {
    pub(crate) from: Span,
    pub(crate) to: Span,
}

/// The work for maps of one size.
pub(crate) struct Workload {
    /// The ranges in ascending order.
    pub(crate) spans: Vec<Span>,
    /// The same ranges in a random order.
    pub(crate) shuffled: Vec<Span>,
    /// The same ranges in another random order.
    pub(crate) leaving: Vec<Span>,
    /// The ranges that are followed by a hole of a page or more, in a random order. If there is
    /// none, the case that moves ends does nothing.
    pub(crate) growing: Vec<Span>,
    /// Random indices within random ranges.
    pub(crate) keys: Vec<usize>,
    /// Random page-aligned indices, in ranges and in holes.
    pub(crate) hints: Vec<usize>,
    /// Random moves, then their reverse in reverse order: all together leave the map as it was.
    pub(crate) moves: Vec<Move>,
    /// The places in `spans` of [`GROUP`] neighbours that are erased at once: at most a quarter of
    /// all ranges, in random order.
    pub(crate) groups: Vec<Range<usize>>,
}

impl Workload {
    /// The work for maps of `size` ranges of the usual layout.
    pub(crate) fn new(size: usize) -> Self {
        Self::laid_out(&Layout::Dense, size)
    }

    /// The work for maps of `size` ranges, of which a list has an eighth and eight more.
    pub(crate) fn laid_out(layout: &Layout, size: usize) -> Self {
        let mut rng = fastrand::Rng::with_seed(SEED);
        let count = with_free(size);
        let places = match layout {
            Layout::Dense => places(&mut rng, count),
            Layout::Spread => scattered(&mut rng, count, (BASE, 1 << 47), PAGE),
            Layout::Keys => scattered(&mut rng, count, (0, usize::MAX - (1 << 32)), 1),
            Layout::Listed(ranges) => listed(ranges),
        };
        let mut order = places.clone();
        rng.shuffle(&mut order);
        let mut free = order.split_off(size);
        let shuffled = order;
        let mut spans = shuffled.clone();
        spans.sort_by_key(|span| span.start);
        let mut leaving = shuffled.clone();
        rng.shuffle(&mut leaving);
        let keys = (0..size.max(KEYS))
            .map(|_| {
                let span = spans[rng.usize(..size)];
                rng.usize(span.start..=span.end)
            })
            .collect();
        let (bottom, top) = (BASE.min(places[0].start), places[places.len() - 1].end);
        let hints = (0..size.max(KEYS)).map(|_| rng.usize(bottom..top) & !(PAGE - 1)).collect();
        let room = |span: &Span| {
            let next = places.partition_point(|place| place.start <= span.start);
            places.get(next).is_none_or(|place| place.start - span.end > PAGE)
        };
        let growing = shuffled.iter().copied().filter(room).collect();
        let moves = moves(&mut rng, shuffled.clone(), &mut free);
        let groups = groups(&mut rng, size);
        Workload { spans, shuffled, leaving, growing, keys, hints, moves, groups }
    }

    /// The same ranges without holes between them, in the order of `shuffled`.
    pub(crate) fn touching(&self) -> Vec<Span> {
        let mut at = BASE;
        let mut spans: Vec<Span> = self
            .spans
            .iter()
            .map(|span| {
                let start = at;
                at += span.end - span.start + 1;
                Span { start, end: at - 1, value: span.value }
            })
            .collect();
        fastrand::Rng::with_seed(SEED).shuffle(&mut spans);
        spans
    }
}

/// Places for ranges, in ascending order, with holes between them.
fn places(rng: &mut fastrand::Rng, count: usize) -> Vec<Span> {
    let mut at = BASE;
    (0..count)
        .map(|i| {
            let start = at;
            let end = start + PAGE * rng.usize(1..=16) - 1;
            at = end + 1 + if i % 1024 == 512 { RARE } else { PAGE * rng.usize(1..=8) };
            Span { start, end, value: NonZeroUsize::MIN.saturating_add(i) }
        })
        .collect()
}

/// The number of places for `size` ranges: some stay free.
pub(crate) fn with_free(size: usize) -> usize {
    size + size / 8 + 8
}

/// Places of 1 to 16 units at random multiples of a unit, in ascending order, with a hole of a page
/// or more after each.
fn scattered(
    rng: &mut fastrand::Rng,
    count: usize,
    (from, to): (usize, usize),
    unit: usize,
) -> Vec<Span> {
    // The least size of each place is taken out of the span before the draw, and added again.
    let least = 16 * unit + 3 * PAGE;
    let free = to - from - count * least;
    let mut starts: Vec<usize> = (0..count).map(|_| rng.usize(..free / unit) * unit).collect();
    starts.sort_unstable();
    let place = |(i, start): (usize, usize)| {
        let start = from + start + i * least;
        let end = start + unit * rng.usize(1..=16) - 1;
        Span { start, end, value: NonZeroUsize::MIN.saturating_add(i) }
    };
    starts.into_iter().enumerate().map(place).collect()
}

fn listed(ranges: &[(usize, usize)]) -> Vec<Span> {
    let place = |(i, &(start, end))| {
        let value = NonZeroUsize::MIN.saturating_add(i);
        Span { start, end, value }
    };
    ranges.iter().enumerate().map(place).collect()
}

/// Moves from random used places to random free ones, there and back.
fn moves(rng: &mut fastrand::Rng, mut used: Vec<Span>, free: &mut [Span]) -> Vec<Move> {
    let mut there: Vec<Move> = (0..used.len().clamp(BATCH / 2, 1 << 16))
        .map(|_| {
            let (from, to) = (rng.usize(..used.len()), rng.usize(..free.len()));
            let step = Move { from: used[from], to: free[to] };
            (used[from], free[to]) = (step.to, step.from);
            step
        })
        .collect();
    let back: Vec<Move> =
        there.iter().rev().map(|step| Move { from: step.to, to: step.from }).collect();
    there.extend(back);
    there
}

fn groups(rng: &mut fastrand::Rng, size: usize) -> Vec<Range<usize>> {
    let mut groups: Vec<Range<usize>> =
        (0..size).step_by(GROUP).map(|from| from..(from + GROUP).min(size)).collect();
    // The last one may be short.
    if groups.len() > 1 {
        groups.pop();
    }
    rng.shuffle(&mut groups);
    groups.truncate((groups.len() / 4).clamp(1, 1 << 12));
    groups
}
