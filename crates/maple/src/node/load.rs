//! The fast path of everything: from the root to the word of an index.

use super::inner::Seps;
use super::leaf::Body;
use super::simd::Vectors;
use super::{Link, search};

/// A way to search within nodes.
pub(super) trait Search: Copy {
    fn leaf(self, body: &Body, index: usize) -> usize;
    fn inner(self, seps: &Seps, index: usize) -> usize;
}

/// Without vectors.
#[derive(Clone, Copy)]
struct Scalar;

impl Search for Scalar {
    #[inline(always)]
    fn leaf(self, body: &Body, index: usize) -> usize {
        search::leaf_scalar(body, index)
    }

    #[inline(always)]
    fn inner(self, seps: &Seps, index: usize) -> usize {
        search::inner_scalar(seps, index)
    }
}

/// The word at an index; null for a hole.
///
/// Cost: a level is two cache lines of separators and one of children, the leaf two of bounds, its header
/// and a word's: all but the last of each are asked for at once. One acquire load a level; no branch but
/// the loop's and one for the leaf's form.
///
/// # Safety
/// `root` is a node of a tree whose nodes stay allocated during the call, with separators and leaves as they are.
#[inline(always)]
pub(crate) unsafe fn load(root: Link, index: usize) -> *mut () {
    match Vectors::get() {
        // SAFETY: the caller's promise.
        Some(vectors) => unsafe { vectors.load(root, index) },
        // SAFETY: the caller's promise.
        None => unsafe { descend(Scalar, root, index) },
    }
}

/// # Safety
/// As for [`load`].
#[inline(always)]
pub(super) unsafe fn descend<S: Search>(search: S, root: Link, index: usize) -> *mut () {
    let mut link = root;
    for _ in 0..root.level() {
        // SAFETY: the caller's promise.
        let inner = unsafe { link.as_inner() };
        inner.prefetch();
        // SAFETY: the caller's promise; a published node's separators do not change.
        link = inner.child(search.inner(unsafe { inner.seps() }, index));
    }
    // SAFETY: the caller's promise; a published leaf does not change.
    let body = unsafe { link.as_leaf().body() };
    body.prefetch_words();
    body.word(search.leaf(body, index))
}
