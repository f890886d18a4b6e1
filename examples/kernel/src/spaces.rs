//! `mm`: the address spaces of a program and its child. Page faults of the CPU bring pages in.

use crate::tiny::{Format, Grace, Tables, Tiny};
use crate::{Outcome, println, trap};
use alloc::sync::Arc;
use core::ptr;
use core::sync::atomic::{AtomicPtr, Ordering::Relaxed};
use machine::{FaultKind, VirtAddr};
use mm::{Access, AddressSpace, Layout, MapFlags, Profile};
use paging::Tag;

type Space = AddressSpace<Tiny, Format, Grace>;

/// The active space. Relaxed: only this CPU uses it.
static ACTIVE: AtomicPtr<Space> = AtomicPtr::new(ptr::null_mut());

/// Handles a page fault with this error code. Returns whether the access can be made again.
pub fn handle_fault(at: VirtAddr, code: u64) -> bool {
    // SAFETY: `run` borrows the space as long as it is active.
    let space = unsafe { ACTIVE.load(Relaxed).as_ref() };
    let access = match code {
        code if code & 16 != 0 => Access::Execute,
        code if code & 2 != 0 => Access::Write,
        _ => Access::Read,
    };
    space.is_some_and(|space| at.get() >> 47 == 0 && space.handle_fault(at, access).is_ok())
}

/// Runs a program in its space, from which the CPU then returns to the kernel's tables.
fn run(kernel: &Tables, space: &Space, program: impl FnOnce()) {
    ACTIVE.store(ptr::from_ref(space).cast_mut(), Relaxed);
    // SAFETY: both have the kernel's half. When the CPU leaves the space, it is not active.
    unsafe {
        space.activate();
        program();
        kernel.activate();
        space.leave();
    }
    ACTIVE.store(ptr::null_mut(), Relaxed);
}

/// A parent and its child, from the first page to the last.
pub fn live(kernel: &Arc<Tables>) -> Outcome<()> {
    const LEN: usize = 4 * 4096;
    let layout = Layout { mmap_base: 0x7fff_0000_0000, ..Layout::default() };
    let (paging, upper) = (kernel.paging(), Some(Arc::clone(kernel)));
    let parent = Space::try_new(paging, Tag::Assigned, upper, Profile::LINUX_6_18, layout)?;
    let first = parent.mmap(0, LEN, 3, MapFlags::PRIVATE | MapFlags::ANONYMOUS)?;
    let at = first as u64;
    // SAFETY: the memory of the programs, to which no reference exists.
    let load = |at| unsafe { trap::load(at) };
    // SAFETY: as above.
    let store = |at, value| unsafe { trap::store(at, value) };
    run(kernel, &parent, || {
        assert_eq!((store(at, 42), load(at), load(at + 4096)), (Ok(()), Ok(42), Ok(0)));
    });
    assert_eq!(parent.resident(first..first + LEN), 2);
    println!("mm: mapped 4 pages; faults have brought in the two that were used");

    let child = parent.fork(Tag::Assigned)?;
    run(kernel, &child, || assert_eq!((load(at), store(at, 7), load(at)), (Ok(42), Ok(()), Ok(7))));
    run(kernel, &parent, || assert_eq!(load(at), Ok(42)));
    println!("mm: forked; a write of the child has copied a page");

    parent.munmap(first, LEN)?;
    run(kernel, &parent, || assert_eq!(load(at), Err(FaultKind::NotPresent)));
    assert_eq!(child.resident(first..first + LEN), 2);
    println!("mm: unmapped the pages of the parent; the child still has 2");
    Ok(())
}
