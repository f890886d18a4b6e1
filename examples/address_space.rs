//! Address spaces with pages, on the machine in software: map, touch, protect, discard, fork,
//! share, truncate, pin, unmap. A fault of the CPU brings each page in.
//!
//! ```sh
//! cargo run -p samara-examples --bin address_space
//! ```

use samara::machine::{Asid, Frame, PageSize, Translated, VirtAddr};
use samara::mm::{
    Access, AddressSpace, Advice, Backing, FaultError, Layout, MapFlags, Profile, Shmem,
};
use samara::paging::{Paging, X86_64L4};
use samara::sim::{Config, Grace, Sim};
use std::{error::Error, sync::Arc};

type Space = AddressSpace<Sim, X86_64L4, Grace>;

const PAGE: usize = 4096;

fn main() -> Result<(), Box<dyn Error>> {
    let sim = Sim::new(Config::default())?;
    let paging = Paging::<Sim, X86_64L4>::try_new(sim.clone(), PageSize::Size1G)?;
    let layout = Layout { mmap_base: 0x7fff_0000_0000, ..Layout::default() };
    // CPU 0 runs the closure. The machine checks every access, every flush and every frame of it.
    let space = sim.on_cpu(0, || -> Result<Space, Box<dyn Error>> {
        let space = Space::try_new(&paging, Asid(1), None, Profile::LINUX_6_18, layout)?;
        // SAFETY: this program needs nothing else mapped, and no other tables have the tag 1.
        unsafe { space.activate() };
        program(&sim, &space)?;
        share(&sim, &paging, &space)?;
        Ok(space)
    })?;
    // CPU 0 has stopped, so the space is not active there. Its frames are given back.
    sim.on_cpu(0, || drop(space));
    println!("done: {} TLB flushes, no violation", sim.stats().flushes);
    Ok(())
}

/// The calls of a program, and the work of its fault handler.
fn program(sim: &Sim, space: &Space) -> Result<(), Box<dyn Error>> {
    let at = space.mmap(0, 4 * PAGE, 3, MapFlags::PRIVATE | MapFlags::ANONYMOUS)?;
    println!("mapped 4 pages at {at:#x}, {} of them present", space.resident(at..at + 4 * PAGE));

    println!("the first page holds {}", load(sim, space, at)?);
    store(sim, space, at, 42)?;
    store(sim, space, at + PAGE, 43)?;
    println!("written: {} pages present", space.resident(at..at + 4 * PAGE));

    space.mprotect(at, PAGE, 1, None)?;
    if let Err(error) = store(sim, space, at, 44) {
        println!("after mprotect: {error}");
    }

    space.madvise(at + PAGE, PAGE, Advice::DontNeed)?;
    println!("after madvise: {} and {}", load(sim, space, at)?, load(sim, space, at + PAGE)?);

    let mut listing = String::new();
    space.write_maps(&mut listing)?;
    print!("{listing}");

    fork(sim, space, at)?;

    let mut frames = [Frame::default(); 2];
    let pins = space.pin_pages(at + 2 * PAGE, Access::Write, &mut frames)?;
    println!("pinned for a device: frames {:?}", pins.frames());

    space.munmap(at, 4 * PAGE)?;
    println!("unmapped; the pinned frames stay until the pins are dropped");
    drop(pins);
    if let Err(error) = load(sim, space, at) {
        println!("after munmap: {error}");
    }
    Ok(())
}

/// A child shares the pages until one of the two writes.
fn fork(sim: &Sim, space: &Space, at: usize) -> Result<(), Box<dyn Error>> {
    let child = space.fork(Asid(2))?;
    // SAFETY: as in `main`, for the tag 2.
    unsafe { child.activate() };
    store(sim, &child, at + PAGE, 7)?;
    println!("the child has written {}", load(sim, &child, at + PAGE)?);
    // SAFETY: as in `main`.
    unsafe { space.activate() };
    println!("the parent still reads {}", load(sim, space, at + PAGE)?);
    // SAFETY: the parent's space is active on this CPU.
    unsafe { child.leave() };
    Ok(())
}

/// Two maps of one memfd: one shared, one private.
fn share(
    sim: &Sim,
    paging: &Arc<Paging<Sim, X86_64L4>>,
    space: &Space,
) -> Result<(), Box<dyn Error>> {
    let memory = Shmem::memfd(paging, "example", 1)?;
    memory.set_size(2 * PAGE as u64)?;
    let map = |flags| {
        let file = Backing::open(memory.clone(), true)?;
        space.mmap_object(0, 2 * PAGE, 3, flags, file, 0)
    };
    let (shared, private) = (map(MapFlags::SHARED)?, map(MapFlags::PRIVATE)?);
    store(sim, space, shared, 1)?;
    println!("the private map reads {}, as the shared one wrote", load(sim, space, private)?);
    store(sim, space, private, 2)?;
    println!("its own write stays private: the shared one reads {}", load(sim, space, shared)?);
    memory.set_size(PAGE as u64)?;
    if let Err(error) = load(sim, space, shared + PAGE) {
        println!("after the truncation: {error}");
    }
    Ok(())
}

/// A load of the program. At a fault, the handler runs and the load is repeated.
fn load(sim: &Sim, space: &Space, at: usize) -> Result<u64, FaultError> {
    let at = VirtAddr::new(at as u64);
    loop {
        // SAFETY: the program's memory, which no reference points to.
        match unsafe { sim.load(at) } {
            Ok(value) => return Ok(value),
            Err(_) => space.handle_fault(at, Access::Read)?,
        };
    }
}

/// A store of the program, in the same way.
fn store(sim: &Sim, space: &Space, at: usize, value: u64) -> Result<(), FaultError> {
    let at = VirtAddr::new(at as u64);
    loop {
        // SAFETY: as above.
        match unsafe { sim.store(at, value) } {
            Ok(()) => return Ok(()),
            Err(_) => space.handle_fault(at, Access::Write)?,
        };
    }
}
