//! The result of a search.

use crate::Index;

/// A range of the tree and its word; the word of a hole is null.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) min: Index,
    pub(crate) max: Index,
    pub(crate) word: *mut (),
}
