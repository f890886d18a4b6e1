//! Memory runs out at each place where a call allocates frames, once or permanently. The call
//! returns an error, everything is as before (I7), and a retry succeeds.

use crate::common::*;
use machine::*;
use paging::{Attrs, Cache};
use sim::Config;
use std::cell::Cell;
use vmap::{AreaInfo, Error, Guard, Request};

fn is_short(error: Error) -> bool {
    matches!(error, Error::Frames(FrameError::OutOfFrames { .. }))
}

/// All state that a failed call must preserve: the mapped areas, the contents of their pages, and
/// the number of frames used for anything but page tables.
fn look(world: &World) -> (Vec<AreaInfo>, Vec<Vec<[u8; 24]>>, usize) {
    let list = mapped(world.vmap());
    let bytes = |info: &AreaInfo| {
        let mut bytes = vec![[0; 24]; (info.range.len() / PAGE) as usize];
        for (page, bytes) in bytes.iter_mut().enumerate() {
            // SAFETY: no code writes meanwhile.
            unsafe { world.vmap().vread(plus(info.range.start(), page as u64 * PAGE), bytes) };
        }
        bytes
    };
    let bytes = list.iter().map(bytes).collect();
    let is_used = |owner| matches!(owner, Owner::Raw | Owner::Kernel | Owner::User);
    let frames = world.sim.allocated().into_iter().filter(|block| is_used(block.owner));
    (list, bytes, frames.map(|block| 1 << block.order).sum())
}

/// Runs `what` after `prepare`, and lets another of its frame allocations fail each time. Returns
/// the number of these allocations.
fn sweep<T>(
    prepare: impl Fn(&World) -> T,
    what: impl Fn(&World, &T) -> Result<(), Error>,
    undo: impl Fn(&World, T),
) -> u64 {
    let count = |lasting| {
        let fails = |nth: &u64| once(&prepare, &what, &undo, *nth, lasting);
        (1..).take_while(fails).count() as u64
    };
    count(false);
    count(true)
}

/// Lets allocation `nth` fail. Returns whether there was such an allocation.
fn once<T>(
    prepare: impl Fn(&World) -> T,
    what: impl Fn(&World, &T) -> Result<(), Error>,
    undo: impl Fn(&World, T),
    nth: u64,
    lasting: bool,
) -> bool {
    let world = World::new(
        Config { cpus: 1, frames: 6144, events: 0, ..Config::default() },
        32,
        vmap::Options::default(),
    );
    let failed = world.on(0, || {
        let prepared = prepare(&world);
        let before = look(&world);
        world.sim.fail_alloc(nth, lasting);
        let result = what(&world, &prepared);
        let failed = world.sim.alloc_failed();
        assert!(failed || result.is_ok(), "{result:?}");
        assert!(!failed || !lasting || result.is_err(), "it went on without memory");
        if let Err(error) = result {
            assert!(is_short(error), "{error}");
            assert!(look(&world) == before, "allocation {nth}");
            // With memory, the same call succeeds.
            what(&world, &prepared).unwrap();
        }
        undo(&world, prepared);
        failed
    });
    world.end().unwrap();
    failed
}

/// Sweeps a call that makes an area, next to another area with contents; then `unmake` removes it.
/// `make` gets so many frames.
fn making(
    frames: usize,
    make: impl Fn(&World, &[Frame]) -> Result<VirtAddr, Error>,
    unmake: impl Fn(&World, VirtAddr),
) -> u64 {
    let made = Cell::new(None);
    let prepare = |world: &World| {
        let neighbour = world.vmap().vzalloc(3 * PAGE).unwrap();
        world.store(plus(neighbour, PAGE), 7);
        (neighbour, world.frames(frames))
    };
    let what = |world: &World, (_, frames): &(VirtAddr, Vec<Frame>)| {
        made.set(Some(make(world, frames)?));
        Ok(())
    };
    let undo = |world: &World, (neighbour, frames): (VirtAddr, Vec<Frame>)| {
        unmake(world, made.take().unwrap());
        free(world, neighbour);
        world.release(&frames);
    };
    sweep(prepare, what, undo)
}

#[test]
fn maps_of_frames() {
    let vunmap = |world: &World, at| world.vmap().end_vmap(at).unwrap();
    let vmap = |world: &World, frames: &[Frame]| world.vmap().vmap(frames, Attrs::KERNEL_RW);
    // The neighbour has already allocated the page-table pages, except those of the next 2 MiB.
    assert_eq!(making(5, vmap, vunmap), 0);
    assert_eq!(making(600, vmap, vunmap), 1);
    for pages in [1, 64, 65, 600] {
        let map =
            |world: &World, frames: &[Frame]| world.vmap().vm_map_ram(frames, Attrs::KERNEL_RW);
        let unmap = |world: &World, at| world.vmap().end_ram(at, pages).unwrap();
        // A block has a page-table page of its own.
        let tables = if pages == 65 { 0 } else { 1 };
        assert_eq!(making(pages, map, unmap), tables, "{pages} pages");
    }
}

#[test]
fn memory() {
    assert_eq!(making(0, |world, _| world.vmap().vmalloc(1), free), 1);
    assert_eq!(making(0, |world, _| world.vmap().vmalloc(70 * PAGE), free), 70);
    assert_eq!(making(0, |world, _| world.vmap().vzalloc(5 * PAGE), free), 5);
    assert_eq!(making(0, |world, _| world.vmap().vmalloc_node(5 * PAGE, NodeId(0)), free), 5);
    let bare = Request { guard: Some(Guard::None), ..Request::memory(9 * PAGE) };
    assert_eq!(making(0, |world, _| world.vmap().create(&bare), free), 9);
    let stack = Request { align: 16 * PAGE, guard: Some(Guard::Both), ..Request::memory(9 * PAGE) };
    assert_eq!(making(0, |world, _| world.vmap().create(&stack), free), 9);
    // In 2 MiB that need a page-table page of their own.
    let there = Request { at: Some(virt(SPACE + (20 << 20))), ..stack };
    assert_eq!(making(0, |world, _| world.vmap().create(&there), free), 10);
    // A large page, a small page and its page-table page, and possibly a page-table page for large
    // pages. If there is no large page, small ones.
    assert!(making(0, |world, _| world.vmap().vmalloc_huge((2 << 20) + 1), free) >= 3);
}

#[test]
fn devices() {
    let unmap = |world: &World, at| world.vmap().end_io(at).unwrap();
    let device = |start, len| PhysRange::new(PhysAddr::new(start), len).unwrap();
    let small = device(0xfee0_0123, 0x2000);
    assert_eq!(making(0, |world, _| world.vmap().ioremap(small, Cache::Uncached), unmap), 0);
    // Crosses the boundary of a large page at each end.
    let large = device((1 << 30) - 0x1000, (4 << 20) + 0x2000);
    assert!(making(0, |world, _| world.vmap().ioremap(large, Cache::Uncached), unmap) >= 1);
}

/// Grows memory; its contents are preserved wherever the call fails.
fn growing(prepare: impl Fn(&World) -> VirtAddr, bytes: u64) -> u64 {
    let to = Cell::new(None);
    let prepare = |world: &World| {
        let at = prepare(world);
        world.store(plus(at, 8), 77);
        world.store(plus(at, (2 << 20) + 16), 78);
        at
    };
    let what = |world: &World, at: &VirtAddr| {
        // SAFETY: only the preserved memory is used.
        to.set(Some(unsafe { world.vmap().vrealloc(*at, bytes) }?));
        Ok(())
    };
    let undo = |world: &World, _| {
        let at = to.take().unwrap();
        assert_eq!(world.load(plus(at, 8)), 77);
        assert_eq!(world.load(plus(at, (2 << 20) + 16)), 78);
        free(world, at);
    };
    sweep(prepare, what, undo)
}

#[test]
fn larger_memory() {
    let small = |world: &World| world.vmap().vmalloc((2 << 20) + PAGE).unwrap();
    // The pages, and a page-table page for each boundary that it crosses.
    let count = growing(small, (2 << 20) + 6 * PAGE);
    assert!((6..=7).contains(&count), "{count}");
    let large = |world: &World| world.vmap().vmalloc_huge(4 << 20).unwrap();
    assert_eq!(growing(large, (4 << 20) + 5 * PAGE), 6);
}

/// When no large page was available at first: a large page follows small pages, and stays large.
#[test]
fn larger_memory_of_mixed_pages() {
    let mixed = |world: &World| {
        world.sim.fail_alloc(1, false);
        let at = world.vmap().vmalloc_huge(4 << 20).unwrap();
        assert!(world.sim.alloc_failed());
        let guard = <sim::Grace as grace::Reclaim>::pin();
        let size = |offset| world.vmap().tables().walk(&guard).get(plus(at, offset)).unwrap().size;
        assert_eq!((size(0), size(2 << 20)), (PageSize::Size4K, PageSize::Size2M));
        at
    };
    assert!(growing(mixed, (4 << 20) + 5 * PAGE) >= 6);
}

/// Calls that give memory back need no memory.
#[test]
fn giving_back() {
    let smaller = |world: &World, at: &VirtAddr| {
        // SAFETY: only the preserved memory is used.
        unsafe { world.vmap().vrealloc(*at, 5) }.map(drop)
    };
    assert_eq!(sweep(|world| world.vmap().vmalloc(200 * PAGE).unwrap(), smaller, free), 0);
    let all = |world: &World, (at, frames): &([VirtAddr; 6], Vec<Frame>)| {
        let vmap = world.vmap();
        vmap.end_vmap(at[0])?;
        vmap.end_ram(at[1], 5)?;
        vmap.end_ram(at[2], 100)?;
        vmap.end_io(at[3])?;
        // SAFETY: no code uses them.
        unsafe {
            vmap.vfree(at[4])?;
            vmap.vfree_atomic(at[5])?;
        }
        vmap.poll();
        vmap.idle();
        vmap.purge();
        vmap.vm_unmap_aliases();
        world.release(frames);
        Ok(())
    };
    let prepare = |world: &World| {
        let (vmap, frames) = (world.vmap(), world.frames(100));
        let device = PhysRange::new(PhysAddr::new(0xfee0_0000), 0x1000).unwrap();
        let at = [
            vmap.vmap(&frames, Attrs::KERNEL_RW).unwrap(),
            vmap.vm_map_ram(&frames[..5], Attrs::KERNEL_RW).unwrap(),
            vmap.vm_map_ram(&frames, Attrs::KERNEL_RW).unwrap(),
            vmap.ioremap(device, Cache::Uncached).unwrap(),
            vmap.vmalloc(99 * PAGE).unwrap(),
            vmap.vmalloc_huge(2 << 20).unwrap(),
        ];
        (at, frames)
    };
    assert_eq!(sweep(prepare, all, |_, _| ()), 0);
}
