//! A virtual-memory manager that does not slow down as processors are added: all of it as one
//! library.
//!
//! Each module is a crate that also stands alone; those that a kernel uses need no operating
//! system. The feature `full` has all of them; without it there are those that tracing needs.
//!
//! ```
//! use samara::trace::{replay, report::json, text::Error};
//!
//! // The first calls of a program, as a recording has them.
//! let recording = "# vmtrace 1 kernel=6.18\nQ 1\n";
//! let summary = replay::replay(recording.as_bytes(), "example")?;
//! assert_eq!(json::object(&summary)["mismatches"], 0);
//! # Ok::<(), Error>(())
//! ```

pub use grace;
#[cfg(feature = "full")]
pub use machine;
pub use maple;
#[cfg(feature = "full")]
pub use mm;
#[cfg(feature = "full")]
pub use paging;
pub use report;
#[cfg(feature = "full")]
pub use sim;
pub use trace;
pub use vma;
#[cfg(feature = "full")]
pub use vmap;
#[cfg(feature = "full")]
pub use workloads;
