//! The calls that change what is mapped, and what they do to pages.

pub(crate) mod advise;
pub(crate) mod bags;
pub(crate) mod call;
pub(crate) mod calls;
pub(crate) mod collapse;
pub(crate) mod gather;
pub(crate) mod guard;
pub(crate) mod hook;
pub(crate) mod lock;
pub(crate) mod moving;
pub(crate) mod ranges;
pub(crate) mod sync;
pub(crate) mod unmap_policy;
pub(crate) mod waiting;
