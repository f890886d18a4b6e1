//! The decisions of a host about memory: the amount that it promises, the reaction when a group of
//! programs has reached its limit, and the memory of a device that programs may map.
//!
//! ```sh
//! cargo run -p samara-examples --bin host_limits
//! ```

use samara::machine::{Asid, Frame, FrameRange, PageSize};
use samara::mm::{
    AddressSpace, Advice, Backing, Commitment, DeviceMemory, FrameGroup, Layout, MapFlags, OnLimit,
    Overcommit, Profile,
};
use samara::paging::{Cache, Paging, X86_64L4};
use samara::sim::{Config, Grace, Sim};
use std::{
    error::Error,
    sync::{Arc, OnceLock, Weak},
};

type Space = AddressSpace<Sim, X86_64L4, Grace>;

const PAGE: usize = 4096;
const ANONYMOUS: MapFlags = MapFlags::PRIVATE.union(MapFlags::ANONYMOUS);

/// A host that discards a cache of its program when the group is full, as a kernel would reclaim.
struct Discards {
    space: Arc<OnceLock<Weak<Space>>>,
    cache: Arc<OnceLock<usize>>,
}

impl OnLimit for Discards {
    fn make_room(&self, needed: usize) -> bool {
        let (space, cache) = (self.space.get().and_then(Weak::upgrade), self.cache.get());
        let Some((space, &cache)) = space.zip(cache) else { return false };
        let had = space.resident(cache..cache + 4 * PAGE);
        println!("  the group is full, {needed} needed: the host discards {had} pages of a cache");
        had > 0 && space.madvise(cache, 4 * PAGE, Advice::DontNeed).is_ok()
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let sim = Sim::new(Config::default())?;
    let paging = Paging::<Sim, X86_64L4>::try_new(sim.clone(), PageSize::Size1G)?;
    let layout = Layout { mmap_base: 0x7fff_0000_0000, ..Layout::default() };
    sim.on_cpu(0, || -> Result<(), Box<dyn Error>> {
        let mut space = Space::try_new(&paging, Asid(1), None, Profile::LINUX_6_18, layout)?;

        // Private writable memory is promised when it is mapped, not when it is touched.
        let promises = Commitment::try_new(&sim, Overcommit::Never { limit: 32 * PAGE })?;
        space.set_commitment(&promises);
        let (known, cache) = (Arc::new(OnceLock::new()), Arc::new(OnceLock::new()));
        let host = Discards { space: Arc::clone(&known), cache: Arc::clone(&cache) };
        let group = FrameGroup::try_new(&sim, 8, Box::new(host))?;
        space.set_group(&group)?;
        let space = Arc::new(space);
        let _ = known.set(Arc::downgrade(&space));

        let at = space.mmap(0, 24 * PAGE, 3, ANONYMOUS)?;
        println!("promised: {} of 32 pages", promises.promised() / PAGE);
        if let Err(error) = space.mmap(0, 16 * PAGE, 3, ANONYMOUS) {
            println!("16 more: {error}");
        }

        // The pages of the program, and those of a cache that it can do without.
        let _ = cache.set(at + 16 * PAGE);
        space.write(at + 16 * PAGE, &[1; 4 * PAGE])?;
        space.write(at, &[2; 8 * PAGE])?;
        println!("in use: {} of {} frames", group.used(), group.limit());

        // A device: its registers are no memory of the machine.
        let frames = FrameRange::new(Frame::new(1 << 24).ok_or("a frame")?, 2).ok_or("a range")?;
        // SAFETY: no device is there, so a program that maps it changes nothing.
        let device = unsafe {
            DeviceMemory::try_new(&paging, frames, Cache::Uncached, "/dev/gpu", (10, 1), 5)
        }?;
        let registers = Backing::open(device, true)?;
        space.mmap_object(0, 2 * PAGE, 3, MapFlags::SHARED, registers, 0)?;
        let mut listing = String::new();
        space.write_maps(&mut listing)?;
        print!("{listing}");
        Ok(())
    })
}
