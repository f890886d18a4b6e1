//! Each call does what its documentation says, and rejects bad arguments.

use crate::common::*;
use ::grace::Reclaim;
use machine::*;
use paging::{Attrs, Cache, Encrypted, Flags, PageTables, Paging, X86_64L4};
use sim::{Arch, Config, Grace, Sim, Want};
use std::sync::Arc;
use vmap::{AreaState, Error, Guard, Made, Options, Request, TlbGrace, Vmap};

fn world() -> World {
    let config = Config { cpus: 2, frames: 4096, ..Config::default() };
    World::new(config, 64, Options::default())
}

/// Reads bytes through the frames.
fn read(world: &World, at: VirtAddr, into: &mut [u8]) -> usize {
    // SAFETY: the tests write through translations only, or before they map.
    unsafe { world.vmap().vread(at, into) }
}

#[test]
fn vmap_makes_frames_contiguous() {
    let world = world();
    let frames = world.sim.on_cpu(0, || world.frames(5));
    world.on(0, || {
        let at = world.vmap().vmap(&frames, Attrs::KERNEL_RW).unwrap();
        for (page, frame) in frames.iter().enumerate() {
            let at = plus(at, page as u64 * PAGE);
            world.store(at, page as u64);
            assert_eq!(world.vmap().vmalloc_to_page(at), Some(*frame));
        }
        let guard = plus(at, 5 * PAGE);
        assert_eq!(world.vmap().vmalloc_to_page(guard), None);
        assert!(world.sim.translate(guard, Want::default()).is_err());
        assert!(matches!(try_free(&world, at), Err(Error::WrongKind(_))));
        assert!(matches!(world.vmap().end_vmap(plus(at, PAGE)), Err(Error::NotTheStart(_))));
        world.vmap().end_vmap(at).unwrap();
        assert!(matches!(world.vmap().end_vmap(at), Err(Error::Twice(_))));
        assert_eq!(
            world.vmap().end_vmap(virt(SPACE + (50 << 20))),
            Err(Error::NotMapped(virt(SPACE + (50 << 20))))
        );
        assert_eq!(world.vmap().end_vmap(virt(4096)), Err(Error::NotMapped(virt(4096))));
        assert_eq!(world.vmap().vmap(&[], Attrs::KERNEL_RW), Err(Error::ZeroSize));
        world.release(&frames);
    });
    assert_eq!(world.sim.stats().ipis_sent, 0);
    world.end().unwrap();
}

#[test]
fn small_maps_come_from_blocks() {
    let world = world();
    world.on(0, || {
        let frames = world.frames(64);
        let vmap = world.vmap();
        let at = vmap.vm_map_ram(&frames[..4], Attrs::KERNEL_RW).unwrap();
        assert_eq!(vmap.find_vm_area(at).unwrap().made, Made::Block);
        (0..4).for_each(|page| world.store(plus(at, page * PAGE), page));
        for pages in [3, 5] {
            let wrong = vmap.end_ram(at, pages);
            assert!(matches!(wrong, Err(Error::WrongSize { .. })), "{wrong:?}");
        }
        for (bytes, pages) in [(PAGE, 3), (PAGE, 4), (5, 4)] {
            let Err(Error::NotTheStart(wrong)) = vmap.end_ram(plus(at, bytes), pages) else {
                panic!("it does not begin there")
            };
            assert_eq!(wrong.start, at);
            assert_eq!(wrong.by.is_some(), cfg!(debug_assertions));
        }
        assert!(matches!(vmap.end_vmap(at), Err(Error::WrongKind(_))));
        vmap.end_ram(at, 4).unwrap();
        assert!(matches!(vmap.end_ram(at, 4), Err(Error::Twice(_))));
        assert_eq!(
            vmap.end_ram(plus(at, 300 * PAGE), 1),
            Err(Error::NotMapped(plus(at, 300 * PAGE)))
        );
        // All sizes, until the block has been used up several times.
        for round in 0..200 {
            let pages = round % 64 + 1;
            let at = vmap.vm_map_ram(&frames[..pages], Attrs::KERNEL_RW).unwrap();
            world.store(at, 1);
            vmap.end_ram(at, pages).unwrap();
        }
        world.release(&frames);
    });
    assert_eq!(world.sim.stats().ipis_sent, 0);
    world.end().unwrap();
}

#[test]
fn vmalloc_of_all_sizes() {
    world().test(|world, vmap| {
        for bytes in [1, 4096, 4097, 300 << 10, 3 << 20] {
            let at = vmap.vzalloc(bytes).unwrap();
            let last = plus(at, (bytes - 1) & !7);
            assert_eq!((world.load(at), world.load(last)), (0, 0));
            world.store(last, 9);
            let info = vmap.find_vm_area(last).unwrap();
            assert_eq!(
                (info.bytes, info.made, info.state),
                (bytes, Made::Vmalloc, AreaState::Live)
            );
            assert!(info.caller.unwrap().file().ends_with("calls.rs"));
            free(world, at);
        }
        assert_eq!(vmap.vmalloc(0), Err(Error::ZeroSize));
        assert_eq!(vmap.vmalloc(u64::MAX), Err(Error::TooLarge(u64::MAX)));
        assert!(matches!(vmap.vmalloc(63 << 20), Err(Error::NoSpace(_))));
    });
}

#[test]
fn large_pages() {
    world().test(|world, vmap| {
        // Small pages first, so that page-table pages are in the way.
        let small = vmap.vmalloc(6 << 20).unwrap();
        free(world, small);
        vmap.purge();
        let at = vmap.vmalloc_huge((4 << 20) + 5000).unwrap();
        assert!(at.is_aligned(PageSize::Size2M));
        let size = |at: VirtAddr| {
            let guard = <sim::Grace as grace::Reclaim>::pin();
            vmap.tables().walk(&guard).get(at).unwrap().size
        };
        assert_eq!(size(at), PageSize::Size2M);
        let tail = plus(at, 4 << 20);
        assert_eq!(size(tail), PageSize::Size4K);
        world.store(tail, 3);
        world.store(at, 4);
        free(world, at);
    });
}

#[test]
fn devices() {
    world().test(|world, vmap| {
        let range = PhysRange::new(PhysAddr::new(0xfee0_0123), 0x1000).unwrap();
        let at = vmap.ioremap(range, Cache::Uncached).unwrap();
        assert_eq!(vmap.vmalloc_to_phys(at), Some(range.start()));
        let info = vmap.find_vm_area(at).unwrap();
        assert_eq!((info.pages, info.phys), (2, Some(range.start())));
        let mut bytes = [7; 16];
        assert_eq!(read(world, at, &mut bytes), 0);
        assert_eq!(bytes, [0; 16], "a device is not read");
        vmap.end_io(at).unwrap();
        let large = PhysRange::new(PhysAddr::new(1 << 40), 2 << 20).unwrap();
        let at = vmap.ioremap(large, Cache::WriteCombining).unwrap();
        assert!(at.is_aligned(PageSize::Size2M));
        vmap.end_io(at).unwrap();
        let beyond = PhysRange::new(PhysAddr::new(1 << 52), 1).unwrap();
        assert!(matches!(vmap.ioremap(beyond, Cache::Uncached), Err(Error::NotPhysical(_))));
    });
}

#[test]
fn realloc_keeps_the_contents() {
    world().test(|world, vmap| {
        let mut at = vmap.vmalloc(100 * PAGE).unwrap();
        let word = |at, page: u64| plus(at, page * PAGE + 8);
        (0..100).for_each(|page| world.store(word(at, page), page));
        let sizes = [
            (100 * PAGE - 5, 100),
            (40 * PAGE, 40),
            (39 * PAGE + 1, 40),
            (300 * PAGE, 40),
            (PAGE, 1),
        ];
        for (bytes, kept) in sizes {
            // SAFETY: only the preserved memory is used.
            at = unsafe { vmap.vrealloc(at, bytes) }.unwrap();
            let info = vmap.find_vm_area(at).unwrap();
            assert_eq!((info.bytes, info.pages as u64), (bytes, bytes.div_ceil(PAGE)));
            assert_eq!(info.range.len(), bytes.div_ceil(PAGE) * PAGE + PAGE);
            (0..kept).for_each(|page| assert_eq!(world.load(word(at, page)), page));
        }
        free(world, at);
        // SAFETY: as above.
        assert!(unsafe { vmap.vrealloc(at, 5) }.is_err());
        let huge = vmap.vmalloc_huge(6 << 20).unwrap();
        world.store(word(huge, 600), 5);
        // SAFETY: as above.
        let huge = unsafe { vmap.vrealloc(huge, (2 << 20) + 1) }.unwrap();
        assert_eq!(vmap.find_vm_area(huge).unwrap().pages, 1024, "large pages are kept whole");
        // SAFETY: as above.
        let huge = unsafe { vmap.vrealloc(huge, (4 << 20) + 1) }.unwrap();
        assert_eq!(world.load(word(huge, 600)), 5);
        free(world, huge);
    });
}

#[test]
fn freed_in_an_interrupt() {
    world().test(|world, vmap| {
        let frames = world.sim.free_frames();
        let at: Vec<_> = (0..3).map(|_| vmap.vmalloc(5 * PAGE).unwrap()).collect();
        {
            let _interrupt = world.sim.irqs_off();
            // SAFETY: no code uses it.
            at.iter().for_each(|at| unsafe { vmap.vfree_atomic(*at) }.unwrap());
            // SAFETY: as above.
            assert!(matches!(unsafe { vmap.vfree_atomic(at[0]) }, Err(Error::Twice(_))));
        }
        assert_eq!(vmap.find_vm_area(at[1]).unwrap().state, AreaState::PendingFree);
        vmap.poll();
        assert!(world.sim.free_frames() >= frames - 3, "but for page tables");
        assert_eq!(vmap.find_vm_area(at[1]).unwrap().state, AreaState::Waiting);
    });
}

#[test]
fn bytes_by_their_frames() {
    world().test(|world, vmap| {
        let at = vmap.vzalloc(2 * PAGE).unwrap();
        let text = b"a few bytes across a border";
        let border = plus(at, PAGE - 11);
        // SAFETY: ours.
        let write = |at, text| unsafe { vmap.vwrite(at, text) };
        assert_eq!(write(border, text), text.len());
        let mut back = [0; 27];
        assert_eq!(read(world, border, &mut back), 27);
        assert_eq!(&back, text);
        assert_eq!(world.load(plus(at, PAGE - 16)).to_le_bytes(), *b"\0\0\0\0\0a f");
        // Across the guard page into unmapped addresses.
        let mut long = vec![9; 4 * PAGE as usize];
        assert_eq!(read(world, border, &mut long), 11 + PAGE as usize);
        assert!(long[11 + PAGE as usize..].iter().all(|byte| *byte == 0));
        assert_eq!(read(world, virt(SPACE - PAGE), &mut back), 0);
        free(world, at);
        assert_eq!(read(world, border, &mut back), 0);
        assert_eq!(write(border, text), 0);
    });
}

#[test]
fn the_listing() {
    world().test(|world, vmap| {
        let frames = world.frames(70);
        let ram = vmap.vm_map_ram(&frames[..3], Attrs::KERNEL_RW).unwrap();
        let large = vmap.vm_map_ram(&frames, Attrs::KERNEL_RW).unwrap();
        let heap =
            vmap.create(&Request { guard: Some(Guard::None), ..Request::memory(9000) }).unwrap();
        let gone = vmap.vmalloc(1).unwrap();
        free(world, gone);
        let mut list = Vec::new();
        vmap.vmallocinfo(|info| list.push(*info));
        assert!(list.is_sorted_by_key(|info| info.range.start()));
        let states: Vec<_> = list.iter().map(|info| (info.made, info.pages, info.state)).collect();
        for wanted in [
            (Made::Block, 3, AreaState::Live),
            (Made::Ram, 70, AreaState::Live),
            (Made::Vmalloc, 3, AreaState::Live),
            (Made::Vmalloc, 1, AreaState::Waiting),
        ] {
            assert_eq!(states.iter().filter(|state| **state == wanted).count(), 1, "{states:?}");
        }
        let info = vmap.get_vmalloc_info();
        assert_eq!((info.areas, info.waiting), (4, 2 * PAGE));
        assert_eq!(info.used, (512 + 70 + 3 + 2) * PAGE);
        let text = list.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n");
        assert!(text.contains("calls.rs:") && text.contains("(unpurged)"), "{text}");
        vmap.end_ram(ram, 3).unwrap();
        vmap.end_ram(large, 70).unwrap();
        free(world, heap);
        world.release(&frames);
    });
}

/// In a guest whose memory is encrypted, the host emulates devices, so it reads their registers;
/// memory stays private.
#[test]
fn registers_of_devices_are_shared_with_the_host() {
    type Sev = Encrypted<X86_64L4, 51, true>;
    let sim = Sim::new(Config { cpus: 1, arch: Arch::X86_64Sev, ..Config::default() }).unwrap();
    let paging = Paging::<Sim, Sev>::try_new(sim.clone(), PageSize::Size1G).unwrap();
    let tlb_grace = TlbGrace::try_new(sim.clone()).unwrap();
    let tables = sim.on_cpu(0, || {
        let tables = Arc::new(PageTables::<_, _, Grace>::kernel(&paging).unwrap());
        // SAFETY: the test needs no other mapping.
        unsafe { tables.activate() };
        tlb_grace.idle_exit();
        let space = VirtRange::new(virt(SPACE), 64 << 20).unwrap();
        // SAFETY: no other code maps at these addresses.
        let vmap =
            unsafe { Vmap::try_new(tables.clone(), tlb_grace.clone(), space, Options::default()) };
        let vmap = vmap.unwrap();
        let range = PhysRange::new(PhysAddr::new(0xfee0_0000), PAGE).unwrap();
        let registers = vmap.ioremap(range, Cache::Uncached).unwrap();
        let memory = vmap.vzalloc(1).unwrap();
        for (at, shared) in [(registers, true), (memory, false)] {
            let page = tables.walk(&Grace::pin()).get(at).unwrap();
            assert_eq!(page.attrs.flags.contains(Flags::DECRYPTED), shared);
        }
        // SAFETY: nothing uses the areas.
        unsafe {
            vmap.iounmap(registers).unwrap();
            vmap.vfree(memory).unwrap();
        }
        tables
    });
    sim.on_cpu(0, || drop(tables));
}
