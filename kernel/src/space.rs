//! The kernel's address space: tables that `paging` makes, areas of `vmap`.

use crate::grace::Grace;
use crate::layout::{areas, direct, trials};
use crate::machine::Kernel;
use crate::memory::{Memory, parts};
use crate::smp::{flushes, stack_of};
use alloc::sync::Arc;
use machine::{Cpus, FrameError, FrameRange, FrameSource, PageSize, Place, VirtAddr, VirtRange};
use paging::{Attrs, Error, Flags, PageTables, Paging, X86_64L4};
use spin::Once;
use vmap::{Options, Vmap};

/// The kernel's tables.
pub(crate) type Tables = PageTables<Kernel, X86_64L4, Grace>;

static TABLES: Once<Arc<Tables>> = Once::new();
static VMAP: Once<Vmap<Kernel, X86_64L4, Grace>> = Once::new();

/// The kernel's tables.
pub(crate) fn tables() -> &'static Arc<Tables> {
    TABLES.get().expect("they are made at boot")
}

/// The kernel's own areas.
pub(crate) fn vmap() -> &'static Vmap<Kernel, X86_64L4, Grace> {
    VMAP.get().expect("it is made at boot")
}

/// Makes the tables, and makes this CPU use them.
///
/// # Errors
/// There is too little memory.
///
/// # Safety
/// Once, on the first CPU, with the first tables active.
pub(crate) unsafe fn start(memory: &Memory) -> Result<(), Error> {
    let paging = Paging::<Kernel, X86_64L4>::try_new(Kernel, PageSize::Size2M);
    let paging = paging.map_err(|_| FrameError::OutOfFrames { order: 0 })?;
    let tables = Arc::new(Tables::kernel(&paging)?);
    for range in memory.frames().chain([memory.heap]) {
        map(&tables, direct(range.start().start()), range, Attrs::KERNEL_RW)?;
    }
    for part in parts() {
        let mut flags = Flags::READ | Flags::GLOBAL;
        flags.set(Flags::WRITE, part.write);
        flags.set(Flags::EXECUTE, part.execute);
        let frames = FrameRange::new(part.frame(), part.bytes >> 12);
        let frames = frames.ok_or(FrameError::NotOurs(part.frame()))?;
        map(&tables, VirtAddr::new(part.start), frames, Attrs::new(flags))?;
    }
    for cpu in 0..Kernel.count() {
        let frame = |_, _| Ok((Kernel.alloc(0, Place::Local)?, PageSize::Size4K));
        // SAFETY: the tables are not active yet; the addresses are the stack's, and the frames are
        // its own for good.
        let mapped = unsafe { tables.map_with(stack_of(cpu), Attrs::KERNEL_RW, frame) };
        mapped.map_err(|failed| failed.error)?;
    }
    // SAFETY: they have the image, all memory and the stacks.
    unsafe { tables.activate() };
    TABLES.call_once(|| tables);
    Ok(())
}

/// Maps frames by pages of 4 KiB: see `layout`.
pub(crate) fn map(
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
    // SAFETY: the tables are not active yet: nothing else is mapped there, and what the kernel may
    // do with memory is decided here.
    unsafe { tables.map_with(range, attrs, frame) }.map_err(|failed| failed.error)
}

/// Makes the kernel's areas. This CPU takes part in TLB grace periods from now on.
pub(crate) fn start_areas() -> Result<(), vmap::Error> {
    flushes().idle_exit();
    // While there is no space of a program: its top-level table has a copy of the kernel's entries.
    tables().reserve(trials())?;
    let (tables, flushes) = (Arc::clone(tables()), Arc::clone(flushes()));
    // SAFETY: nobody else uses these addresses, and CPUs are back before they do.
    let vmap = unsafe { Vmap::try_new(tables, flushes, areas(), Options::default()) }?;
    VMAP.call_once(|| vmap);
    Ok(())
}
