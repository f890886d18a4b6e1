//! The lookup.
//!
//! It waits for each node in turn, but the CPU overlaps about five independent lookups. So both the
//! latency and the number of instructions count.

use super::job::{Job, Search};
use super::link::Link;
use super::simd;
use crate::Index;

/// Runs a job with the best implementation for this CPU.
#[inline(always)]
pub(crate) fn run<J: Job>(job: J) -> J::Out {
    simd::run(job)
}

/// The word at an index; null for a hole.
///
/// Cost per level: two cache lines of separators and one of children, all prefetched together; one
/// acquire load. Cost of the leaf: two cache lines of bounds, its header, and the line of the word;
/// all but the last are loaded together. Branches: the loop, the leaf's form, and whether there is
/// an entry, which the caller tests, too.
///
/// # Safety
/// `root` is a node of a tree. Its nodes stay allocated during the call, and separators and leaves
/// do not change.
#[cfg_attr(not(unoptimized), inline(always))]
pub(crate) unsafe fn load(root: Link, index: Index) -> *mut () {
    struct Load(Link, Index);
    impl Job for Load {
        type Out = *mut ();

        #[inline(always)]
        fn run<S: Search>(self, search: S) -> *mut () {
            // SAFETY: the promise of `load`.
            unsafe { descend(search, self.0, self.1) }
        }
    }
    run(Load(root, index))
}

/// # Safety
/// As for [`load`].
#[cfg_attr(not(unoptimized), inline(always))]
unsafe fn descend<S: Search>(search: S, root: Link, index: Index) -> *mut () {
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
    search.word(body, index)
}
