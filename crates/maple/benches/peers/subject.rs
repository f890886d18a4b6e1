//! A map with its work: runs batches and times them.

use crate::clock;
use crate::peer::{Case, Peer, Reader, Support, Writer};
use crate::workload::{BATCH, COMMON, PAGE, RARE, RARE_BATCH, Span, Workload};
use std::hint::black_box;
use std::rc::Rc;
use std::time::Duration;

/// One timed batch.
pub(crate) struct Sample {
    pub(crate) elapsed: Duration,
    /// What the batch found or left behind; equal for all maps.
    pub(crate) check: usize,
}

/// A map of any kind.
pub(crate) trait Subject {
    fn name(&self) -> &'static str;
    fn support(&self, case: Case) -> Support;
    /// How many operations a batch has.
    fn operations(&self, case: Case) -> usize;
    /// Runs one batch. Those with the same `turn` do the same.
    fn sample(&mut self, case: Case, turn: usize) -> Sample;
    /// Bytes of heap for each range of a map built in random order.
    fn bytes_per_entry(&mut self) -> f64;
}

/// A map of kind `P`, built in random order when it is first needed.
pub(crate) struct Bench<P> {
    work: Rc<Workload>,
    peer: Option<P>,
}

impl<P: Peer> Bench<P> {
    pub(crate) fn new(work: Rc<Workload>) -> Self {
        Bench { work, peer: None }
    }

    fn peer(&mut self) -> &mut P {
        self.peer.get_or_insert_with(|| build(&self.work.shuffled))
    }

    /// Reads over a batch of `keys`; which, the turn says.
    fn reads(
        &mut self,
        (turn, batch): (usize, usize),
        keys: impl Fn(&Workload) -> &[usize],
        run: impl Fn(&P::Reader<'_>, &[usize]) -> usize,
    ) -> Sample {
        let work = self.work.clone();
        let keys = keys(&work);
        let piece = keys.chunks_exact(batch).nth(turn % (keys.len() / batch)).unwrap_or(&[]);
        let reader = self.peer().reader();
        time(|| run(&reader, black_box(piece)))
    }

    fn gaps(
        &mut self,
        piece: (usize, usize),
        find: impl Fn(&P::Reader<'_>, usize) -> usize,
    ) -> Sample {
        self.reads(
            piece,
            |work| &work.hints,
            |reader, hints| {
                hints.iter().fold(0, |sum: usize, &hint| sum.wrapping_add(find(reader, hint)))
            },
        )
    }

    /// So many maps are built, torn down or copied in a batch.
    fn copies(&self) -> usize {
        BATCH.div_ceil(self.work.spans.len())
    }

    fn insert(&mut self, ascending: bool) -> Sample {
        let spans = if ascending { &self.work.spans } else { &self.work.shuffled };
        let mut maps: Vec<P> = (0..self.copies()).map(|_| P::new()).collect();
        let sample = time(|| {
            for map in &mut maps {
                let mut writer = map.writer();
                black_box(spans).iter().for_each(|&span| writer.insert(span));
            }
            P::settle();
            0
        });
        Sample { check: maps.last().map_or(0, sum), ..sample }
    }

    fn erase(&mut self) -> Sample {
        let work = &self.work;
        let mut maps: Vec<P> = (0..self.copies()).map(|_| build(&work.shuffled)).collect();
        let sample = time(|| {
            for map in &mut maps {
                let mut writer = map.writer();
                black_box(&work.leaving).iter().for_each(|&span| writer.erase(span));
            }
            P::settle();
            0
        });
        Sample { check: maps.iter().map(sum).max().unwrap_or(0), ..sample }
    }

    fn shift(&mut self) -> Sample {
        let work = self.work.clone();
        let peer = self.peer();
        let sample = time(|| {
            let mut writer = peer.writer();
            for step in black_box(&work.moves) {
                writer.erase(step.from);
                writer.insert(step.to);
            }
            drop(writer);
            P::settle();
            0
        });
        Sample { check: sum(peer), ..sample }
    }

    fn iterate(&mut self) -> Sample {
        let copies = self.copies();
        let peer = self.peer();
        time(|| (0..copies).fold(0, |all: usize, _| all.wrapping_add(sum(black_box(peer)))))
    }

    fn duplicate(&mut self) -> Sample {
        let copies = self.copies();
        let mut maps = Vec::with_capacity(copies);
        let peer = self.peer();
        let sample = time(|| {
            maps.extend((0..copies).map(|_| black_box(&mut *peer).duplicate()));
            0
        });
        Sample { check: maps.pop().flatten().map_or(0, |copy| sum(&copy)), ..sample }
    }
}

impl<P: Peer> Subject for Bench<P> {
    fn name(&self) -> &'static str {
        P::NAME
    }

    fn support(&self, case: Case) -> Support {
        P::support(case)
    }

    fn operations(&self, case: Case) -> usize {
        match case {
            Case::Iterate
            | Case::InsertRandom
            | Case::InsertAscending
            | Case::Erase
            | Case::Duplicate => self.copies() * self.work.spans.len(),
            Case::Move => self.work.moves.len(),
            Case::RareGapUp | Case::RareGapDown => RARE_BATCH,
            Case::Load | Case::LoadDependent | Case::GapUp | Case::GapDown => BATCH,
        }
    }

    fn sample(&mut self, case: Case, turn: usize) -> Sample {
        let piece = (turn, self.operations(case));
        match case {
            Case::Load => self.reads(
                piece,
                |work| &work.keys,
                |reader, keys| {
                    keys.iter().fold(0, |sum: usize, &key| sum.wrapping_add(value(reader, key)))
                },
            ),
            Case::LoadDependent => {
                // Zero, but neither the compiler nor the processor knows it before it has the value.
                let zero = black_box(0);
                self.reads(
                    piece,
                    |work| &work.keys,
                    |reader, keys| {
                        let (mut sum, mut last) = (0usize, 0);
                        for &key in keys {
                            last = value(reader, key ^ (last & zero));
                            sum = sum.wrapping_add(last);
                        }
                        sum
                    },
                )
            }
            Case::Iterate => self.iterate(),
            Case::InsertRandom => self.insert(false),
            Case::InsertAscending => self.insert(true),
            Case::Erase => self.erase(),
            Case::Move => self.shift(),
            Case::GapUp => self.gaps(piece, |reader, hint| reader.gap_up(hint, COMMON)),
            Case::RareGapUp => self.gaps(piece, |reader, hint| reader.gap_up(hint, RARE)),
            // Up to the last index of the hint's page, so that what is found begins with a page.
            Case::GapDown => {
                self.gaps(piece, |reader, hint| reader.gap_down(hint | (PAGE - 1), COMMON))
            }
            Case::RareGapDown => {
                self.gaps(piece, |reader, hint| reader.gap_down(hint | (PAGE - 1), RARE))
            }
            Case::Duplicate => self.duplicate(),
        }
    }

    fn bytes_per_entry(&mut self) -> f64 {
        // Many small maps, so that what the allocator keeps aside does not count.
        let mut maps: Vec<P> = Vec::with_capacity(self.copies());
        let before = clock::heap_in_use();
        maps.extend((0..self.copies()).map(|_| build(&self.work.shuffled)));
        let bytes = clock::heap_in_use().saturating_sub(before);
        bytes as f64 / (maps.len() * self.work.spans.len()) as f64
    }
}

/// A map with these ranges, inserted in this order.
fn build<P: Peer>(spans: &[Span]) -> P {
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

/// The value at an index, or zero.
fn value(reader: &impl Reader, key: usize) -> usize {
    reader.load(key).map_or(0, |value| value.get())
}

fn time(run: impl FnOnce() -> usize) -> Sample {
    let start = clock::thread_time();
    let check = black_box(run());
    let elapsed = clock::thread_time().saturating_sub(start);
    Sample { elapsed, check }
}
