//! Requests that name the address, and reservations.

use super::*;

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
