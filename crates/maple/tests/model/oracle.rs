//! The model, slow and obvious: a `BTreeMap` from first index to last index and value, and a cursor
//! that is one number for each direction.

use maple::cursor::State;
use maple::{Error, Index};
use std::collections::{BTreeMap, HashSet};
use std::ops::RangeInclusive;

/// A range: an entry or a hole.
pub(crate) type Span = (Index, Index, Option<u64>);

/// The expected contents of the tree.
#[derive(Clone, Default, Debug)]
pub(crate) struct Oracle {
    map: BTreeMap<Index, (Index, u64)>,
    /// Every entry that has existed since [`Oracle::remember`], in every form that cuts gave it.
    ever: Option<HashSet<(Index, Index, u64)>>,
}

impl Oracle {
    /// The number of entries.
    pub(crate) fn len(&self) -> usize {
        self.map.len()
    }

    /// The entry or hole that holds `index`.
    pub(crate) fn at(&self, index: Index) -> Span {
        let before = self.map.range(..=index).next_back();
        if let Some((&min, &(max, value))) = before
            && index <= max
        {
            return (min, max, Some(value));
        }
        let min = before.map_or(0, |(_, &(max, _))| max + 1);
        let max = self.map.range(index..).next().map_or(Index::MAX, |(&next, _)| next - 1);
        (min, max, None)
    }

    /// Replaces the contents of the range.
    pub(crate) fn set(&mut self, first: Index, last: Index, value: Option<u64>) {
        for cut in [Some(first), last.checked_add(1)].into_iter().flatten() {
            if let (min, max, Some(held)) = self.at(cut)
                && min < cut
            {
                self.map.insert(min, (cut - 1, held));
                self.map.insert(cut, (max, held));
            }
        }
        self.map.retain(|&min, _| !(first..=last).contains(&min));
        if let Some(value) = value {
            self.map.insert(first, (last, value));
        }
        self.note(first, last);
    }

    /// Records the entries that a write over the range made or cut.
    fn note(&mut self, first: Index, last: Index) {
        let near = [first.saturating_sub(1), first, last.saturating_add(1)];
        let spans = near.map(|index| self.at(index));
        if let Some(ever) = &mut self.ever {
            ever.extend(spans.iter().filter_map(|&(min, max, value)| Some((min, max, value?))));
        }
    }

    /// From now on, records every entry that appears.
    pub(crate) fn remember(&mut self) {
        let now = self.entries().map(|(range, value)| (*range.start(), *range.end(), value));
        self.ever = Some(now.collect());
    }

    /// Whether the entry has existed since [`Oracle::remember`].
    pub(crate) fn was_there(&self, entry: (Index, Index, u64)) -> bool {
        self.ever.as_ref().is_some_and(|ever| ever.contains(&entry))
    }

    /// The entries.
    pub(crate) fn entries(&self) -> impl DoubleEndedIterator<Item = (RangeInclusive<Index>, u64)> {
        self.map.iter().map(|(&min, &(max, value))| (min..=max, value))
    }

    /// The entries that overlap the range.
    pub(crate) fn overlapping(
        &self,
        first: Index,
        last: Index,
    ) -> impl DoubleEndedIterator<Item = (RangeInclusive<Index>, u64)> {
        self.entries().filter(move |(range, _)| *range.start() <= last && first <= *range.end())
    }

    /// Entries and holes, in order.
    pub(crate) fn spans(&self) -> Vec<Span> {
        let mut spans = vec![self.at(0)];
        while let Some(next) = spans[spans.len() - 1].1.checked_add(1) {
            spans.push(self.at(next));
        }
        spans
    }

    /// The length of the longest hole, or `Index::MAX` if it is longer.
    pub(crate) fn largest_gap(&self) -> Index {
        let holes = self.spans().into_iter().filter(|span| span.2.is_none());
        holes.map(|(min, max, _)| (max - min).saturating_add(1)).max().unwrap_or(0)
    }

    /// The lowest or highest place for `size` free indices at a multiple of `align` inside the
    /// bounds.
    pub(crate) fn fit(
        &self,
        (first, last): (Index, Index),
        size: Index,
        align: Index,
        high: bool,
    ) -> Option<Index> {
        let (size, align) = (size as u128, align as u128);
        let mut places =
            self.spans().into_iter().filter(|span| span.2.is_none()).filter_map(|hole| {
                let (low, end) = (hole.0.max(first) as u128, hole.1.min(last) as u128 + 1);
                let start = if high {
                    end.checked_sub(size)? / align * align
                } else {
                    low.div_ceil(align) * align
                };
                (low <= start && start + size <= end).then_some(start as Index)
            });
        if high { places.next_back() } else { places.min() }
    }

    /// Checks the result of a search: it is the best place, or another place that fits, if more
    /// than three holes before the best place fail by alignment.
    pub(crate) fn fits(
        &self,
        bounds: (Index, Index),
        size: Index,
        align: Index,
        high: bool,
        found: Result<Index, Error>,
    ) -> Option<Index> {
        let best = self.fit(bounds, size, align, high);
        let Ok(found) = found else {
            assert_eq!(found, best.ok_or(Error::NoSpace));
            return None;
        };
        let best = best.expect("the tree found a place, the model none");
        if found != best {
            let failing = |hole: &&Span| {
                let before = if high { hole.0 > best } else { hole.1 < best };
                before && hole.2.is_none() && hole.1 - hole.0 >= size - 1
            };
            let failing = self.spans().iter().filter(failing).count();
            assert!(align > 1 && failing > 3, "the tree found {found:#x}, but {best:#x} is near");
            let (_, max, value) = self.at(found);
            let last = found.checked_add(size - 1).expect("the range found exceeds the last index");
            assert!(value.is_none() && last <= max && found.is_multiple_of(align), "{found:#x}");
            assert!(bounds.0 <= found && last <= bounds.1, "{found:#x} is out of bounds");
        }
        Some(found)
    }
}

/// The expected position of a cursor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// The state.
    pub(crate) state: State,
    /// The first index of the current range; a single index if there is none.
    pub(crate) min: Index,
    /// The last index of the current range.
    pub(crate) max: Index,
}

impl Place {
    /// At an index.
    pub(crate) fn start(index: Index) -> Self {
        Place { state: State::Start, min: index, max: index }
    }

    /// The effect of pausing the cursor.
    pub(crate) fn pause(&mut self) {
        if self.state == State::Active {
            self.state = State::Paused;
        }
    }

    /// Moves onto a range.
    pub(crate) fn arrive(&mut self, (min, max, _): Span) {
        *self = Place { state: State::Active, min, max };
    }

    /// Moves onto the range of the present index.
    pub(crate) fn walk(&mut self, oracle: &Oracle) -> Option<u64> {
        let span = oracle.at(self.min);
        self.arrive(span);
        span.2
    }

    /// The next index in each direction; it may lie beyond the ends of the index range.
    fn ways(&self) -> (i128, i128) {
        let (min, max) = (self.min as i128, self.max as i128);
        match self.state {
            State::Start => (min, min),
            State::Active | State::Paused => (max + 1, min - 1),
            State::Overflow => (max + 1, max),
            State::Underflow => (min, min - 1),
            State::Nowhere => unreachable!("callers test for this state"),
        }
    }

    /// The next (previous) range up to a limit.
    pub(crate) fn step(&mut self, oracle: &Oracle, limit: Index, back: bool) -> Option<Span> {
        if self.state == State::Nowhere {
            return None;
        }
        let (forth, backwards) = self.ways();
        if if back { backwards < limit as i128 } else { forth > limit as i128 } {
            self.run_into(limit, back);
            return None;
        }
        let span = oracle.at(if back { backwards } else { forth } as Index);
        self.arrive(span);
        Some(span)
    }

    /// Stops at a limit, but never moves back over indices that it has passed.
    fn run_into(&mut self, limit: Index, back: bool) {
        let (forth, backwards) = self.ways();
        let (state, at) = if back {
            (State::Underflow, (limit as i128).min(backwards + 1))
        } else {
            (State::Overflow, (limit as i128).max(forth - 1))
        };
        *self = Place { state, min: at as Index, max: at as Index };
    }

    /// The next (previous) entry up to a limit. With `skip`, a cursor in state `Start` skips the
    /// range at its index. If no entry is found, the cursor passes holes up to the limit only.
    pub(crate) fn find(
        &mut self,
        oracle: &Oracle,
        limit: Index,
        back: bool,
        skip: bool,
    ) -> Option<(RangeInclusive<Index>, u64)> {
        if self.state == State::Nowhere {
            return None;
        }
        if skip && self.state == State::Start {
            self.walk(oracle);
        }
        let from = *self;
        while let Some((min, max, value)) = self.step(oracle, limit, back) {
            if let Some(value) = value {
                return Some((min..=max, value));
            }
        }
        *self = from;
        self.run_into(limit, back);
        None
    }
}
