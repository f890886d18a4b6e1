//! Address spaces: VMAs and the calls on them, with the rules of Linux.
#![no_std]
extern crate alloc;

mod flags;

pub use flags::{UnknownFlag, VmFlags};
