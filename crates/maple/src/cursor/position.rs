//! The part that both cursors share: the position, and the moves.

use super::State;
use crate::Index;
use crate::descent::{self, After, Aim, At, AtOrAfter, AtOrBefore, Before, Descent, Span, Spot};
use crate::error::Error;
use crate::gap::{End, Want, search};
use crate::node::Link;

/// The part that both cursors share. The caller of its moves passes the tree's root, and keeps the
/// path valid by a guard or by being the writer.
#[derive(Clone)]
pub(crate) struct Position {
    /// The way to the leaf of `spot`, in every state; empty if there is no leaf. The slot on level
    /// 0 is stale.
    path: Descent,
    /// In `Active`, the place of the current range. In other states, where a move ended that found
    /// nothing.
    spot: Spot,
    state: State,
    /// The current range. In `Start`, `Overflow` and `Underflow`, both are the index or the limit.
    min: Index,
    max: Index,
}

/// No entry.
const NONE: Span = Span { min: 0, max: 0, word: core::ptr::null_mut() };

// Cursors live on the stack.
const _: () = assert!(size_of::<Position>() <= 1024);

impl Position {
    pub(crate) fn new(index: Index) -> Self {
        Self::at(State::Start, index, index)
    }

    /// The position that [`Position::pause`] left.
    pub(super) fn at(state: State, min: Index, max: Index) -> Self {
        Position { path: Descent::new(), spot: Spot::EMPTY, state, min, max }
    }

    pub(crate) fn state(&self) -> State {
        self.state
    }

    pub(crate) fn range(&self) -> (Index, Index) {
        (self.min, self.max)
    }

    pub(crate) fn set(&mut self, index: Index) {
        (self.state, self.min, self.max) = (State::Start, index, index);
    }

    /// Drops the path, before the guard or the lock is released, or the writer writes.
    pub(crate) fn pause(&mut self) {
        self.path.clear();
        self.spot = Spot::EMPTY;
        if self.state == State::Active {
            self.state = State::Paused;
        }
    }

    #[inline]
    fn arrive(&mut self, span: Span) -> Span {
        (self.state, self.min, self.max) = (State::Active, span.min, span.max);
        span
    }

    fn overflow(&mut self, limit: Index) -> Option<Span> {
        let at = match self.state {
            // The index itself has not been passed.
            State::Start | State::Underflow => limit.max(self.min.saturating_sub(1)),
            _ => limit.max(self.max),
        };
        (self.state, self.min, self.max) = (State::Overflow, at, at);
        None
    }

    fn underflow(&mut self, limit: Index) -> Option<Span> {
        let at = match self.state {
            State::Start | State::Overflow => limit.min(self.min.saturating_add(1)),
            _ => limit.min(self.min),
        };
        (self.state, self.min, self.max) = (State::Underflow, at, at);
        None
    }

    /// Goes to the slot that `A` takes for `index`, in the leaf that a walk from the root leads to.
    /// Returns its range and word. Without such a slot, goes to the one that holds the index, and
    /// returns a null word.
    ///
    /// # Safety
    /// As for [`Descent::walk`], until the position is paused.
    #[inline]
    unsafe fn seek<A: Aim>(&mut self, root: Link, index: Index) -> Span {
        if self.spot.covers(index) && self.path.leads_from(root) {
            return self.spot.turn::<A>(index);
        }
        if root.is_null() {
            self.path.clear();
            self.spot = Spot::EMPTY;
            return self.spot.span();
        }
        // SAFETY: the caller's promise.
        unsafe { descent::walk::<A>(root, index, &mut self.path, &mut self.spot) }
    }

    /// Goes to the first entry of the next leaf that has one and begins at or before `limit`.
    fn next_leaf(&mut self, limit: Index) -> bool {
        while self.spot.max() < limit && self.spot.leave_forwards(&mut self.path) {
            if self.spot.is_entry() {
                return true;
            }
        }
        false
    }

    /// Goes to the last entry of the previous leaf that has one and ends at or after `limit`.
    fn prev_leaf(&mut self, limit: Index) -> bool {
        while self.spot.min() > limit && self.spot.leave_backwards(&mut self.path) {
            if self.spot.is_entry() {
                return true;
            }
        }
        false
    }

    /// # Safety
    /// As for [`Position::seek`].
    #[inline]
    pub(crate) unsafe fn walk(&mut self, root: Link) -> Span {
        // SAFETY: the caller's promise.
        let span = unsafe { self.seek::<At>(root, self.min) };
        self.arrive(span)
    }

    /// The next range, holes included, that begins at or before `limit`.
    ///
    /// # Safety
    /// As for [`Position::seek`].
    pub(crate) unsafe fn next_range(&mut self, root: Link, limit: Index) -> Option<Span> {
        let from = match self.state {
            State::Nowhere => return None,
            State::Start | State::Underflow => self.min,
            State::Active | State::Paused | State::Overflow => {
                if self.max >= limit {
                    return self.overflow(limit);
                }
                self.max + 1
            }
        };
        if from > limit {
            return self.overflow(limit);
        }
        if self.state != State::Active {
            // SAFETY: the caller's promise.
            let span = unsafe { self.seek::<At>(root, from) };
            return Some(self.arrive(span));
        }
        if !self.spot.next_slot() {
            // The range is not the last of the tree.
            self.path.next_leaf();
            // SAFETY: the path's invariant.
            self.spot = unsafe { Spot::of(self.path.step(0)) };
        }
        Some(self.arrive(self.spot.span()))
    }

    /// The previous range, holes included, that ends at or after `limit`.
    ///
    /// # Safety
    /// As for [`Position::seek`].
    pub(crate) unsafe fn prev_range(&mut self, root: Link, limit: Index) -> Option<Span> {
        let from = match self.state {
            State::Nowhere => return None,
            State::Start | State::Overflow => self.max,
            State::Active | State::Paused | State::Underflow => {
                if self.min <= limit {
                    return self.underflow(limit);
                }
                self.min - 1
            }
        };
        if from < limit {
            return self.underflow(limit);
        }
        if self.state != State::Active {
            // SAFETY: the caller's promise.
            let span = unsafe { self.seek::<At>(root, from) };
            return Some(self.arrive(span));
        }
        if !self.spot.prev_slot() {
            // The range is not the first of the tree.
            self.path.prev_leaf();
            // SAFETY: the path's invariant.
            self.spot = unsafe { Spot::of(self.path.step(0)) };
        }
        Some(self.arrive(self.spot.span()))
    }

    /// Steps to the next entry if it is in the same leaf, as usual, and begins at or before
    /// `limit`. Otherwise returns `None` and does not move.
    ///
    /// The caller takes this result apart before it joins it with that of the whole move. Otherwise
    /// it would pass through memory, which takes longer than the step.
    #[inline(always)]
    pub(crate) fn step(&mut self, limit: Index) -> Option<Span> {
        if self.state != State::Active {
            return None;
        }
        let span = self.spot.next_entry(limit)?;
        Some(self.arrive(span))
    }

    /// As [`Position::step`], to the previous entry, which ends at or after `limit`.
    #[inline(always)]
    pub(crate) fn step_back(&mut self, limit: Index) -> Option<Span> {
        if self.state != State::Active {
            return None;
        }
        let span = self.spot.prev_entry(limit)?;
        Some(self.arrive(span))
    }

    /// # Safety
    /// As for [`Position::seek`]. In `Active`, the leaf has no further entry up to `limit`.
    pub(crate) unsafe fn find(&mut self, root: Link, limit: Index) -> Option<Span> {
        let from = match self.state {
            State::Nowhere => return None,
            State::Start | State::Underflow => self.min,
            // The present range may reach to the limit and to the end of the index range.
            State::Active | State::Paused | State::Overflow => {
                if self.max >= limit {
                    return self.overflow(limit);
                }
                self.max + 1
            }
        };
        if from <= limit {
            let mut span = NONE;
            if self.state != State::Active {
                // SAFETY: the caller's promise.
                span = unsafe { self.seek::<AtOrAfter>(root, from) };
            }
            if span.word.is_null() && self.next_leaf(limit) {
                span = self.spot.span();
            }
            if !span.word.is_null() && span.min <= limit {
                return Some(self.arrive(span));
            }
        }
        // A hole that was skipped counts as passed only up to the limit.
        self.overflow(limit)
    }

    /// # Safety
    /// As for [`Position::seek`]. In `Active`, the leaf has no further entry down to `limit`.
    pub(crate) unsafe fn find_rev(&mut self, root: Link, limit: Index) -> Option<Span> {
        let from = match self.state {
            State::Nowhere => return None,
            State::Start | State::Overflow => self.max,
            State::Active | State::Paused | State::Underflow => {
                if self.min <= limit {
                    return self.underflow(limit);
                }
                self.min - 1
            }
        };
        if from >= limit {
            let mut span = NONE;
            if self.state != State::Active {
                // SAFETY: the caller's promise.
                span = unsafe { self.seek::<AtOrBefore>(root, from) };
            }
            if span.word.is_null() && self.prev_leaf(limit) {
                span = self.spot.span();
            }
            if !span.word.is_null() && span.max >= limit {
                return Some(self.arrive(span));
            }
        }
        self.underflow(limit)
    }

    /// # Safety
    /// As for [`Position::find`].
    pub(crate) unsafe fn next(&mut self, root: Link, limit: Index) -> Option<Span> {
        if self.state != State::Start {
            // SAFETY: the caller's promise.
            return unsafe { self.find(root, limit) };
        }
        // SAFETY: the caller's promise.
        let span = unsafe { self.seek::<After>(root, self.min) };
        if !span.word.is_null() {
            if span.min <= limit {
                return Some(self.arrive(span));
            }
            self.spot.turn::<At>(self.min);
        }
        // There is none in the leaf. The range at the index has been passed in any case.
        self.arrive(self.spot.span());
        // SAFETY: the caller's promise.
        unsafe { self.find(root, limit) }
    }

    /// # Safety
    /// As for [`Position::find_rev`].
    pub(crate) unsafe fn prev(&mut self, root: Link, limit: Index) -> Option<Span> {
        if self.state != State::Start {
            // SAFETY: the caller's promise.
            return unsafe { self.find_rev(root, limit) };
        }
        // SAFETY: the caller's promise.
        let span = unsafe { self.seek::<Before>(root, self.min) };
        if !span.word.is_null() {
            if span.max >= limit {
                return Some(self.arrive(span));
            }
            self.spot.turn::<At>(self.min);
        }
        self.arrive(self.spot.span());
        // SAFETY: the caller's promise.
        unsafe { self.find_rev(root, limit) }
    }

    /// # Safety
    /// As for [`Position::seek`].
    pub(crate) unsafe fn empty_area(
        &mut self,
        root: Link,
        want: Want,
        end: End,
    ) -> Result<Index, Error> {
        // SAFETY: the caller's promise.
        match unsafe { search(root, &mut self.path, &want, end) } {
            Some(found) => {
                self.path.complete();
                self.spot = match root.is_null() {
                    true => Spot::EMPTY,
                    // SAFETY: the path's invariant.
                    false => unsafe { Spot::of(self.path.step(0)) },
                };
                self.arrive(self.spot.span());
                Ok(found)
            }
            None => {
                // The search has left the path somewhere else, or without its lower steps.
                self.path.clear();
                self.spot = Spot::EMPTY;
                self.state = State::Nowhere;
                Err(Error::NoSpace)
            }
        }
    }
}
