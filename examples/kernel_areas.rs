//! Kernel virtual areas on the machine in software: vmalloc, vm_map_ram, and a lock-free listing.
//!
//! ```sh
//! cargo run -p samara-examples --bin kernel_areas
//! ```

use samara::machine::{Frame, FrameSource, NodePolicy, PageSize, Translated, VirtAddr, VirtRange};
use samara::paging::{Attrs, PageTables, Paging, X86_64L4};
use samara::sim::{Config, Grace, Sim};
use samara::vmap::{Options, TlbGrace, Vmap};
use std::error::Error;
use std::sync::Arc;

type Areas = Vmap<Sim, X86_64L4, Grace>;

fn main() -> Result<(), Box<dyn Error>> {
    let sim = Sim::new(Config { cpus: 2, ..Config::default() })?;
    let paging = Paging::<Sim, X86_64L4>::try_new(sim.clone(), PageSize::Size1G)?;
    let grace = TlbGrace::try_new(sim.clone())?;
    let tables = sim.on_cpu(0, || -> Result<_, Box<dyn Error>> {
        let tables = Arc::new(PageTables::<_, _, Grace>::kernel(&paging)?);
        // SAFETY: this program needs nothing else mapped.
        unsafe { tables.activate() };
        grace.idle_exit(); // this CPU takes part from now on
        let space = VirtRange::new(VirtAddr::new(0xffff_c900_0000_0000), 1 << 30);
        let space = space.ok_or("the range is not valid")?;
        // SAFETY: nothing else uses these addresses, and `grace` is of the same machine.
        let vmap = unsafe {
            Vmap::try_new(Arc::clone(&tables), Arc::clone(&grace), space, Options::default())
        }?;
        use_areas(&sim, &vmap)?;
        drop(vmap);
        Ok(tables)
    })?;
    // CPU 0 has stopped, so the tables are active nowhere.
    sim.on_cpu(0, || drop(tables));
    let stats = sim.stats();
    println!("{} flushes, {} IPIs, no violation", stats.flushes, stats.ipis_sent);
    Ok(())
}

fn use_areas(sim: &Sim, vmap: &Areas) -> Result<(), Box<dyn Error>> {
    let buffer = vmap.vzalloc(10_000)?;
    // SAFETY: memory of ours, that no reference points to.
    unsafe { sim.store(buffer, 42) }?;

    // Frames that some driver has, seen as one run of addresses.
    let frames: Vec<Frame> =
        (0..4).map(|_| sim.alloc(0, NodePolicy::Local)).collect::<Result<_, _>>()?;
    let run = vmap.vm_map_ram(&frames, Attrs::KERNEL_RW)?;
    // SAFETY: as above.
    unsafe { sim.store(run, 7) }?;

    println!("areas, read without a lock:");
    vmap.vmallocinfo(|area| println!("  {area:?}"));

    // SAFETY: nothing uses the addresses any more.
    unsafe { vmap.vm_unmap_ram(run, frames.len()) }?;
    // SAFETY: as above.
    unsafe { vmap.vfree(buffer) }?;
    println!("unmapped; the addresses wait for a TLB grace period, and no CPU was interrupted");

    // The frames must not be reused while a CPU may still translate to them.
    vmap.vm_unmap_aliases();
    for frame in frames {
        // SAFETY: every CPU has flushed, and nothing points to the frame.
        unsafe { sim.free(frame) }?;
    }
    Ok(())
}
