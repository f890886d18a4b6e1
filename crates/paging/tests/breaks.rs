//! Break-before-make on AArch64. The machine reports each entry that is replaced without it.

mod common;

use common::*;
use grace::Reclaim;
use machine::*;
use paging::*;
use sim::{Checks, Config, Failure, Grace, Program, Sim, Stale, seeded};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

type Tables<F> = PageTables<Sim, F, Grace>;

const BASE: u64 = 0x4000_0000;
const RW: Attrs = Attrs::USER_RW;

fn whole<F: Format>() -> VirtRange {
    VirtRange::new(virt(BASE), F::LARGE.bytes()).unwrap()
}

fn machine<F: OnSim>(cpus: usize) -> (Sim, Arc<Paging<Sim, F>>) {
    // CPUs may use a page until it is flushed.
    let checks = Checks { stale: Stale::Freed, ..Checks::ALL };
    let frames = 2 * F::LARGE.frames() + 1024;
    machine_of(Config { cpus, frames, checks, ..Config::default() })
}

/// Caches the pages at both ends, for reads and writes.
fn use_it<F: Format>(sim: &Sim, tables: &Tables<F>) {
    tables.activate_own();
    for at in [BASE, BASE + F::LARGE.bytes() - F::PAGE.bytes()] {
        sim.store_own(virt(at), at).unwrap();
    }
}

/// Each call that replaces a valid entry by another one, with the old one cached.
fn each_change<F: OnSim>() {
    let (sim, paging) = machine::<F>(2);
    let (tables, blocks) = sim.on_cpu(0, || {
        let tables = Tables::<F>::user(&paging, Asid(1), None).unwrap();
        let blocks = [block(&sim, F::LARGE.order()), block(&sim, F::LARGE.order())];
        tables.map_own(whole::<F>(), blocks[0], RW).unwrap();
        (tables, blocks)
    });
    // Another CPU has cached all of it, too.
    let cached = || {
        sim.on_cpu(1, || use_it(&sim, &tables));
        sim.on_cpu(0, || use_it(&sim, &tables));
    };
    let one = pages_of::<F>(BASE, 1);
    let device = Attrs { cache: Cache::Uncached, ..RW };
    let change = |range: VirtRange, change: SweepChange| tables.swept(range, |_| change);
    cached();
    // A memory type, of a large page and of a small one.
    sim.on_cpu(0, || change(whole::<F>(), SweepChange::Set(device)));
    cached();
    sim.on_cpu(0, || change(whole::<F>(), SweepChange::Set(RW)));
    cached();
    sim.on_cpu(0, || tables.split_own(virt(BASE), F::PAGE).unwrap().flush());
    cached();
    sim.on_cpu(0, || change(one, SweepChange::Set(device)));
    cached();
    sim.on_cpu(0, || {
        change(one, SweepChange::Set(RW));
        // Other memory, that may be written.
        change(one, SweepChange::Replace(blocks[1], RW));
    });
    cached();
    sim.on_cpu(0, || change(one, SweepChange::Replace(blocks[0], RW)));
    cached();
    sim.on_cpu(0, || assert_eq!(tables.rejoin_own(virt(BASE)), Ok(true)));
    cached();
    // A large page in the place of pieces of another block.
    sim.on_cpu(0, || tables.split_own(virt(BASE), F::PAGE).unwrap().flush());
    cached();
    sim.on_cpu(0, || {
        change(whole::<F>(), SweepChange::Set(Attrs::USER_RO));
        let mut pending = tables.no_flush();
        // SAFETY: the memory is this test's, and differing parts are not looked at.
        unsafe { tables.collapse(virt(BASE), blocks[1], RW, &mut pending, |_| ()) }.unwrap();
        pending.flush();
    });
    cached();
    sim.on_cpu(0, || {
        tables.unmap_own(whole::<F>(), |page| assert_eq!(page.frame, blocks[1])).unwrap().flush();
    });
    sim.on_cpu(0, || drop(tables));
    sim.on_cpu(0, || blocks.into_iter().for_each(|block| release(&sim, block)));
}

#[test]
fn each_change_breaks_first() {
    each_change::<Aarch64>();
    each_change::<Aarch64Lpa2>();
    each_change::<Aarch64Stage2>();
    each_change::<Aarch64G16>();
    each_change::<Aarch64G16Lpa2>();
    each_change::<Aarch64G64>();
    each_change::<Aarch64G64Lpa>();
    each_change::<X86_64L4>();
}

/// A space that leaves a shared table has flushed its pages when the lock of the table above is
/// given up: a fault may store other pages there at once.
#[test]
fn a_shared_table_is_left_without_translations() {
    fn is_cached<F: OnSim>() -> bool {
        let (sim, paging) = machine::<F>(2);
        let (parent, child) = sim.on_cpu(0, || {
            let parent = Tables::<F>::user(&paging, Asid(1), None).unwrap();
            let exclusive = RW.with_share(Share::Exclusive);
            let page = block(&sim, F::PAGE.order());
            parent.map_own(pages_of::<F>(BASE, 1), page, exclusive).unwrap();
            let child = parent.fork_own(Asid(2), false);
            // Only the lowest table is shared.
            parent.unshare_ends(whole::<F>()).unwrap();
            (parent, child)
        });
        // SAFETY: the test needs no other mapping, and the memory is its own.
        let look = || unsafe {
            parent.activate();
            sim.load(virt(BASE)).is_ok()
        };
        sim.on_cpu(1, || assert!(look()));
        let pending = sim.on_cpu(0, || {
            let mut pending = parent.no_flush();
            // SAFETY: the addresses are this test's.
            let left = unsafe { parent.leave_shared(whole::<F>(), &mut pending) };
            assert_eq!(left, Ok(None));
            pending.defer()
        });
        let cached = sim.on_cpu(1, look);
        sim.on_cpu(0, || parent.flush_deferred(pending));
        sim.on_cpu(1, || assert!(!look()));
        sim.on_cpu(0, || {
            child.unmap_own(whole::<F>(), |page| release(&sim, page.frame)).unwrap().flush();
            drop((parent, child));
        });
        cached
    }
    assert!(!is_cached::<Aarch64>());
    assert!(!is_cached::<Aarch64Stage2>());
    assert!(!is_cached::<Aarch64G16>());
    assert!(!is_cached::<Aarch64G64>());
    assert!(is_cached::<X86_64L4>());
}

/// A large page is stored where a table was a moment ago, to which a CPU has cached the way.
#[test]
fn a_large_page_in_the_place_of_an_empty_table() {
    fn stored<F: OnSim>() {
        let (sim, paging) = machine::<F>(2);
        let to = VirtRange::new(virt(BASE + 2 * F::LARGE.bytes()), F::LARGE.bytes()).unwrap();
        let (tables, large, small) = sim.on_cpu(0, || {
            let tables = Tables::<F>::user(&paging, Asid(1), None).unwrap();
            let (large, small) = (block(&sim, F::LARGE.order()), block(&sim, F::PAGE.order()));
            // The second one keeps the upper table.
            for at in [BASE, BASE + F::LARGE.bytes(), to.start().get()] {
                tables.map_own(pages_of::<F>(at, 1), small, RW).unwrap();
            }
            (tables, large, small)
        });
        let touch = |at: VirtAddr| {
            sim.on_cpu(1, || {
                // SAFETY: the test needs no other mapping, and the memory is its own.
                unsafe {
                    tables.activate();
                    sim.store(at, 7).unwrap();
                }
            });
        };
        let clear = |range: VirtRange, keep: bool| {
            let mut pending = tables.no_flush();
            pending.keep_tables(keep);
            let gone = |_: Mapping| SweepChange::Clear;
            tables.sweep_own(range, &mut pending, gone).unwrap();
            pending
        };
        touch(virt(BASE));
        sim.on_cpu(0, || {
            // A fault comes before the flush for the table.
            let pending = clear(whole::<F>(), false);
            let set = |found| {
                assert_eq!(found, None);
                (EntryChange::Set(large, RW), ())
            };
            let guard = Grace::pin();
            // SAFETY: the pages are this test's.
            let ((), more) = unsafe { tables.with_large(&guard, virt(BASE), set) }.unwrap();
            drop(guard);
            more.flush();
            pending.flush();
        });
        touch(virt(BASE));
        // A move to where a fault has left an empty table.
        let plan = sim.on_cpu(0, || {
            clear(to, false).flush();
            tables.prepare_relocation(whole::<F>(), to.start()).unwrap()
        });
        sim.on_cpu(0, || tables.map_own(pages_of::<F>(to.start().get(), 1), small, RW).unwrap());
        touch(to.start());
        sim.on_cpu(0, || {
            clear(to, true).flush();
            // The CPU caches the way again, by the next page.
            let next = pages_of::<F>(to.start().get() + F::PAGE.bytes(), 1);
            tables.map_own(next, small, RW).unwrap();
        });
        touch(virt(to.start().get() + F::PAGE.bytes()));
        sim.on_cpu(0, || {
            let pending = clear(to, true);
            let mut moving = tables.no_flush();
            // SAFETY: the addresses are this test's.
            unsafe { tables.relocate(plan, &mut moving) }.unwrap();
            moving.flush();
            pending.flush();
        });
        touch(to.start());
        sim.on_cpu(0, || {
            let page = tables.walk(&Grace::pin()).get(to.start()).unwrap();
            assert_eq!((page.size, page.frame), (F::LARGE, large));
            clear(to, false).flush();
            clear(pages_of::<F>(BASE + F::LARGE.bytes(), 1), false).flush();
        });
        sim.on_cpu(0, || {
            drop(tables);
            [large, small].into_iter().for_each(|block| release(&sim, block));
        });
    }
    stored::<Aarch64>();
    stored::<Aarch64Stage2>();
    stored::<Aarch64G16>();
    stored::<Aarch64G64>();
    stored::<X86_64L4>();
}

/// A page of the kernel becomes global, while a CPU has cached it for one space.
#[test]
fn a_page_becomes_global() {
    fn changed<F: OnSim>() -> u64 {
        let (sim, paging) = machine::<F>(2);
        let range = pages_of::<F>(F::upper_half().get() + F::LARGE.bytes(), 1);
        let own = Attrs::new(Attrs::KERNEL_RW.flags - Flags::GLOBAL);
        let (kernel, page) = sim.on_cpu(0, || {
            let kernel = Tables::<F>::kernel(&paging).unwrap();
            let page = block(&sim, F::PAGE.order());
            kernel.map_own(range, page, own).unwrap();
            (kernel, page)
        });
        sim.on_cpu(1, || {
            // SAFETY: the test needs no other mapping, and the memory is its own.
            unsafe {
                kernel.activate();
                sim.store(range.start(), 1).unwrap();
            }
        });
        let flushes = sim.on_cpu(0, || {
            let before = sim.stats().flushes;
            for attrs in [Attrs::KERNEL_RW, own, Attrs::KERNEL_RW] {
                let mut pending = kernel.no_flush();
                let set = |_: Mapping| SweepChange::Set(attrs);
                kernel.sweep_own(range, &mut pending, set).unwrap();
                pending.flush();
            }
            sim.stats().flushes - before
        });
        sim.on_cpu(0, || {
            kernel.unmap_own(range, |_| ()).unwrap().flush();
            drop(kernel);
            release(&sim, page);
        });
        flushes
    }
    // On both CPUs: one for each break, and one where it is global no more.
    assert_eq!(changed::<Aarch64>(), 2 * 3);
    assert_eq!(changed::<Aarch64G64>(), 2 * 3);
    assert_eq!(changed::<X86_64L4>(), 2);
}

/// The break is the flush, and there is none for formats that need no break.
#[test]
fn one_flush_for_a_split() {
    fn flushes<F: OnSim>() -> (u64, bool) {
        let (sim, paging) = machine::<F>(1);
        sim.on_cpu(0, || {
            let tables = Tables::<F>::user(&paging, Asid(1), None).unwrap();
            tables.enter();
            tables.map_own(whole::<F>(), Frame::new(0x8_0000).unwrap(), RW).unwrap();
            let before = sim.stats().flushes;
            let pending = tables.split_own(virt(BASE), F::PAGE).unwrap();
            let (made, more) = (sim.stats().flushes - before, !pending.is_nothing());
            pending.flush();
            tables.unmap_own(whole::<F>(), |_| ()).unwrap().flush();
            (made, more)
        })
    }
    assert_eq!(flushes::<Aarch64>(), (1, false));
    assert_eq!(flushes::<Aarch64G16>(), (1, false));
    assert_eq!(flushes::<X86_64L4>(), (0, true));
}

/// While one CPU splits a page, others store to it, pin it, walk to it, and unmap a piece: each
/// waits or begins again, and finds the page.
fn beside_a_split<F: OnSim>(seed: u64) -> Result<(), Failure> {
    let (sim, paging) = machine::<F>(4);
    let tables: Leaked<Tables<F>> = leaked_user(&sim, &paging);
    let block = sim.on_cpu(0, || {
        let block = block(&sim, F::LARGE.order());
        tables.map_own(whole::<F>(), block, RW).unwrap();
        block
    });
    let done = AtomicBool::new(false);
    let used =
        PagesInUse { sim: &sim, tables: &tables, start: virt(BASE), first: block, done: &done };
    let (used, tables_) = (&used, &tables);
    let splitter = Box::new(move || {
        tables_.activate_own();
        tables_.split_own(virt(BASE), F::PAGE).unwrap().flush();
        used.done.store(true, Relaxed);
    }) as Program;
    let piece = pages_of::<F>(BASE + 9 * F::PAGE.bytes(), 1);
    let unmapper = Box::new(move || {
        tables_.activate_own();
        // Early, late, and at the moment of the break.
        for _ in 0..seed % 64 * 32 {
            used.sim.step(SharedAccess::Other);
        }
        // Either it is refused, since the page is whole, or it is done.
        match tables_.unmap_own(piece, |_| ()) {
            Ok(pending) => {
                pending.flush();
                assert_eq!(tables_.walk(&Grace::pin()).get(piece.start()), None);
            }
            Err(failed) => assert_eq!(failed.error, Error::Cut(virt(BASE), F::LARGE)),
        }
    }) as Program;
    let programs = vec![splitter, used.storer(0, seed), used.looker(5), unmapper];
    seeded(&sim, seed, programs)?;
    sim.on_cpu(0, || {
        let found = tables.walk(&Grace::pin()).pages(whole::<F>()).count();
        assert!(found >= F::ENTRIES - 1, "{found} pages are left");
        tables.unmap_own(whole::<F>(), |_| ()).unwrap().flush();
        release(&sim, block);
    });
    end(&sim, &paging, tables)
}

#[test]
fn a_split_beside_all_that_uses_the_page() {
    right(if cfg!(debug_assertions) { 150 } else { 2000 }, beside_a_split::<Aarch64>);
    right(if cfg!(debug_assertions) { 10 } else { 200 }, beside_a_split::<Aarch64G16>);
}
