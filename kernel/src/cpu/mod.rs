//! One CPU, and the list of all.

pub(crate) mod area;
pub(crate) mod job;
pub(crate) mod list;
