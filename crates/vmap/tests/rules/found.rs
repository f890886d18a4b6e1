//! Regression tests for bugs found by review.

use crate::common::*;
use machine::*;
use paging::{Attrs, Flags};
use sim::Config;
use vmap::{Allocation, Contents, Error, Guard, Options, Request};

fn world(cpus: usize, mib: u64) -> World {
    World::new(Config { cpus, frames: 8192, ..Config::default() }, mib, Options::default())
}

/// A large page behind small ones stays large when the area is moved, and is freed whole.
#[test]
fn a_large_page_behind_small_ones_is_moved_whole() {
    world(1, 64).test(|world, vmap| {
        world.sim.fail_alloc(1, false);
        let at = vmap.vmalloc_huge(4 << 20).unwrap();
        assert!(world.sim.alloc_failed());
        assert_eq!(page(world, at).size, PageSize::Size4K);
        let other = vmap.vmalloc(PAGE).unwrap();
        // SAFETY: only the new address is used.
        let at = unsafe { vmap.vrealloc(at, 5 << 20) }.unwrap();
        assert_eq!(page(world, plus(at, 2 << 20)).size, PageSize::Size2M);
        free(world, at);
        free(world, other);
    });
}

/// The attributes of memory and its guard page are kept when it grows; so are the attributes of
/// each page.
#[test]
fn a_grown_area_keeps_its_contents() {
    world(1, 64).test(|world, vmap| {
        let read_only = Attrs::new(Flags::READ | Flags::GLOBAL);
        let memory = Allocation { attrs: Some(read_only), ..Allocation::new(2 * PAGE) };
        let wanted = Request::new(Contents::Memory(memory));
        let at = vmap.create(&Request { guard: Some(Guard::None), ..wanted }).unwrap();
        // SAFETY: as above.
        let at = unsafe { vmap.vrealloc(at, 5 * PAGE) }.unwrap();
        assert_eq!(vmap.find_vm_area(at).unwrap().range.len(), 5 * PAGE);
        assert_eq!(page(world, plus(at, 4 * PAGE)).attrs.flags, read_only.flags);
        free(world, at);
        let at = vmap.vmalloc(3 * PAGE).unwrap();
        let second = VirtRange::new(plus(at, PAGE), PAGE).unwrap();
        // SAFETY: a page of the area that was just made.
        unsafe { vmap.tables().protect(second, Flags::READ) }.unwrap().flush();
        // SAFETY: as above.
        let at = unsafe { vmap.vrealloc(at, 6 * PAGE) }.unwrap();
        let writable =
            |number| page(world, plus(at, number * PAGE)).attrs.flags.contains(Flags::WRITE);
        assert_eq!([0, 1, 2, 3].map(writable), [true, false, true, true]);
        free(world, at);
    });
}

/// A broadcast interrupts the CPUs that are behind, and no others.
#[test]
fn only_cpus_behind_are_interrupted() {
    let world = world(4, 64);
    for cpu in 0..4 {
        world.sim.on_cpu(cpu, || world.start());
    }
    let target = world.sim.on_cpu(0, || {
        let target = world.tlb_grace.target();
        assert!(!world.tlb_grace.advance(target), "it begins");
        target
    });
    for cpu in [0, 1, 3] {
        world.sim.on_cpu(cpu, || world.tlb_grace.tick());
    }
    world.sim.on_cpu(0, || {
        world.tlb_grace.expedite(target);
        assert!(world.tlb_grace.is_over(target));
    });
    assert_eq!((world.tlb_grace.stats().interrupted, world.sim.stats().ipis_sent), (1, 1));
    (0..4).for_each(|cpu| world.sim.on_cpu(cpu, || world.stop()));
    world.end().unwrap();
}

/// If there is no room for a block, small mappings do not force a flush each time; nor do requests
/// that can never succeed.
#[test]
fn a_space_without_blocks_is_quiet() {
    let world = world(4, 1);
    (0..4).for_each(|cpu| world.sim.on_cpu(cpu, || world.start()));
    world.sim.on_cpu(0, || {
        let frames = world.frames(4);
        for _ in 0..100 {
            let at = world.vmap().vm_map_ram(&frames, Attrs::KERNEL_RW).unwrap();
            world.vmap().end_ram(at, 4).unwrap();
        }
        world.release(&frames);
        assert!(world.tlb_grace.stats().broadcasts <= 2, "{:?}", world.tlb_grace.stats());
        let before = world.tlb_grace.stats().broadcasts;
        assert!(matches!(world.vmap().vmalloc(1 << 20), Err(Error::NoSpace(_))));
        assert_eq!(world.tlb_grace.stats().broadcasts, before, "no zone is so large");
    });
    (0..4).for_each(|cpu| world.sim.on_cpu(cpu, || world.stop()));
    world.end().unwrap();
}

/// Areas that were freed in interrupts are available to calls that lack memory or space, and are
/// freed when the space is dropped.
#[test]
fn areas_freed_in_interrupts_are_found() {
    let mut world = world(1, 64);
    let pending_free = |world: &World| {
        let at = world.vmap().vmalloc(6000 * PAGE).unwrap();
        let _interrupt = world.sim.irqs_off();
        // SAFETY: no code uses it.
        unsafe { world.vmap().vfree_atomic(at) }.unwrap();
    };
    world.on(0, || {
        pending_free(&world);
        let at = world.vmap().vmalloc(6000 * PAGE).unwrap();
        free(&world, at);
    });
    world.sim.on_cpu(0, || {
        world.start();
        pending_free(&world);
        // SAFETY: no code on this CPU uses an area.
        unsafe { world.tlb_grace.idle_enter() };
    });
    let space = world.space.take().unwrap();
    world.sim.on_cpu(0, || drop(space));
    world.sim.on_cpu(0, || {
        assert!(world.sim.settle());
        world.paging.quick().drain();
    });
    world.sim.check_leaks().unwrap();
}

/// If small pages were mapped before, a large area costs one flush, not one per large page.
#[test]
fn large_pages_make_way_once() {
    let world = world(2, 64);
    (0..2).for_each(|cpu| world.sim.on_cpu(cpu, || world.start()));
    world.sim.on_cpu(0, || {
        let small = world.vmap().vmalloc(16 << 20).unwrap();
        free(&world, small);
        world.vmap().purge();
        let before = world.sim.stats().ipis_sent;
        let large = world.vmap().vmalloc_huge(16 << 20).unwrap();
        assert_eq!(page(&world, large).size, PageSize::Size2M);
        assert!(world.sim.stats().ipis_sent <= before + 1);
        free(&world, large);
    });
    (0..2).for_each(|cpu| world.sim.on_cpu(cpu, || world.stop()));
    world.end().unwrap();
}

/// If no free range begins at the alignment of a large page, small pages are used.
#[test]
fn large_pages_are_not_a_must() {
    world(1, 3).test(|world, vmap| {
        let wall = vmap.vmalloc(PAGE).unwrap();
        let at = vmap.vmalloc_huge(2 << 20).unwrap();
        assert_eq!(page(world, at).size, PageSize::Size4K);
        free(world, at);
        free(world, wall);
    });
}

/// In debug builds, the error for a wrong unmapping of a run names the call site that mapped the
/// run, not the one that created its block.
#[test]
fn a_run_is_its_callers() {
    world(1, 64).test(|world, vmap| {
        let frames = world.frames(4);
        let first = vmap.vm_map_ram(&frames, Attrs::KERNEL_RW).unwrap();
        let (second, line) = (vmap.vm_map_ram(&frames, Attrs::KERNEL_RW).unwrap(), line!());
        let Err(Error::WrongSize { area, .. }) = vmap.end_ram(second, 3) else {
            panic!("it has four pages")
        };
        assert_eq!(area.by.map(|by| by.line()), cfg!(debug_assertions).then_some(line));
        vmap.end_ram(first, 4).unwrap();
        vmap.end_ram(second, 4).unwrap();
        world.release(&frames);
    });
}

/// The listing is in ascending order, even if an area that is made meanwhile covers addresses of
/// areas that were already listed.
#[cfg(feature = "listing")]
#[test]
fn an_area_made_meanwhile_is_not_listed_behind_its_place() {
    world(1, 64).test(|world, vmap| {
        let one = |pages| Request { guard: Some(Guard::None), ..Request::memory(pages * PAGE) };
        let mut areas: Vec<_> = (0..200).map(|_| vmap.create(&one(1)).unwrap()).collect();
        assert!(areas.windows(2).all(|two| plus(two[0], PAGE) == two[1]));
        let mut listed = Vec::new();
        let mut made = None;
        vmap.vmallocinfo(|info| {
            listed.push(info.range.start());
            // In the middle of a read-side section of the listing, whatever its length.
            if listed.len() % 16 == 0 && made.is_none() && listed.len() >= 64 {
                let (first, last) = (listed.len() - 2, listed.len() + 2);
                areas.drain(first..last).for_each(|at| free(world, at));
                vmap.purge();
                made = Some(vmap.create(&one(4)).unwrap());
                assert_eq!(made, Some(listed[first]));
            }
        });
        assert!(listed.is_sorted() && listed.len() >= 196, "{listed:?}");
        areas.into_iter().chain(made).for_each(|at| free(world, at));
    });
}
