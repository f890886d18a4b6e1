//! Which pages become a group, and how hardware and other calls treat it.

use super::*;

pub(super) fn one_walk_caches_a_group<F: OnSim>() {
    let world = World::<F>::new();
    let n = count::<F>();
    world.map(n, 2 * n, HOT);
    assert_eq!(world.groups(), [1, 2]);
    for page in n..3 * n {
        let found = world.get(page).unwrap();
        assert_eq!((found.page, found.size), (at::<F>(page), F::PAGE));
        assert_eq!((found.frame, found.attrs), (world.frame(0, page), HOT));
    }
    let before = world.sim.stats().walks;
    for page in n..2 * n {
        assert_eq!(world.touch(page, page % 2 == 0), Ok(world.frame(0, page)));
    }
    assert_eq!(world.sim.stats().walks - before, 2, "one walk on each CPU");
    world.end();
}

/// Other pages are single: if hardware would mark them, at the wrong place, of the wrong frames, of
/// the kernel, or if the host wants no larger pages.
pub(super) fn only_what_fits_is_a_group<F: OnSim>() {
    let world = World::<F>::new();
    let n = count::<F>();
    let clean = Attrs { flags: HOT.flags - Flags::DIRTY, ..HOT };
    let none = Attrs { flags: HOT.flags - Flags::RWX - Flags::USER, ..HOT };
    for attrs in [Attrs::USER_RW, Attrs::USER_RO, clean, none] {
        world.map(0, 2 * n, attrs);
        assert_eq!(world.groups(), []);
        assert_eq!(world.unmap(all::<F>()) as u64, 2 * n);
    }
    world.map(0, 2 * n, HOT_RO);
    assert_eq!(world.groups(), [0, 1]);
    world.unmap(all::<F>());
    // Too long by a page at both ends.
    world.map(n - 1, n + 2, HOT);
    assert_eq!(world.groups(), [1]);
    world.unmap(all::<F>());
    let tables = &world.tables;
    world.sim.on_cpu(0, || {
        // Frames that lie otherwise in their group.
        tables.map_own(part::<F>(0, n), world.frame(0, 1), HOT).unwrap();
        assert_eq!(world.groups(), []);
        tables.unmap_own(all::<F>(), |_| ()).unwrap().flush();
        // The supplier of frames is offered a group.
        let size = F::GROUP.unwrap();
        let supply = |at: VirtAddr, largest: PageSize| {
            assert_eq!(largest, size, "{at}");
            let page = (at.get() - base::<F>()) / F::PAGE.bytes();
            Ok((Frame::new((1 << 24) + page * F::PAGE.frames()).unwrap(), size))
        };
        tables.map_with_own(part::<F>(0, 2 * n), HOT, supply).unwrap();
        assert_eq!(world.groups(), [0, 1]);
        tables.unmap_own(all::<F>(), |_| ()).unwrap().flush();
        let odd = Frame::new((1 << 24) + F::PAGE.frames()).unwrap();
        let failed = tables.map_with_own(part::<F>(0, n), HOT, |_, _| Ok((odd, size)));
        let misaligned = Error::Format(FormatError::Misaligned(odd, size));
        assert_eq!(failed.map_err(|failed| failed.error), Err(misaligned));
    });
    let paging = Paging::<Sim, F>::try_new(world.sim.clone(), F::PAGE).unwrap();
    world.sim.on_cpu(0, || {
        let tables = Tables::<F>::user(&paging, Asid(2), None).unwrap();
        tables.map_own(all::<F>(), world.frames[0], HOT).unwrap();
        assert_eq!(groups_of(&world.sim, &tables), []);
        tables.unmap_own(all::<F>(), |_| ()).unwrap().flush();
        drop(tables);
        assert!(world.sim.settle());
        paging.quick().drain();
        if !F::SECOND_STAGE {
            let kernel = Tables::<F>::kernel(&world.paging).unwrap();
            let range = VirtRange::new(F::upper_half(), 2 * group::<F>()).unwrap();
            // Programs may read some of the kernel's pages.
            for attrs in [HOT, Attrs { flags: HOT.flags - Flags::USER, ..HOT }] {
                kernel.map_own(range, world.frames[0], attrs).unwrap();
                assert_eq!(kernel.walk(&Grace::pin()).group_of(range.start()), None);
                kernel.unmap_own(range, |_| ()).unwrap().flush();
            }
        }
    });
    world.end();
}

/// A group that does not fit leaves everything as it was.
pub(super) fn a_page_in_the_way<F: OnSim>() {
    let world = World::<F>::new();
    let n = count::<F>();
    for in_the_way in [n, n + 1, 2 * n - 1] {
        world.map(in_the_way, 1, HOT);
        let range = part::<F>(0, 2 * n);
        let result = world.sim.on_cpu(0, || {
            let failed = world.tables.map_own(range, world.frames[1], HOT);
            failed.map_err(|failed| failed.error)
        });
        assert_eq!(result, Err(Error::Occupied(at::<F>(in_the_way))));
        let left: Vec<_> = world
            .sim
            .on_cpu(LOOKS, || world.tables.walk(&Grace::pin()).pages(all::<F>()).collect());
        assert_eq!(left.len(), 1);
        assert_eq!(left[0].page, at::<F>(in_the_way));
        world.flushed();
        world.unmap(all::<F>());
    }
    world.end();
}

pub(super) fn pins_go_across_groups<F: OnSim>() {
    let n = count::<F>();
    let world = World::<F>::new();
    world.map(0, 2 * n, HOT);
    let frames = 3 * F::PAGE.frames();
    world.sim.on_cpu(0, || {
        for locked in [false, true] {
            let mut into = vec![Frame::default(); frames as usize];
            let start = at::<F>(n - 1);
            let pins = match locked {
                true => world.tables.get_user_pages(start, true, &mut into, |_, _| false),
                false => world.tables.get_user_pages_fast_only(start, true, &mut into),
            };
            let first = world.frame(0, n - 1);
            let expected = (0..frames).map(|more| first.checked_add(more).unwrap());
            assert_eq!(pins.unwrap().frames(), expected.collect::<Vec<_>>());
        }
    });
    world.end();
}

pub(super) fn pages_of_groups_become_a_large_page<F: OnSim>() {
    let world = World::<F>::new();
    let (sim, tables, large) = (&world.sim, &world.tables, F::LARGE.bytes());
    // Frames beyond the machine's memory.
    let first = Frame::new(1 << 24).unwrap();
    let range = VirtRange::new(virt(4 * large), large).unwrap();
    let page = |page: u64| virt(4 * large + page * F::PAGE.bytes());
    sim.on_cpu(0, || {
        // The host gives groups although the large page would fit.
        let supply = |at: VirtAddr, _| {
            let frame = first.checked_add((at.get() - 4 * large) >> 12).unwrap();
            Ok((frame, F::GROUP.unwrap()))
        };
        tables.map_with_own(range, HOT, supply).unwrap();
        {
            let guard = Grace::pin();
            let walk = tables.walk(&guard);
            assert!((0..F::ENTRIES as u64).all(|number| walk.group_of(page(number)).is_some()));
        }
        assert_eq!(tables.rejoin_own(range.start()), Ok(true));
        let found = tables.walk(&Grace::pin()).get(page(7)).unwrap();
        assert_eq!((found.size, found.frame), (F::LARGE, first));
        // And split again, for dirty logging.
        let mut pending = tables.no_flush();
        // SAFETY: as above.
        unsafe { tables.log_start(range, Logging::DirtyBits, &mut pending) }.unwrap();
        pending.flush();
        assert_eq!(tables.walk(&Grace::pin()).get(page(7)).unwrap().size, F::PAGE);
        tables.unmap_own(range, |_| ()).unwrap().flush();
    });
    world.end();
}
