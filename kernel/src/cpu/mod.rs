//! One CPU: what it knows of itself, its tables, its features.

pub(crate) mod area;
pub(crate) mod features;
pub(crate) mod tables;
