//! No CPU uses a translation from before: the trial that a machine without one of its flushes must
//! fail.
//!
//! - `pages`: every CPU has the translations of several hundred pages, and may write by them. One
//!   takes away the right to write, or unmaps the pages, and maps others; every CPU, that one too,
//!   must notice. For the kernel's pages, which are global, and for a program's.
//! - `areas`: addresses that come back from `vmap` never show what was there before.
//!
//! A stale translation does no harm here: the frames that it leads to are kept until all have been
//! seen to have none.

mod areas;
mod pages;

use crate::ground::Ground;
use alloc::string::String;
use grace::Concurrent;
use machine::{Machine, Translated};

pub(crate) fn stale<M: Machine + Translated, G: Concurrent>(
    ground: &Ground<'_, M, G>,
) -> Result<(), String> {
    ground.whole(|| {
        pages::kernel(ground)?;
        pages::program(ground)?;
        areas::areas(ground)
    })
}
