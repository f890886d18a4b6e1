//! Cursors: positions in a tree, and the moves between them.
//!
//! A cursor is on one range of the tree, between two, or nowhere. Linux's maple tree calls this a
//! state (`ma_state`). Here readers and writers have different types with the same moves:
//! [`ReadCursor`] and [`WriteCursor`].
//!
//! # The states
//!
//! | [`State`] | the cursor is | forward moves continue | backward moves continue |
//! |---|---|---|---|
//! | `Start` | on an index whose range it has not read | `find`, `next_range`: at that index; `next`: after the range that holds it | `find_rev`, `prev_range`: at that index; `prev`: before the range that holds it |
//! | `Active` | on a range, entry or hole | after the range | before the range |
//! | `Paused` | on a range, without a path to it | after the range | before the range |
//! | `Overflow` | after the limit that a forward move reached | after the limit | at the limit |
//! | `Underflow` | before the limit that a backward move reached | at the limit | before the limit |
//! | `Nowhere` | nowhere: a search for free space found none | never | never |
//!
//! - `next` and `find` differ in `Start` only; so do `prev` and `find_rev`.
//! - `limit` bounds where a range may begin (forwards) or end (backwards). A range that crosses the
//!   limit is still returned.
//! - `walk` reads the range that holds the cursor's index, from every state. The index is the first
//!   one of the current range, the limit that was reached, or the index that was set.
//! - `set` leads to `Start` from every state. `reset` does so at the current index.
//! - A move that finds nothing returns `None` and leads to `Overflow` or `Underflow`.
//! - `empty_area` and `empty_area_rev` lead to `Active` on the hole found, or to `Nowhere`.

mod read;
mod write;

pub use read::{Paused, ReadCursor};
pub use write::WriteCursor;

use crate::descent::{Descent, Pick, Span};
use crate::error::Error;
use crate::gap::{End, Want, search};
use crate::node::Link;

/// The state of a cursor; see [the table](crate::cursor#the-states).
///
/// ```
/// use maple::{MapleTree, cursor::State};
/// let mut tree = MapleTree::<u32>::new();
/// tree.get_mut().store_range(10..=19, 7).unwrap();
/// let guard = tree.pin();
/// let mut cursor = tree.cursor(&guard, 0);
/// assert_eq!(cursor.state(), State::Start);
/// assert_eq!(cursor.find(100), Some((10..=19, 7)));
/// assert_eq!(cursor.state(), State::Active);
/// assert_eq!(cursor.find(100), None);
/// assert_eq!(cursor.state(), State::Overflow);
/// assert_eq!(cursor.find_rev(0), Some((10..=19, 7)));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// On an index; its range is not yet read.
    Start,
    /// On a range.
    Active,
    /// On a range, without a path to it.
    Paused,
    /// After a limit.
    Overflow,
    /// Before a limit.
    Underflow,
    /// Nowhere: no free space was found.
    Nowhere,
}

/// The part that both cursors share. The caller of its moves passes the tree's root, and keeps the
/// path valid by a guard or by being the writer.
pub(crate) struct Position {
    path: Descent,
    state: State,
    /// The current range. In `Start`, `Overflow` and `Underflow`, both are the index or the limit.
    min: usize,
    max: usize,
}

// Cursors live on the stack.
const _: () = assert!(size_of::<Position>() <= 1024);

impl Position {
    pub(crate) fn new(index: usize) -> Self {
        Position { path: Descent::new(), state: State::Start, min: index, max: index }
    }

    /// The position that [`Position::pause`] left.
    fn at(state: State, min: usize, max: usize) -> Self {
        Position { path: Descent::new(), state, min, max }
    }

    pub(crate) fn state(&self) -> State {
        self.state
    }

    pub(crate) fn range(&self) -> (usize, usize) {
        (self.min, self.max)
    }

    pub(crate) fn set(&mut self, index: usize) {
        (self.state, self.min, self.max) = (State::Start, index, index);
    }

    /// Drops the path, before the guard or the lock is released.
    pub(crate) fn pause(&mut self) {
        if self.state == State::Active {
            self.state = State::Paused;
        }
    }

    #[inline]
    fn arrive(&mut self, span: Span) -> Span {
        (self.state, self.min, self.max) = (State::Active, span.min, span.max);
        span
    }

    fn overflow(&mut self, limit: usize) -> Option<Span> {
        let at = match self.state {
            // The index itself has not been passed.
            State::Start | State::Underflow => limit.max(self.min.saturating_sub(1)),
            _ => limit.max(self.max),
        };
        (self.state, self.min, self.max) = (State::Overflow, at, at);
        None
    }

    fn underflow(&mut self, limit: usize) -> Option<Span> {
        let at = match self.state {
            State::Start | State::Overflow => limit.min(self.min.saturating_add(1)),
            _ => limit.min(self.min),
        };
        (self.state, self.min, self.max) = (State::Underflow, at, at);
        None
    }

    /// The range that holds `index`, by a descent from the root.
    ///
    /// # Safety
    /// As for [`Descent::walk`], until the position is set or paused.
    unsafe fn go(&mut self, root: Link, index: usize) -> Span {
        // SAFETY: the caller's promise.
        unsafe { self.path.walk(root, Pick::Index(index)) };
        if root.is_null() {
            return Span { min: 0, max: usize::MAX, word: core::ptr::null_mut() };
        }
        self.path.span()
    }

    /// # Safety
    /// As for [`Position::go`].
    pub(crate) unsafe fn walk(&mut self, root: Link) -> Span {
        // SAFETY: the caller's promise.
        let span = unsafe { self.go(root, self.min) };
        self.arrive(span)
    }

    /// The next range, holes included, that begins at or before `limit`.
    ///
    /// # Safety
    /// As for [`Position::go`].
    pub(crate) unsafe fn next_range(&mut self, root: Link, limit: usize) -> Option<Span> {
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
        let span = if self.state == State::Active && self.path.height() > 0 {
            if !self.path.next_slot() {
                return self.overflow(limit);
            }
            self.path.span()
        } else {
            // SAFETY: the caller's promise.
            unsafe { self.go(root, from) }
        };
        Some(self.arrive(span))
    }

    /// The previous range, holes included, that ends at or after `limit`.
    ///
    /// # Safety
    /// As for [`Position::go`].
    pub(crate) unsafe fn prev_range(&mut self, root: Link, limit: usize) -> Option<Span> {
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
        let span = if self.state == State::Active && self.path.height() > 0 {
            if !self.path.prev_slot() {
                return self.underflow(limit);
            }
            self.path.span()
        } else {
            // SAFETY: the caller's promise.
            unsafe { self.go(root, from) }
        };
        Some(self.arrive(span))
    }

    /// # Safety
    /// As for [`Position::go`].
    #[inline]
    pub(crate) unsafe fn find(&mut self, root: Link, limit: usize) -> Option<Span> {
        // Usually the next entry is in the same leaf.
        if self.state == State::Active
            && let Some(span) = self.path.next_entry(limit)
        {
            return Some(self.arrive(span));
        }
        // SAFETY: the caller's promise.
        unsafe { self.find_further(root, limit) }
    }

    /// # Safety
    /// As for [`Position::go`].
    unsafe fn find_further(&mut self, root: Link, limit: usize) -> Option<Span> {
        let from = (self.state, self.min, self.max);
        loop {
            // SAFETY: the caller's promise.
            match unsafe { self.next_range(root, limit) } {
                Some(span) if span.word.is_null() => {}
                Some(span) => return Some(span),
                None => break,
            }
        }
        // A hole that was skipped counts as passed only up to the limit.
        (self.state, self.min, self.max) = from;
        if self.state == State::Nowhere { None } else { self.overflow(limit) }
    }

    /// # Safety
    /// As for [`Position::go`].
    #[inline]
    pub(crate) unsafe fn find_rev(&mut self, root: Link, limit: usize) -> Option<Span> {
        // Usually the previous entry is in the same leaf.
        if self.state == State::Active
            && let Some(span) = self.path.prev_entry(limit)
        {
            return Some(self.arrive(span));
        }
        // SAFETY: the caller's promise.
        unsafe { self.find_rev_further(root, limit) }
    }

    /// # Safety
    /// As for [`Position::go`].
    unsafe fn find_rev_further(&mut self, root: Link, limit: usize) -> Option<Span> {
        let from = (self.state, self.min, self.max);
        loop {
            // SAFETY: the caller's promise.
            match unsafe { self.prev_range(root, limit) } {
                Some(span) if span.word.is_null() => {}
                Some(span) => return Some(span),
                None => break,
            }
        }
        (self.state, self.min, self.max) = from;
        if self.state == State::Nowhere { None } else { self.underflow(limit) }
    }

    /// # Safety
    /// As for [`Position::go`].
    pub(crate) unsafe fn next(&mut self, root: Link, limit: usize) -> Option<Span> {
        if self.state == State::Start {
            // SAFETY: the caller's promise.
            unsafe { self.walk(root) };
        }
        // SAFETY: the caller's promise.
        unsafe { self.find(root, limit) }
    }

    /// # Safety
    /// As for [`Position::go`].
    pub(crate) unsafe fn prev(&mut self, root: Link, limit: usize) -> Option<Span> {
        if self.state == State::Start {
            // SAFETY: the caller's promise.
            unsafe { self.walk(root) };
        }
        // SAFETY: the caller's promise.
        unsafe { self.find_rev(root, limit) }
    }

    /// # Safety
    /// As for [`Position::go`].
    pub(crate) unsafe fn empty_area(
        &mut self,
        root: Link,
        want: Want,
        end: End,
    ) -> Result<usize, Error> {
        // SAFETY: the caller's promise.
        match unsafe { search(root, &mut self.path, &want, end) } {
            Some(found) => {
                self.path.complete();
                let span = if root.is_null() {
                    Span { min: 0, max: usize::MAX, word: core::ptr::null_mut() }
                } else {
                    self.path.span()
                };
                self.arrive(span);
                Ok(found)
            }
            None => {
                self.state = State::Nowhere;
                Err(Error::NoSpace)
            }
        }
    }
}

#[cfg(test)]
mod tests;
