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
//! - `set` leads to `Start` from every state. `reset` does so at the current index. The next move
//!   sees the tree as it is then. If the index lies in the leaf where the cursor was, and no node
//!   on the way there was replaced, it searches only that leaf (`descent/partial.rs` says why that
//!   is the same).
//! - A move that finds nothing returns `None` and leads to `Overflow` or `Underflow`.
//! - `empty_area` and `empty_area_rev` lead to `Active` on the hole found, or to `Nowhere`.

mod moves;
mod position;
mod read;
mod write;

pub(crate) use position::Position;
pub use read::{Paused, ReadCursor};
pub use write::WriteCursor;

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

#[cfg(test)]
mod tests;
