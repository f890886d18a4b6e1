//! The reference count of a node: the number of its parents. It is one unless a tree was
//! duplicated.
//!
//! A duplicate shares its nodes with its source. A root counts the trees that it is the root of;
//! any other node counts the inner nodes that point to it. If every node on the way from a root to
//! a node has one reference, the node belongs to one tree only. Otherwise the node is *shared*. A
//! shared node is never changed: the writer copies it first.
//!
//! Why it is correct:
//!
//! - The check for sharing goes from the root down. Another tree that copies a node first adds its
//!   references to the children, and then releases the node. So a writer that sees that a node is
//!   its own (Acquire) also sees those references in the children. In the opposite order, the
//!   writer could look at a child before it is counted, and at the parent after it was released.
//! - A tree releases a node only after a grace period of its own readers: the release is retired
//!   like a free. So a count of one (Acquire, after the Release of the other tree) means that no
//!   reader of another tree is left, and the owner may change the node in place.
//!
//! Cost: one acquire load per node that is checked.

#[cfg(not(samara_tsan))]
use crate::sync::fence;
use crate::sync::{AtomicU32, Ordering};

/// A reference count.
pub(crate) struct Refs(AtomicU32);

/// More trees than fit into memory, and well below an overflow of the counter.
const TOO_MANY: u32 = 1 << 30;

impl Refs {
    #[inline(always)]
    pub(crate) fn new() -> Self {
        Refs(AtomicU32::new(1))
    }

    /// Whether more than one parent points here.
    #[inline(always)]
    pub(crate) fn shared(&self) -> bool {
        // Acquire: pairs with the Release in `release`. Reads of the node by other trees happen
        // before a change of it by this one.
        self.0.load(Ordering::Acquire) != 1
    }

    /// Adds a reference. Returns false and changes nothing if there are too many.
    pub(crate) fn share(&self) -> bool {
        // Relaxed: the caller already holds a reference, and publishes the new one by other means.
        let before = self.0.fetch_add(1, Ordering::Relaxed);
        if before >= TOO_MANY {
            // Relaxed: as above.
            self.0.fetch_sub(1, Ordering::Relaxed);
        }
        before < TOO_MANY
    }

    /// Removes a reference. Returns true if it was the last; the caller then frees the node.
    pub(crate) fn release(&self) -> bool {
        // This is the only reference. No other can appear, because only a parent can add one.
        if !self.shared() {
            return true;
        }
        // Release: this tree's reads of the node happen before. Pairs with the fence below, in the
        // tree that frees the node, and with `shared`, in a tree that keeps it.
        if self.0.fetch_sub(1, Ordering::Release) != 1 {
            return false;
        }
        // Acquire: pairs with the Release of every earlier release.
        #[cfg(not(samara_tsan))]
        fence(Ordering::Acquire);
        // Acquire: as above. ThreadSanitizer does not know fences.
        #[cfg(samara_tsan)]
        self.0.load(Ordering::Acquire);
        true
    }
}
