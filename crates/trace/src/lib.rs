//! Follows real programs, records their memory calls and mirrors them.

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
