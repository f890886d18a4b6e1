//! Writes within one leaf.
//!
//! | module | does |
//! |---|---|
//! | [`fast`], [`set_end`] | an entry into a hole, an erase; a moved end: nearly all writes |
//! | [`quick`] | any change within a leaf, and the choice of the rewrite for all others |
//! | [`commit`] | the end of each: the changed leaf is made and published, the gaps above follow |
//! | [`place`] | a leaf with the path to it; the holes that a change makes and removes |
//! | [`finger`] | the path of the writer's last write, for the next one near it |
//! | [`removed`] | the entries that a change removes |
//!
//! A change is computed first, from the leaf's bounds alone. Then nodes are allocated, and nothing
//! fails any more. An exclusive owner changes the leaf in place. With concurrent readers a changed
//! copy replaces it by one store (I1), and the old leaf goes to the grace period.

pub(in crate::write) mod commit;
pub(in crate::write) mod fast;
pub(in crate::write) mod finger;
pub(in crate::write) mod place;
pub(in crate::write) mod quick;
pub(in crate::write) mod removed;
pub(in crate::write) mod set_end;
