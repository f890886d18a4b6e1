//! One CPU.

pub(crate) mod area;
