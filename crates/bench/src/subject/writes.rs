//! Batches that build, change or copy a map. All of them leave it as it was.

use super::{Bench, Sample, build, sum, time_each, timed_batch};
use crate::peer::{Peer, Writer};
use crate::workload::{BATCH, COMMON, PAGE, Value};
use alloc::vec::Vec;
use core::hint::black_box;

/// Times so many writes with the frees that they defer, but without those deferred before.
fn timed_writes<P: Peer>(operations: usize, run: impl FnOnce() -> usize) -> Sample {
    P::settle();
    timed_batch(operations, || {
        let check = run();
        P::settle();
        check
    })
}

impl<P: Peer> Bench<P> {
    pub(super) fn insert(&mut self, ascending: bool) -> Sample {
        let spans = if ascending { &self.work.spans } else { &self.work.shuffled };
        let mut maps: Vec<P> = (0..self.copies()).map(|_| P::new()).collect();
        let sample = timed_writes::<P>(maps.len() * spans.len(), || {
            for map in &mut maps {
                let mut writer = map.writer();
                black_box(spans).iter().for_each(|&span| writer.insert(span));
            }
            0
        });
        Sample { check: maps.last().map_or(0, sum), ..sample }
    }

    pub(super) fn erase(&mut self) -> Sample {
        let work = &self.work;
        let mut maps: Vec<P> = (0..self.copies()).map(|_| build(&work.shuffled)).collect();
        let sample = timed_writes::<P>(maps.len() * work.leaving.len(), || {
            for map in &mut maps {
                let mut writer = map.writer();
                black_box(&work.leaving).iter().for_each(|&span| writer.erase(span));
            }
            0
        });
        Sample { check: maps.iter().map(sum).max().unwrap_or(0), ..sample }
    }

    pub(super) fn shift(&mut self) -> Sample {
        let work = self.work.clone();
        let peer = self.peer();
        let sample = timed_writes::<P>(2 * work.moves.len(), || {
            let mut writer = peer.writer();
            for step in black_box(&work.moves) {
                writer.erase(step.from);
                writer.insert(step.to);
            }
            0
        });
        Sample { check: sum(peer), ..sample }
    }

    /// Only of ranges that have room for a page behind them.
    pub(super) fn resize(&mut self, turn: usize) -> Sample {
        let work = self.work.clone();
        let spans = &work.growing;
        let pairs = if spans.is_empty() { 0 } else { BATCH / 2 };
        let peer = self.peer();
        let sample = timed_writes::<P>(2 * pairs, || {
            let mut writer = peer.writer();
            for span in
                black_box(spans).iter().cycle().skip(turn * pairs % spans.len().max(1)).take(pairs)
            {
                let grown = span.end + PAGE;
                writer.resize(*span, grown);
                writer.resize(crate::workload::Span { end: grown, ..*span }, span.end);
            }
            0
        });
        Sample { check: sum(peer), ..sample }
    }

    /// Times only the erasing. Few groups of a small map are erased, so there are several maps.
    pub(super) fn erase_over(&mut self) -> Sample {
        const LEAST: usize = 64;
        let work = self.work.clone();
        let mut others: Vec<P> =
            (1..LEAST.div_ceil(work.groups.len())).map(|_| build(&work.shuffled)).collect();
        self.peer();
        let mut maps: Vec<&mut P> = others.iter_mut().chain(&mut self.peer).collect();
        let mut sample = timed_writes::<P>(maps.len() * work.groups.len(), || {
            for map in &mut maps {
                let mut writer = map.writer();
                for group in black_box(&work.groups) {
                    writer.erase_over(&work.spans[group.clone()]);
                }
            }
            0
        });
        for map in &mut maps {
            sample.check = sample.check.wrapping_add(sum(&**map));
            let mut writer = map.writer();
            work.groups.iter().for_each(|group| {
                work.spans[group.clone()].iter().for_each(|&span| writer.insert(span));
            });
        }
        sample
    }

    pub(super) fn map_unmap(&mut self, turn: usize) -> Sample {
        let work = self.work.clone();
        let hints = work.hints.chunks_exact(BATCH);
        let piece = hints.clone().nth(turn % hints.len()).unwrap_or(&[]);
        let peer = self.peer();
        timed_writes::<P>(piece.len(), || {
            let mut writer = peer.writer();
            let mut sum = 0usize;
            for &hint in black_box(piece) {
                let start = writer.place(hint | (PAGE - 1), COMMON, Value::MAX);
                let start = start.expect("a map that supports this can place");
                writer.erase(crate::workload::Span {
                    start,
                    end: start + COMMON - 1,
                    value: Value::MAX,
                });
                sum = sum.wrapping_add(start);
            }
            sum
        })
    }

    pub(super) fn duplicate(&mut self) -> Sample {
        let peer = self.peer();
        let mut maps = Vec::with_capacity(1 << 14);
        let sample = time_each(|| {
            maps.push(black_box(&mut *peer).duplicate());
            0
        });
        Sample { check: maps.pop().flatten().map_or(0, |copy| sum(&copy)), ..sample }
    }

    /// Makes one removal in each of several copies. Times only the removals.
    pub(super) fn write_after_duplicate(&mut self, turn: usize) -> Sample {
        let work = self.work.clone();
        // Copies of large maps may be large.
        let copies = (4 * BATCH / work.spans.len()).clamp(16, 64);
        let peer = self.peer();
        let mut maps: Vec<P> = (0..copies).filter_map(|_| peer.duplicate()).collect();
        let going = work.leaving.iter().cycle().skip(turn * copies % work.leaving.len());
        let sample = timed_writes::<P>(maps.len(), || {
            for (map, &span) in maps.iter_mut().zip(black_box(going)) {
                map.writer().erase(span);
            }
            0
        });
        let check = maps.iter().fold(0, |all: usize, map| all.wrapping_add(sum(map)));
        // The original must be unchanged.
        Sample { check: check.wrapping_add(sum(peer)), ..sample }
    }
}
