//! One CPU: its area, its tables, its features.

pub(crate) mod area;
pub(crate) mod features;
pub(crate) mod tables;
