//! Frames of the baselines' areas: allocated with an area, mapped, released.

use crate::error::Error;
use alloc::vec::Vec;
use grace::Concurrent;
use machine::{Checker, Frame, FrameError, Machine, NodePolicy, PageSize, VirtAddr, VirtRange};
use paging::{Attrs, PageTables, X86_64L4};

/// Allocates a frame for each page, and has `add` make an area of them. Releases them if that
/// fails.
pub(super) fn alloc<M: Machine>(
    machine: &M,
    pages: usize,
    add: impl FnOnce(&[Frame]) -> Result<VirtAddr, Error>,
) -> Result<VirtAddr, Error> {
    let mut frames = Vec::with_capacity(pages);
    let taken = (0..pages).try_for_each(|_| {
        frames.push(machine.alloc(0, NodePolicy::Local)?);
        Ok(())
    });
    let added = taken.and_then(|()| add(&frames));
    if added.is_err() {
        // SAFETY: they were allocated here, and there is no area of them.
        unsafe { release(machine, &frames) }?;
    }
    added
}

/// Releases the frames of an area.
///
/// # Safety
/// They were allocated with the area, whose entries are cleared and which nothing accesses any
/// more.
pub(super) unsafe fn release<M: Machine>(machine: &M, frames: &[Frame]) -> Result<(), Error> {
    for frame in frames {
        // SAFETY: passed on to the caller.
        unsafe { machine.release(*frame) }?;
    }
    Ok(())
}

/// Maps frames one behind the other. After an error some may be mapped.
///
/// # Safety
/// The addresses are the caller's, and were flushed since they were last mapped. The frames are the
/// caller's as long as they are mapped.
pub(super) unsafe fn map<M: Machine, G: Concurrent>(
    tables: &PageTables<M, X86_64L4, G>,
    at: VirtAddr,
    frames: &[Frame],
) -> Result<(), Error> {
    let range = range_of(at, frames.len())?;
    tables.machine().checker().check_reuse(None, range);
    let place = |to: VirtAddr, _: PageSize| {
        let page = (to.get() - at.get()) as usize >> 12;
        let frame = frames.get(page).copied().ok_or(FrameError::OutOfFrames { order: 0 })?;
        Ok((frame, PageSize::Size4K))
    };
    // SAFETY: passed on to the caller.
    let mapped = unsafe { tables.map_with(range, Attrs::KERNEL_RW, place) };
    Ok(mapped.map_err(|failed| failed.error)?)
}

/// The addresses of so many pages.
pub(super) fn range_of(at: VirtAddr, pages: usize) -> Result<VirtRange, Error> {
    VirtRange::new(at, (pages as u64) << 12).ok_or(Error::Full { pages })
}
