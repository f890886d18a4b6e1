//! A space that is full: what waits is found first, in whatever it waits, and all of it can be used again.

mod common;

use common::*;
use machine::*;
use paging::Attrs;
use sim::Config;
use vmap::Options;

fn world(cpus: usize, mib: u64, options: Options) -> World {
    World::new(Config { cpus, frames: 4096, ..Config::default() }, mib, options)
}

/// What was unmapped in a block while another part of it waited already, too.
#[test]
fn a_purge_gives_back_blocks_at_once() {
    let world = world(1, 8, Options::default());
    world.on(0, || {
        let vmap = world.vmap();
        let frames = world.frames(64);
        let map = |pages| vmap.vm_map_ram(&frames[..pages], Attrs::KERNEL_RW).unwrap();
        let all: Vec<VirtAddr> = (0..8).map(|_| map(64)).collect();
        vmap.vm_unmap_ram(all[3], 64).unwrap();
        // Nothing is left of the first block, so what was unmapped waits there from now on.
        let last = map(1);
        for at in all.iter().filter(|at| **at != all[3]) {
            vmap.vm_unmap_ram(*at, 64).unwrap();
        }
        vmap.vm_unmap_ram(last, 1).unwrap();
        assert_eq!(vmap.get_vmalloc_info().used, 4 << 20);
        vmap.purge();
        assert_eq!(vmap.get_vmalloc_info().used, 0);
        assert_eq!(world.flushes.stats().broadcasts, 2);
        vmap.purge();
        assert_eq!(world.flushes.stats().broadcasts, 2, "nothing waits");
        world.release(&frames);
    });
    world.end().unwrap();
}

/// Of one size, for which they are kept, or of any other.
#[test]
fn a_purge_gives_back_what_is_kept() {
    let world = world(1, 8, Options::default());
    world.on(0, || {
        let vmap = world.vmap();
        let at: Vec<VirtAddr> = (0..5).map(|_| vmap.vmalloc(1).unwrap()).collect();
        // SAFETY: nobody uses it.
        at.iter().for_each(|at| unsafe { vmap.vfree(*at) }.unwrap());
        vmap.vm_unmap_aliases();
        vmap.poll();
        let info = vmap.get_vmalloc_info();
        assert_eq!((info.used, info.waiting, info.kept), (0, 0, 10 * PAGE));
        vmap.purge();
        let info = vmap.get_vmalloc_info();
        assert_eq!((info.kept, info.largest_free), (0, info.total / 2));
    });
    world.end().unwrap();
}
