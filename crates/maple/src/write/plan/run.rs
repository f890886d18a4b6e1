//! All phases of a planned write, and the nodes that it would need.

use super::build::build;
use super::publish::publish;
use super::{Need, Plan};
use crate::Index;
use crate::alloc::NodeAlloc;
use crate::descent::{Descent, Pick};
use crate::entry::Entry;
use crate::error::Error;
use crate::layout::INNER_SLOTS;
use crate::write::retire::retire;
use crate::write::{Removed, Target};
use core::ptr;
use grace::Reclaim;

// The plan lives on the stack.
const _: () = assert!(size_of::<Plan>() <= 7 * 1024);

impl Need {
    /// Enough for either of the two.
    fn or(self, other: Need) -> Need {
        Need { leaves: self.leaves.max(other.leaves), inners: self.inners.max(other.inners) }
    }
}

impl<E: Entry, R: Reclaim, A: NodeAlloc> Target<'_, E, R, A> {
    /// Preallocates for a store of an entry or a hole over `first..=last`, and for an erase of the
    /// entry that holds `first`. May copy nodes that are shared with another tree.
    pub(crate) fn prepare(mut self, first: Index, last: Index) -> Result<(), Error> {
        let mut needed = Need { leaves: 1, inners: 0 };
        let root = self.tree.load();
        if !root.is_null() {
            let mut path = Descent::new();
            // SAFETY: the promise of `new`.
            unsafe { path.walk(root, Pick::Index(first)) };
            let span = path.span();
            // Enough for the split of a leaf concurrently with readers, for a write at its border,
            // and for a hole over leaves of two parents. Full nodes above must be split first; each
            // needs nodes, too.
            let full = |&level: &usize| path.step(level).len() == INNER_SLOTS;
            let full = (1..path.height()).take_while(full).count();
            needed = Need { leaves: 2, inners: 3.max(1 + 3 * full) };
            let mut plan = Plan::new();
            if !span.word.is_null() && self.plan(&mut plan, span.min, span.max, true)? {
                needed = needed.or(plan.nodes());
            }
            for hole in [false, true] {
                if self.plan(&mut plan, first, last, hole)? {
                    needed = needed.or(plan.nodes());
                    if let Some(source) = plan.split() {
                        // SAFETY: the entry is in the tree.
                        unsafe { self.supplies.provide(source, ptr::null_mut())? }
                    }
                }
            }
        }
        self.supplies.nodes.fill(needed)
    }

    /// Runs all phases.
    #[cold]
    #[inline(never)]
    pub(in crate::write) fn carry_out(
        &mut self,
        first: Index,
        last: Index,
        new: *mut (),
        removed: Removed,
    ) -> Result<(), Error> {
        let mut plan = Plan::new();
        if !self.plan(&mut plan, first, last, new.is_null())? {
            return Ok(());
        }
        if let Some(source) = plan.split() {
            // SAFETY: the entry is in the tree; the new one is not in it yet.
            unsafe { self.supplies.provide(source, new)? }
        }
        self.supplies.nodes.fill(plan.nodes())?;
        // Nothing fails from here on.
        let copy = if plan.split().is_some() { self.take_copy() } else { ptr::null_mut() };
        plan.complete(new, copy);
        let top = build(&plan, &mut self.supplies.nodes);
        let old = publish(self.tree, &plan, top);
        // A spare duplicate is for the next write only: its source may be freed by the write after
        // that.
        self.supplies.drop_spare();
        // SAFETY: the nodes that the plan replaced are unreachable since `publish`.
        unsafe { retire(&mut self.supplies.bin, &plan, old, removed) };
        Ok(())
    }

    /// Plans a write; returns false if it changes nothing. Afterwards the nodes that it changes
    /// belong to this tree alone.
    fn plan(
        &mut self,
        plan: &mut Plan,
        first: Index,
        last: Index,
        hole: bool,
    ) -> Result<bool, Error> {
        if E::SHARES {
            // The leaves of `first` and `last` must be this tree's own even if merged holes widen
            // the range beyond them.
            self.unshare(first, 0)?;
            self.unshare(last, 0)?;
        }
        loop {
            // SAFETY: the promise of `new`; the root is not null.
            unsafe { plan.walk(self.tree.load(), first) };
            if !plan.make(first, last, hole)? {
                return Ok(false);
            }
            // Siblings that the plan adds, and nodes above, may still be shared. After a copy the
            // plan must not be used any more: its nodes may have been freed.
            let Some((index, height)) = Self::shared(plan) else { return Ok(true) };
            self.unshare(index, height)?;
        }
    }

    /// A shared node that the plan changes or takes over: an index that it holds, and its level.
    fn shared(plan: &Plan) -> Option<(Index, usize)> {
        if !E::SHARES {
            return None;
        }
        (0..plan.left.height()).rev().find_map(|height| {
            let changed = plan.changed(height).into_iter();
            // SAFETY: we are the writer.
            let mut shared =
                changed.filter(|(link, _)| !link.is_null() && unsafe { link.refs() }.shared());
            shared.next().map(|(_, index)| (index, height))
        })
    }
}
