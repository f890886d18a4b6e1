//! Creation of page tables; CPUs that enter and leave them.

mod common;

use common::*;
use machine::*;
use paging::*;
use sim::{Checks, Config, Failure, Grace, Program, Sim, seeded, stopped};
use std::sync::Arc;

const TOP: u64 = 0xffff_8000_0000_0000;
/// More steps than the making of a space takes, or the growth of the kernel's tables.
const STEPS: u64 = 700;

/// A frame beyond the machine's memory.
fn somewhere() -> Frame {
    Frame::new(1 << 24).unwrap()
}

fn user(shared: &Shared, asid: u16) -> Result<Space, Error> {
    Space::user(shared, Asid(asid), None)
}

fn activate(space: &Space) {
    space.activate_own();
}

// --- tags ---------------------------------------------------------------------------------------

/// A tag that the machine does not have, or the kernel's, would make flushes go wrong.
#[test]
fn tags_that_no_program_can_have() {
    for tags in [2, 16, 4096] {
        let (sim, shared) =
            machine_of::<X86_64L4>(Config { cpus: 1, frames: 16, tags, ..Config::default() });
        sim.on_cpu(0, || {
            for asid in [0, tags as u16, tags as u16 + 1, u16::MAX] {
                assert_eq!(user(&shared, asid).map(drop), Err(Error::Tag(Asid(asid))));
            }
            assert_eq!(shared.quick().stats(QUICK_TABLE).made, 0);
            for asid in [1, tags as u16 - 1] {
                assert_eq!(user(&shared, asid).unwrap().space(), Some(Asid(asid)));
            }
            assert_eq!(Space::<Grace>::kernel(&shared).unwrap().space(), None);
        });
        all_given_back(&sim, &shared).unwrap();
    }
}

/// Two spaces in turn on one CPU, with different frames at the same address. If they share the tag,
/// nothing of the other may stay cached.
fn in_turn(tags: u32, asids: [u16; 2]) -> Result<u64, Failure> {
    let (sim, shared) =
        machine_of::<X86_64L4>(Config { cpus: 2, frames: 64, tags, ..Config::default() });
    let spaces = sim.on_cpu(0, || asids.map(|asid| Leaked::new(user(&shared, asid).unwrap())));
    let range = pages(0x5000, 1);
    let flushes = std::sync::atomic::AtomicU64::new(0);
    let program = || {
        let frames = [block(&sim, 0), block(&sim, 0)];
        for (space, frame) in spaces.iter().zip(frames) {
            space.map_own(range, frame, Attrs::USER_RW).unwrap();
        }
        let before = sim.stats().flushes;
        for round in 0..6 {
            let now = round % 2;
            activate(&spaces[now]);
            // SAFETY: ordinary memory.
            let (found, stored) = unsafe {
                let found = sim.load(range.start());
                (found, sim.store(range.start(), now as u64 + 1))
            };
            assert_eq!(found, Ok(if round < 2 { 0 } else { now as u64 + 1 }));
            stored.unwrap();
        }
        flushes.store(sim.stats().flushes - before, std::sync::atomic::Ordering::SeqCst);
        for (space, frame) in spaces.iter().zip(frames) {
            space.unmap_own(range, |_| ()).unwrap().flush();
            release(&sim, frame);
            activate(space);
            assert!(sim.store_own(range.start(), 3).is_err());
        }
    };
    seeded(&sim, 0, vec![Box::new(program) as Program])?;
    sim.on_cpu(0, || spaces.map(|space| drop(Leaked::into_inner(space))));
    all_given_back(&sim, &shared)?;
    Ok(flushes.into_inner())
}

#[test]
#[cfg_attr(miri, ignore = "Miri has no coroutines")]
fn spaces_in_turn() {
    let turns = |tags, asids| in_turn(tags, asids).unwrap_or_else(|failure| panic!("{failure}"));
    assert_eq!(turns(4096, [1, 2]), 2, "one flush for each at first, then its cache is kept");
    assert_eq!(turns(3, [1, 2]), 2);
    assert_eq!(turns(1, [1, 2]), 6, "with one tag, nothing is kept");
    assert_eq!(turns(1, [0, 0]), 6);
}

/// A global user page would survive the flush of its space.
#[test]
fn no_page_of_a_program_is_global() {
    on_machine(1, 64, |sim, shared| {
        let space = user(shared, 1).unwrap();
        let range = pages(0x5000, 2);
        let global = Attrs::new(Attrs::USER_RW.flags | Flags::GLOBAL);
        let failed = space.map_own(range, somewhere(), global).unwrap_err();
        assert_eq!(failed.error, Error::Global(range.start()));
        assert!(failed.pending.is_nothing());
        drop(failed);
        let supply = |_, _| -> Result<(Frame, PageSize), FrameError> { panic!("it was called") };
        let failed = space.map_with_own(range, global, supply);
        assert_eq!(refused(failed), Error::Global(range.start()));
        assert_eq!(tables(sim), 1);
        space.map_own(range, somewhere(), Attrs::USER_RW).unwrap();
        // GLOBAL is not a right, so `protect` ignores it.
        space.protect_own(range, global.flags).unwrap().flush();
        space
            .unmap_own(range, |page| assert!(!page.attrs.flags.contains(Flags::GLOBAL)))
            .unwrap()
            .flush();
        drop(space);
    });
}

// --- CPUs that come and go ----------------------------------------------------------------------

/// A CPU that leaves has nothing cached, and gets no more flushes. When it comes back, it gets them
/// again.
#[test]
fn a_cpu_leaves_without_translations() {
    for tags in [[1, 2].map(|tag| Tag::Fixed(Asid(tag))), [Tag::Assigned; 2]] {
        let (sim, shared) = machine_of(Config { frames: 64, ..Config::default() });
        let user = |tag| Space::user(&shared, tag, None).unwrap();
        let [space, other] = sim.on_cpu(0, || tags.map(user));
        let range = pages(0x5000, 1);
        for stays in [false, true, false] {
            let frame = sim.on_cpu(0, || {
                let frame = block(&sim, 0);
                space.map_own(range, frame, Attrs::USER_RW).unwrap();
                frame
            });
            sim.on_cpu(1, || {
                activate(&space);
                sim.store_own(range.start(), 1).unwrap();
                activate(&other);
                if !stays {
                    // SAFETY: the other space is active.
                    unsafe { space.leave() };
                }
            });
            assert_eq!(space.cpus().len(), usize::from(stays));
            sim.on_cpu(0, || {
                let before = sim.stats();
                space.unmap_own(range, |_| ()).unwrap().flush();
                assert_eq!((sim.stats() - before).flushes, u64::from(stays));
                sim.check_flushed(space.root(), space.space(), range);
                sim.check_upper_flushed(space.root(), space.space(), range);
                release(&sim, frame);
            });
        }
        sim.on_cpu(0, || drop((space, other)));
        all_given_back(&sim, &shared).unwrap();
    }
}

// --- the kernel's half --------------------------------------------------------------------------

/// The tables behind a user space's upper half must stay as long as the space. So only the kernel's
/// tables of the same `Paging` are accepted.
#[test]
fn only_the_kernels_tables_are_the_kernels() {
    let config =
        Config { checks: Checks { constructed: false, ..Checks::ALL }, ..Config::default() };
    let sim = Sim::new(Config { cpus: 1, frames: 64, ..config }).unwrap();
    let (shared, others) = (paging(&sim), paging(&sim));
    sim.on_cpu(0, || {
        let user = |kernel: &Arc<Space>| Space::user(&shared, Asid(2), Some(Arc::clone(kernel)));
        let not = |kernel| assert_eq!(user(kernel).map(drop), Err(Error::NotTheKernels));
        let program = Arc::new(Space::user(&shared, Asid(1), None).unwrap());
        not(&program);
        let foreign = Arc::new(Space::kernel(&others).unwrap());
        not(&foreign);
        let kernel = Arc::new(Space::<Grace>::kernel(&shared).unwrap());
        kernel.map_own(pages(TOP + 0x5000, 1), somewhere(), Attrs::KERNEL_RW).unwrap();
        not(&program);
        not(&foreign);
        let with_kernel = Arc::new(user(&kernel).unwrap());
        not(&with_kernel);
        // The refused tables are unchanged.
        foreign.reserve(pages(TOP, 1)).unwrap();
        let space = user(&kernel).unwrap();
        // The space keeps the kernel's tables alive.
        drop(kernel);
        let guard = <Grace as grace::Reclaim>::pin();
        let page = space.walk(&guard).get(virt(TOP + 0x5000)).unwrap();
        assert_eq!(page.frame, somewhere());
        drop(guard);
        drop((program, foreign, with_kernel, space));
    });
    sim.on_cpu(0, || others.quick().drain());
    all_given_back(&sim, &shared).unwrap();
}

/// A failed creation of a user space fixes nothing. A created one has all of the kernel's entries.
#[test]
fn the_first_space_fixes_the_top() {
    let config =
        Config { checks: Checks { constructed: false, ..Checks::ALL }, ..Config::default() };
    let (sim, shared) = machine_of::<X86_64L4>(Config { cpus: 1, frames: 64, ..config });
    sim.on_cpu(0, || {
        let kernel = Arc::new(Space::<Grace>::kernel(&shared).unwrap());
        let user = |asid| Space::user(&shared, Asid(asid), Some(kernel.clone()));
        let at = |top: u64| pages(TOP + (top << 39), 1);
        sim.fail_alloc(1, true);
        assert!(matches!(user(1).map(drop), Err(Error::Frames(FrameError::OutOfFrames { .. }))));
        assert!(sim.alloc_failed());
        assert_eq!(user(0).map(drop), Err(Error::Tag(Asid(0))));
        kernel.reserve(at(0)).unwrap();
        kernel.map_own(at(1), somewhere(), Attrs::KERNEL_RW).unwrap();
        let spaces = [user(1).unwrap(), user(2).unwrap()];
        for space in &spaces {
            let guard = <Grace as grace::Reclaim>::pin();
            assert!(space.walk(&guard).get(at(1).start()).is_some());
        }
        assert_eq!(kernel.reserve(at(2)), Err(Error::TopLevelFixed(at(2).start())));
        kernel.map_own(at(0), somewhere(), Attrs::KERNEL_RW).unwrap();
        drop((spaces, kernel));
    });
    all_given_back(&sim, &shared).unwrap();
}

/// The kernel's tables grow while the first space is made: each new entry is in that space, or is
/// refused. The first space is made whole between any two steps of the CPU that adds entries, or
/// the other way round.
fn grows_at(step: u64, adder_stops: bool) -> Result<(), Failure> {
    let config =
        Config { checks: Checks { constructed: false, ..Checks::ALL }, ..Config::default() };
    let (sim, shared) = machine_of::<X86_64L4>(Config { cpus: 3, frames: 64, ..config });
    let kernel = sim.on_cpu(0, || Arc::new(Space::<Grace>::kernel(&shared).unwrap()));
    let kernel = Leaked::new(kernel);
    let made = std::sync::Mutex::new(Vec::new());
    let maker = |asid| {
        let (shared, kernel, made) = (&shared, &kernel, &made);
        Box::new(move || {
            let space = Space::user(shared, Asid(asid), Some(Arc::clone(kernel))).unwrap();
            made.lock().unwrap().push(space);
        }) as Program
    };
    let grown = std::sync::Mutex::new(Vec::new());
    let adder = || {
        for top in 0..6 {
            let range = pages(TOP + (top << 39), 1);
            let done = match top {
                1 => kernel
                    .map_own(range, somewhere(), Attrs::KERNEL_RW)
                    .map_err(|failed| failed.error),
                _ => kernel.reserve(range),
            };
            match done {
                Ok(()) => grown.lock().unwrap().push(256 + top as usize),
                Err(error) => assert_eq!(error, Error::TopLevelFixed(range.start())),
            }
        }
    };
    let mut programs = vec![maker(1), Box::new(adder), maker(2)];
    if adder_stops {
        programs.swap(0, 1);
    }
    let stops = stopped(&sim, step, step, programs)?.is_some();
    assert!(!stops || step < STEPS - 1, "there are more steps");
    let (made, grown) = (made.into_inner().unwrap(), grown.into_inner().unwrap());
    sim.on_cpu(0, || {
        for space in &made {
            let found: Vec<usize> = (256..ENTRIES)
                // SAFETY: a table.
                .filter(|index| unsafe { sim.entry(space.root(), *index) }.unwrap().load() != 0)
                .collect();
            assert_eq!(found, grown);
        }
        drop((made, Leaked::into_inner(kernel)));
    });
    Ok(all_given_back(&sim, &shared)?)
}

#[test]
#[cfg_attr(miri, ignore = "Miri has no coroutines")]
fn the_kernels_half_is_whole_from_the_first() {
    right(2 * STEPS, |at| grows_at(at / 2, at % 2 == 0));
}

// --- empty tables -------------------------------------------------------------------------------

/// An empty table that lies partly outside of the range stays: another owner may have it as a
/// `Leaf`.
#[test]
fn a_table_beyond_the_range_is_not_pruned() {
    let (sim, shared) = machine_of::<X86_64L4>(Config { cpus: 1, frames: 64, ..Config::default() });
    sim.on_cpu(0, || {
        let kernel = Space::<Grace>::kernel(&shared).unwrap();
        let frame = block(&sim, 0);
        kernel.map_own(pages(TOP + 0x1000, 1), frame, Attrs::KERNEL_RW).unwrap();
        kernel.unmap_own(pages(TOP + 0x1000, 1), |_| ()).unwrap().flush();
        assert_eq!(shared.waiting(), 0, "a kernel table was unlinked");
        for range in [pages(TOP + 0x1000, 1), pages(TOP, 511), pages(TOP + 0x1000, 512)] {
            let pending = kernel.prune_own(range).unwrap();
            assert!(pending.is_nothing(), "{range:?} does not cover the table");
        }
        let pending = kernel.prune_own(pages(TOP, 512)).unwrap();
        assert!(!pending.is_nothing());
        pending.flush();
        // SAFETY: it is mapped nowhere, and the flush is done.
        unsafe { sim.free(frame) }.unwrap();
    });
}
