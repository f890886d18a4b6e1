//! Frames of changed entries go back: the one place of this crate that releases them.

use grace::Concurrent;
use machine::{Frame, Machine};
use paging::{Format, PageTables, PendingFlush};

/// Flushes, and then gives back what changed entries led to. A lock-free pin may hold a reference
/// for a moment, so frames are released, not freed.
///
/// # Safety
/// The flush is that of the entries, and each frame or slot is that of one entry, whose reference
/// it is.
pub(crate) unsafe fn flush_and_release<M: Machine, F: Format, G: Concurrent>(
    tables: &PageTables<M, F, G>,
    pending: PendingFlush<'_, M, F, G>,
    frames: impl IntoIterator<Item = Frame>,
) {
    pending.flush();
    // SAFETY: the caller's promise.
    unsafe { release(tables, frames) }
}

/// Gives back what entries led to.
///
/// # Safety
/// No CPU has a translation of the frames any more. Each is that of one entry, whose reference it
/// is.
pub(crate) unsafe fn release<M: Machine, F: Format, G: Concurrent>(
    tables: &PageTables<M, F, G>,
    frames: impl IntoIterator<Item = Frame>,
) {
    for frame in frames {
        // SAFETY: the caller's promise.
        unsafe { tables.paging().release_entry(frame) };
    }
}
