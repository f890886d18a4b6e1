//! The heap fails at each place where a call allocates from it, once or permanently. The call
//! returns an error, everything is as before (I7), and a retry succeeds. Calls that give something
//! back succeed without the heap.

mod common;

use common::{Ends, PAGE, SPACE, mapped, virt};
use machine::*;
use paging::{Attrs, Cache, PageTables, Paging, X86_64L4};
use sim::{Bare, BareGrace};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::Arc;
use vmap::{Error, Guard, Options, Request, TlbGrace};

type Vmap = vmap::Vmap<Bare, X86_64L4, BareGrace>;

/// An allocator that fails for this thread when a test requests it. The machine used here does not
/// allocate.
struct Failing;

thread_local! {
    /// The allocation that fails (1 is the next, 0 means none), and whether all later ones fail,
    /// too.
    static FAIL: Cell<(u64, bool)> = const { Cell::new((0, false)) };
    static FAILED: Cell<bool> = const { Cell::new(false) };
}

fn fails() -> bool {
    let (left, lasting) = FAIL.get();
    let now = left == 1;
    FAIL.set((if now && lasting { 1 } else { left.saturating_sub(1) }, lasting));
    if now {
        FAILED.set(true);
    }
    now
}

// SAFETY: the system allocator's guarantees.
unsafe impl GlobalAlloc for Failing {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if fails() {
            return std::ptr::null_mut();
        }
        // SAFETY: passed on to the system allocator.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: passed on to the system allocator.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static HEAP: Failing = Failing;

/// Runs `f` with allocation `nth` failing. Also returns whether there was such an allocation.
fn without<T>(nth: u64, lasting: bool, f: impl FnOnce() -> T) -> (T, bool) {
    FAIL.set((nth, lasting));
    let done = f();
    FAIL.set((0, false));
    (done, FAILED.take())
}

/// A space, and the frames for its calls.
struct World {
    bare: Bare,
    vmap: Vmap,
    frames: Vec<Frame>,
}

fn free(world: &World, at: VirtAddr) -> Result<(), Error> {
    // SAFETY: no code uses it.
    unsafe { world.vmap.vfree(at) }
}

/// Runs `what` after `prepare`, on a fresh machine each time, once for each of its allocations,
/// which fails. Returns the number of allocations, and how often the call failed.
fn sweep<T: Copy>(
    prepare: impl Fn(&World) -> T,
    what: impl Fn(&World, T) -> Result<(), Error>,
) -> (u64, u64) {
    let (mut blocks, mut errors) = (0, 0);
    for lasting in [false, true] {
        blocks = 0;
        while once(&prepare, &what, blocks + 1, lasting, &mut errors) {
            blocks += 1;
        }
    }
    (blocks, errors)
}

fn once<T: Copy>(
    prepare: impl Fn(&World) -> T,
    what: impl Fn(&World, T) -> Result<(), Error>,
    nth: u64,
    lasting: bool,
    errors: &mut u64,
) -> bool {
    let bare = Bare::new(1, 4096).unwrap();
    let paging = Paging::<Bare, X86_64L4>::try_new(bare.clone(), PageSize::Size1G).unwrap();
    let tlb_grace = TlbGrace::try_new(bare.clone()).unwrap();
    bare.on_cpu(0, || {
        let whole = bare.free_frames();
        tlb_grace.idle_exit();
        let tables = Arc::new(PageTables::<_, _, BareGrace>::kernel(&paging).unwrap());
        let space = VirtRange::new(virt(SPACE), 32 << 20).unwrap();
        // SAFETY: no other code uses these addresses.
        let vmap =
            unsafe { Vmap::try_new(tables, tlb_grace.clone(), space, Options::default()) }.unwrap();
        let frames = (0..80).map(|_| bare.alloc(0, NodePolicy::Local).unwrap()).collect();
        let world = World { bare: bare.clone(), vmap, frames };
        let prepared = prepare(&world);
        let before = (mapped(&world.vmap), bare.free_frames());
        let (result, failed) = without(nth, lasting, || what(&world, prepared));
        assert!(failed || result.is_ok(), "{result:?}");
        if let Err(error) = result {
            assert_eq!(error, Error::OutOfMemory);
            *errors += 1;
            assert_eq!(mapped(&world.vmap), before.0, "block {nth}");
            // A few page-table pages may stay.
            assert!(before.1 - bare.free_frames() <= 2, "block {nth}");
            what(&world, prepared).unwrap();
        }
        finish(&world);
        let World { vmap, frames, .. } = world;
        for frame in frames {
            // SAFETY: nothing is mapped any more.
            unsafe { bare.release(frame) }.unwrap();
        }
        drop(vmap);
        assert!(bare.settle());
        paging.quick().drain();
        assert_eq!(bare.free_frames(), whole);
        failed
    })
}

/// Unmaps all areas. Then nothing waits, and the whole space is free.
fn finish(world: &World) {
    let vmap = &world.vmap;
    vmap.poll();
    for area in mapped(vmap) {
        let at = area.first;
        match area.made {
            vmap::Made::Vmap => vmap.end_vmap(at).unwrap(),
            vmap::Made::Vmalloc => free(world, at).unwrap(),
            vmap::Made::Ioremap => vmap.end_io(at).unwrap(),
            // SAFETY: no code uses it.
            vmap::Made::Reserved => unsafe { vmap.unreserve(at) }.unwrap(),
            // A block has one run, at its start.
            _ => vmap.end_ram(at, area.pages).unwrap(),
        }
    }
    vmap.idle();
    vmap.purge();
    let info = vmap.get_vmalloc_info();
    assert_eq!((info.used, info.kept, info.areas), (0, 0, 0));
    assert_eq!(info.largest_free, info.total / 2);
}

fn nothing(_: &World) {}

#[test]
fn what_is_made() {
    let device = PhysRange::new(PhysAddr::new(0xfee0_0000), 0x3000).unwrap();
    let rw = Attrs::KERNEL_RW;
    type Make<'a> = &'a dyn Fn(&World) -> Result<VirtAddr, Error>;
    let calls: [Make; 10] = [
        &|world| world.vmap.reserve(PAGE),
        &|world| {
            let stack = Request { align: 4 * PAGE, ..Request::memory(4 * PAGE) };
            world.vmap.create(&Request { guard: Some(Guard::Below), ..stack })
        },
        &|world| {
            let at = Some(virt(SPACE + (20 << 20)));
            world.vmap.create(&Request { at, ..Request::addresses(9 * PAGE) })
        },
        &|world| world.vmap.vmap(&world.frames[..5], rw),
        &|world| world.vmap.vm_map_ram(&world.frames[..5], rw),
        &|world| world.vmap.vm_map_ram(&world.frames, rw),
        &|world| world.vmap.vmalloc(5 * PAGE),
        &|world| world.vmap.vzalloc(100 * PAGE),
        &|world| world.vmap.vmalloc_huge(3 << 20),
        &|world| world.vmap.ioremap(device, Cache::Uncached),
    ];
    for (number, make) in calls.iter().enumerate() {
        // In an empty space, and in one with neighbours, some of which wait.
        let (blocks, errors) = sweep(nothing, |world, ()| make(world).map(drop));
        assert!(blocks >= 2 && errors >= 2, "call {number}: {blocks} blocks, {errors} errors");
        let neighbours = |world: &World| {
            let at: Vec<_> = (0..40).map(|_| world.vmap.vmalloc(1).unwrap()).collect();
            at.iter().step_by(3).for_each(|at| free(world, *at).unwrap());
        };
        let (blocks, errors) = sweep(neighbours, |world, ()| make(world).map(drop));
        assert!(blocks >= 1 && errors >= 1, "call {number}: {blocks} blocks, {errors} errors");
    }
}

#[test]
fn what_is_moved() {
    let prepare = |world: &World| world.vmap.vmalloc(20 * PAGE).unwrap();
    for pages in [21, 90, 19, 1] {
        let (blocks, errors) = sweep(prepare, |world, at| {
            // SAFETY: no code uses it.
            unsafe { world.vmap.vrealloc(at, pages * PAGE) }.map(drop)
        });
        assert!(blocks >= 2 && errors >= 2, "{pages} pages: {blocks} blocks, {errors} errors");
    }
}

/// Freed addresses are in the way of an area, and cannot be removed from the tree without memory.
#[test]
fn what_makes_way() {
    for kept in [false, true] {
        let prepare = |world: &World| {
            let all: Vec<_> = (0..40).map(|_| world.vmap.vmalloc(1).unwrap()).collect();
            all.iter().step_by(2).for_each(|at| free(world, *at).unwrap());
            if kept {
                world.vmap.vm_unmap_aliases();
                world.vmap.poll();
            }
            all[20]
        };
        let (blocks, errors) = sweep(prepare, |world, at| {
            let request = Request { at: Some(at), ..Request::addresses(PAGE) };
            world.vmap.create(&request).map(drop)
        });
        assert!(blocks >= 3 && errors >= 3, "{blocks} blocks, {errors} errors");
    }
}

/// Succeeds at every failure; an area that cannot be removed from the tree is removed later.
#[test]
fn what_is_given_back() {
    let rw = Attrs::KERNEL_RW;
    let device = PhysRange::new(PhysAddr::new(0xfee0_0000), 0x3000).unwrap();
    let prepare = |world: &World| {
        let vmap = &world.vmap;
        [
            vmap.vmap(&world.frames[..5], rw).unwrap(),
            vmap.vm_map_ram(&world.frames[..5], rw).unwrap(),
            vmap.vm_map_ram(&world.frames[..64], rw).unwrap(),
            vmap.vm_map_ram(&world.frames, rw).unwrap(),
            vmap.ioremap(device, Cache::Uncached).unwrap(),
            vmap.vmalloc(200 * PAGE).unwrap(),
            vmap.vmalloc(3 * PAGE).unwrap(),
        ]
    };
    let what = |world: &World, at: [VirtAddr; 7]| {
        let vmap = &world.vmap;
        vmap.end_vmap(at[0])?;
        vmap.end_ram(at[1], 5)?;
        vmap.end_ram(at[3], world.frames.len())?;
        vmap.end_io(at[4])?;
        free(world, at[5])?;
        {
            let _interrupt = world.bare.irqs_off();
            // SAFETY: no code uses it.
            unsafe { vmap.vfree_atomic(at[6]) }?;
        }
        vmap.poll();
        vmap.purge();
        // A block that is in use is left for adoption.
        vmap.idle();
        vmap.vm_unmap_aliases();
        vmap.end_ram(at[2], 64)
    };
    let (blocks, errors) = sweep(prepare, what);
    assert!(blocks >= 5, "{blocks} blocks");
    assert_eq!(errors, 0);
}
