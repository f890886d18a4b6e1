//! The demands of a request: an address, an alignment, guard pages, and no pages at all. Each works
//! with each kind of contents, and a request that fails changes nothing (I7).

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

#[test]
fn at_an_address() {
    world(2, 64).test(|world, _| {
        let (vmap, frames) = (world.vmap(), world.frames(4));
        // In both CPUs' zones and in the common one; at their first and last pages.
        for place in [0, 16 * MIB, 31 * MIB, 64 * MIB - 4 * PAGE].map(at) {
            for kind in kinds(&frames) {
                let guard = Some(Guard::None);
                let first = vmap.create(&Request { at: Some(place), guard, ..kind }).unwrap();
                assert_eq!(first, place);
                let area = vmap.find_vm_area(first).unwrap();
                assert_eq!((area.first, area.range.start()), (place, place));
                end(world, first).unwrap();
            }
        }
        for guard in GUARDS {
            let request = Request { at: Some(at(40 * MIB)), ..Request::memory(4 * PAGE) };
            let first = vmap.create(&Request { guard: Some(guard), ..request }).unwrap();
            assert_eq!(first, at(40 * MIB), "{guard:?}");
            end(world, first).unwrap();
        }
        // A device's first byte keeps its place in its page.
        let bytes = PhysRange::new(PhysAddr::new(0xfee0_0123), PAGE).unwrap();
        let request = Request::device(bytes, Cache::Uncached);
        let first = vmap.create(&Request { at: Some(at(40 * MIB)), ..request });
        assert_eq!(first, Ok(at(40 * MIB + 0x123)));
        vmap.end_io(at(40 * MIB + 0x123)).unwrap();
        world.release(&frames);
    });
}

/// Large pages are used if the address has their alignment.
#[test]
fn large_pages_at_an_address() {
    world(1, 64).test(|world, vmap| {
        let size = |at: VirtAddr| {
            let guard = <sim::Grace as grace::Reclaim>::pin();
            vmap.tables().walk(&guard).get(at).unwrap().size
        };
        let memory = vmap::Allocation { huge: true, ..vmap::Allocation::new(4 * MIB) };
        for (offset, wanted) in [(0, PageSize::Size2M), (PAGE, PageSize::Size4K)] {
            let place = at(40 * MIB + offset);
            let request = Request::new(vmap::Contents::Memory(memory));
            let first = vmap.create(&Request { at: Some(place), ..request }).unwrap();
            assert_eq!((first, size(first)), (place, wanted));
            end(world, first).unwrap();
        }
    });
}

#[test]
fn addresses_that_cannot_be() {
    let world = world(2, 64);
    world.on(0, || {
        let (vmap, frames) = (world.vmap(), world.frames(4));
        for kind in kinds(&frames) {
            let to = |offset: u64| Request { at: Some(at(offset)), ..kind };
            // Unaligned, to a page and to the requested alignment.
            for (request, align) in [
                (to(8), PAGE),
                (to(MIB - 1), PAGE),
                (Request { align: 2 * PAGE, ..to(MIB + PAGE) }, 2 * PAGE),
            ] {
                let error = refused(&world, &request, &[&align.to_string(), "multiple"]);
                assert_eq!(error, Error::Unaligned { at: request.at.unwrap(), align });
            }
            // Outside: before, behind, at both ends of all addresses, and by a guard page.
            let below = Request { guard: Some(Guard::Below), ..to(0) };
            let above = Request { guard: Some(Guard::Above), ..to(64 * MIB - 4 * PAGE) };
            let far = [0, PAGE, !(PAGE - 1), SPACE - PAGE, SPACE + (1 << 40)];
            let far = far.map(|place| Request { at: Some(virt(place)), ..kind });
            let near = [to(64 * MIB), to(64 * MIB - PAGE), below, above];
            for request in far.iter().chain(&near) {
                let error = refused(&world, request, &["outside", "choose"]);
                let Error::Outside { at, space, .. } = error else { panic!("{error}") };
                assert_eq!((Some(at), space), (request.at, vmap.space()));
            }
            // Across the border between two zones: by a page, and by a guard page.
            let below = Request { guard: Some(Guard::Below), ..to(32 * MIB) };
            for request in [to(16 * MIB - 4 * PAGE), to(32 * MIB - PAGE), below] {
                let error = refused(&world, &request, &["zones", "choose"]);
                let Error::AcrossZones { at, border } = error else { panic!("{error}") };
                assert_eq!(Some(at), request.at);
                assert!([16 * MIB, 32 * MIB].contains(&(border.get() - SPACE)), "{border}");
            }
        }
        world.release(&frames);
    });
    assert_eq!(world.sim.stats().ipis_sent, 0);
    world.end().unwrap();
}

/// An area in use is in the way, with its guard pages, and its caller is named. No CPU is
/// interrupted to find out.
#[test]
fn areas_in_the_way() {
    let world = world(2, 64);
    world.sim.on_cpu(1, || world.start());
    world.on(0, || {
        let (vmap, frames) = (world.vmap(), world.frames(4));
        let place = at(40 * MIB);
        for (number, kind) in kinds(&frames).into_iter().enumerate() {
            let there = Request { at: Some(place), guard: Some(Guard::Both), ..kind };
            let (first, line) = (vmap.create(&there).unwrap(), line!());
            let before = world.tlb_grace.stats().broadcasts;
            // Something waits, so a purge would interrupt the other CPU.
            let waits = vmap.vmalloc(1).unwrap();
            end(&world, waits).unwrap();
            for kind in kinds(&frames) {
                for offset in [-4, -1, 0, 3, 4i64] {
                    let next_to = virt(first.get().wrapping_add_signed(offset * PAGE as i64));
                    let guard = Some(Guard::None);
                    let request = Request { at: Some(next_to), guard, ..kind };
                    let error = refused(&world, &request, &["unmap it, or choose"]);
                    let Error::InTheWay(area) = error else { panic!("{number}: {error}") };
                    assert_eq!((area.at, area.start), (next_to, first));
                    assert_eq!(area.by.map(|by| by.line()), Some(line));
                }
            }
            assert_eq!(world.tlb_grace.stats().broadcasts, before, "nothing was to be purged");
            end(&world, first).unwrap();
        }
        world.release(&frames);
    });
    world.sim.on_cpu(1, || world.stop());
    world.end().unwrap();
}

/// Addresses that were given back are no obstacle: not while they wait, not while they are kept for
/// areas of their size, and not if they were freed in an interrupt. No CPU has a stale translation
/// of them (I4).
#[test]
fn given_back_and_placed_again() {
    let world = world(2, 64);
    let frames = world.sim.on_cpu(0, || world.frames(4));
    // Does not flush by itself.
    world.sim.on_cpu(1, || world.start());
    world.sim.on_cpu(0, || {
        world.start();
        let vmap = world.vmap();
        let mut place = vmap.vmalloc(4 * PAGE).unwrap();
        for round in 0..12 {
            world.store(place, round);
            let before = world.tlb_grace.stats().broadcasts;
            if round % 3 == 2 && vmap.find_vm_area(place).unwrap().made == Made::Vmalloc {
                let _interrupt = world.sim.irqs_off();
                // SAFETY: no code uses it.
                unsafe { vmap.vfree_atomic(place) }.unwrap();
            } else {
                end(&world, place).unwrap();
                if round % 3 == 1 {
                    // Its period ends, and it is kept.
                    vmap.vm_unmap_aliases();
                    vmap.poll();
                    assert!(vmap.get_vmalloc_info().kept > 0);
                }
            }
            let done = world.tlb_grace.stats().broadcasts;
            let kind = kinds(&frames)[(round % 2) as usize];
            // Also an area that begins within the old one.
            let offset = if round % 4 == 3 { PAGE } else { 0 };
            let request = Request { at: Some(plus(place, offset)), ..kind };
            assert_eq!(vmap.create(&request), Ok(plus(place, offset)), "round {round}");
            place = plus(place, offset);
            if round % 3 == 1 {
                assert_eq!(world.tlb_grace.stats().broadcasts, done, "its period is over");
            } else {
                assert_eq!(world.tlb_grace.stats().broadcasts, before + 1, "round {round}");
            }
        }
        end(&world, place).unwrap();
        world.stop();
    });
    world.sim.on_cpu(1, || world.stop());
    world.on(0, || world.release(&frames));
    world.end().unwrap();
}

/// Only areas whose period has ended come back while one makes way (I4).
#[test]
fn others_still_wait() {
    world(1, 64).test(|world, vmap| {
        let [first, second] = [(); 2].map(|()| vmap.vmalloc(4 * PAGE).unwrap());
        end(world, first).unwrap();
        vmap.vm_unmap_aliases();
        world.store(second, 1);
        end(world, second).unwrap();
        let request = Request { at: Some(first), ..Request::memory(4 * PAGE) };
        assert_eq!(vmap.create(&request), Ok(first));
        assert_eq!(vmap.find_vm_area(second).unwrap().state, AreaState::Waiting);
        end(world, first).unwrap();
    });
}

/// A block in which nothing is used makes way; one in use does not.
#[test]
fn blocks_in_the_way() {
    world(1, 8).test(|world, _| {
        let (vmap, frames) = (world.vmap(), world.frames(4));
        let run = vmap.vm_map_ram(&frames, Attrs::KERNEL_RW).unwrap();
        let request = Request { at: Some(plus(run, 8 * PAGE)), ..Request::memory(PAGE) };
        assert!(matches!(refused(world, &request, &[]), Error::InTheWay(_)));
        vmap.end_ram(run, 4).unwrap();
        let first = vmap.create(&request).unwrap();
        end(world, first).unwrap();
        world.release(&frames);
    });
}

#[test]
fn reserved_addresses() {
    world(1, 64).test(|world, vmap| {
        let free = world.sim.free_count();
        let (first, line) = (vmap.reserve(3 * MIB + 1).unwrap(), line!());
        assert_eq!(world.sim.free_count(), free, "it takes no frames");
        let area = vmap.find_vm_area(first).unwrap();
        assert_eq!((area.made, area.pages, area.bytes), (Made::Reserved, 0, 3 * MIB + 1));
        assert_eq!((area.first, area.state), (first, AreaState::Live));
        let text = area.to_string();
        assert!(text.ends_with("pages=0 reserved") && text.contains(&format!(":{line}")), "{text}");
        let mut listed = Vec::new();
        vmap.vmallocinfo(|info| listed.push(*info));
        assert_eq!(listed, [area]);
        let pages = (0..).map(|page| plus(first, page * PAGE)).take(769);
        pages.for_each(|page| assert!(faults(world, page)));
        let mut bytes = [7; 5000];
        // SAFETY: nothing is mapped.
        unsafe {
            assert_eq!(vmap.vread(plus(first, 100), &mut bytes), 0);
            assert_eq!(vmap.vwrite(plus(first, 100), &bytes), 0);
        }
        assert_eq!(bytes, [0; 5000]);
        // Only its own call ends it, at its start.
        // SAFETY: the calls are refused.
        unsafe {
            assert!(matches!(vmap.vfree(first), Err(Error::WrongKind(_))));
            assert!(matches!(vmap.vunmap(first), Err(Error::WrongKind(_))));
            assert!(matches!(vmap.iounmap(first), Err(Error::WrongKind(_))));
            assert!(matches!(vmap.vrealloc(first, PAGE), Err(Error::WrongKind(_))));
            assert!(matches!(vmap.unreserve(plus(first, PAGE)), Err(Error::NotTheStart(_))));
            assert!(matches!(vmap.unreserve(at(60 * MIB)), Err(Error::NotMapped(_))));
        }
        let memory = vmap.vmalloc(PAGE).unwrap();
        // SAFETY: as above.
        assert!(matches!(unsafe { vmap.unreserve(memory) }, Err(Error::WrongKind(_))));
        end(world, memory).unwrap();
        end(world, first).unwrap();
        assert!(matches!(end(world, first), Err(Error::Twice(_))));
        assert_eq!(vmap.reserve(0), Err(Error::ZeroSize));
        assert_eq!(vmap.reserve(u64::MAX), Err(Error::TooLarge(u64::MAX)));
        assert!(matches!(vmap.reserve(63 * MIB), Err(Error::NoSpace(_))));
    });
}

/// The holder of a reservation maps pages there itself. It must have unmapped them before it gives
/// the addresses back, and the next area there sees none of them (I4).
#[test]
fn pages_in_reserved_addresses() {
    world(1, 64).test(|world, _| {
        let (vmap, frames) = (world.vmap(), world.frames(2));
        let first = vmap.reserve(8 * PAGE).unwrap();
        let page = plus(first, 3 * PAGE);
        // SAFETY: the addresses are reserved for this test, and no CPU has a translation of them.
        unsafe { vmap.tables().map_frames(page, &frames, Attrs::KERNEL_RW) }.unwrap();
        world.store(page, 5);
        let mut bytes = [0; 8];
        // SAFETY: the test writes through translations only.
        assert_eq!(unsafe { vmap.vread(page, &mut bytes) }, 8);
        let before = all(world);
        let error = end(world, first).expect_err("pages are mapped");
        assert_eq!((error, all(world)), (Error::StillMapped(page), before));
        assert!(error.to_string().contains("unmap it"), "{error}");
        let range = VirtRange::new(page, 2 * PAGE).unwrap();
        // SAFETY: the flush is left to the period that `unreserve` waits for.
        unsafe { vmap.tables().unmap_lazily(range, |_, _| ()) }.unwrap();
        end(world, first).unwrap();
        let again = Request { at: Some(first), ..Request::memory(8 * PAGE) };
        assert_eq!(vmap.create(&again), Ok(first));
        world.store(page, 6);
        end(world, first).unwrap();
        world.release(&frames);
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
