//! The programs of this package are the files beside its `Cargo.toml`. This library has no code: it
//! makes the examples of the repository's README documentation tests.
#![cfg_attr(doctest, doc = include_str!("../../README.md"))]
