//! Follows real programs, records their memory calls and mirrors them.

// A macro that panics when standard error is full would end the program that is followed.
#![deny(clippy::print_stderr, clippy::print_stdout, clippy::dbg_macro)]

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
pub mod live;
pub mod mirror;
pub mod observer;
pub mod record;
pub mod replay;
pub mod report;
pub mod session;
pub mod text;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
