//! The end of a space's share of a table, and of a table that no space leads to any more.

use crate::format::{Decoded, Format, Geometry, alone, entry};
use crate::lock::lock;
use crate::shared::Paging;
use crate::tlb_gather::TlbGather;
use alloc::sync::Arc;
use grace::Concurrent;
use machine::{Frame, Machine, VirtAddr};

/// Ends the share of a space that has left the table, and has flushed. If it was the last one, the
/// table's pages and lower tables go, too.
pub(crate) fn leave_table<M: Machine, F: Format, G: Concurrent>(
    paging: &Arc<Paging<M, F>>,
    table: Frame,
    level: u8,
) {
    let mut gone = TlbGather::default();
    end_share(paging, table, level, &mut gone);
    gone.retire::<M, F, G>(paging);
}

fn end_share<M: Machine, F: Format>(
    paging: &Paging<M, F>,
    table: Frame,
    level: u8,
    gone: &mut TlbGather,
) {
    let machine = paging.machine();
    let Ok(Some(mut locked)) = lock::<M, F>(machine, table, VirtAddr::new(0)) else { return };
    if locked.shares > 0 {
        locked.shares -= 1;
        return;
    }
    // No space leads here, and each that left has flushed. A fault that was on the way here finds
    // the table dead; one that has the lock is waited for.
    locked.kill();
    for index in 0..F::ENTRIES {
        // SAFETY: a table that no other CPU changes any more. Walks in software may read it until
        // it has been retired.
        let Some(entry) = (unsafe { entry::<M, F>(machine, table, index) }) else { return };
        if entry.load() == 0 {
            continue;
        }
        match F::decode(alone::<F>(entry.swap(0), level, index), level) {
            Decoded::Page(frame, _) => {
                // SAFETY: the reference of this entry, which no translation was cached from. A
                // lock-free pin may hold another one for a moment.
                unsafe { paging.release_entry(frame) };
            }
            Decoded::Table(lower) => end_share(paging, lower, level - 1, gone),
            _ => {}
        }
    }
    paging.went();
    gone.add_table(machine, table);
}
