//! What a run showed: counted in a [`Summary`], told to people and to programs.
//!
//! Whoever mirrors a program fills a [`Summary`], one [`Space`] at a time. The rest of this module
//! only reads it: [`tables`] for people, [`json`] for programs, [`picture`] of the largest
//! address space, [`mismatch`] side by side, and the [`Progress`] line while the program runs.
//! Everything but the JSON goes to standard error, by [`messages`]: standard output is the
//! program's own.

pub mod call;
pub mod json;
pub mod messages;
pub mod mismatch;
pub mod picture;
mod progress;
mod style;
mod summary;
pub mod tables;

pub use mismatch::{Difference, Mismatch};
pub use progress::Progress;
pub use style::Style;
pub use summary::{Counts, Nanoseconds, Notice, Portrait, Space, Summary, Timing, Tree};
