//! One level of a path.

use crate::Index;
use crate::node::Link;

/// A node on the path, with the range that it covers and the slot taken in it.
#[derive(Clone, Copy)]
pub(crate) struct Step {
    pub(crate) link: Link,
    pub(crate) slot: usize,
    pub(crate) min: Index,
    pub(crate) max: Index,
}

impl Step {
    /// The number of slots of the node.
    pub(crate) fn len(&self) -> usize {
        // SAFETY: the invariant of the path that contains the step.
        unsafe { self.link.len() }
    }
}

/// The slot to take in each node of a descent.
#[derive(Clone, Copy)]
pub(crate) enum Pick {
    /// The slot that holds the index.
    Index(Index),
    First,
    Last,
}
