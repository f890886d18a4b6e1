//! Every allocation on every path fails once, and nothing has changed then (I7). And few fail:
//! memory on other CPUs' lists, or in wait for a grace period, is reclaimed first.

mod common;

use common::*;
use grace::Reclaim;
use machine::*;
use paging::*;
use sim::{Config, Failure, Grace, Program, Sim, seeded};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};

type Tables<F> = PageTables<Sim, F, Grace>;

const KERNEL: u64 = 0xffff_8000_0000_0000;
/// Beyond the machine's memory.
const FRAME: u64 = 1 << 24;

fn frame(number: u64) -> Frame {
    Frame::new(FRAME + number).unwrap()
}

fn is_short(error: Error) -> bool {
    matches!(error, Error::Frames(FrameError::OutOfFrames { .. }))
}

/// All pages mapped in a half.
fn look<F: Format>(tables: &Tables<F>) -> Vec<Mapping> {
    let guard = <Grace as grace::Reclaim>::pin();
    let half = match tables.space() {
        Some(_) => VirtRange::new(virt(0), 1 << 47),
        None => VirtRange::new(virt(KERNEL), 1 << 46),
    };
    tables.walk(&guard).pages(half.unwrap()).collect()
}

fn settled(sim: &Sim, quick: TableLists<'_, Sim>) -> u64 {
    assert!(sim.settle());
    quick.drain();
    sim.free_count()
}

/// Runs `what` on tables that `prepare` has filled, once for each allocation that it makes, and
/// lets that allocation fail. If all later allocations fail, too, the result is an error and
/// nothing has changed; otherwise `what` succeeds. Returns the number of allocations.
fn sweep<F: Format>(
    kernel: bool,
    prepare: impl Fn(&Tables<F>),
    what: impl Fn(&Tables<F>) -> Result<(), Error>,
) -> u64 {
    let count = |lasting| {
        let fails = |nth: &u64| once(kernel, &prepare, &what, *nth, lasting);
        (1..).take_while(fails).count() as u64
    };
    let (for_good, for_once) = (count(true), count(false));
    assert_eq!(for_good, for_once);
    for_good
}

/// Returns whether there was an `nth` allocation.
fn once<F: Format>(
    kernel: bool,
    prepare: impl Fn(&Tables<F>),
    what: impl Fn(&Tables<F>) -> Result<(), Error>,
    nth: u64,
    lasting: bool,
) -> bool {
    let config = Config { cpus: 1, frames: 256, levels: F::LEVELS, ..Config::default() };
    let sim = Sim::new(config).unwrap();
    let paging = Paging::<Sim, F>::try_new(sim.clone(), PageSize::Size1G).unwrap();
    let failed = sim.on_cpu(0, || {
        let tables = match kernel {
            true => Tables::<F>::kernel(&paging),
            false => Tables::<F>::user(&paging, Asid(1), None),
        };
        let tables = tables.unwrap();
        prepare(&tables);
        let free = settled(&sim, paging.quick());
        let before = look(&tables);
        sim.fail_alloc(nth, lasting);
        let result = what(&tables);
        let failed = sim.alloc_failed();
        if failed && lasting {
            let error = result.expect_err("it succeeded without memory");
            assert!(is_short(error), "{error}");
            assert_eq!(look(&tables), before, "allocation {nth}");
            if kernel {
                let all = VirtRange::new(virt(KERNEL), 1 << 46).unwrap();
                tables.prune_own(all).unwrap().flush();
            }
            assert_eq!(settled(&sim, paging.quick()), free, "allocation {nth} leaks");
            // With memory it succeeds now.
            what(&tables).unwrap();
        } else {
            result.unwrap();
        }
        assert!(sim.settle());
        assert_eq!(paging.waiting(), 0);
        drop(tables);
        settled(&sim, paging.quick());
        failed
    });
    sim.check_leaks().unwrap();
    failed
}

fn nothing<F: Format>(_: &Tables<F>) {}

fn map<F: Format>(tables: &Tables<F>, at: u64, len: u64, first: u64) -> Result<(), Error> {
    // `?` performs the flush of a failed call.
    Ok(tables.map_own(pages(at, len), frame(first), Attrs::USER_RW)?)
}

fn every_allocation_fails_once<F: Format>() {
    let levels = u64::from(F::LEVELS);
    // A small page and large ones: one table for each level in between.
    for (len, missing) in [(1, 1), (512, 2), (1 << 18, 3)] {
        assert_eq!(sweep(false, nothing::<F>, |tables| map(tables, 0, len, 0)), levels - missing);
    }
    // Pages of all sizes, ascending and descending.
    let stairs = |tables: &Tables<F>| {
        let start = (1 << 30) - (1 << 21) - 0x1000;
        map(tables, start, 1 + 512 + (1 << 18) + 512 + 1, (1 << 18) - 512 - 1)
    };
    assert_eq!(sweep(false, nothing, stairs), levels - 1 + 2);
    // Across the border of a top-level entry: two tables of each level.
    let border = |tables: &Tables<F>| map(tables, (1 << 39) - 0x1000, 2, 0);
    let wide = if levels == 4 { 6 } else { 7 };
    assert_eq!(sweep(false, nothing, border), wide);
    // Next to an existing page, which stays.
    let next_to = |tables: &Tables<F>| map(tables, 0x1000, 1024, 2);
    assert_eq!(sweep(false, |tables| map(tables, 0, 1, 0).unwrap(), next_to), 2);

    // Splits of one step, and of two.
    let large = |tables: &Tables<F>| map(tables, 1 << 30, 1 << 18, 0).unwrap();
    let split = |size| {
        move |tables: &Tables<F>| {
            tables.split_own(virt((1 << 30) + 0x20_5000), size).map(PendingFlush::flush).map_err(
                |failed| {
                    assert!(failed.pending.is_nothing());
                    failed.error
                },
            )
        }
    };
    assert_eq!(sweep(false, large, split(PageSize::Size2M)), 1);
    assert_eq!(sweep(false, large, split(PageSize::Size4K)), 2);
    let medium = |tables: &Tables<F>| map(tables, 1 << 30, 1024, 0).unwrap();
    assert_eq!(sweep(false, medium, split(PageSize::Size4K)), 1);

    // Calls that need no memory, on pages of all sizes, and with tables that become empty.
    let prepare = |tables: &Tables<F>| {
        stairs(tables).unwrap();
        border(tables).unwrap();
    };
    let all = VirtRange::new(virt(0), 1 << 47).unwrap();
    let unmap = |tables: &Tables<F>| {
        tables.unmap_own(all, |_| ()).map(PendingFlush::flush).map_err(|failed| failed.error)
    };
    assert_eq!(sweep(false, prepare, unmap), 0);
    let protect = |tables: &Tables<F>| {
        tables
            .protect_own(all, Flags::READ | Flags::USER)
            .map(PendingFlush::flush)
            .map_err(|failed| failed.error)
    };
    assert_eq!(sweep(false, prepare, protect), 0);
    let prune = |tables: &Tables<F>| {
        tables.prune_own(all).map(PendingFlush::flush).map_err(|failed| failed.error)
    };
    assert_eq!(sweep(false, prepare, prune), 0);
}

#[test]
#[cfg_attr(miri, ignore = "takes too long")]
fn every_allocation_fails_once_with_four_levels() {
    every_allocation_fails_once::<X86_64L4>();
}

#[test]
#[cfg_attr(miri, ignore = "takes too long")]
fn every_allocation_fails_once_with_five_levels() {
    every_allocation_fails_once::<X86_64L5>();
}

/// The kernel's tables: a reservation is complete or absent, and a failed mapping is undone.
#[test]
#[cfg_attr(miri, ignore = "takes too long")]
fn the_kernels_tables() {
    let top = |index: u64| KERNEL + (index << 39);
    let reserve =
        |tables: &Tables<X86_64L4>| tables.reserve(VirtRange::new(virt(top(2)), 5 << 39).unwrap());
    assert_eq!(sweep(true, nothing, reserve), 5);
    let some = |tables: &Tables<X86_64L4>| tables.reserve(pages(top(4), 1)).unwrap();
    assert_eq!(sweep(true, some, reserve), 4);
    let all = |tables: &Tables<X86_64L4>| reserve(tables).unwrap();
    assert_eq!(sweep(true, all, reserve), 0);
    let map = |tables: &Tables<X86_64L4>| {
        let range = pages(top(3) - 0x1000, 2);
        tables.map_own(range, frame(0), Attrs::KERNEL_RW).map_err(|failed| failed.error)
    };
    assert_eq!(sweep(true, all, map), 4);
}

/// Top-level tables, of a user space and of the kernel.
#[test]
fn no_memory_for_the_top() {
    on_machine(1, 64, |sim, shared| {
        for _ in 0..2 {
            sim.fail_alloc(1, true);
            assert!(is_short(Space::<Grace>::user(shared, Asid(1), None).unwrap_err()));
            sim.fail_alloc(1, true);
            assert!(is_short(Space::<Grace>::kernel(shared).unwrap_err()));
            assert!(sim.alloc_failed());
        }
        let kernel = Arc::new(Space::<Grace>::kernel(shared).unwrap());
        sim.fail_alloc(1, true);
        let user = || Space::user(shared, Asid(1), Some(kernel.clone()));
        assert!(is_short(user().unwrap_err()) && sim.alloc_failed());
        drop(user().unwrap());
        drop(kernel);
    });
}

/// The supplier of `map_with` fails at each page, by an error or by a page that does not fit.
#[test]
#[cfg_attr(miri, ignore = "takes too long")]
fn supplies_that_fail() {
    on_machine(1, 64, |sim, shared| {
        let space = Space::<Grace>::user(shared, Asid(1), None).unwrap();
        let range = pages((1 << 30) - 0x5000, 10);
        for nth in 0..10 {
            for wrong in [Err(FrameError::NotOurs(frame(9))), Ok((frame(0), PageSize::Size2M))] {
                let mut calls = 0;
                let supply = |_, _| {
                    calls += 1;
                    if calls == nth + 1 { wrong } else { Ok((frame(calls), PageSize::Size4K)) }
                };
                let failed = space.map_with_own(range, Attrs::USER_RW, supply).unwrap_err();
                let at = virt(range.start().get() + (nth << 12));
                let expected = match wrong {
                    Err(error) => Error::Frames(error),
                    Ok((_, size)) => Error::TooLarge(at, size),
                };
                assert_eq!(failed.error, expected);
                drop(failed);
                assert_eq!(look(&space), []);
                assert!(sim.settle());
                assert_eq!(tables(sim), 1);
            }
        }
        drop(space);
    });
}

// --- memory that is reclaimed first -------------------------------------------------------------

/// CPU 0 needs three tables. All free memory lies on the list of CPU 1, which uses it, or only
/// takes timer interrupts.
fn on_another_list(seed: u64, ticks: bool) -> Result<(), Failure> {
    let (sim, shared) = machine_of::<X86_64L4>(Config { cpus: 2, frames: 32, ..Config::default() });
    if ticks {
        let theirs = Arc::downgrade(&shared);
        let tick = move |_: &Sim| {
            theirs.upgrade().map(|shared| shared.quick().tick());
        };
        sim.on_tick(tick).unwrap();
    }
    let space: Leaked<Space> = leaked_user(&sim, &shared);
    let quick = shared.quick();
    let hoard = |list: u8| {
        let take = || {
            // SAFETY: there are no kernel tables.
            let page = unsafe { quick.alloc(list) }.unwrap();
            // SAFETY: it is ours, and an empty table.
            unsafe { sim.set_owner(page, Owner::Table(0)) }.unwrap();
            page
        };
        let pages: Vec<Frame> = (0..sim.free_count() / 2 + 1).map(|_| take()).collect();
        // SAFETY: unchanged.
        pages.iter().for_each(|page| unsafe { quick.free(list, *page) }.unwrap());
    };
    sim.on_cpu(1, || {
        hoard(QUICK_TABLE);
        hoard(QUICK_ROOT);
        while sim.alloc(0, NodePolicy::Local).is_ok() {}
    });
    let (done, mapped) = (AtomicBool::new(false), AtomicUsize::new(0));
    let needs = || {
        let mapping = || space.map_own(pages(0x5000, 1), frame(0), Attrs::USER_RW);
        let result = mapping().map_err(|failed| failed.error);
        mapped.store(usize::from(result.is_ok()), SeqCst);
        assert!(ticks || result.is_ok() || is_short(result.unwrap_err()));
        assert!(!ticks || result.is_ok(), "{result:?}");
        done.store(true, SeqCst);
    };
    let has = || {
        while !done.load(SeqCst) {
            if ticks {
                sim.step(SharedAccess::Other);
                continue;
            }
            // It takes a page and gives it back, as usual.
            // SAFETY: no top-level table.
            if let Ok(page) = unsafe { quick.alloc(QUICK_TABLE) } {
                // SAFETY: it is ours, and an empty table.
                unsafe { sim.set_owner(page, Owner::Table(0)) }.unwrap();
                // SAFETY: unchanged.
                unsafe { quick.free(QUICK_TABLE, page) }.unwrap();
            }
            sim.step(SharedAccess::Other);
        }
    };
    seeded(&sim, seed, vec![Box::new(needs) as Program, Box::new(has)])?;
    assert_eq!(mapped.into_inner(), 1, "the pages stayed on the list");
    sim.on_cpu(0, || {
        space.unmap_own(pages(0x5000, 1), |_| ()).unwrap().flush();
        assert!(quick.stats(QUICK_TABLE).given != 0);
        let rest = sim.allocated();
        let rest = rest.into_iter().filter(|block| block.owner == Owner::Raw);
        rest.for_each(|block| release(&sim, block.frame));
    });
    end(&sim, &shared, space)
}

#[test]
#[cfg_attr(miri, ignore = "Miri has no coroutines")]
fn pages_on_other_lists_are_found() {
    right(200, |seed| on_another_list(seed, true));
    right(200, |seed| on_another_list(seed, false));
}

/// The free pages lie on this CPU's list of another kind.
#[test]
#[cfg_attr(miri, ignore = "takes too long")]
fn pages_on_our_other_list_are_found() {
    on_machine(1, 16, |sim, shared| {
        let quick = shared.quick();
        // SAFETY: there are no kernel tables.
        let root = || unsafe { quick.alloc(QUICK_ROOT) }.ok();
        let roots: Vec<Frame> = std::iter::from_fn(root).collect();
        // SAFETY: unchanged.
        roots.iter().for_each(|page| unsafe { quick.free(QUICK_ROOT, *page) }.unwrap());
        assert_eq!(sim.free_count(), 0);
        let space = Space::<Grace>::user(shared, Asid(1), None).unwrap();
        space.map_own(pages(0x5000, 1), frame(0), Attrs::USER_RW).unwrap();
        space.unmap_own(pages(0x5000, 1), |_| ()).unwrap().flush();
        drop(space);
    });
}

/// All tables wait for the end of a grace period, which CPU 1 holds up: for a while (`leaves`), or
/// until the end.
fn in_wait(seed: u64, leaves: bool) -> Result<(), Failure> {
    let (sim, shared) = machine_of::<X86_64L4>(Config { cpus: 2, frames: 8, ..Config::default() });
    let space: Leaked<Space> = leaked_user(&sim, &shared);
    let (inside, done) = (AtomicBool::new(false), AtomicBool::new(false));
    let (one, other) = (pages(0x5000, 1), pages(1 << 40, 1));
    let needs = || {
        while !inside.load(SeqCst) {
            sim.relax();
        }
        space.map_own(one, frame(0), Attrs::USER_RW).unwrap();
        space.unmap_own(one, |_| ()).unwrap().flush();
        let mut hogs = Vec::new();
        // Two frames are left; three are needed.
        while sim.free_count() > 2 {
            hogs.push(sim.alloc(0, NodePolicy::Local).unwrap());
        }
        assert!(shared.waiting() <= 3);
        match space.map_own(other, frame(0), Attrs::USER_RW) {
            Ok(()) => {
                assert!(leaves, "memory from nowhere");
                space.unmap_own(other, |_| ()).unwrap().flush();
            }
            Err(failed) => {
                assert!(!leaves, "{failed}");
                assert!(is_short(failed.error));
                drop(failed);
                // Reported, not lost. The tables of the undone mapping wait, too.
                assert_eq!(shared.waiting(), 5);
                assert_eq!(look(&space), []);
            }
        }
        hogs.into_iter().for_each(|frame| release(&sim, frame));
        done.store(true, SeqCst);
    };
    let holds = || {
        let guard = <Grace as grace::Reclaim>::pin();
        inside.store(true, SeqCst);
        if leaves {
            (0..50).for_each(|_| sim.step(SharedAccess::Other));
            drop(guard);
            while !done.load(SeqCst) {
                sim.step(SharedAccess::Other);
            }
        } else {
            while !done.load(SeqCst) {
                sim.relax();
            }
            drop(guard);
        }
    };
    seeded(&sim, seed, vec![Box::new(needs) as Program, Box::new(holds)])?;
    sim.on_cpu(0, || {
        assert!(sim.settle());
        assert_eq!(shared.waiting(), 0);
    });
    end(&sim, &shared, space)
}

#[test]
#[cfg_attr(miri, ignore = "Miri has no coroutines")]
fn tables_in_wait_are_hurried() {
    right(200, |seed| in_wait(seed, true));
}

#[test]
#[cfg_attr(miri, ignore = "Miri has no coroutines")]
fn tables_that_are_held_up_are_reported() {
    right(20, |seed| in_wait(seed, false));
}

// --- frees that others have deferred ------------------------------------------------------------

static POOL: spin::mutex::SpinMutex<u32> = spin::mutex::SpinMutex::new(0);

/// Like the free of a tree node into a pool with a lock.
unsafe fn free_to_the_pool(_: NonNull<()>) {
    let sim = Sim::here().unwrap();
    *machine::lock(&sim, &POOL) += 1;
}

/// Deferred frees of other owners run only where memory has run out. As long as there is memory, a
/// caller may hold the locks that these frees take.
#[test]
#[cfg_attr(miri, ignore = "Miri has no coroutines")]
fn deferred_frees_run_where_memory_gives_out() {
    let (sim, shared) =
        machine_of::<X86_64L4>(Config { cpus: 1, frames: 2048, ..Config::default() });
    let program = || {
        let space = Space::<Grace>::user(&shared, Asid(1), None).unwrap();
        let guard = <Grace as Reclaim>::pin();
        // SAFETY: it frees no memory.
        unsafe { <Grace as Reclaim>::retire(&guard, NonNull::dangling(), free_to_the_pool) };
        drop(guard);
        // Tables wait, too, and are due.
        unmap_prune(pages(0x1000, 1), &space).flush();
        (0..4).for_each(|_| assert!(Grace::quiescent_state()));
        let all = || {
            assert!(space.reclaim());
            drop(Space::<Grace>::user(&shared, Asid(2), None).unwrap());
            space.map_own(pages(1 << 30, 512), frame(512), Attrs::USER_RW).unwrap();
            space.split_own(virt(1 << 30), PageSize::Size4K).unwrap().flush();
            space.protect_own(pages(1 << 30, 1), Flags::READ | Flags::USER).unwrap().flush();
            space.unmap_own(pages(1 << 30, 512), |_| ()).unwrap().flush();
            space.prune_own(pages(1 << 30, 512)).unwrap().flush();
        };
        let pool = machine::lock(&sim, &POOL);
        all();
        assert_eq!(*pool, 0);
        drop(pool);
        sim.fail_alloc(1, true);
        shared.quick().drain();
        assert!(
            space.map_own(pages(0x1000, 1), frame(0), Attrs::USER_RW).is_err(),
            "memory from nowhere"
        );
        assert!(sim.alloc_failed());
        assert_eq!(*machine::lock(&sim, &POOL), 1);
        drop(space);
    };
    seeded(&sim, 0, vec![Box::new(program) as Program])
        .unwrap_or_else(|failure| panic!("{failure}"));
    all_given_back(&sim, &shared).unwrap();
}
