//! Quicklists: the constructed state across uses, nodes, watermarks, statistics.

mod common;

use common::*;
use machine::*;
use paging::*;
use sim::{Checks, Config, Failure, Grace, Program, Sim, Violation, seeded};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// A constructor of pages with marks. Counts its calls, and those of the destructor.
struct Marked(Arc<[AtomicU32; 2]>);

fn mark(index: usize) -> u64 {
    if index.is_multiple_of(7) { index as u64 * 0x1_0001 } else { 0 }
}

impl<M> Construct<M> for Marked {
    fn construct(&self, _: &M, page: &mut [u64]) {
        assert_eq!(*page, [0; 512]);
        page.iter_mut().enumerate().for_each(|(index, word)| *word = mark(index));
        self.0[0].fetch_add(1, Relaxed);
    }
    fn destruct(&self, _: &M, page: &mut [u64]) {
        assert!(page.iter().enumerate().all(|(index, word)| *word == mark(index)));
        self.0[1].fetch_add(1, Relaxed);
    }
}

fn machine(cpus: usize, nodes: usize, frames: u64) -> (Sim, Arc<[AtomicU32; 2]>, QuickLists<Sim>) {
    // Miri would check each word slowly, and is here to check the code.
    let checks = if cfg!(miri) { Checks::NONE } else { Checks::ALL };
    let sim = Sim::new(Config { cpus, nodes, frames, checks, ..Config::default() }).unwrap();
    sim.constructed(QUICK_ROOT, mark);
    let calls = Arc::new([AtomicU32::new(0), AtomicU32::new(0)]);
    let kinds: [Box<dyn Construct<Sim>>; NR_QUICK] =
        [Box::new(Zeroed), Box::new(Marked(calls.clone()))];
    let lists = QuickLists::try_new(sim.clone(), kinds).unwrap();
    (sim, calls, lists)
}

fn take(lists: &QuickLists<Sim>, list: u8) -> Frame {
    let page = lists.alloc(list).unwrap();
    // SAFETY: it is ours, and in the state of a page that is a table.
    unsafe { lists.machine().set_owner(page, Owner::Table(0)) }.unwrap();
    page
}

fn give(lists: &QuickLists<Sim>, list: u8, page: Frame) {
    // SAFETY: unchanged; the machine checks that.
    unsafe { lists.free(list, page) }.unwrap();
}

/// Lists of blocks that no machine has are empty, and nothing overflows.
#[test]
fn any_order_is_accepted() {
    for order in [0, 4, 17, 52, 63, 64, u8::MAX] {
        let (sim, ..) = machine(1, 1, 64);
        let kinds: [Box<dyn Construct<Sim>>; NR_QUICK] = [Box::new(Zeroed), Box::new(Zeroed)];
        let lists = QuickLists::try_with_order(sim.clone(), order, kinds).unwrap();
        sim.on_cpu(0, || {
            match lists.alloc(QUICK_TABLE) {
                Ok(page) => {
                    assert!(order <= 4 && sim.info(page).unwrap().order() == order);
                    // SAFETY: it is ours, and in the state of a page that is a table.
                    unsafe { sim.set_owner(page, Owner::Table(0)) }.unwrap();
                    give(&lists, QUICK_TABLE, page);
                }
                Err(error) => assert!(order > 4, "{error}"),
            }
            // Of 64 frames, a share is 4 pages of one frame, and none of a larger order.
            assert_eq!(lists.trim(QUICK_TABLE, 0, 8), usize::from(order == 4));
            assert_eq!(lists.drain(), usize::from(order == 0));
        });
        sim.check_leaks().unwrap();
    }
}

/// A page is made once and keeps its state; last in, first out; the lists do not mix.
#[test]
fn pages_keep_their_state() {
    let (sim, calls, lists) = machine(1, 1, 64);
    sim.on_cpu(0, || {
        let first: Vec<Frame> = (0..5).map(|_| take(&lists, QUICK_ROOT)).collect();
        let other = take(&lists, QUICK_TABLE);
        for _ in 0..3 {
            first.iter().for_each(|page| give(&lists, QUICK_ROOT, *page));
            assert_eq!((lists.len(QUICK_ROOT), lists.len(QUICK_TABLE)), (5, 0));
            let again: Vec<Frame> = (0..5).map(|_| take(&lists, QUICK_ROOT)).collect();
            assert!(again.iter().eq(first.iter().rev()));
            again.iter().rev().for_each(|page| give(&lists, QUICK_ROOT, *page));
            for _ in 0..5 {
                take(&lists, QUICK_ROOT);
            }
        }
        assert_eq!(calls[0].load(Relaxed), 5);
        first.iter().for_each(|page| give(&lists, QUICK_ROOT, *page));
        give(&lists, QUICK_TABLE, other);
        let stats = lists.stats(QUICK_ROOT);
        assert_eq!((stats.made, stats.taken, stats.kept, stats.held), (5, 30, 35, 5));
        assert_eq!(lists.drain(), 6);
        assert_eq!((calls[0].load(Relaxed), calls[1].load(Relaxed)), (5, 5));
        // A page that is free cannot be given back.
        // SAFETY: it returns an error.
        let twice = unsafe { lists.free(QUICK_TABLE, other) };
        assert_eq!(twice, Err(FrameError::NotAllocated(other)));
        assert!(lists.is_empty());
    });
    sim.check_leaks().unwrap();
}

/// A page from a list is neither cleared nor constructed again: taking it touches none of its
/// words.
#[test]
fn taking_a_page_touches_two_lines() {
    let (sim, _, lists) = machine(1, 1, 64);
    sim.on_cpu(0, || {
        let page = take(&lists, QUICK_TABLE);
        give(&lists, QUICK_TABLE, page);
        let before = sim.stats().steps;
        let page = lists.alloc(QUICK_TABLE).unwrap();
        assert_eq!(sim.stats().steps - before, 1, "it touches more than the list itself");
        give(&lists, QUICK_TABLE, page);
        lists.drain();
    });
}

#[test]
fn pages_of_other_nodes_go_home() {
    let (sim, _, lists) = machine(2, 2, 64);
    let page = sim.on_cpu(0, || take(&lists, QUICK_TABLE));
    assert_eq!(sim.info(page).unwrap().node(), NodeId(0));
    sim.on_cpu(1, || {
        give(&lists, QUICK_TABLE, page);
        assert!(lists.is_empty());
    });
    let stats = lists.stats(QUICK_TABLE);
    assert_eq!((stats.kept, stats.remote, stats.held), (0, 1, 0));
    sim.check_leaks().unwrap();
}

#[test]
#[cfg_attr(miri, ignore = "takes too long")]
fn lists_are_trimmed_as_memory_gets_short() {
    let (sim, calls, lists) = machine(2, 1, 2048);
    sim.on_cpu(0, || {
        let pages: Vec<Frame> = (0..300).map(|_| take(&lists, QUICK_ROOT)).collect();
        pages.iter().for_each(|page| give(&lists, QUICK_ROOT, *page));
        assert_eq!(lists.len(QUICK_ROOT), QUICK_MAX as usize);
        assert_eq!(lists.stats(QUICK_ROOT).full, 300 - u64::from(QUICK_MAX));
        // One part in 16 of the free frames, for two CPUs.
        let share = (2048 - QUICK_MAX as usize) / QUICK_FRACTION / 2;
        assert_eq!(lists.trim(QUICK_ROOT, 10, 50), 50, "not the number that was asked for");
        let trimmed = lists.trim(QUICK_ROOT, 10, usize::MAX);
        assert_eq!(trimmed, QUICK_MAX as usize - 50 - (share + 50 / QUICK_FRACTION / 2));
        // Memory runs short: all pages go but the least number to keep.
        let hogs: Vec<Frame> =
            std::iter::from_fn(|| sim.alloc(0, NodePolicy::Local).ok()).collect();
        lists.trim(QUICK_ROOT, 10, usize::MAX);
        assert_eq!(lists.len(QUICK_ROOT), 10);
        let stats = lists.stats(QUICK_ROOT);
        assert_eq!(stats.trimmed + stats.full, u64::from(calls[1].load(Relaxed)));
        // All that is left is on the list.
        let kept: Vec<Frame> = (0..10).map(|_| take(&lists, QUICK_ROOT)).collect();
        let left: Vec<Frame> = std::iter::from_fn(|| lists.alloc(QUICK_ROOT).ok()).collect();
        assert_eq!(lists.alloc(QUICK_ROOT), Err(FrameError::OutOfFrames { order: 0 }));
        kept.into_iter().chain(left).for_each(|page| give(&lists, QUICK_ROOT, page));
        lists.drain();
        hogs.into_iter().for_each(|frame| release(&sim, frame));
    });
    sim.check_leaks().unwrap();
}

/// A CPU whose pages were requested gives all pages of each list, once: when it next gives a page
/// back, at its timer interrupt, or when it has taken its near pages.
#[test]
fn requested_pages_are_given_back() {
    /// Long enough that some pages are far.
    const LONG: u64 = if cfg!(miri) { 14 } else { 20 };
    for way in 0..3 {
        let (sim, _, lists) = machine(2, 1, 64);
        let last = sim.on_cpu(1, || {
            let pages: Vec<Frame> = (0..LONG).map(|_| take(&lists, QUICK_TABLE)).collect();
            let last = take(&lists, QUICK_TABLE);
            pages.iter().for_each(|page| give(&lists, QUICK_TABLE, *page));
            let again = take(&lists, QUICK_TABLE);
            give(&lists, QUICK_TABLE, again);
            last
        });
        sim.on_cpu(0, || {
            let ours = take(&lists, QUICK_ROOT);
            give(&lists, QUICK_ROOT, ours);
            assert_eq!(lists.shortage(), CpuSet::only(CpuId::new(1).unwrap()));
            assert!(lists.is_empty(), "our own pages stay");
            assert_eq!(lists.stats(QUICK_TABLE).held, LONG, "another CPU's list was changed");
        });
        sim.on_cpu(1, || {
            let (given, taken) = match way {
                0 => {
                    give(&lists, QUICK_TABLE, last);
                    (LONG + 1, 0)
                }
                1 => {
                    let mut pages = Vec::new();
                    while !lists.is_empty() {
                        pages.push(take(&lists, QUICK_TABLE));
                    }
                    // The last of them found no near page.
                    let taken = pages.len() as u64 - 1;
                    assert!((1..=12).contains(&taken), "{taken} near pages");
                    pages.iter().for_each(|page| give(&lists, QUICK_TABLE, *page));
                    assert_eq!(lists.drain(), pages.len(), "the pages are not kept again");
                    (LONG - taken, taken)
                }
                _ => (lists.tick() as u64, 0),
            };
            assert!(lists.is_empty());
            let stats = lists.stats(QUICK_TABLE);
            assert_eq!((stats.given, stats.taken), (given, 1 + taken));
            if way != 0 {
                give(&lists, QUICK_TABLE, last);
            }
            assert_eq!((lists.tick(), lists.drain()), (0, usize::from(way != 0)));
        });
        sim.on_cpu(0, || assert!(lists.shortage().is_empty()));
        sim.check_leaks().unwrap();
    }
}

/// I6: a page that comes back changed is reported, at once or when it is taken again.
#[test]
#[cfg_attr(miri, ignore = "Miri has no coroutines")]
fn a_page_that_is_not_as_it_was_is_caught() {
    for late in [false, true] {
        let report = caught(1, |seed| {
            let (sim, _, lists) = machine(1, 1, 64);
            let program = || {
                let page = take(&lists, QUICK_ROOT);
                // SAFETY: the page is ours.
                let scribble = || unsafe { sim.entry(page, 9) }.unwrap();
                let word = scribble();
                if !late {
                    word.store(4);
                }
                give(&lists, QUICK_ROOT, page);
                let words = sim.frame_ptr(page).unwrap().cast::<u64>();
                // SAFETY: none. The page is on the list, so the write must be reported.
                unsafe { words.add(9).write_volatile(4) };
                take(&lists, QUICK_ROOT);
            };
            seeded(&sim, seed, vec![Box::new(program) as Program]).map(drop)
        });
        let Violation::NotConstructed { list: 1, index: 9, found: 4, entering, .. } =
            report.violation
        else {
            panic!("{report}")
        };
        assert_eq!(entering, !late);
    }
}

/// Interrupt handlers take and give pages in the middle of the same operations.
fn interrupted(seed: u64) -> Result<(), Failure> {
    let (sim, _, lists) = machine(2, 1, 64);
    let lists = Arc::new(lists);
    let program = |cpu: usize| {
        let (sim, lists) = (&sim, lists.clone());
        Box::new(move || {
            for _ in 0..6 {
                let theirs = lists.clone();
                sim.interrupt(1 - cpu, move || {
                    let page = take(&theirs, QUICK_TABLE);
                    give(&theirs, QUICK_TABLE, page);
                });
                let pages = [take(&lists, QUICK_TABLE), take(&lists, QUICK_ROOT)];
                give(&lists, QUICK_ROOT, pages[1]);
                give(&lists, QUICK_TABLE, pages[0]);
            }
        }) as Program
    };
    seeded(&sim, seed, vec![program(0), program(1)])?;
    for cpu in 0..2 {
        sim.on_cpu(cpu, || {
            // A pending interrupt is taken when the CPU runs again.
            sim.step(SharedAccess::Other);
            lists.drain()
        });
    }
    let stats = lists.stats(QUICK_TABLE);
    assert_eq!(stats.held, 0);
    Ok(sim.check_leaks()?)
}

#[test]
#[cfg_attr(miri, ignore = "Miri has no coroutines")]
fn interrupts_use_the_same_lists() {
    right(500, interrupted);
}

/// Tables come from the list and go to it: in the steady state none is made.
#[test]
#[cfg_attr(miri, ignore = "takes too long")]
fn tables_are_not_made_twice() {
    on_machine(1, 64, |sim, shared| {
        let space = Space::<Grace>::user(shared, Asid(1), None).unwrap();
        let frame = block(sim, 0);
        for round in 0..10 {
            let range = pages(0x1000 + (round << 30), 1);
            space.map_own(range, frame, Attrs::USER_RW).unwrap();
            space.unmap_own(range, |_| ()).unwrap().flush();
            assert!(sim.settle());
        }
        release(sim, frame);
        drop(space);
        let stats = shared.quick().stats(QUICK_TABLE);
        assert_eq!((stats.made, stats.taken, stats.kept), (4, 27, 31));
    });
}
