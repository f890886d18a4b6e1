//! Page tables on the machine in software: map, write, protect, pin, unmap.
//!
//! ```sh
//! cargo run -p samara-examples --bin page_tables
//! ```

use samara::machine::{
    Asid, Frame, FrameSource, NodePolicy, PageSize, Translated, VirtAddr, VirtRange,
};
use samara::paging::{Attrs, Flags, PageTables, Paging, X86_64L4};
use samara::sim::{Config, Grace, Sim};
use std::error::Error;

type Tables = PageTables<Sim, X86_64L4, Grace>;

/// Four pages at 16 MiB.
fn range() -> Option<VirtRange> {
    VirtRange::new(VirtAddr::new(0x100_0000), 0x4000)
}

fn main() -> Result<(), Box<dyn Error>> {
    let sim = Sim::new(Config::default())?;
    let paging = Paging::<Sim, X86_64L4>::try_new(sim.clone(), PageSize::Size1G)?;
    // CPU 0 runs the closure. The machine checks every access and every flush of it.
    let (tables, frames) = sim.on_cpu(0, || on_cpu_0(&sim, &paging))?;
    // CPU 0 has stopped, so no tables are active there.
    sim.on_cpu(0, || -> Result<(), Box<dyn Error>> {
        drop(tables);
        // SAFETY: the frames were unmapped and flushed, and nothing points to them.
        unsafe { sim.free(frames) }?;
        Ok(())
    })?;
    println!("done: {} TLB flushes, no violation", sim.stats().flushes);
    Ok(())
}

fn on_cpu_0(
    sim: &Sim,
    paging: &std::sync::Arc<Paging<Sim, X86_64L4>>,
) -> Result<(Tables, Frame), Box<dyn Error>> {
    let range = range().ok_or("the range is not valid")?;
    let tables = Tables::user(paging, Asid(1), None)?;
    // Four frames in a row.
    let frames = sim.alloc(2, NodePolicy::Local)?;
    // SAFETY: the frames are ours, and nothing is or was mapped in the range.
    unsafe { tables.map(range, frames, Attrs::USER_RW) }.map_err(|failed| failed.error)?;
    // SAFETY: this program needs nothing else mapped, and no other tables have the tag 1.
    unsafe { tables.activate() };

    // SAFETY: ordinary memory that no reference points to.
    unsafe { sim.store(range.start(), 42) }?;
    // SAFETY: as above.
    println!("the CPU reads {} through its translation", unsafe { sim.load(range.start()) }?);

    // SAFETY: nothing relies on the right to write.
    let pending = unsafe { tables.protect(range, Flags::READ | Flags::USER) };
    pending.map_err(|failed| failed.error)?.flush();
    // SAFETY: as above; the machine answers with a fault.
    let fault = unsafe { sim.store(range.start(), 43) }.err().ok_or("a store was allowed")?;
    println!("after protect: {fault}");

    // A pin keeps the frame, even if the page is unmapped meanwhile.
    let mut buffer = [frames; 4];
    // The last argument faults in pages that are missing; here none is.
    let pins = tables.get_user_pages_fast(range.start(), false, &mut buffer, |_, _| false)?;
    println!("pinned without a lock: {:?}", pins.frames());
    drop(pins);

    let mut dirty = 0;
    // SAFETY: nothing relies on the mapping any more.
    let pending = unsafe {
        tables.unmap(range, |page| dirty += usize::from(page.attrs.flags.contains(Flags::DIRTY)))
    };
    pending.map_err(|failed| failed.error)?.flush();
    println!("unmapped 4 pages, {dirty} of them dirty");
    Ok((tables, frames))
}
