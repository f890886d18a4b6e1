//! What one operation really does, instruction by instruction: how many instructions, locked
//! read-modify-writes, fences and branches, and which cache lines it reads and writes.
//!
//! Times measured on two cores say little about sixty-four; counts do not depend on how many there
//! are. The cost that grows with the number of processors is the line that several of them write,
//! so those lines are what a claim to scale must rest on.
//!
//! # How
//!
//! [`Operation::count`] forks. The child sets the state up, runs the operation some times to warm
//! it, and then runs it once for each measured run; the parent traces it with ptrace(2) and
//! executes each instruction of a measured run as a single step. It decodes the instruction and
//! computes from the registers, as they stood before the step, which bytes it touches.
//!
//! # Why the figures are right
//!
//! - *Nothing of the harness is in them.* The child calls the operation at one place, right behind
//!   a breakpoint that names it. Counting starts with the first instruction behind that call and
//!   ends before the one that returns from it. The state and the operation's captures start at a
//!   cache line of their own, and the stack starts at a fresh line, so a count does not depend on
//!   where they happened to lie.
//! - *Nothing is guessed.* An instruction whose addresses cannot be told (a gather, an `xsave`) is
//!   [`Error::Unknown`]. A string instruction counts as one, with the bytes that its count
//!   register says it moved; a masked vector access counts the elements that its mask names.
//! - *Nothing hangs.* A time limit ends the child wherever it stands. A crash, a panic and an exit
//!   are errors that say where. The child is killed and reaped on every path.
//!
//! # What is not in them
//!
//! The lines that hold the instructions themselves; what the kernel does in a system call (the
//! calls are counted); what the processor fetches ahead; cost of any kind. The child runs alone: a
//! retry that only another processor's success would cause does not happen.
//!
//! Linux on x86-64 only; elsewhere the crate compiles and answers [`Error::Unsupported`].

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

/// Bytes of a cache line, as the counts mean it.
pub const LINE: u64 = 64;

/// The README's example.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
