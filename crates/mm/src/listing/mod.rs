//! What others see of a space: listings, counts, and single pages.

pub(crate) mod mapcount;
pub mod pagemap;
pub(crate) mod residency;
pub(crate) mod rollup;
pub(crate) mod usage;
