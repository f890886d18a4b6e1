//! Follows real programs, records their memory calls, and mirrors them into [`vma`].
//!
//! [`live`] follows a running program; it exists only on x86-64 Linux. [`text`] and [`replay`] read
//! a recording on any platform. Both make the same [`record`]s, and the [`mirror`] carries these
//! out and compares our address spaces with the kernel's. [`report`] prints the result.
//!
//! # Where things are
//!
//! A module uses those below it:
//!
//! ```text
//!     live        session      replay    the tracer; a live run; a recording in their place
//!       |         |  |  |         |
//!     observer <--+  |  +-> stream|      the tracer's interface; the calls as JSON lines
//!                    |            |
//!                  mirror <-------+      our address spaces, and the comparisons
//!                    |
//!                  report                tables, JSON, the picture, flame graphs
//!                    |
//!                  text                  the vmtrace format: how records are spelt
//!                    |
//!                  record                the meaning of records
//!
//!     owner, span, listing, abi          owners of bytes; whole pages; a line of maps; numbers
//! ```
//!
//! `live` and `mirror` list their own modules.
//!
//! `tests/rules.rs` tests rare rules on the real kernel, by the programs in `tests/live/c`.

// These macros panic if standard error is full, which would end the traced program.
#![deny(clippy::print_stderr, clippy::print_stdout, clippy::dbg_macro)]

mod abi;
mod listing;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
pub mod live;
pub mod mirror;
pub mod observer;
mod owner;
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
