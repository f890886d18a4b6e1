//! What others see of a space: listings, counts, and single pages.

pub(crate) mod kin;
pub(crate) mod look;
pub mod pagemap;
pub(crate) mod rollup;
pub(crate) mod usage;
