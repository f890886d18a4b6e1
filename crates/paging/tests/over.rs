//! Mapping over pages that are there: the view of the CPUs, and the reports of the call.

mod common;

use common::*;
use grace::Reclaim;
use machine::*;
use paging::*;
use sim::{Checks, Config, Failure, Grace, Program, Sim, Stale, seeded};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

type Tables<F> = PageTables<Sim, F, Grace>;

const BASE: u64 = 0x4000_0000;
const RW: Attrs = Attrs::USER_RW;
const RO: Attrs = Attrs::USER_RO;

fn machine<F: OnSim>(cpus: usize) -> (Sim, Arc<Paging<Sim, F>>) {
    // CPUs may use a page until it is flushed.
    let checks = Checks { stale: Stale::Freed, ..Checks::ALL };
    let frames = 4 * F::LARGE.frames() + 1024;
    machine_of(Config { cpus, frames, checks, ..Config::default() })
}

/// A block whose pages begin with different numbers.
fn numbered<F: OnSim>(sim: &Sim, order: u8, number: u64) -> Frame {
    let block = block(sim, order);
    for page in 0..(1 << order) / F::PAGE.frames() {
        let frame = block.checked_add(page * F::PAGE.frames()).unwrap();
        let words = sim.frame_ptr(frame).unwrap().cast::<u64>();
        // SAFETY: the test's memory, which no CPU uses yet.
        unsafe { words.write(number + page) };
    }
    block
}

fn get<F: Format>(tables: &Tables<F>, at: u64) -> Option<Mapping> {
    tables.walk(&Grace::pin()).get(virt(at))
}

/// Two CPUs have cached what is replaced: by pages of other rights, of other memory, single and
/// large, in a group, and where a large page has to be split.
fn each_kind<F: OnSim>() {
    let (sim, paging) = machine::<F>(2);
    let (page, large, entries) = (F::PAGE.bytes(), F::LARGE.bytes(), F::ENTRIES as u64);
    let whole = VirtRange::new(virt(BASE), large).unwrap();
    let places = [0, 1, 2, 5, entries / 2, entries - 1];
    let (tables, blocks) = sim.on_cpu(0, || {
        let tables = Tables::<F>::user(&paging, Asid(1), None).unwrap();
        let blocks = [1 << 20, 2 << 20, 3 << 20].map(|n| numbered::<F>(&sim, F::LARGE.order(), n));
        (tables, blocks)
    });
    // Checks what each CPU reads; the reads cache the pages.
    let check = |expected: &dyn Fn(u64) -> u64| {
        for cpu in [1, 0] {
            sim.on_cpu(cpu, || {
                tables.activate_own();
                for place in places {
                    let read = sim.load_own(virt(BASE + place * page));
                    assert_eq!(read, Ok(expected(place)), "{place}");
                }
            });
        }
    };
    let over = |range: VirtRange, first: Frame, attrs: Attrs| {
        sim.on_cpu(0, || {
            let mut gone = Vec::new();
            let mapped = tables.map_over_own(range, first, attrs, |page| gone.push(page));
            mapped.unwrap().flush();
            sim.check_flushed(tables.root(), tables.space(), range);
            gone
        })
    };
    let settled = |attrs: Attrs| Attrs { flags: attrs.flags | Flags::ACCESSED, ..attrs };

    // Nothing is there: as `map`.
    assert_eq!(over(whole, blocks[0], RW), []);
    assert_eq!(sim.on_cpu(0, || get(&tables, BASE)).unwrap().size, F::LARGE);
    check(&|place| (1 << 20) + place);
    // A large page by a large one.
    let gone = over(whole, blocks[1], RO);
    let [was] = gone[..] else { panic!("{gone:?}") };
    assert_eq!((was.page, was.size, was.frame), (virt(BASE), F::LARGE, blocks[0]));
    assert_eq!(was.attrs.flags - Flags::DIRTY, settled(RW).flags, "the rights, and a mark");
    check(&|place| (2 << 20) + place);
    // Other memory, with no right to write before or after.
    over(whole, blocks[0], RO);
    check(&|place| (1 << 20) + place);
    // The new frames are not aligned to the large page.
    let shifted = blocks[2].checked_add(F::PAGE.frames()).unwrap();
    let most = VirtRange::new(virt(BASE), large - page).unwrap();
    sim.on_cpu(0, || {
        let failed = tables.map_over_own(most, shifted, RW, |_| panic!());
        assert_eq!(refused(failed), Error::Cut(virt(BASE), F::LARGE));
        tables.split_own(virt(BASE), F::PAGE).unwrap().flush();
    });
    check(&|place| (1 << 20) + place);
    let gone = over(most, shifted, RW);
    assert_eq!(gone.len() as u64, entries - 1);
    check(&|place| if place == entries - 1 { (1 << 20) + place } else { (3 << 20) + 1 + place });
    // Small pages by small ones, though a large one would fit; they become no group, but parts of
    // groups are replaced.
    let gone = over(whole, blocks[1], RW);
    assert_eq!(gone.len(), F::ENTRIES);
    assert!(gone.iter().all(|page| page.size == F::PAGE));
    check(&|place| (2 << 20) + place);
    sim.on_cpu(0, || {
        tables.unmap_own(whole, |_| ()).unwrap().flush();
        let marks = Flags::ACCESSED | Flags::DIRTY;
        let attrs = Attrs::new(RW.flags | marks);
        let first = pages_of::<F>(BASE, entries - 1);
        tables.map_own(first, blocks[0], attrs).unwrap();
        let group = tables.walk(&Grace::pin()).group_of(virt(BASE));
        assert_eq!(group.is_some(), F::GROUP.is_some());
        // The last entry is a hole.
        let last = blocks[0].checked_add((entries - 1) * F::PAGE.frames()).unwrap();
        let hole = pages_of::<F>(BASE + (entries - 1) * page, 1);
        tables.map_over_own(hole, last, RW, |_| panic!()).unwrap().flush();
    });
    check(&|place| (1 << 20) + place);
    let part = pages_of::<F>(BASE + page, 2);
    let gone = over(part, blocks[2], RW);
    assert_eq!(gone.len(), 2);
    check(&|place| match place {
        1 | 2 => (3 << 20) + place - 1,
        _ => (1 << 20) + place,
    });
    // A memory type, of the same memory.
    let device = Attrs { cache: Cache::WriteCombining, ..RW };
    over(part, blocks[2], device);
    check(&|place| match place {
        1 | 2 => (3 << 20) + place - 1,
        _ => (1 << 20) + place,
    });
    sim.on_cpu(0, || {
        assert_eq!(get(&tables, BASE + page).unwrap().attrs.cache, Cache::WriteCombining);
        tables.unmap_own(whole, |_| ()).unwrap().flush();
        drop(tables);
        blocks.into_iter().for_each(|block| release(&sim, block));
    });
}

#[test]
fn what_is_replaced_is_gone() {
    each_kind::<X86_64L4>();
    each_kind::<Sv48>();
    each_kind::<Sv39Napot>();
    each_kind::<Aarch64>();
    each_kind::<Aarch64Stage2>();
    each_kind::<Aarch64G16>();
}

/// A large page is split where the new frames do not begin a large one.
#[test]
fn a_large_page_by_small_ones() {
    fn check<F: OnSim>() {
        let (sim, paging) = machine::<F>(1);
        sim.on_cpu(0, || {
            let tables = Tables::<F>::user(&paging, Asid(1), None).unwrap();
            let large = F::LARGE.bytes();
            let range = VirtRange::new(virt(BASE), 2 * large).unwrap();
            let first = Frame::new(4 * F::LARGE.frames()).unwrap();
            tables.map_own(range, first, RW).unwrap();
            let shifted = first.checked_add(F::PAGE.frames()).unwrap();
            let mut gone = 0;
            let count = |page: Mapping| {
                assert_eq!(page.size, F::PAGE);
                gone += 1;
            };
            tables.map_over_own(range, shifted, RO, count).unwrap().flush();
            assert_eq!(gone, 2 * F::ENTRIES);
            let last = get(&tables, BASE + 2 * large - 1).unwrap();
            assert_eq!(last.frame.number(), 6 * F::LARGE.frames());
            assert_eq!(last.attrs, RO);
            drop(tables);
        });
        all_given_back(&sim, &paging).unwrap();
    }
    check::<X86_64L4>();
    check::<Sv39>();
    check::<Aarch64>();
    check::<Aarch64G64>();
}

/// The kernel's pages are replaced by one store where no break is demanded: another CPU finds
/// either page, and never a fault.
#[test]
#[cfg_attr(miri, ignore = "Miri has no coroutines")]
fn no_access_faults() {
    const AT: u64 = 0xffff_8000_0000_0000;
    fn run(seed: u64) -> Result<(), Failure> {
        let (sim, paging) = machine::<X86_64L4>(2);
        let (kernel, frames) = sim.on_cpu(0, || {
            let kernel = Arc::new(Space::<Grace>::kernel(&paging).unwrap());
            let frames = [1 << 20, 2 << 20].map(|n| numbered::<X86_64L4>(&sim, 2, n));
            kernel.map_own(pages(AT, 4), frames[0], Attrs::KERNEL_RW).unwrap();
            (kernel, frames)
        });
        let writer = || {
            for turn in 1..6 {
                let next = frames[turn % 2];
                let over = kernel.map_over_own(pages(AT, 4), next, Attrs::KERNEL_RW, |page| {
                    assert!(frames[(turn + 1) % 2].number() <= page.frame.number());
                });
                over.unwrap().flush();
            }
        };
        let reader = || {
            kernel.activate_own();
            for turn in 0..40 {
                let page = turn % 4;
                let found = sim.load_own(virt(AT + (page << 12))).unwrap();
                assert!(found == (1 << 20) + page || found == (2 << 20) + page, "{found:#x}");
            }
        };
        seeded(&sim, seed, vec![Box::new(writer) as Program, Box::new(reader) as Program])?;
        sim.on_cpu(0, || {
            kernel.unmap_own(pages(AT, 4), |_| ()).unwrap().flush();
            drop(kernel);
            frames.into_iter().for_each(|frame| release(&sim, frame));
        });
        Ok(())
    }
    right(200, run);
}

/// A write that a CPU makes while the page is replaced is reported, or reaches the new page.
#[test]
#[cfg_attr(miri, ignore = "Miri has no coroutines")]
fn no_write_is_lost() {
    fn run<F: OnSim>(seed: u64) -> Result<(), Failure> {
        let (sim, paging) = machine::<F>(2);
        let (space, frames) = sim.on_cpu(0, || {
            let space = Tables::<F>::user(&paging, Asid(1), None).unwrap();
            let frames = [0, 0].map(|number| numbered::<F>(&sim, F::PAGE.order(), number));
            space.map_own(pages_of::<F>(BASE, 1), frames[0], RW).unwrap();
            (space, frames)
        });
        let mapper = || {
            let mut dirty = false;
            let gone = |page: Mapping| dirty = page.attrs.flags.contains(Flags::DIRTY);
            let over = space.map_over_own(pages_of::<F>(BASE, 1), frames[1], RW, gone);
            over.unwrap().flush();
            // SAFETY: the test's memory, which no CPU writes to any more.
            let written = unsafe { sim.frame_ptr(frames[0]).unwrap().cast::<u64>().read() };
            assert!(dirty || written == 0);
        };
        let writer = || {
            space.activate_own();
            let _ = sim.store_own(virt(BASE), 7);
        };
        seeded(&sim, seed, vec![Box::new(mapper) as Program, Box::new(writer) as Program])?;
        sim.on_cpu(0, || {
            space.unmap_own(pages_of::<F>(BASE, 1), |_| ()).unwrap().flush();
            drop(space);
            frames.into_iter().for_each(|frame| release(&sim, frame));
        });
        Ok(())
    }
    right(1000, run::<X86_64L4>);
    right(1000, run::<Aarch64>);
}

/// Bad input changes nothing.
#[test]
fn bad_input() {
    let (sim, paging) = machine::<X86_64L4>(1);
    sim.on_cpu(0, || {
        let space = Space::<Grace>::user(&paging, Asid(1), None).unwrap();
        let page = block(&sim, 1);
        let pair = block(&sim, 1);
        let second = pair.checked_add(1).unwrap();
        // SAFETY: the test's frames, which are not used.
        unsafe {
            sim.split(pair).unwrap();
            sim.set_owner(second, Owner::Table(0)).unwrap();
        }
        space.map_own(pages(BASE, 1), page, RW).unwrap();
        space.map_own(pages(BASE + (2 << 20), 512), Frame::new(512).unwrap(), RW).unwrap();
        let before = tables(&sim);
        let fails = |range: VirtRange, first: Frame, attrs: Attrs, error: Error| {
            assert_eq!(refused(space.map_over_own(range, first, attrs, |_| panic!())), error);
            assert!(sim.settle());
            assert_eq!(get(&space, BASE).unwrap().frame, page);
            assert_eq!(tables(&sim), before, "{error}");
        };
        let (one, large) = (pages(BASE, 1), virt(BASE + (2 << 20)));
        fails(pages(BASE, 0), page, RW, Error::Empty);
        fails(one, page, Attrs::new(Flags::READ), Error::NotUser(one.start()));
        fails(one, page, Attrs::new(RW.flags | Flags::GLOBAL), Error::Global(one.start()));
        fails(pages(BASE, 513), page, RW, Error::Cut(large, PageSize::Size2M));
        fails(pages(BASE + (2 << 20), 1), page, RW, Error::Cut(large, PageSize::Size2M));
        let table = Error::Frame(one.start(), second, Owner::Table(0));
        fails(one, second, RW, table);
        // Behind a hole for which a table was made.
        fails(pages(BASE - 0x1000, 2), pair, RW, table);
        let rights = Flags::WRITE | Flags::USER;
        fails(one, page, Attrs::new(rights), Error::Format(FormatError::Rights(rights)));
        let last = Frame::new((1 << 40) - 1).unwrap();
        let end = last.checked_add(1).unwrap();
        fails(pages(BASE, 2), last, RW, Error::Format(FormatError::Beyond(end)));
        let top = pages(0xffff_8000_0000_0000, 1);
        fails(top, page, RW, Error::Kernel(top.start()));
        drop(space);
        // SAFETY: as above.
        unsafe { sim.set_owner(second, Owner::User) }.unwrap();
        [page, pair, second].into_iter().for_each(|frame| release(&sim, frame));
    });
    all_given_back(&sim, &paging).unwrap();
}

/// A closure that panics: the pages that it was called with are replaced, and flushed.
#[test]
fn a_panic_half_way() {
    let (sim, paging) = machine::<X86_64L4>(1);
    sim.on_cpu(0, || {
        let space = Space::<Grace>::user(&paging, Asid(1), None).unwrap();
        let (old, new) = (block(&sim, 2), block(&sim, 2));
        space.map_own(pages(BASE, 4), old, RW).unwrap();
        space.activate_own();
        for page in 0..4 {
            sim.store_own(virt(BASE + (page << 12)), page).unwrap();
        }
        let mut calls = 0;
        let mut third = |_: Mapping| {
            calls += 1;
            assert!(calls < 3, "on purpose");
        };
        let over = || drop(space.map_over_own(pages(BASE, 4), new, RW, &mut third));
        assert!(catch_unwind(AssertUnwindSafe(over)).is_err());
        let is_new = |page: u64| get(&space, BASE + (page << 12)).unwrap().frame >= new;
        assert_eq!([0, 1, 2, 3].map(is_new).map(|is| is == (new > old)), [true, true, true, false]);
        sim.check_flushed(space.root(), space.space(), pages(BASE, 4));
        space.unmap_own(pages(BASE, 4), |_| ()).unwrap().flush();
        [old, new].into_iter().for_each(|block| release(&sim, block));
        std::mem::forget(space);
    });
}

/// After a fork, a space maps over pages in tables of its own.
#[test]
fn after_a_fork() {
    fn check<F: OnSim>() {
        let (sim, paging) = machine::<F>(1);
        sim.on_cpu(0, || {
            let parent = Tables::<F>::user(&paging, Asid(1), None).unwrap();
            let (old, new) = (block(&sim, F::PAGE.order()), block(&sim, F::PAGE.order()));
            let page = pages_of::<F>(BASE, 1);
            parent.map_own(page, old, RW.with_share(Share::Exclusive)).unwrap();
            let child = parent.fork_own(Asid(2), false);
            let mut gone = None;
            let over = child.map_over_own(page, new, RW, |page| gone = Some(page.frame));
            over.unwrap().flush();
            assert_eq!(gone, Some(old));
            assert_eq!(get(&parent, BASE).unwrap().frame, old);
            assert_eq!(get(&child, BASE).unwrap().frame, new);
            // The child's reference.
            release(&sim, old);
            for tables in [parent, child] {
                tables.unmap_own(page, |page| release(&sim, page.frame)).unwrap().flush();
            }
        });
        all_given_back(&sim, &paging).unwrap();
    }
    check::<X86_64L4>();
    check::<Sv48>();
    check::<Aarch64>();
}
