//! The `stale` trial: no CPU uses a translation from before a flush. A machine that omits one of
//! its flushes must fail this trial.
//!
//! - `pages`: every CPU has writable translations of several hundred pages. One CPU makes the pages
//!   read-only, or unmaps them and maps others. Every CPU must notice, that one included. It is
//!   done with pages of the kernel, which are global, and with pages of a program.
//! - `areas`: an address that `vmap` reuses never shows old contents.
//!
//! A stale translation does no harm here. The frames that it leads to stay allocated until all CPUs
//! have been checked.

mod areas;
mod pages;

use crate::environment::Environment;
use alloc::string::String;
use grace::Concurrent;
use machine::{Machine, Translated};
use paging::Format;

/// As [`stale`], without the areas, for formats that they do not have.
pub(crate) fn stale_pages<M: Machine + Translated, F: Format, G: Concurrent>(
    env: &Environment<'_, M, F, G>,
) -> Result<(), String> {
    env.whole(|| {
        pages::kernel(env)?;
        pages::program(env)
    })
}

pub(crate) fn stale<M: Machine + Translated, F: Format, G: Concurrent>(
    env: &Environment<'_, M, F, G>,
) -> Result<(), String> {
    env.whole(|| {
        pages::kernel(env)?;
        pages::program(env)?;
        areas::areas(env)
    })
}
