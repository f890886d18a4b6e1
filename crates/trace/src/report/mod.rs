//! The result of a run: counted in a [`Summary`] and printed for people and programs.
//!
//! The mirror fills a [`Summary`], one [`SpaceReport`] at a time. The rest of this module only
//! reads it: [`tables`] for people, [`json`] for programs, the [`picture`] of the largest address
//! space, [`mismatch`] for two listings side by side, and the [`Progress`] line while the program
//! runs. Everything except the JSON goes to standard error, by [`messages`], because standard
//! output belongs to the program.
//!
//! `stacks` has what is reported by call site: the table, folded lines, the flame graph,
//! speedscope.

pub mod call;
pub mod json;
mod lifetimes;
pub mod messages;
pub mod mismatch;
mod outcome;
pub mod picture;
mod progress;
pub mod stacks;
mod style;
mod summary;
pub mod tables;
mod timeline;
mod timing;
mod usage;
mod view;

pub use mismatch::{Difference, Mismatch};
pub use outcome::Outcome;
pub use progress::Progress;
pub use style::Style;
pub use summary::{Notice, SpaceReport, SpaceSnapshot, SpaceStats, Summary, TreeSize};
pub use timing::{Nanoseconds, Timing};
pub use usage::{ResidentSet, Usage};
pub use view::{OwnerNow, View};
pub(crate) use {picture::VmaKind, usage::Residency};
