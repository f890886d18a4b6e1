//! One CPU runs out of memory while others have idle tables.

use super::sections::wait_for;
use crate::machine::Kernel;
use crate::smp::everywhere;
use crate::space::tables;
use alloc::string::{String, ToString};
use core::sync::atomic::{AtomicUsize, Ordering};
use machine::Cpus;
use paging::QUICK_TABLE;

/// Tables that each CPU keeps.
const TABLES: usize = 8;

/// A CPU that is asked for its idle tables returns them at a tick, although it does nothing with
/// tables and its tick is not brought forward.
pub(super) fn kept() -> Result<(), String> {
    let (full, others) = (AtomicUsize::new(0), Kernel.count() - 1);
    everywhere(|cpu| {
        let quick = tables().paging().quick();
        if cpu == 0 {
            // Acquire: pairs with the Release below, so the lists are complete.
            wait_for("lists", || full.load(Ordering::Acquire) == others)?;
            let asked = quick.shortage().len();
            return match asked == others {
                true => Ok(()),
                false => Err(alloc::format!("{asked} CPUs have tables, not {others}")),
            };
        }
        let mut pages = [None; TABLES];
        for page in &mut pages {
            // SAFETY: not a top-level table.
            *page = Some(unsafe { quick.alloc(QUICK_TABLE) }.map_err(|error| error.to_string())?);
        }
        for page in pages.into_iter().flatten() {
            // SAFETY: no other code has it, and it is unchanged.
            unsafe { quick.free(QUICK_TABLE, page) }.map_err(|error| error.to_string())?;
        }
        if quick.is_empty() {
            return Err(alloc::format!("cpu{cpu} keeps no tables"));
        }
        full.fetch_add(1, Ordering::Release);
        wait_for("its tables to go", || quick.is_empty())
    })
}
