//! The listings of a space, counts, and single pages.

pub(crate) mod mapcount;
pub(crate) mod mincore;
pub mod pagemap;
pub(crate) mod rollup;
pub(crate) mod smaps;
