//! `vmap`: memory, a stack with a guard page, and the registers of a device.

use crate::tiny::{Format, Grace, Tables, Tiny};
use crate::trap::{load, store};
use crate::{Outcome, println};
use alloc::sync::Arc;
use machine::{FaultKind, PhysAddr, PhysRange, VirtAddr, VirtRange};
use paging::{Cache, TlbGrace};
use vmap::{Guard, Options, Request, Vmap};
use x86_64::registers::model_specific::Msr;

type Areas = Vmap<Tiny, Format, Grace>;

/// Makes the kernel's areas, before the first space of a program: it makes their upper tables.
pub fn start(kernel: &Arc<Tables>) -> Outcome<Areas> {
    // SAFETY: entries select the memory types that `paging` means, and the loader's as before.
    unsafe { Msr::new(0x277).write(paging::PAT) };
    let space = VirtRange::new(VirtAddr::new(0xffff_c900_0000_0000), 1 << 30).ok_or("no space")?;
    let (tables, tlb_grace) = (Arc::clone(kernel), TlbGrace::try_new(Tiny)?);
    // SAFETY: no other code maps there.
    Ok(unsafe { Areas::try_new(tables, tlb_grace, space, Options::default()) }?)
}

/// Makes, uses and frees memory and a stack.
pub fn allocate(areas: &Areas) -> Outcome<()> {
    const STACK: u64 = 16 << 10;
    let memory = areas.vzalloc(10_000)?;
    let stack = Request { align: STACK, guard: Some(Guard::Below), ..Request::memory(STACK) };
    let stack = areas.create(&stack)?;
    let [first, bottom] = [memory, stack].map(VirtAddr::get);
    // SAFETY: both are ours, and are not used after they are freed. Other accesses fault.
    unsafe {
        assert_eq!((load(first), store(bottom, 1)), (Ok(0), Ok(())));
        assert_eq!(store(bottom - 8, 1), Err(FaultKind::NotPresent), "an overflow faults");
        println!("vmap: allocated memory at {memory}, and a stack with a guard page at {stack}");
        areas.vfree(memory)?;
        areas.vfree(stack)?;
        assert!(areas.vfree(memory).is_err(), "freed twice");
        // Until here the CPU may have kept translations. A timer calls `TlbGrace::tick` instead.
        areas.purge();
        assert_eq!([load(first), load(bottom)], [Err(FaultKind::NotPresent); 2]);
    }
    println!("vmap: freed both, and flushed the TLB");
    Ok(())
}

/// Maps the registers of the local APIC.
pub fn map_device(areas: &Areas) -> Outcome<()> {
    let registers = PhysRange::new(PhysAddr::new(0xfee0_0000), 4096).ok_or("no registers")?;
    let at = areas.ioremap(registers, Cache::Uncached)?;
    let version = core::ptr::with_exposed_provenance::<u32>(at.get() as usize + 0x30);
    // SAFETY: reading the version has no effect. Nothing uses the registers after it.
    unsafe {
        println!("vmap: mapped the APIC at {at}: version {:#x}", version.read_volatile());
        areas.iounmap(at)?;
    }
    Ok(())
}
