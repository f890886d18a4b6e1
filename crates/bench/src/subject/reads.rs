//! Batches that change nothing.

use super::{Bench, Sample, sum, sum_back, sum_by_cursor, time_each, timed_batch};
use crate::adverse::{Adverse, Flaw};
use crate::case::Case;
use crate::peer::{Found, Peer, Reader};
use crate::workload::{BATCH, COMMON, PAGE, RARE, RARE_BATCH, Workload};
use core::hint::black_box;

impl<P: Peer> Bench<P> {
    /// Reads a batch of `keys`, chosen by the turn.
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
        timed_batch(piece.len(), || run(&reader, black_box(piece)))
    }

    pub(super) fn load(&mut self, turn: usize) -> Sample {
        self.reads(
            (turn, BATCH),
            |work| &work.keys,
            |reader, keys| {
                keys.iter().fold(0, |sum: usize, &key| sum.wrapping_add(value(reader, key)))
            },
        )
    }

    pub(super) fn load_dependent(&mut self, turn: usize) -> Sample {
        // Zero, but the compiler cannot know that, and the processor only once it has the value.
        let zero = black_box(0);
        self.reads(
            (turn, BATCH),
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

    /// A search that returns a range, for a batch of keys.
    pub(super) fn by_range(&mut self, case: Case, turn: usize) -> Sample {
        match case {
            Case::Lookup => self.search(turn, |work| &work.keys, |reader, key| reader.lookup(key)),
            Case::Find => self.search(turn, |work| &work.keys, |reader, key| reader.find(key)),
            Case::FindAny => self.search(turn, |work| &work.hints, |reader, at| reader.find(at)),
            Case::FindBack => {
                self.search(turn, |work| &work.hints, |reader, at| reader.find_back(at))
            }
            Case::First => self.search(turn, |work| &work.hints, |reader, at| reader.first(at)),
            Case::FirstBack => {
                self.search(turn, |work| &work.hints, |reader, at| reader.first_back(at))
            }
            Case::CursorNext => {
                self.search(turn, |work| &work.hints, |reader, at| reader.cursor_next(at))
            }
            Case::CursorPrev => {
                self.search(turn, |work| &work.hints, |reader, at| reader.cursor_prev(at))
            }
            _ => self.iterate(case),
        }
    }

    /// Each search is a loop of its own, into which the compiler may inline it.
    #[inline(always)]
    fn search(
        &mut self,
        turn: usize,
        keys: impl Fn(&Workload) -> &[usize],
        find: impl Fn(&P::Reader<'_>, usize) -> Found,
    ) -> Sample {
        self.reads((turn, BATCH), keys, |reader, keys| {
            keys.iter().fold(0, |sum: usize, &key| {
                let found = find(reader, key);
                sum.wrapping_add(found.map_or(0, |span| span.start ^ span.end ^ span.value.get()))
            })
        })
    }

    pub(super) fn iterate(&mut self, case: Case) -> Sample {
        let copies = self.copies();
        let operations = copies * self.work.spans.len();
        let peer = self.peer();
        let sum = match case {
            Case::IterateBack => sum_back,
            Case::CursorStep => sum_by_cursor,
            _ => sum,
        };
        timed_batch(operations, || {
            (0..copies).fold(0, |all: usize, _| all.wrapping_add(sum(black_box(peer))))
        })
    }

    pub(super) fn gap(&mut self, case: Case, turn: usize) -> Sample {
        let (size, batch) = match case {
            Case::RareGapUp | Case::RareGapDown => (RARE, RARE_BATCH),
            _ => (COMMON, BATCH),
        };
        let up = matches!(case, Case::GapUp | Case::RareGapUp);
        let find = |reader: &P::Reader<'_>, hint: usize| {
            if up {
                reader.gap_up(hint, size, PAGE)
            } else {
                // Up to the last index of the hint's page, so that the result begins at a page.
                reader.gap_down(hint | (PAGE - 1), size, PAGE)
            }
        };
        self.reads(
            (turn, batch),
            |work| &work.hints,
            |reader, hints| {
                hints.iter().fold(0, |sum: usize, &hint| sum.wrapping_add(find(reader, hint)))
            },
        )
    }

    pub(super) fn adverse_gap(&mut self, flaw: Flaw, up: bool, turn: usize) -> Sample {
        let (space, peer) = self.adverse(flaw);
        let reader = peer.reader();
        let &Adverse { ref hints, size, align, .. } = space;
        let mut hints = hints.iter().cycle().skip(turn * HINTS_A_TURN);
        time_each(|| {
            let hint = hints.next().map_or(0, |&hint| black_box(hint));
            if up {
                reader.gap_up(hint, size, align)
            } else {
                reader.gap_down(hint - 1, size, align)
            }
        })
    }

    /// The map on which searches are hard, built when it is first needed.
    pub(super) fn adverse(&mut self, flaw: Flaw) -> (&Adverse, &mut P) {
        let size = self.work.spans.len();
        let (_, space, peer) = match self.adverse.take() {
            Some(old) if old.0 == flaw => self.adverse.insert(old),
            _ => {
                let space = Adverse::new(flaw, size);
                let peer = super::build(&space.spans);
                self.adverse.insert((flaw, space, peer))
            }
        };
        (space, peer)
    }
}

/// The hints of a turn are a part of all, so that turns differ.
const HINTS_A_TURN: usize = 64;

/// The value at an index, or zero.
fn value(reader: &impl Reader, key: usize) -> usize {
    reader.load(key).map_or(0, |value| value.get())
}
