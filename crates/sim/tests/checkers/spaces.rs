//! Reused tags, global pages, pages of two sizes, and accessed and dirty bits.

use super::*;

const KERNEL: u64 = 0xffff_8000_0000_1000;
const USER: u64 = 4;

/// Two CPUs use a space. After it another space gets its tag, and perhaps the same frames for its
/// tables.
fn tag_again(seed: u64, flush: bool, upper_entries: usize) -> Result<(), Failure> {
    let sim = Sim::new(Config { upper_entries, ..config() }).unwrap();
    let (first, _) = sim.on_cpu(0, || mapped(&sim));
    let used = AtomicU32::new(0);
    let use_both = || {
        let idle = Space::new(&sim);
        first.activate(1);
        first.touch(AT);
        idle.activate(2);
        used.fetch_add(1, SeqCst);
        wait(&sim, || used.load(SeqCst) >= 3);
        // A new space, with the tag of the old one. `activate` keeps the cached entries.
        let second = Space::new(&sim);
        second.activate(1);
        second.touch(AT);
    };
    let owner = || {
        use_twice(&sim, &first);
        wait(&sim, || used.load(SeqCst) == 1);
        if flush {
            sim.flush_on(&sim.online(), Flush::Space(Asid(1)));
        }
        used.fetch_add(2, SeqCst);
    };
    seeded(&sim, seed, vec![Box::new(owner), Box::new(use_both)]).map(drop)
}

fn use_twice(sim: &Sim, space: &Space) {
    space.activate(1);
    space.touch(AT);
    space.touch(AT);
    sim.step(SharedAccess::Other);
}

#[test]
fn a_tag_that_is_used_again_without_a_flush_is_noticed() {
    for upper_entries in [0, 8] {
        right(|seed| tag_again(seed, true, upper_entries));
        let report = caught(|seed| tag_again(seed, false, upper_entries));
        assert!(matches!(report.violation, Violation::TagReused { tag: 1, .. }), "{report}");
    }
}

/// A top-level frame that becomes a new table is another space.
#[test]
fn a_table_made_anew_is_another_space() {
    let found = alone(|sim| {
        let space = Space::new(sim);
        space.map(AT, page(sim));
        space.activate(1);
        space.touch(AT);
        let other = Space::new(sim);
        other.activate(2);
        // Translations of it are cached.
        set_owner(sim, space.root, Owner::Raw);
        set_owner(sim, space.root, Owner::Table(3));
        space.activate(1);
    });
    let Violation::TagReused { before, root, .. } = found else { panic!("{found}") };
    assert_eq!(before, root);
}

/// A tag that a space has lost: entries cached under it are dropped before the tag is used again,
/// for the same space or another.
#[test]
fn a_tag_that_was_taken_is_dropped_first() {
    for (other, keep) in [(false, false), (true, false), (false, true), (true, true)] {
        let found = alone_if(|sim| {
            let (space, frame) = mapped(sim);
            space.activate(1);
            space.touch(AT);
            let idle = Space::new(sim);
            idle.activate(2);
            sim.check_tag_taken(Asid(1));
            // No flush, and no violation: entries that CPUs have cached are void.
            space.slot(AT, 0).store(0);
            free(sim, frame);
            let root = if other { Space::new(sim).root } else { space.root };
            // SAFETY: the test needs no mapping.
            unsafe { sim.activate(root, Asid(1), keep) };
        });
        let kept = found.map(|found| matches!(found, Violation::TagKept { tag: 1, .. }));
        assert_eq!(kept, keep.then_some(true));
    }
}

#[test]
fn an_active_tag_that_is_taken_is_noticed() {
    let found = alone(|sim| {
        Space::new(sim).activate(1);
        sim.check_tag_taken(Asid(1));
    });
    assert!(matches!(found, Violation::TagTakenActive { tag: 1, .. }), "{found}");
}

// --- global pages -------------------------------------------------------------------------------

/// Two spaces that share the kernel's half.
fn two_spaces(sim: &Sim) -> (Space, Space) {
    let first = Space::new(sim);
    first.set(KERNEL, 0, 0);
    let second = Space::new(sim);
    let shared = first.slot(KERNEL, 3).load();
    second.slot(KERNEL, 3).store(shared);
    (first, second)
}

#[test]
fn a_global_page_of_the_kernel_survives_a_change_of_space() {
    let none = alone_if(|sim| {
        let (first, second) = two_spaces(sim);
        let frame = page(sim);
        first.set(KERNEL, 0, frame.start().get() | RW | GLOBAL);
        first.activate(1);
        first.touch(KERNEL);
        let before = sim.stats();
        // SAFETY: the tests need no mapping but those that they access.
        unsafe { sim.activate(second.root, Asid(2), false) };
        second.touch(KERNEL);
        assert_eq!((sim.stats() - before).hits, 1);
    });
    assert_eq!(none, None);
}

#[test]
fn a_global_page_of_a_program_is_noticed() {
    let found = alone(|sim| {
        let (first, second) = two_spaces(sim);
        first.set(AT, 0, page(sim).start().get() | RW | USER | GLOBAL);
        first.activate(1);
        first.touch(AT);
        // SAFETY: as above.
        unsafe { sim.activate(second.root, Asid(2), false) };
    });
    let Violation::GlobalNotShared { page, .. } = found else { panic!("{found}") };
    assert_eq!(page, virt(AT));
}

/// CPU 0 unmaps a kernel page that CPU 1 uses, and reuses the address.
fn global_gone(seed: u64, flush: Flush) -> Result<(), Failure> {
    let sim = Sim::new(config()).unwrap();
    let (first, second) = sim.on_cpu(0, || two_spaces(&sim));
    let frame = sim.on_cpu(0, || {
        let frame = page(&sim);
        first.set(KERNEL, 0, frame.start().get() | RW | GLOBAL);
        frame
    });
    let owner = || {
        first.activate(1);
        first.touch(KERNEL);
        first.unmap(KERNEL);
        sim.flush_on(&sim.online(), flush);
        sim.check_reuse(None, range(KERNEL, 4096));
        free(&sim, frame);
    };
    let user = || {
        second.activate(2);
        second.touch(KERNEL);
    };
    seeded(&sim, seed, vec![Box::new(owner), Box::new(user)]).map(drop)
}

#[test]
fn a_flush_that_leaves_global_pages_is_noticed() {
    let of = |space| pages(space, range(KERNEL, 4096), false);
    for flush in [of(None), Flush::All] {
        right(|seed| global_gone(seed, flush));
    }
    for flush in [of(Some(Asid(1))), Flush::Space(Asid(2))] {
        let report = caught(|seed| global_gone(seed, flush));
        assert!(matches!(report.violation, Violation::ReusedEarly { .. }), "{report}");
    }
}

// --- two sizes ----------------------------------------------------------------------------------

/// Runs `then` on a machine with a large page that is mapped and cached.
fn large(then: impl FnOnce(&Sim, &Space, Frame) + Send) -> Option<Violation> {
    alone_with(Config { frames: 1200, cpus: 1, ..Config::default() }, |sim| {
        let space = Space::new(sim);
        let block = sim.alloc(9, NodePolicy::Local).unwrap();
        space.set(0x20_0000, 1, block.start().get() | RW | LARGE);
        space.activate(1);
        space.load(0x20_3000).unwrap();
        then(sim, &space, block);
    })
}

/// Replaces a large page by a table of its pieces.
fn split(sim: &Sim, space: &Space, block: Frame) {
    let pieces = table(sim, 0);
    for index in 0..512 {
        let piece = block.checked_add(index as u64).unwrap();
        space.entry(pieces, index).store(piece.start().get() | RW);
    }
    space.slot(0x20_0000, 1).store(pieces.start().get() | RW);
}

#[test]
fn a_split_without_a_flush_is_looked_for() {
    let all = range(0x20_0000, 2 << 20);
    for flush in [true, false] {
        let found = large(|sim, space, block| {
            split(sim, space, block);
            // A piece may be cached together with the large page: both lead to the same frame.
            space.store(0x20_3000, 1).unwrap();
            if flush {
                space.flush(0x20_0000, 2 << 20, false);
            }
            sim.check_flushed(space.root, None, all);
        });
        match found {
            None => assert!(flush),
            Some(Violation::OtherSize { held, now, .. }) => {
                assert!(!flush);
                assert_eq!((held, now), (PageSize::Size2M, PageSize::Size4K));
            }
            Some(found) => panic!("{found}"),
        }
    }
}

#[test]
fn two_sizes_that_lead_elsewhere_are_noticed() {
    let found = large(|sim, space, block| {
        split(sim, space, block);
        let other = page(sim);
        space.slot(0x20_3000, 0).store(other.start().get() | RW);
        // To set the dirty bit takes a walk.
        let _ = space.store(0x20_3000, 2);
    });
    let Some(Violation::TwoSizes { held, new, .. }) = found else { panic!("{found:?}") };
    assert_eq!((held.0, new.0), (PageSize::Size2M, PageSize::Size4K));
}

// --- accessed and dirty bits --------------------------------------------------------------------

#[derive(Clone, Copy, PartialEq)]
enum Clear {
    Swap,
    Exchange,
    /// Stores, by the value that was read before.
    Store,
}

/// CPU 0 unmaps a page that CPU 1 writes.
fn clear_during_stores(seed: u64, how: Clear) -> Result<(), Failure> {
    let sim =
        Sim::new(Config { checks: Checks { stale: sim::Stale::Off, ..Checks::ALL }, ..config() })
            .unwrap();
    let space = sim.on_cpu(0, || {
        let space = Space::new(&sim);
        space.set(AT, 0, page(&sim).start().get() | RW | USER);
        space
    });
    let wrote = AtomicBool::new(false);
    let owner = || {
        let entry = space.slot(AT, 0);
        let value = entry.load();
        let seen = match how {
            Clear::Swap => entry.swap(0),
            Clear::Store => {
                entry.store(0);
                value
            }
            Clear::Exchange => {
                let mut value = value;
                while let Err(now) = entry.compare_exchange(value, 0) {
                    value = now;
                }
                value
            }
        };
        assert!(seen & DIRTY != 0 || !wrote.load(SeqCst), "a lost dirty bit is not reported");
    };
    let user = || {
        space.activate(1);
        if space.store(AT, 1).is_ok() {
            wrote.store(true, SeqCst);
        }
    };
    seeded(&sim, seed, vec![Box::new(owner), Box::new(user)]).map(drop)
}

#[test]
fn a_store_that_loses_a_mark_is_noticed() {
    for how in [Clear::Swap, Clear::Exchange] {
        right(|seed| clear_during_stores(seed, how));
    }
    let report = caught(|seed| clear_during_stores(seed, Clear::Store));
    let Violation::LostAccessedDirty { bits, .. } = report.violation else { panic!("{report}") };
    assert!(bits & DIRTY != 0, "{report}");
}
