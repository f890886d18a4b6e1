//! Follows real programs, records their memory calls and mirrors them.

pub mod observer;
pub mod record;
pub mod report;
pub mod text;
