//! What a search returns.

/// A range of the tree and its word; the word of a hole is null.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) min: usize,
    pub(crate) max: usize,
    pub(crate) word: *mut (),
}
