//! A full space: calls find waiting addresses first, wherever they wait, and all of the space can
//! be used again.

use crate::common::*;
use machine::*;
use paging::{Attrs, Cache};
use sim::Config;
use vmap::{Error, Guard, Options};

fn world(cpus: usize, mib: u64, options: Options) -> World {
    World::new(Config { cpus, frames: 4096, ..Config::default() }, mib, options)
}

/// Also pages that were unmapped in a block while others already waited there.
#[test]
fn a_purge_gives_back_blocks_at_once() {
    world(1, 8, Options::default()).test(|world, vmap| {
        let frames = world.frames(64);
        let map = |pages| vmap.vm_map_ram(&frames[..pages], Attrs::KERNEL_RW).unwrap();
        let all: Vec<VirtAddr> = (0..8).map(|_| map(64)).collect();
        vmap.end_ram(all[3], 64).unwrap();
        // The first block is full, so unmapped pages wait there from now on.
        let last = map(1);
        for at in all.iter().filter(|at| **at != all[3]) {
            vmap.end_ram(*at, 64).unwrap();
        }
        vmap.end_ram(last, 1).unwrap();
        assert_eq!(vmap.get_vmalloc_info().used, 4 << 20);
        vmap.purge();
        assert_eq!(vmap.get_vmalloc_info().used, 0);
        assert_eq!(world.tlb_grace.stats().broadcasts, 1);
        vmap.purge();
        assert_eq!(world.tlb_grace.stats().broadcasts, 1, "nothing waits");
        world.release(&frames);
    });
}

/// Of the areas of one size, no more are kept than the limit; the others leave the tree.
#[test]
fn no_more_is_kept_than_the_limit() {
    const LIMIT: u64 = 256;
    world(1, 256, Options::default()).test(|world, _| {
        let (vmap, frames) = (world.vmap(), world.frames(1));
        let map = |_| vmap.vmap(&frames, Attrs::KERNEL_RW).unwrap();
        let at: Vec<VirtAddr> = (0..LIMIT + 100).map(map).collect();
        at.iter().for_each(|at| vmap.end_vmap(*at).unwrap());
        vmap.vm_unmap_aliases();
        vmap.poll();
        let info = vmap.get_vmalloc_info();
        assert_eq!((info.used, info.waiting, info.kept), (0, 0, LIMIT * 2 * PAGE));
        world.release(&frames);
    });
}

/// Areas of one size, which are kept, and of different sizes.
#[test]
fn a_purge_gives_back_kept_blocks() {
    world(1, 8, Options::default()).test(|_, vmap| {
        let at: Vec<VirtAddr> = (0..5).map(|_| vmap.vmalloc(1).unwrap()).collect();
        // SAFETY: no code uses it.
        at.iter().for_each(|at| unsafe { vmap.vfree(*at) }.unwrap());
        vmap.vm_unmap_aliases();
        vmap.poll();
        let info = vmap.get_vmalloc_info();
        assert_eq!((info.used, info.waiting, info.kept), (0, 0, 10 * PAGE));
        vmap.purge();
        let info = vmap.get_vmalloc_info();
        assert_eq!((info.kept, info.largest_free), (0, info.total / 2));
    });
}

/// Makes areas until the space is full.
fn fill(mut make: impl FnMut() -> Result<VirtAddr, Error>) -> Vec<VirtAddr> {
    let mut all = Vec::new();
    loop {
        match make() {
            Ok(at) => all.push(at),
            Err(Error::NoSpace(_)) => return all,
            Err(error) => panic!("{error}"),
        }
    }
}

/// Areas of one page fill the space completely. Their contents stay, and further calls fail. After
/// they are freed, all of the space can be used again.
#[test]
fn filled_with_pages() {
    let options = Options { guard: Guard::None, ..Options::default() };
    let world = world(2, 4, options);
    let frames = world.sim.on_cpu(0, || world.frames(600));
    let one = || world.vmap().vmap(&frames[..1], Attrs::KERNEL_RW);
    for round in 0..2 {
        // From the zones of both CPUs.
        let all = world.on(round, || fill(one));
        assert_eq!(all.len(), 1024);
        let mut pages: Vec<VirtAddr> = all.clone();
        pages.sort_unstable();
        pages.dedup();
        assert_eq!(pages.len(), 1024);
        world.on(1 - round, || {
            let vmap = world.vmap();
            all.iter().for_each(|at| assert_eq!(vmap.vmalloc_to_page(*at), Some(frames[0])));
            let before = mapped(vmap);
            let (free, no_space) = (world.sim.free_count(), Err(Error::NoSpace(PAGE)));
            assert_eq!(vmap.vmap(&frames[..1], Attrs::KERNEL_RW), no_space);
            assert_eq!(vmap.vm_map_ram(&frames[..1], Attrs::KERNEL_RW), no_space);
            assert_eq!(
                vmap.vm_map_ram(&frames[..65], Attrs::KERNEL_RW),
                Err(Error::NoSpace(65 * PAGE))
            );
            assert_eq!(vmap.vmalloc_huge(1), no_space);
            let device = PhysRange::new(PhysAddr::new(0xfee0_0000), 1).unwrap();
            assert_eq!(vmap.ioremap(device, Cache::Uncached), no_space);
            assert_eq!((mapped(vmap), world.sim.free_count()), (before, free));
            all.iter().for_each(|at| vmap.end_vmap(*at).unwrap());
        });
    }
    world.on(1, || world.release(&frames));
    world.end().unwrap();
}

/// Memory that cannot be moved stays unchanged at its address.
#[test]
fn no_space_to_grow() {
    world(1, 4, Options::default()).test(|world, vmap| {
        let at = vmap.vmalloc(1 << 20).unwrap();
        world.store(at, 5);
        let before = mapped(vmap);
        // SAFETY: only this test uses it.
        let grow = |bytes| unsafe { vmap.vrealloc(at, bytes) };
        assert_eq!(grow(4 << 20), Err(Error::NoSpace((4 << 20) + PAGE)));
        assert_eq!(grow((4 << 20) + 1), Err(Error::TooLarge((4 << 20) + 1)));
        assert_eq!((mapped(vmap), world.load(at)), (before, 5));
        let moved = grow(5 << 18).unwrap();
        assert_eq!(world.load(moved), 5);
        free(world, moved);
    });
}

/// A large page that grows needs an aligned range. A free range that is large enough, but not
/// aligned, is not taken.
#[test]
fn no_aligned_space_to_grow() {
    let range = VirtRange::new(virt(SPACE + (1 << 20) + PAGE), (9 << 20) + 3 * PAGE).unwrap();
    let config = Config { cpus: 1, frames: 6000, ..Config::default() };
    let options = Options { guard: Guard::None, ..Options::default() };
    let world = World::over(config, range, options);
    world.on(0, || {
        let vmap = world.vmap();
        let large = vmap.vmalloc_huge(2 << 20).unwrap();
        assert_eq!(large, virt(SPACE + (2 << 20)));
        let small = vmap.vmalloc(PAGE).unwrap();
        let bytes = (4 << 20) + 4 * PAGE + 1;
        // SAFETY: no code uses it.
        let moved = unsafe { vmap.vrealloc(large, bytes) };
        assert_eq!(moved, Err(Error::NoSpace((4 << 20) + 5 * PAGE)));
        assert_eq!(vmap.get_vmalloc_info().waiting, 0);
        free(&world, small);
        free(&world, large);
    });
    world.end().unwrap();
}

/// Small mappings fill all blocks, and then the rest of the space.
#[test]
fn filled_with_blocks() {
    // Two zones of 2 MiB, and 5 MiB, of which 1 MiB cannot be part of a block.
    let world = world(2, 9, Options::default());
    let frames = world.sim.on_cpu(0, || world.frames(64));
    let map = |pages| world.vmap().vm_map_ram(&frames[..pages], Attrs::KERNEL_RW);
    for round in 0..3 {
        let all = world.on(round % 2, || fill(|| map(64)));
        assert_eq!(all.len(), 9 * 4);
        let info = world.on(1 - round % 2, || {
            all.iter().for_each(|at| world.vmap().end_ram(*at, 64).unwrap());
            world.vmap().purge();
            world.vmap().get_vmalloc_info()
        });
        assert_eq!((info.used, info.largest_free), (0, 5 << 20), "round {round}");
    }
    world.on(0, || world.release(&frames));
    world.end().unwrap();
}

/// An area of the reported largest free size can be made, and no larger one.
#[test]
fn the_largest_that_is_free() {
    let options = Options { guard: Guard::None, ..Options::default() };
    let world = world(2, 16, options);
    let frames = world.sim.on_cpu(0, || world.frames(1));
    world.on(0, || {
        let vmap = world.vmap();
        let area = |pages: u64| {
            let frames = vec![frames[0]; pages as usize];
            vmap.vmap(&frames, Attrs::KERNEL_RW)
        };
        let mut all = Vec::new();
        for pages in [100, 700, 1, 30, 1000] {
            let largest = vmap.get_vmalloc_info().largest_free;
            let pages_free = largest / PAGE;
            assert_eq!(area(pages_free + 1), Err(Error::NoSpace(largest + PAGE)));
            let at = area(pages_free).unwrap();
            assert!(vmap.get_vmalloc_info().largest_free <= largest);
            vmap.end_vmap(at).unwrap();
            // It waits: less is free now, until a call needs it.
            all.push(area(pages).unwrap());
            vmap.purge();
        }
        all.iter().for_each(|at| vmap.end_vmap(*at).unwrap());
        world.release(&frames);
    });
    world.end().unwrap();
}

/// Finds addresses that wait in zones of CPUs that neither flush nor enter idle.
#[test]
fn waiting_addresses_of_other_cpus_are_found() {
    let world = world(3, 16, Options { guard: Guard::None, ..Options::default() });
    let frames = world.sim.on_cpu(0, || world.frames(1));
    let one = |pages| world.vmap().vmap(&vec![frames[0]; pages], Attrs::KERNEL_RW);
    // Each fills its own zone, and two of them do not enter idle.
    for cpu in 0..3 {
        world.sim.on_cpu(cpu, || {
            world.start();
            let all: Vec<VirtAddr> = (0..512).map(|_| one(1).unwrap()).collect();
            all.iter().for_each(|at| world.store(*at, 1));
            all.iter().for_each(|at| world.vmap().end_vmap(*at).unwrap());
            if cpu == 0 {
                world.stop();
            }
        });
    }
    let before = world.sim.stats().ipis_sent;
    world.on(0, || {
        let vmap = world.vmap();
        let waits = vmap.get_vmalloc_info().waiting;
        assert!(waits >= 2 << 20, "{waits}");
        // The common zone first; then nothing is free except waiting addresses.
        let common = one((10 << 20) / PAGE as usize).unwrap();
        let all: Vec<VirtAddr> = (0..3 * 512).map(|_| one(1).unwrap()).collect();
        assert_eq!(one(1), Err(Error::NoSpace(PAGE)));
        all.iter().chain([&common]).for_each(|at| vmap.end_vmap(*at).unwrap());
        world.release(&frames);
    });
    assert!(world.sim.stats().ipis_sent - before <= 10, "one broadcast for many");
    world.end().unwrap();
}

/// Blocks of this CPU in which all pages wait are given back when a call needs their addresses.
#[test]
fn blocks_make_way() {
    world(1, 4, Options::default()).test(|world, _| {
        let (vmap, frames) = (world.vmap(), world.frames(64));
        let all = fill(|| vmap.vm_map_ram(&frames, Attrs::KERNEL_RW));
        assert_eq!(all.len(), 16);
        assert_eq!(vmap.vmalloc(1), Err(Error::NoSpace(2 * PAGE)));
        all.iter().for_each(|at| vmap.end_ram(*at, 64).unwrap());
        assert_eq!(vmap.get_vmalloc_info().used, 4 << 20);
        let at = vmap.vmalloc(1 << 20).unwrap();
        free(world, at);
        world.release(&frames);
    });
}
