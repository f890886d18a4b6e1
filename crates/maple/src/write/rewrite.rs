//! Writes that replace a few neighbouring leaves: old leaves in, at most two new leaves out, and
//! their parent.
//!
//! | module | leaves in | leaves out |
//! |---|---|---|
//! | [`split`] | a full one | two |
//! | [`border`] | two neighbours between which a bound moves | two |
//! | [`join`] | one with too little, and a sibling | one |
//! | [`erase_span`] | any number, over which a hole goes | one or two |
//! | [`room`] | no leaf: a full inner node | two inner nodes |
//!
//! All have the same order, and all but the last step are their own:
//!
//! 1. The new contents are computed from the old ones. A case that does not fit is left to the
//!    plan, and nothing has changed.
//! 2. Nodes are allocated. After that nothing fails (I7).
//! 3. The new leaves are filled, with the gaps that they will have.
//! 4. [`splice`] puts them in the place of the old ones, with one store, and updates the gaps
//!    above.
//! 5. Nodes and entries that have left the tree are retired.

pub(in crate::write) mod border;
pub(in crate::write) mod erase_span;
pub(in crate::write) mod join;
pub(in crate::write) mod room;
pub(in crate::write) mod splice;
pub(in crate::write) mod split;
