//! Ranges that cut a large page: they are refused, and nothing changes (I7). Also where a page
//! becomes large only after the range was checked: then the changes made before are reported, and
//! the large page stays whole.

mod common;

use common::*;
use grace::Reclaim;
use machine::*;
use paging::*;
use sim::{Checks, Config, Failure, Grace, Program, Sim, seeded};

/// A large page lies here, in the kernel's half and in a program's.
const LOWER: u64 = 0x80_4000_0000;
const UPPER: u64 = 0xffff_8080_4000_0000;
const LARGE: [PageSize; 2] = [PageSize::Size2M, PageSize::Size1G];

fn machine(cpus: usize) -> (Sim, Shared) {
    let checks = Checks { walked: true, ..Checks::ALL };
    let config = Config { cpus, frames: 128, tick: Some(23), checks, ..Config::default() };
    let (sim, shared) = machine_of::<X86_64L4>(config);
    (sim, shared)
}

/// Frames of a device, aligned for each page size, so that they take no memory.
fn device(number: u64) -> Frame {
    Frame::new((1 << 24) + (number << 18)).unwrap()
}

fn look(space: &Space, all: VirtRange) -> Vec<Mapping> {
    space.walk(&Grace::pin()).pages(all).collect()
}

/// The calls that refuse to cut a page.
#[derive(Clone, Copy, PartialEq, Debug)]
enum CutCall {
    Unmap,
    Protect,
    Clear,
    Lazily,
}

/// Makes the call, which must fail. Returns the error, the pages that it has unmapped, and the
/// range that a flush is pending for.
fn refused(
    space: &Space,
    range: VirtRange,
    call: CutCall,
) -> (Error, Vec<Mapping>, Option<VirtRange>) {
    let mut gone = Vec::new();
    let failed = match call {
        CutCall::Unmap => space.unmap_own(range, |page| gone.push(page)).map(drop),
        CutCall::Protect => space.protect_own(range, Flags::READ | Flags::USER).map(drop),
        CutCall::Clear => {
            let mut pending = space.no_flush();
            let each = |frame, size| panic!("{frame} of {size:?} is cleared");
            // SAFETY: as for `Own`; it must fail.
            let error = unsafe { space.sweep_clear(range, &mut pending, each) }.unwrap_err();
            return (error, gone, pending.range());
        }
        CutCall::Lazily => {
            let each = |frame, size| panic!("{frame} of {size:?} is gone");
            // SAFETY: as for `Own`; it must fail.
            let error = unsafe { space.unmap_lazily(range, each) }.unwrap_err();
            return (error, gone, None);
        }
    };
    let failed = failed.unwrap_err();
    let (error, pending) = (failed.error, failed.pending.range());
    failed.pending.flush();
    (error, gone, pending)
}

/// Each call, at each end of a large page and within it, with small pages before and behind, that
/// have tables of their own or lie next to it.
#[test]
fn ranges_that_cut_a_large_page_change_nothing() {
    let (sim, shared) = machine(1);
    sim.on_cpu(0, || {
        let kernel = std::sync::Arc::new(Space::<Grace>::kernel(&shared).unwrap());
        kernel.reserve(pages(UPPER, 1)).unwrap();
        let user = Space::<Grace>::user(&shared, Asid(1), Some(kernel.clone())).unwrap();
        let cases: [(&Space, u64, Attrs, &[CutCall]); 2] = [
            (&user, LOWER, Attrs::USER_RW, &[CutCall::Unmap, CutCall::Protect, CutCall::Clear]),
            (
                &kernel,
                UPPER,
                Attrs::KERNEL_RW,
                &[CutCall::Unmap, CutCall::Protect, CutCall::Lazily],
            ),
        ];
        for ((space, base, attrs, calls), size) in
            cases.into_iter().flat_map(|case| LARGE.map(|size| (case, size)))
        {
            let len = size.frames();
            let at = |page: i64| base.wrapping_add_signed(page << 12);
            let end = len as i64;
            let small = [(at(-600), 2), (at(-2), 2), (at(end), 2), (at(end + 600), 2)];
            space.map_own(pages(base, len), device(0), attrs).unwrap();
            for ((start, count), number) in small.into_iter().zip(1..) {
                let frame = device(number).checked_add(1).unwrap();
                space.map_own(pages(start, count), frame, attrs).unwrap();
            }
            let all = VirtRange::between(virt(at(-1000)), virt(at(end + 1000))).unwrap();
            let before = look(space, all);
            assert_eq!(before.iter().filter(|page| page.size == size).count(), 1);
            // From before the page up to within it, from within it to behind, and within it.
            let before_it = [-600, -1, 0].map(|from| (from, [1, end - 1]));
            let behind_it = [1, end - 1].map(|from| (from, [end, end + 602]));
            let within_it = [(0, [1, end - 1]), (1, [2, end - 1]), (end - 2, [end - 1, end])];
            let cut = before_it.into_iter().chain(behind_it).chain(within_it);
            for (from, to) in cut.flat_map(|(from, to)| to.map(|to| (from, to))) {
                let range = VirtRange::between(virt(at(from)), virt(at(to))).unwrap();
                for call in calls {
                    let found = refused(space, range, *call);
                    let right = (Error::Cut(virt(base), size), Vec::new(), None);
                    assert_eq!(found, right, "{call:?} of {range:?}");
                    assert_eq!(look(space, all), before, "{call:?} of {range:?}");
                }
                // All of it is occupied, from the first page in it on.
                let in_it = before.iter().find(|page| {
                    range.overlaps(&VirtRange::new(page.page, page.size.bytes()).unwrap())
                });
                let failed = space.map_own(range, device(8).checked_add(1).unwrap(), attrs);
                assert_eq!(failed.unwrap_err().error, Error::Occupied(in_it.unwrap().page));
                assert_eq!(look(space, all), before, "mapping of {range:?}");
            }
            // Free pages before it are mapped first, and unmapped again.
            let range = VirtRange::between(virt(at(-598)), virt(at(1))).unwrap();
            space.unmap_own(pages(at(-2), 2), |_| ()).unwrap().flush();
            let before = look(space, all);
            let failed = space.map_own(range, device(8).checked_add(1).unwrap(), attrs);
            assert_eq!(failed.unwrap_err().error, Error::Occupied(virt(base)));
            assert_eq!(look(space, all), before);
            let frames = [device(8); 599];
            let failed = space.map_frames_own(range.start(), &frames, attrs);
            assert_eq!(failed.unwrap_err().error, Error::Occupied(virt(base)));
            assert_eq!(look(space, all), before);
            space.unmap_own(all, |_| ()).unwrap().flush();
            kernel.prune_own(pages(UPPER - (1 << 30), 3 << 18)).unwrap().flush();
        }
        drop((user, kernel));
    });
    all_given_back(&sim, &shared).unwrap();
}

/// CPU 0 changes small pages, in two tables, of which the second becomes a large page again and
/// again: CPU 1 unmaps what is there and maps a page of `size`. So there may be a large page where
/// a small one was when the range was checked.
///
/// No CPU uses the pages, so the two need not wait for each other's flushes.
fn becomes_large(seed: u64, size: PageSize, rounds: u64, call: CutCall) -> Result<(), Failure> {
    let (sim, shared) = machine(2);
    let space = sim.on_cpu(0, || match call {
        CutCall::Lazily => Space::<Grace>::kernel(&shared).unwrap(),
        _ => Space::<Grace>::user(&shared, Asid(1), None).unwrap(),
    });
    let space = Leaked::new(space);
    let (base, attrs) = match call {
        CutCall::Lazily => (UPPER, Attrs::KERNEL_RW),
        _ => (LOWER, Attrs::USER_RW),
    };
    let (first, second) = (pages(base - 0x1000, 1), pages(base, 1));
    let range = pages(base - 0x1000, 2);
    let large = pages(base, size.frames());
    let (one, two) = (device(1).checked_add(1).unwrap(), device(2).checked_add(1).unwrap());
    sim.on_cpu(0, || space.map_own(second, two, attrs).unwrap());
    let changer = || {
        for _ in 0..rounds {
            space.map_own(first, one, attrs).unwrap();
            let mut gone = Vec::new();
            let mut seen = |page: VirtAddr, frame| {
                assert!([one, two].contains(&frame), "the large page was cut");
                gone.push(page);
            };
            let result = match call {
                CutCall::Unmap => space.unmap_own(range, |page| seen(page.page, page.frame)),
                CutCall::Protect => space.protect_own(range, Flags::READ | Flags::USER),
                CutCall::Clear => {
                    let each = |frame, size| {
                        assert_eq!(size, PageSize::Size4K, "the large page was cut");
                        seen(if frame == one { first } else { second }.start(), frame);
                        true
                    };
                    let mut pending = space.no_flush();
                    // SAFETY: as for `Own`; no CPU uses the pages.
                    match unsafe { space.sweep_clear(range, &mut pending, each) } {
                        Ok(stop) => assert_eq!(stop, None),
                        Err(error) => assert_eq!(error, Error::Cut(second.start(), size)),
                    }
                    Ok(pending)
                }
                CutCall::Lazily => {
                    let each = |frame, size| {
                        assert_eq!(size, PageSize::Size4K, "the large page was cut");
                        seen(if frame == one { first } else { second }.start(), frame);
                    };
                    // SAFETY: as for `Own`; no CPU uses the pages.
                    if let Err(error) = unsafe { space.unmap_lazily(range, each) } {
                        assert_eq!(error, Error::Cut(second.start(), size));
                    }
                    space.unmap_own(first, |_| ()).unwrap().flush();
                    continue;
                }
            };
            let pending = match result {
                Ok(pending) => pending,
                Err(failed) => {
                    assert_eq!(failed.error, Error::Cut(second.start(), size));
                    failed.pending
                }
            };
            // The pending flush has all completed changes, also those before an error.
            for page in gone {
                assert!(pending.range().is_some_and(|range| range.contains(page)));
            }
            pending.flush();
            space.unmap_own(first, |_| ()).unwrap().flush();
        }
    };
    let grower = || {
        for _ in 0..rounds {
            // If the other CPU has emptied the table, it is about to unlink it.
            loop {
                space.unmap_own(second, |_| ()).unwrap().flush();
                if call == CutCall::Lazily {
                    space.prune_own(large).unwrap().flush();
                }
                match space.map_own(large, device(3), attrs) {
                    Ok(()) => break,
                    Err(failed) => assert_eq!(failed.error, Error::EmptyTable(second.start())),
                }
            }
            (0..3).for_each(|_| sim.step(SharedAccess::Other));
            // It is still whole, and has the rights that it was mapped with.
            let mut gone = Vec::new();
            space.unmap_own(large, |page| gone.push(page)).unwrap().flush();
            let [page] = gone[..] else { panic!("cut: {gone:?}") };
            assert_eq!((page.page, page.size, page.frame), (second.start(), size, device(3)));
            assert_eq!(page.attrs.flags & Flags::RIGHTS, attrs.flags & Flags::RIGHTS, "cut");
            space.map_own(second, two, attrs).unwrap();
        }
    };
    seeded(&sim, seed, vec![Box::new(changer) as Program, Box::new(grower)])?;
    sim.on_cpu(0, || {
        space.unmap_own(second, |_| ()).unwrap().flush();
    });
    end(&sim, &shared, space)
}

#[test]
#[cfg_attr(miri, ignore = "Miri has no coroutines")]
fn a_page_that_becomes_large_is_not_cut() {
    for call in [CutCall::Unmap, CutCall::Protect, CutCall::Clear, CutCall::Lazily] {
        right(100, |seed| becomes_large(seed, PageSize::Size2M, 12, call));
        // A program's page of 1 GiB takes long to map: each frame of a device is looked up.
        right(20, |seed| becomes_large(seed, PageSize::Size1G, 4, call));
    }
}

/// Two CPUs split the same page at once: one of them finds it split.
fn split_by_two(seed: u64, size: PageSize) -> Result<(), Failure> {
    let (sim, shared) = machine(2);
    let space: Leaked<Space> = leaked_user(&sim, &shared);
    let large = pages(LOWER, size.frames());
    sim.on_cpu(0, || space.map_own(large, device(1), Attrs::USER_RW).unwrap());
    let program = |cpu: u64| {
        let (sim, space) = (&sim, &space);
        Box::new(move || {
            // The one that is later comes in between.
            let theirs = sim.clone();
            sim.interrupt(cpu as usize ^ 1, move || {
                (0..600).for_each(|_| theirs.step(SharedAccess::Other));
            });
            let piece = pages(LOWER + (cpu << 12), 1);
            space.split_own(piece.start(), PageSize::Size4K).unwrap().flush();
            let mut gone = Vec::new();
            space.unmap_own(piece, |page| gone.push(page.frame)).unwrap().flush();
            assert_eq!(gone, [device(1).checked_add(cpu).unwrap()]);
        }) as Program
    };
    seeded(&sim, seed, vec![program(0), program(1)])?;
    sim.on_cpu(0, || {
        let mut left = 0;
        space.unmap_own(large, |page| left += page.size.frames()).unwrap().flush();
        assert_eq!(left, size.frames() - 2);
    });
    end(&sim, &shared, space)
}

#[test]
#[cfg_attr(miri, ignore = "Miri has no coroutines")]
fn two_that_split_a_page_lose_no_table() {
    for size in LARGE {
        right(100, |seed| split_by_two(seed, size));
    }
}
