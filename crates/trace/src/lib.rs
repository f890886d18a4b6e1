//! Follows real programs, records their memory calls, and mirrors them into [`vma`].
//!
//! [`live`] follows a running program; it exists only on x86-64 Linux. [`text`] and [`replay`] read
//! a recording on any platform. Both make the same [`record`]s, and the [`mirror`] carries these
//! out and compares our address spaces with the kernel's. [`report`] prints the result.

// These macros panic if standard error is full, which would end the traced program.
#![deny(clippy::print_stderr, clippy::print_stdout, clippy::dbg_macro)]

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
pub mod live;
pub mod mirror;
pub mod observer;
#[cfg(all(test, feature = "stacks"))]
#[path = "../tests/common/patience.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod patience;
pub mod record;
pub mod replay;
pub mod report;
pub mod session;
mod span;
pub mod stream;
pub mod text;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
