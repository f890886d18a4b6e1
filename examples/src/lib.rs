//! The programs of this package are the files next to its `Cargo.toml`. This library has no code:
//! it makes the examples of the repository's README, and the host of `kernel/IMPLEMENTING.md`,
//! documentation tests.
#![cfg_attr(doctest, doc = include_str!("../../README.md"))]

#[cfg(doctest)]
#[doc = include_str!("../../kernel/IMPLEMENTING.md")]
mod implementing {}
