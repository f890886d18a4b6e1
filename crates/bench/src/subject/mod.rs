//! A map with its work: runs batches and times them.

mod reads;
mod writes;

use crate::adverse::{Adverse, Flaw};
use crate::case::Case;
use crate::clock;
use crate::heap;
use crate::peer::{Peer, Reader, Support, Writer};
use crate::workload::{BATCH, Span, Value, Workload};
use alloc::rc::Rc;
use alloc::vec::Vec;
use core::hint::black_box;

/// One timed batch.
#[derive(Clone, Copy)]
pub(crate) struct Sample {
    /// Nanoseconds of processor time.
    pub(crate) elapsed: u64,
    /// The number of operations.
    pub(crate) operations: usize,
    /// A checksum of the results, equal for all maps.
    pub(crate) check: usize,
}

/// A map of any kind.
pub(crate) trait Subject {
    fn name(&self) -> &'static str;
    fn support(&self, case: Case) -> Support;
    /// Runs a batch. Batches with the same `turn` do the same.
    fn sample(&mut self, case: Case, turn: usize) -> Sample;
    /// Bytes of heap for each range of a map that was built in random order, with holes between
    /// ranges or touching.
    fn bytes_per_entry(&mut self, touching: bool) -> f64;
}

/// A map of kind `P`, built in random order when it is first needed.
pub(crate) struct Bench<P> {
    work: Rc<Workload>,
    peer: Option<P>,
    /// A map on which searches for free space are hard.
    adverse: Option<(Flaw, Adverse, P)>,
}

impl<P: Peer> Bench<P> {
    pub(crate) fn new(work: Rc<Workload>) -> Self {
        Bench { work, peer: None, adverse: None }
    }

    fn peer(&mut self) -> &mut P {
        self.peer.get_or_insert_with(|| build(&self.work.shuffled))
    }

    /// Maps that are built or torn down in a batch.
    fn copies(&self) -> usize {
        BATCH.div_ceil(self.work.spans.len())
    }
}

impl<P: Peer> Subject for Bench<P> {
    fn name(&self) -> &'static str {
        P::NAME
    }

    fn support(&self, case: Case) -> Support {
        P::support(case)
    }

    fn sample(&mut self, case: Case, turn: usize) -> Sample {
        match case {
            Case::Load => self.load(turn),
            Case::LoadDependent => self.load_dependent(turn),
            Case::Iterate | Case::IterateBack | Case::CursorStep => self.iterate(case),
            Case::Lookup
            | Case::Find
            | Case::FindAny
            | Case::FindBack
            | Case::First
            | Case::FirstBack
            | Case::CursorNext
            | Case::CursorPrev => self.by_range(case, turn),
            Case::InsertRandom => self.insert(false),
            Case::InsertAscending => self.insert(true),
            Case::Erase => self.erase(),
            Case::Move => self.shift(),
            Case::Resize => self.resize(turn),
            Case::EraseOver => self.erase_over(),
            Case::GapUp | Case::GapDown | Case::RareGapUp | Case::RareGapDown => {
                self.gap(case, turn)
            }
            Case::ShortGapUp => self.adverse_gap(Flaw::Short, true, turn),
            Case::ShortGapDown => self.adverse_gap(Flaw::Short, false, turn),
            Case::SkewedGapUp => self.adverse_gap(Flaw::Skewed, true, turn),
            Case::SkewedGapDown => self.adverse_gap(Flaw::Skewed, false, turn),
            Case::MapUnmap => self.map_unmap(turn),
            Case::Duplicate => self.duplicate(),
            Case::WriteAfterDuplicate => self.write_after_duplicate(turn),
        }
    }

    fn bytes_per_entry(&mut self, touching: bool) -> f64 {
        // Many small maps, so that memory kept for the next one does not count.
        let copies = self.copies();
        let mut maps: Vec<P> = Vec::with_capacity(copies);
        let spans = if touching { &self.work.touching() } else { &self.work.shuffled };
        // Once uncounted: a thread allocates structures of its own for its first map.
        drop(build::<P>(spans));
        let ((), counted) = heap::counted(|| maps.extend((0..copies).map(|_| build(spans))));
        let own: Option<usize> = maps.iter().map(P::bytes).sum();
        let bytes = own.map_or(counted as f64, |bytes| bytes as f64);
        bytes / (copies * spans.len()) as f64
    }
}

/// A map with these ranges, inserted in this order.
pub(crate) fn build<P: Peer>(spans: &[Span]) -> P {
    let mut peer = P::new();
    let mut writer = peer.writer();
    spans.iter().for_each(|&span| writer.insert(span));
    drop(writer);
    P::settle();
    peer
}

/// Iterates over everything.
fn sum<P: Peer>(peer: &P) -> usize {
    let mut sum = 0usize;
    peer.reader().each(|start, end, value| sum = sum.wrapping_add(start ^ end ^ value.get()));
    sum
}

/// Iterates over everything downwards.
fn sum_back<P: Peer>(peer: &P) -> usize {
    let mut sum = 0usize;
    peer.reader().each_back(|start, end, value| sum = sum.wrapping_add(start ^ end ^ value.get()));
    sum
}

/// Iterates over everything by a cursor.
fn sum_by_cursor<P: Peer>(peer: &P) -> usize {
    let mut sum = 0usize;
    let add = |start, end, value: Value| sum = sum.wrapping_add(start ^ end ^ value.get());
    peer.reader().each_by_cursor(add);
    sum
}

/// Times so many operations, which return their checksum. Not inlined: see [`measured_work`].
#[inline(never)]
fn timed_batch(operations: usize, run: impl FnOnce() -> usize) -> Sample {
    let start = clock::thread_time();
    let check = measured_work(run);
    let elapsed = clock::thread_time().saturating_sub(start);
    Sample { elapsed, operations, check }
}

/// A function of its own, so that a simulator can count it alone, by its name. The other function's
/// name tells it that the batch is complete (`callgrind.rs`).
#[inline(never)]
fn measured_work(run: impl FnOnce() -> usize) -> usize {
    black_box(run())
}

/// Times operations of unknown cost: one, two, four at once, until the cost of the clock does not
/// matter. The checksum is that of the first.
fn time_each(mut run: impl FnMut() -> usize) -> Sample {
    const ENOUGH: u64 = 50_000;
    const MOST: usize = 1 << 12;
    let first = timed_batch(1, &mut run);
    let mut all = first;
    let mut next = 2;
    while all.elapsed < ENOUGH && all.operations < MOST {
        // The shorter batches before do not count: most of their time is the clock's.
        let check = all.check;
        all = timed_batch(next, || {
            for _ in 0..next {
                black_box(run());
            }
            check
        });
        next *= 2;
    }
    all
}
