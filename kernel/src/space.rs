//! The kernel's address space: tables of `paging`, areas of `vmap`.

use crate::arch::place::Format;
use crate::arch::serial;
use crate::grace::Grace;
use crate::layout::{areas, direct, trials};
use crate::machine::Kernel;
use crate::memory::{Memory, parts};
use crate::smp::{stack_of, tlb_grace};
use alloc::sync::Arc;
use machine::{
    Cpus, Frame, FrameError, FrameRange, FrameSource, NodePolicy, PageSize, VirtAddr, VirtRange,
};
use paging::{Attrs, Cache, Error, Flags, PageTables, Paging};
use spin::Once;
use vmap::{Options, Vmap};

/// The type of the kernel's tables.
pub(crate) type Tables = PageTables<Kernel, Format, Grace>;

static TABLES: Once<Arc<Tables>> = Once::new();
static VMAP: Once<Vmap<Kernel, Format, Grace>> = Once::new();

/// The kernel's tables.
pub(crate) fn tables() -> &'static Arc<Tables> {
    TABLES.get().expect("they are made at boot")
}

/// The kernel's own areas.
pub(crate) fn vmap() -> &'static Vmap<Kernel, Format, Grace> {
    VMAP.get().expect("it is made at boot")
}

/// Makes the tables and activates them on this CPU.
///
/// # Errors
/// There is too little memory.
///
/// # Safety
/// Call it once, on the boot CPU, with the boot tables active.
pub(crate) unsafe fn start(memory: &Memory) -> Result<(), Error> {
    let paging = Paging::<Kernel, Format>::try_new(Kernel, PageSize::Size2M);
    let paging = paging.map_err(|_| FrameError::OutOfFrames { order: 0 })?;
    let tables = Arc::new(Tables::kernel(&paging)?);
    let map_own = |at, frames, attrs| {
        // SAFETY: the tables are not active yet. The frames are the kernel's, or its serial port.
        unsafe { map(&tables, at, frames, attrs) }
    };
    for range in memory.frames().chain([memory.heap]) {
        map_own(direct(range.start().start()), range, Attrs::KERNEL_RW)?;
    }
    if let Some(range) = serial::registers() {
        let first = Frame::containing(range.start());
        let frames = FrameRange::new(first, range.len().div_ceil(4096));
        let frames = frames.ok_or(FrameError::NotOurs(first))?;
        let attrs = Attrs { cache: Cache::Uncached, ..Attrs::KERNEL_RW };
        map_own(direct(first.start()), frames, attrs)?;
    }
    if let Some(archive) = memory.archive {
        let attrs = Attrs::new(Flags::READ | Flags::GLOBAL);
        map_own(direct(archive.start().start()), archive, attrs)?;
    }
    for part in parts() {
        let mut flags = Flags::READ | Flags::GLOBAL;
        flags.set(Flags::WRITE, part.write);
        flags.set(Flags::EXECUTE, part.execute);
        let frames = FrameRange::new(part.frame(), part.bytes >> 12);
        let frames = frames.ok_or(FrameError::NotOurs(part.frame()))?;
        map_own(VirtAddr::new(part.start), frames, Attrs::new(flags))?;
    }
    for cpu in 0..Kernel.count() {
        let frame = |_, _| Ok((Kernel.alloc(0, NodePolicy::Local)?, PageSize::Size4K));
        // SAFETY: the tables are not active yet. The addresses belong to the stack, and its frames
        // are never freed.
        let mapped = unsafe { tables.map_with(stack_of(cpu), Attrs::KERNEL_RW, frame) };
        mapped.map_err(|failed| failed.error)?;
    }
    // SAFETY: the tables map the image, all memory and the stacks.
    unsafe { tables.activate() };
    TABLES.call_once(|| tables);
    Ok(())
}

/// Maps frames by pages of 4 KiB; `layout` has the reason.
///
/// # Safety
/// The addresses and the frames are the caller's. No CPU has a translation of these addresses left.
pub(crate) unsafe fn map(
    tables: &Tables,
    at: VirtAddr,
    frames: FrameRange,
    attrs: Attrs,
) -> Result<(), Error> {
    let range = VirtRange::new(at, frames.len() << 12).ok_or(Error::Empty)?;
    let frame = |page: VirtAddr, _| {
        let number = page.offset_from(at).unwrap_or_default() >> 12;
        let frame = frames.start().checked_add(number);
        Ok((frame.ok_or(FrameError::NotOurs(frames.start()))?, PageSize::Size4K))
    };
    // SAFETY: promised by the caller.
    unsafe { tables.map_with(range, attrs, frame) }.map_err(|failed| failed.error)
}

/// Makes the kernel's areas. From now on this CPU takes part in TLB grace periods.
pub(crate) fn start_areas() -> Result<(), vmap::Error> {
    tlb_grace().idle_exit();
    // Reserved before there is a program: its top-level table gets a copy of the kernel's entries.
    tables().reserve(trials())?;
    let (tables, tlb_grace) = (Arc::clone(tables()), Arc::clone(tlb_grace()));
    // SAFETY: no other code uses these addresses, and each CPU has left idle before it uses them.
    let vmap = unsafe { Vmap::try_new(tables, tlb_grace, areas(), Options::default()) }?;
    VMAP.call_once(|| vmap);
    Ok(())
}
