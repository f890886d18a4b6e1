//! How many parents a node has: one, unless trees were duplicated.
//!
//! A duplicate shares its nodes with its source. A root counts the trees it is the root of, any
//! other node the inner nodes that point to it. A node on the way to which every node has one
//! reference is in one tree only; any other is *shared*, and never changed: who writes copies it
//! first.
//!
//! Whether a way is shared must be asked from the root down. Another tree that copies a node first
//! counts itself in the children, and then lets go of the node: so who sees that a node is its own
//! (Acquire) sees those counts, too. The other way round, a child could be looked at before it is
//! counted, and its parent after it was let go.
//!
//! A tree lets go of a node only when its own readers cannot be looking any more: the release is
//! retired like a free. So a count of one, once seen (Acquire, after the Release of whoever let
//! go), means that no reader of another tree is left, and the owner may change the node in place.

#[cfg(not(samara_tsan))]
use crate::sync::fence;
use crate::sync::{AtomicU32, Ordering};

/// A count of references.
pub(crate) struct Refs(AtomicU32);

/// More than memory holds trees; well below what overflows.
const TOO_MANY: u32 = 1 << 30;

impl Refs {
    #[inline(always)]
    pub(crate) fn new() -> Self {
        Refs(AtomicU32::new(1))
    }

    /// Whether more than one parent points here.
    #[inline(always)]
    pub(crate) fn shared(&self) -> bool {
        // Acquire: pairs with the Release of `release`; after it, what others read here is read.
        self.0.load(Ordering::Acquire) != 1
    }

    /// One more parent. False, and nothing changed, if there are too many.
    pub(crate) fn share(&self) -> bool {
        // Relaxed: who adds a reference has one already, and hands the new one on by other means.
        let before = self.0.fetch_add(1, Ordering::Relaxed);
        if before >= TOO_MANY {
            // Relaxed: as above.
            self.0.fetch_sub(1, Ordering::Relaxed);
        }
        before < TOO_MANY
    }

    /// One parent less; true if it was the last, and the node is the caller's to free.
    pub(crate) fn release(&self) -> bool {
        // The only one: no other can come, for only a parent can make another.
        if !self.shared() {
            return true;
        }
        // Release: what was read of the node comes before; pairs with the fence below, in whoever
        // frees it, and with `shared`, in whoever is left.
        if self.0.fetch_sub(1, Ordering::Release) != 1 {
            return false;
        }
        // Acquire: pairs with the Release of all who let go before.
        #[cfg(not(samara_tsan))]
        fence(Ordering::Acquire);
        // Acquire: as above. ThreadSanitizer does not know fences.
        #[cfg(samara_tsan)]
        self.0.load(Ordering::Acquire);
        true
    }
}
