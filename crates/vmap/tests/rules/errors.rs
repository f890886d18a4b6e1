//! Calls that fail leave everything as it was, and calls on the wrong area change nothing (I7).

use crate::common::*;
use machine::*;
use paging::{Attrs, Cache, Format, Geometry, X86_64L4};
use sim::Config;
use vmap::{Allocation, Contents, Error, Made, Options, Request};

fn world() -> World {
    World::new(Config { cpus: 1, frames: 4096, ..Config::default() }, 64, Options::default())
}

/// So many pages of a device.
fn device(pages: u64) -> PhysRange {
    PhysRange::new(Frame::new(1 << 30).unwrap().start(), pages * PAGE).unwrap()
}

/// Each call that ends an area refuses the areas of the other calls, which stay mapped.
#[test]
fn areas_of_other_kinds() {
    world().test(|world, _| {
        let (vmap, frames) = (world.vmap(), world.frames(100));
        let areas = [
            (vmap.vmap(&frames[..3], Attrs::KERNEL_RW).unwrap(), Made::Vmap),
            (vmap.vm_map_ram(&frames, Attrs::KERNEL_RW).unwrap(), Made::Ram),
            (vmap.vmalloc(3 * PAGE).unwrap(), Made::Vmalloc),
            (vmap.ioremap(device(3), Cache::Uncached).unwrap(), Made::Ioremap),
        ];
        let end = |at: VirtAddr, by: Made| match by {
            Made::Vmap => vmap.end_vmap(at),
            Made::Ram => vmap.end_ram(at, 100),
            Made::Vmalloc => try_free(world, at),
            _ => vmap.end_io(at),
        };
        let before = mapped(vmap);
        for (at, made) in areas {
            for by in areas.map(|(_, made)| made).into_iter().filter(|by| *by != made) {
                let refused = end(at, by);
                assert!(matches!(refused, Err(Error::WrongKind(_))), "{made:?} by {by:?}");
            }
            // SAFETY: it must be refused.
            let refused = unsafe { vmap.vfree_atomic(at) };
            assert_eq!(refused.is_ok(), made == Made::Vmalloc);
            if made == Made::Vmalloc {
                assert!(matches!(end(at, made), Err(Error::Twice(_))));
            }
        }
        assert_eq!(mapped(vmap).len(), before.len());
        for (at, made) in areas.into_iter().filter(|(_, made)| *made != Made::Vmalloc) {
            end(at, made).unwrap();
        }
        world.release(&frames);
    });
}

/// An unmapping that finds corrupted page tables fails, and succeeds once they are mended.
#[test]
fn an_area_whose_unmapping_failed_can_be_unmapped() {
    world().test(|world, _| {
        let (vmap, frames) = (world.vmap(), world.frames(70));
        let end = |at: VirtAddr, made: Made| match made {
            Made::Vmap => vmap.end_vmap(at),
            Made::Ram => vmap.end_ram(at, 70),
            _ => vmap.end_io(at),
        };
        let areas = [
            (vmap.vmap(&frames, Attrs::KERNEL_RW).unwrap(), Made::Vmap),
            (vmap.vm_map_ram(&frames, Attrs::KERNEL_RW).unwrap(), Made::Ram),
            (vmap.ioremap(device(9), Cache::Uncached).unwrap(), Made::Ioremap),
        ];
        // In the top-level table, an entry for a page is malformed.
        let top = X86_64L4::index(areas[0].0, X86_64L4::LEVELS - 1);
        // SAFETY: the top-level table, whose entry is put back before anything is accessed.
        let entry = unsafe { world.sim.entry(vmap.tables().root(), top) }.unwrap();
        for (at, made) in areas {
            let right = entry.load();
            entry.store(right | 1 << 7);
            let failed = end(at, made);
            entry.store(right);
            assert!(matches!(failed, Err(Error::Tables(_))), "{failed:?}");
            end(at, made).unwrap();
            assert!(matches!(end(at, made), Err(Error::Twice(_))));
        }
        world.release(&frames);
    });
}

/// Each of the small pages of a large one is zeroed.
#[test]
fn large_pages_are_zeroed() {
    world().test(|world, vmap| {
        let (sim, vmap) = (&world.sim, vmap);
        let size = PageSize::Size2M;
        // The frames that are allocated next were written before.
        let blocks: Vec<_> =
            std::iter::from_fn(|| sim.alloc(size.order(), NodePolicy::Local).ok()).collect();
        for block in &blocks {
            // SAFETY: it is ours.
            unsafe { sim.frame_ptr(*block).unwrap().write_bytes(0xaa, size.bytes() as usize) };
        }
        world.release(&blocks);
        let memory = Allocation { zero: true, huge: true, ..Allocation::new(2 * size.bytes()) };
        let at = vmap.create(&Request::new(Contents::Memory(memory))).unwrap();
        let guard = <sim::Grace as grace::Reclaim>::pin();
        assert_eq!(vmap.tables().walk(&guard).get(at).unwrap().size, size);
        drop(guard);
        for page in 0..2 * size.frames() {
            let at = plus(at, page * PAGE);
            assert_eq!((world.load(at), world.load(plus(at, PAGE - 8))), (0, 0), "page {page}");
        }
        free(world, at);
    });
}

/// A large page for which there are no page tables is given back.
#[test]
fn a_large_page_without_tables_is_given_back() {
    world().test(|world, vmap| {
        let (sim, vmap) = (&world.sim, vmap);
        let size = PageSize::Size2M;
        let before = sim.allocated().len();
        // There is memory for the page. Nothing was mapped here before, so tables are needed.
        sim.fail_alloc(2, true);
        let failed = vmap.vmalloc_huge(size.bytes());
        assert!(sim.alloc_failed(), "no table was needed");
        assert!(matches!(failed, Err(Error::Frames(_))), "{failed:?}");
        assert_eq!(sim.allocated().len(), before);
    });
}

/// A small map that fails gives back its own run, and not its neighbours'.
#[test]
fn a_small_map_that_fails_gives_back_its_run() {
    world().test(|world, _| {
        let (vmap, frames) = (world.vmap(), world.frames(4));
        let beyond = Frame::new(Frame::LIMIT - 1).unwrap();
        let map = |pages: usize| vmap.vm_map_ram(&frames[..pages], Attrs::KERNEL_RW);
        for pages in [1, 2, 3] {
            // Its neighbours stay; the pages behind are taken next.
            let before = map(pages).unwrap();
            let mut bad = frames[..pages].to_vec();
            bad[pages - 1] = beyond;
            let failed = vmap.vm_map_ram(&bad, Attrs::KERNEL_RW);
            assert!(matches!(failed, Err(Error::Tables(_))), "{failed:?}");
            let behind = map(pages).unwrap();
            assert_eq!(behind, plus(before, 2 * pages as u64 * PAGE));
            // The block is used up several times, and its given-back pages are used again.
            for _ in 0..2000 / pages {
                let at = map(pages).unwrap();
                let taken = at.get()..at.get() + pages as u64 * PAGE;
                assert!(!taken.contains(&before.get()) && !taken.contains(&behind.get()));
                vmap.end_ram(at, pages).unwrap();
            }
            vmap.end_ram(before, pages).unwrap();
            vmap.end_ram(behind, pages).unwrap();
            vmap.purge();
        }
        // Nothing is in use, so no block is left.
        assert_eq!(vmap.get_vmalloc_info().used, 0, "a run is lost");
        world.release(&frames);
    });
}
