//! The demands of a request: an address, an alignment, guard pages, and no pages at all. Each works
//! with each kind of contents, and a request that fails changes nothing (I7).

mod place;

use crate::common::*;
use machine::*;
use paging::{Attrs, Cache};
use sim::{Config, Want};
use vmap::{AreaInfo, AreaState, Error, Guard, Made, Options, Request};

const MIB: u64 = 1 << 20;
const GUARDS: [Guard; 4] = [Guard::None, Guard::Above, Guard::Below, Guard::Both];

fn world(cpus: usize, mib: u64) -> World {
    World::new(Config { cpus, frames: 4096, ..Config::default() }, mib, Options::default())
}

/// So many bytes after the start of the space.
fn at(offset: u64) -> VirtAddr {
    virt(SPACE + offset)
}

fn device() -> PhysRange {
    PhysRange::new(PhysAddr::new(0xfee0_0000), 4 * PAGE).unwrap()
}

/// Four pages of each kind of contents.
fn kinds(frames: &[Frame]) -> [Request<'_>; 4] {
    [
        Request::memory(4 * PAGE),
        Request::frames(frames, Attrs::KERNEL_RW),
        Request::device(device(), Cache::Uncached),
        Request::addresses(4 * PAGE),
    ]
}

/// Gives an area back by the call that its kind needs.
fn end(world: &World, at: VirtAddr) -> Result<(), Error> {
    let vmap = world.vmap();
    // SAFETY: the tests access areas only through translations, which the machine checks.
    unsafe {
        match vmap.find_vm_area(at).unwrap().made {
            Made::Vmalloc => vmap.vfree(at),
            Made::Vmap => vmap.vunmap(at),
            Made::Ioremap => vmap.iounmap(at),
            Made::Reserved => vmap.unreserve(at),
            made => panic!("{made:?}"),
        }
    }
}

fn faults(world: &World, at: VirtAddr) -> bool {
    world.sim.translate(at, Want::default()).is_err() && world.vmap().vmalloc_to_page(at).is_none()
}

/// Everything that a call which fails must leave as it was.
fn all(world: &World) -> (Vec<AreaInfo>, u64) {
    (mapped(world.vmap()), world.sim.free_count())
}

/// Checks that a request fails and changes nothing, and that the error names what it should.
fn refused(world: &World, request: &Request<'_>, names: &[&str]) -> Error {
    let before = all(world);
    let error = world.vmap().create(request).expect_err("it is refused");
    assert_eq!(all(world), before, "{error}");
    for name in names {
        assert!(error.to_string().contains(name), "{error}: no {name}");
    }
    error
}

/// Each guard page is a fault, belongs to its area, and stays one while other areas come and go.
#[test]
fn guard_pages() {
    world(1, 8).test(|world, _| {
        let (vmap, frames) = (world.vmap(), world.frames(4));
        let mut made = Vec::new();
        for _ in 0..3 {
            for kind in kinds(&frames) {
                for guard in GUARDS {
                    let first = vmap.create(&Request { guard: Some(guard), ..kind }).unwrap();
                    let below = matches!(guard, Guard::Below | Guard::Both);
                    let above = matches!(guard, Guard::Above | Guard::Both);
                    made.push((first, below, above));
                }
            }
            for (first, below, above) in &made {
                let (below, above) = (u64::from(*below), u64::from(*above));
                let area = vmap.find_vm_area(*first).unwrap();
                assert_eq!(area.first, *first);
                assert_eq!(area.range.start(), virt(first.get() - below * PAGE));
                assert_eq!(area.range.len(), (4 + below + above) * PAGE);
                let (under, over) = (virt(first.get() - PAGE), plus(*first, 4 * PAGE));
                for (guarded, page) in [(below, under), (above, over)] {
                    if guarded != 0 {
                        assert!(faults(world, page), "{area}");
                        assert_eq!(vmap.find_vm_area(page), Some(area), "it belongs to the area");
                        // SAFETY: the call is refused.
                        let ended = unsafe { vmap.vfree(page) };
                        assert!(matches!(ended, Err(Error::NotTheStart(it)) if it.start == *first));
                    }
                }
                if matches!(area.made, Made::Vmalloc | Made::Vmap) {
                    world.store(*first, first.get());
                    world.store(plus(*first, 4 * PAGE - 8), 1);
                }
            }
            // Every second one is given back, and its addresses are reused with other guard pages.
            let mut odd = false;
            made.retain(|(first, ..)| {
                odd = !odd;
                if odd {
                    end(world, *first).unwrap();
                }
                !odd
            });
            vmap.vm_unmap_aliases();
            vmap.poll();
        }
        made.iter().for_each(|(first, ..)| end(world, *first).unwrap());
        world.release(&frames);
    });
}

/// The guard pages of a space's options apply to all calls that name none.
#[test]
fn guard_pages_of_the_space() {
    for guard in GUARDS {
        let options = Options { guard, ..Options::default() };
        let world = World::new(Config { cpus: 1, frames: 4096, ..Config::default() }, 8, options);
        world.on(0, || {
            let (vmap, frames) = (world.vmap(), world.frames(4));
            let made = [
                vmap.vmalloc(4 * PAGE).unwrap(),
                vmap.vmap(&frames, Attrs::KERNEL_RW).unwrap(),
                vmap.ioremap(device(), Cache::Uncached).unwrap(),
                vmap.reserve(4 * PAGE).unwrap(),
            ];
            let below = u64::from(matches!(guard, Guard::Below | Guard::Both));
            let above = u64::from(matches!(guard, Guard::Above | Guard::Both));
            for first in made {
                let range = vmap.find_vm_area(first).unwrap().range;
                assert_eq!(range.start(), virt(first.get() - below * PAGE));
                assert_eq!(range.len(), (4 + below + above) * PAGE);
                end(&world, first).unwrap();
            }
            world.release(&frames);
        });
        world.end().unwrap();
    }
}

/// Stacks aligned to their size, with a guard page below: masking an address in a stack finds its
/// start. They fill all of the space, without a place left out.
#[test]
fn aligned_stacks_fill_the_space() {
    const STACK: u64 = 16 << 10;
    // Two zones of 2 MiB. A stack and its guard page use 20 KiB of each 32 KiB.
    let world = world(1, 4);
    let frame = world.sim.on_cpu(0, || world.frames(1));
    let frames = frame.repeat((STACK / PAGE) as usize);
    for (guard, stacks) in [(Guard::None, 256), (Guard::Below, 128), (Guard::Both, 126)] {
        world.on(0, || {
            let vmap = world.vmap();
            let stack = Request::frames(&frames, Attrs::KERNEL_RW);
            let stack = Request { align: STACK, guard: Some(guard), ..stack };
            let fill = || {
                let mut made = Vec::new();
                while let Ok(first) = vmap.create(&stack) {
                    assert!(first.get().is_multiple_of(STACK), "{first}");
                    made.push(first);
                }
                made
            };
            let mut made = fill();
            assert_eq!(made.len(), stacks, "{guard:?}");
            assert!(matches!(refused(&world, &stack, &["alignment"]), Error::NoSpace(_)));
            // One is given back, anywhere: there is room for exactly one.
            for which in [0, 1, 60, made.len() - 1] {
                let gone = made.remove(which);
                end(&world, gone).unwrap();
                assert_eq!(fill(), [gone], "{guard:?}");
                made.insert(which, gone);
            }
            made.iter().for_each(|first| end(&world, *first).unwrap());
        });
    }
    world.on(0, || world.release(&frame));
    world.end().unwrap();
}

/// If the page below each free aligned range is in use, the search looks for a longer range, and
/// then at every free range.
#[test]
fn no_page_for_a_guard_below() {
    const ALIGN: u64 = 16 << 10;
    world(1, 4).test(|world, vmap| {
        let bare = Request { guard: Some(Guard::None), ..Request::addresses(ALIGN) };
        let bare = Request { align: ALIGN, ..bare };
        let guarded = Request { guard: Some(Guard::Below), ..bare };
        let mut made = Vec::new();
        while let Ok(first) = vmap.create(&bare) {
            made.push(first);
        }
        made.sort_unstable();
        // Holes of exactly one aligned range, below which an area lies.
        let holes: Vec<_> = made.iter().copied().skip(1).step_by(2).collect();
        holes.iter().for_each(|first| end(world, *first).unwrap());
        assert!(matches!(refused(world, &guarded, &[]), Error::NoSpace(_)));
        // A hole that is long enough, but has no such place.
        let wide = made[50];
        end(world, wide).unwrap();
        let page = Request { at: Some(plus(wide, ALIGN - PAGE)), ..Request::addresses(PAGE) };
        let page = Request { guard: Some(Guard::None), ..page };
        vmap.create(&page).unwrap();
        assert!(matches!(refused(world, &guarded, &[]), Error::NoSpace(_)));
        // A hole of three ranges behind many such holes, and then one that fits exactly.
        let only = made[100];
        end(world, only).unwrap();
        assert_eq!(vmap.create(&guarded), Ok(only));
        assert!(matches!(refused(world, &guarded, &[]), Error::NoSpace(_)));
        end(world, only).unwrap();
        for next_to in [virt(only.get() - 2 * PAGE), plus(only, ALIGN)] {
            let page = Request { at: Some(next_to), ..Request::addresses(PAGE) };
            vmap.create(&Request { guard: Some(Guard::None), ..page }).unwrap();
        }
        assert_eq!(vmap.create(&guarded), Ok(only));
        let left: Vec<_> = mapped(vmap).iter().map(|area| area.first).collect();
        left.into_iter().for_each(|first| end(world, first).unwrap());
    });
}

#[test]
fn alignments() {
    world(1, 64).test(|world, _| {
        let (vmap, frames) = (world.vmap(), world.frames(4));
        for kind in kinds(&frames) {
            // Less than a page counts as a page.
            for align in (0..24).map(|bits| 1 << bits) {
                for guard in GUARDS {
                    let request = Request { align, guard: Some(guard), ..kind };
                    let first = vmap.create(&request).unwrap();
                    assert!(first.get().is_multiple_of(align.max(PAGE)), "{first}, {request:?}");
                    end(world, first).unwrap();
                }
            }
            for align in [0, 3, PAGE - 1, 3 * PAGE, u64::MAX] {
                let request = Request { align, ..kind };
                let error = refused(world, &request, &[&align.to_string(), "power of two"]);
                assert_eq!(error, Error::BadAlign(align));
            }
            // No address of the space is so aligned, except its start.
            let request = Request { align: 1 << 40, ..kind };
            let start = Request { at: Some(at(0)), ..Request::addresses(PAGE) };
            let start = Request { guard: Some(Guard::None), ..start };
            let other = vmap.create(&start).unwrap();
            assert!(matches!(refused(world, &request, &[]), Error::NoSpace(_)));
            let request = Request { align: 1 << 63, ..kind };
            assert!(matches!(refused(world, &request, &[]), Error::NoSpace(_)));
            end(world, other).unwrap();
        }
        world.release(&frames);
    });
}

/// An alignment larger than that of large pages, and one that is smaller.
#[test]
fn alignments_of_large_pages() {
    world(1, 64).test(|world, vmap| {
        // The start of the space is aligned to more.
        let start = vmap.create(&Request { at: Some(at(32 * MIB)), ..Request::memory(1) }).unwrap();
        let memory = vmap::Allocation { huge: true, ..vmap::Allocation::new(2 * MIB) };
        for align in [PAGE, MIB, 8 * MIB] {
            let other = vmap.vmalloc_huge(2 * MIB).unwrap();
            let request = Request { align, ..Request::new(vmap::Contents::Memory(memory)) };
            let first = vmap.create(&request).unwrap();
            assert!(first.get().is_multiple_of(align.max(2 * MIB)), "{first}");
            end(world, other).unwrap();
            end(world, first).unwrap();
        }
        end(world, start).unwrap();
    });
}

/// Memory that grows or shrinks keeps its alignment and its guard pages.
#[test]
fn resized_stacks() {
    world(1, 64).test(|world, vmap| {
        for guard in GUARDS {
            let request = Request { align: 16 * PAGE, ..Request::memory(16 * PAGE) };
            let mut first = vmap.create(&Request { guard: Some(guard), ..request }).unwrap();
            let page = Request { guard: Some(Guard::None), ..Request::memory(1) };
            let neighbour = vmap.create(&page).unwrap();
            world.store(first, 7);
            let guards = vmap.find_vm_area(first).unwrap().range.len() - 16 * PAGE;
            for pages in [5, 40, 3, 17, 1] {
                // SAFETY: only the preserved memory is used.
                first = unsafe { vmap.vrealloc(first, pages * PAGE) }.unwrap();
                assert!(first.get().is_multiple_of(16 * PAGE), "{first}");
                assert_eq!(world.load(first), 7);
                let area = vmap.find_vm_area(first).unwrap();
                assert_eq!((area.first, area.range.len()), (first, pages * PAGE + guards));
                if matches!(guard, Guard::Below | Guard::Both) {
                    assert!(faults(world, virt(first.get() - 1)));
                }
                if matches!(guard, Guard::Above | Guard::Both) {
                    assert!(faults(world, plus(first, pages * PAGE)));
                }
            }
            end(world, first).unwrap();
            end(world, neighbour).unwrap();
        }
    });
}

/// A full space refuses each request. After all is given back, all of it can be used again.
#[test]
fn a_full_space() {
    let world = world(1, 4);
    let frames = world.sim.on_cpu(0, || world.frames(4));
    world.on(0, || {
        let vmap = world.vmap();
        for guard in GUARDS {
            let mut made = Vec::new();
            'full: loop {
                for kind in kinds(&frames).iter().skip(1) {
                    match vmap.create(&Request { guard: Some(guard), ..*kind }) {
                        Ok(first) => made.push(first),
                        Err(error) => {
                            assert!(matches!(error, Error::NoSpace(_)), "{error}");
                            break 'full;
                        }
                    }
                }
            }
            let guards = match guard {
                Guard::None => 0,
                Guard::Above | Guard::Below => 1,
                Guard::Both => 2,
            };
            // Two zones of 512 pages.
            assert_eq!(made.len() as u64, 2 * (512 / (4 + guards)), "{guard:?}");
            for kind in kinds(&frames) {
                let request = Request { guard: Some(guard), ..kind };
                assert!(matches!(refused(&world, &request, &[]), Error::NoSpace(_)));
                let request = Request { at: Some(made[7]), ..request };
                assert!(matches!(refused(&world, &request, &[]), Error::InTheWay(_)));
            }
            made.into_iter().for_each(|first| end(&world, first).unwrap());
            vmap.purge();
            assert_eq!(vmap.get_vmalloc_info().largest_free, 2 * MIB);
        }
    });
    world.on(0, || world.release(&frames));
    world.end().unwrap();
}
