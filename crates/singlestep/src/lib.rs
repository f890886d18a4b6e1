//! Single-steps one operation and counts its instructions, locked read-modify-writes, fences and
//! branches, and the cache lines that it reads and writes.
//!
//! Times measured on two cores say little about sixty-four cores. Counts do not depend on the
//! number of cores. The costs that grow with the number of processors are those of the cache lines
//! that several of them write, so a claim of scalability must rest on these lines.
//!
//! # How it works
//!
//! [`Operation::count`] forks. The child sets up the state, runs the operation some times to warm
//! up, and then executes the measured runs. The parent traces the child with ptrace(2), and
//! single-steps each instruction of a measured run. It decodes the instruction, and computes from
//! the registers before the step which bytes it accesses.
//!
//! ```text
//!    Operation: setup, prepare, regions, the operation itself
//!         │ count: fork
//!         ├──────────────────────────────┐
//!         ▼ the tracer                   ▼ the child
//!    sys::tracee, stops and reads it   sys::child, runs the closures,
//!         │   ◄─── sys::marker ───        marked by breakpoints
//!         ▼
//!    sys::step, one instruction ──► sys::code, decodes it
//!         │                         sys::access, which bytes
//!         ▼
//!    sys::tally, lines of each region ──► Counts
//! ```
//!
//! # Correctness
//!
//! - *The harness is not counted.* The child calls the operation at one place, directly after a
//!   breakpoint. Counting starts with the first instruction after that call, and ends before the
//!   matching return. The state, the operation's captures and the stack each start at a cache line
//!   of their own, so the counts do not depend on their addresses.
//! - *Nothing is estimated.* An instruction whose addresses cannot be determined (a gather, an
//!   `xsave`) is [`Error::Unknown`]. A string instruction counts as one, with as many bytes as its
//!   count register says it moved. A masked vector access counts the elements that its mask
//!   selects.
//! - *Nothing hangs.* A time limit ends the child at any point. A crash, a panic and an exit are
//!   errors that name the phase. The child is killed and reaped on every path.
//!
//! # What is not counted
//!
//! The cache lines of the instructions themselves; the kernel's work in a system call (the calls
//! are counted); prefetches; and time. The child runs alone, so no retry happens that only another
//! processor could cause.
//!
//! Supports Linux on x86-64 only. Elsewhere the crate compiles, and every count returns
//! [`Error::Unsupported`].

mod counts;
mod error;
mod operation;
mod region;

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod sys;
#[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
#[path = "unsupported.rs"]
mod sys;

pub use counts::{Area, Counts, Figure};
pub use error::{Error, Phase};
pub use operation::{Operation, operation};
pub use region::Region;

/// The size of a cache line in bytes, as counted.
pub const LINE: u64 = 64;

/// The example in the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
