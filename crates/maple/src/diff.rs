//! The difference of two trees, found without a look at what they share.
//!
//! A tree and its duplicate share nodes until one of them is written: a write copies the nodes on
//! its path. So where two paths from the roots meet the same node, both trees have the same entries
//! over the indices that both paths give to it.
//!
//! [`Diff`] keeps the path to the next index in each tree, and goes down in both. At each step it
//! compares the nodes at the ends of the two paths. If they are one node, it continues behind it.
//! If they have different levels, it goes down in the higher one, otherwise in both. In two leaves
//! it compares the slots that hold the index.
//!
//! Cost: the nodes that only one of the trees has, and a look at the links to their children. With
//! n writes between the two trees that is about n times the height, whatever their size. Nothing
//! is allocated.
//!
//! Correctness: neither tree changes meanwhile, which the caller promises. A node that is shared is
//! never changed (`refs` in [`crate::node`]).

use crate::Index;
use crate::descent::{At, Span, Spot, Step};
use crate::entry::Entry;
use crate::layout::MAX_HEIGHT;
use crate::node::{Link, child_of};
use core::iter::FusedIterator;
use core::marker::PhantomData;
use core::ops::RangeInclusive;
use core::ptr::NonNull;

/// The path to an index in one of the trees: nodes with the indices that they cover.
#[derive(Clone)]
struct Path {
    nodes: [Step; MAX_HEIGHT],
    len: usize,
}

impl Path {
    fn new(root: Link) -> Path {
        let root = Step { link: root, slot: 0, min: 0, max: Index::MAX };
        Path { nodes: [root; MAX_HEIGHT], len: 1 }
    }

    fn last(&self) -> &Step {
        &self.nodes[self.len - 1]
    }

    /// Goes up to a node that covers an index behind the present one.
    fn up(&mut self, index: Index) {
        while self.last().max < index {
            self.len -= 1;
        }
    }

    /// Goes down to the child that covers an index.
    ///
    /// # Safety
    /// The node is an inner one, and does not change.
    unsafe fn down(&mut self, index: Index) {
        #[cfg(test)]
        crate::testing::visit();
        let Step { link, min, max, .. } = *self.last();
        // SAFETY: the caller's promise.
        let inner = unsafe { link.as_inner() };
        // SAFETY: as above.
        let seps = unsafe { inner.seps() };
        let slot = child_of(seps, index);
        let (min, max) = (seps.start(slot, min), seps.end(slot, max));
        self.nodes[self.len] = Step { link: inner.child(slot), slot: 0, min, max };
        self.len += 1;
    }

    /// The slot that covers an index, in the leaf or the empty tree at the end of the path.
    ///
    /// # Safety
    /// The leaf does not change.
    unsafe fn slot(&self, index: Index) -> Span {
        let step = self.last();
        if step.link.is_null() {
            return Spot::EMPTY.span();
        }
        #[cfg(test)]
        crate::testing::visit();
        // SAFETY: the caller's promise.
        unsafe { Spot::of(step) }.turn::<At>(index)
    }
}

/// Where two trees differ.
#[derive(Clone, Copy)]
struct Piece {
    min: Index,
    max: Index,
    before: *mut (),
    after: *mut (),
}

/// An iterator over the ranges in which two trees differ, each with both entries, in order;
/// [`MapleTree::diff`](crate::MapleTree::diff) makes it.
pub struct Diff<'g, E: Entry> {
    before: Path,
    after: Path,
    /// The next index to look at; none at the end.
    next: Option<Index>,
    /// A difference that the next one may continue.
    held: Option<Piece>,
    _life: PhantomData<&'g E>,
}

impl<'g, E: Entry> Diff<'g, E> {
    /// # Safety
    /// Neither tree changes during `'g`.
    pub(crate) unsafe fn new(before: Link, after: Link) -> Self {
        let (before, after) = (Path::new(before), Path::new(after));
        Diff { before, after, next: Some(0), held: None, _life: PhantomData }
    }

    /// The next range of two slots with different words.
    fn piece(&mut self) -> Option<Piece> {
        loop {
            let index = self.next?;
            self.before.up(index);
            self.after.up(index);
            let (before, after) = (*self.before.last(), *self.after.last());
            if before.link == after.link {
                self.next = before.max.min(after.max).checked_add(1);
                continue;
            }
            let [before_level, after_level] = [before, after].map(|step| step.link.level());
            // SAFETY: the promise of `new`. A node above level 0 is an inner one; the others are
            // leaves, or the root of an empty tree.
            unsafe {
                if before_level.max(after_level) > 0 {
                    if before_level >= after_level {
                        self.before.down(index);
                    }
                    if after_level >= before_level {
                        self.after.down(index);
                    }
                    continue;
                }
                let (before, after) = (self.before.slot(index), self.after.slot(index));
                let max = before.max.min(after.max);
                self.next = max.checked_add(1);
                if before.word != after.word {
                    let (before, after) = (before.word, after.word);
                    return Some(Piece { min: index, max, before, after });
                }
            }
        }
    }
}

impl<'g, E: Entry> Iterator for Diff<'g, E> {
    type Item = (RangeInclusive<Index>, Option<E::Ref<'g>>, Option<E::Ref<'g>>);

    fn next(&mut self) -> Option<Self::Item> {
        let mut found = self.held.take().or_else(|| self.piece())?;
        while let Some(piece) = self.piece() {
            let continues = found.max.checked_add(1) == Some(piece.min)
                && (found.before, found.after) == (piece.before, piece.after);
            if !continues {
                self.held = Some(piece);
                break;
            }
            found.max = piece.max;
        }
        // SAFETY: the words are of entries in trees that do not change during `'g`.
        let [before, after] = [found.before, found.after]
            .map(|word| NonNull::new(word).map(|raw| unsafe { E::borrow(raw) }));
        Some((found.min..=found.max, before, after))
    }
}

impl<E: Entry> FusedIterator for Diff<'_, E> {}

// SAFETY: it gives out references to entries, which are `Sync`, and the nodes do not change.
unsafe impl<E: Entry> Send for Diff<'_, E> {}
// SAFETY: as above; a shared reference to it does nothing.
unsafe impl<E: Entry> Sync for Diff<'_, E> {}

impl<E: Entry> core::fmt::Debug for Diff<'_, E> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Diff").field("next", &self.next).finish_non_exhaustive()
    }
}
