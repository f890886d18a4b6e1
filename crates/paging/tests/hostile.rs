//! Hostile or mistaken callers: forgotten values, closures that panic, frames and rights that no
//! page may have, corrupt tables.

mod common;

use common::*;
use core::panic::AssertUnwindSafe;
use machine::*;
use paging::*;
use sim::{Config, Grace, Sim, seeded};
use std::mem;
use std::panic::catch_unwind;
use std::sync::Arc;

const AT: u64 = 0x20_0000;
const TOP: u64 = 0xffff_8000_0000_0000;

/// Calls `f` on CPU 0 of a machine, with the tables of a user space. Nothing is left afterwards.
fn with_space(f: impl FnOnce(&Sim, &Shared, &Space)) {
    let (sim, shared) =
        machine_of::<X86_64L4>(Config { cpus: 1, frames: 2048, ..Config::default() });
    let space = sim.on_cpu(0, || {
        let space = Space::<Grace>::user(&shared, Asid(1), None).unwrap();
        f(&sim, &shared, &space);
        space
    });
    // The CPU has stopped, so no tables are active on it.
    sim.on_cpu(0, || drop(space));
    all_given_back(&sim, &shared).unwrap();
}

/// The same with the kernel's tables.
fn with_kernel(f: impl FnOnce(&Sim, &Shared, &Space)) {
    on_machine(1, 2048, |sim, shared| {
        let kernel = Space::<Grace>::kernel(shared).unwrap();
        f(sim, shared, &kernel);
        drop(kernel);
    });
}

fn panics<T>(f: impl FnOnce() -> T) {
    assert!(catch_unwind(AssertUnwindSafe(|| drop(f()))).is_err(), "it did not panic");
}

/// The pages that are mapped.
fn mapped(space: &Space, range: VirtRange) -> Vec<VirtAddr> {
    let guard = <Grace as grace::Reclaim>::pin();
    space.walk(&guard).pages(range).map(|page| page.page).collect()
}

/// If `gone` panics, the pages that it was called with are unmapped and flushed, the others stay
/// mapped, and no empty table is left.
#[test]
fn a_panic_while_unmapping_keeps_completed_changes() {
    with_space(|sim, _, space| {
        let page = block(sim, 0);
        space.activate_own();
        for (len, left) in [(1, 1), (2, 4)] {
            let range = pages(AT, len);
            // All pages map one frame.
            let same = |_, _| Ok((page, PageSize::Size4K));
            space.map_with_own(range, Attrs::USER_RW, same).unwrap();
            sim.store_own(range.start(), 1).unwrap();
            panics(|| space.unmap_own(range, |_| panic!("on purpose")));
            assert!(sim.store_own(range.start(), 2).is_err(), "it is not flushed");
            assert_eq!(mapped(space, range).len() as u64, len - 1);
            assert!(sim.settle());
            assert_eq!(tables(sim), left);
        }
        space.unmap_own(pages(AT, 2), |_| ()).unwrap().flush();
        assert!(sim.settle());
        assert_eq!(tables(sim), 1);
        release(sim, page);
    });
}

/// The same for the kernel's tables, which stay: their count is right, so they can be pruned.
#[test]
fn a_panic_while_unmapping_lazily_keeps_count() {
    with_kernel(|sim, _, kernel| {
        let (range, device) = (pages(TOP, 3), Frame::new(1 << 24).unwrap());
        let first = tables(sim);
        kernel.map_own(range, device, Attrs::KERNEL_RW).unwrap();
        assert_eq!(tables(sim), first + 3);
        let mut left = 2;
        let gone = |_, _| {
            left -= 1;
            assert_ne!(left, 0, "on purpose");
        };
        // SAFETY: the pages have no user, and all is flushed below.
        panics(|| unsafe { kernel.unmap_lazily(range, gone) });
        assert_eq!(mapped(kernel, range), [virt(TOP + 0x2000)]);
        // SAFETY: as above.
        assert_eq!(unsafe { kernel.unmap_lazily(range, |_, _| ()) }, Ok(1));
        sim.flush_on(&CpuSet::first(1), Flush::All);
        kernel.prune_own(pages(TOP, 1 << 27)).unwrap().flush();
        assert!(sim.settle());
        assert_eq!(tables(sim), first + 1, "all but the one below the top are pruned");
    });
}

/// If `decide` panics, or one of its captures does when it is dropped, the entry stays, the table
/// is unlocked, and no new table is left.
#[test]
fn a_panic_of_a_decision_changes_nothing() {
    struct Drops;
    impl Drop for Drops {
        fn drop(&mut self) {
            panic!("on purpose");
        }
    }
    with_space(|sim, _, space| {
        let frame = block(sim, 0);
        let set = EntryChange::Set(frame, Attrs::USER_RW);
        let guard = <Grace as grace::Reclaim>::pin();
        let panic = |at| {
            let decide = |_| panic!("on purpose");
            panics(|| space.with_entry_own::<()>(&guard, virt(at), decide));
            let captured = Drops;
            let decide = move |_| (set, drop(captured));
            panics(|| space.with_entry_own(&guard, virt(at), decide));
        };
        panic(AT);
        assert_eq!(mapped(space, pages(0, 1 << 20)), []);
        drop(space.with_entry_own(&guard, virt(AT), |_| (set, ())).unwrap());
        panic(AT);
        panic(AT + 0x1000);
        assert_eq!(mapped(space, pages(0, 1 << 20)), [virt(AT)]);
        space.unmap_own(pages(AT, 1), |_| ()).unwrap().flush();
        assert_eq!(mapped(space, pages(0, 1 << 20)), []);
        drop(guard);
        assert!(sim.settle());
        assert_eq!(tables(sim), 1);
        release(sim, frame);
    });
}

/// The value that `decide` returned with the change is dropped with no lock held.
#[test]
fn a_value_that_is_dropped_on_an_error_may_change_the_tables() {
    struct Unmaps<'s>(&'s Space);
    impl Drop for Unmaps<'_> {
        fn drop(&mut self) {
            self.0.unmap_own(pages(AT, 1), |_| ()).unwrap().flush();
        }
    }
    let (sim, shared) = machine_of::<X86_64L4>(Config { cpus: 1, frames: 64, ..Config::default() });
    // Under this driver a CPU that waits for itself is a failure.
    let program = || {
        let space = Space::<Grace>::user(&shared, Asid(1), None).unwrap();
        let frame = block(&sim, 0);
        space.map_own(pages(AT, 1), frame, Attrs::USER_RW).unwrap();
        let guard = <Grace as grace::Reclaim>::pin();
        let other = EntryChange::Set(space.root(), Attrs::USER_RW);
        let refused = space.with_entry_own(&guard, virt(AT), |_| (other, Unmaps(&space)));
        assert_eq!(refused.map(drop).unwrap_err().error, Error::Occupied(virt(AT)));
        drop(guard);
        assert_eq!(mapped(&space, pages(AT, 1)), []);
        release(&sim, frame);
    };
    seeded(&sim, 0, vec![Box::new(program)]).unwrap_or_else(|failure| panic!("{failure}"));
    all_given_back(&sim, &shared).unwrap();
}

/// If `enter` or `change` panics, the changes before that stay, and their flush is pending.
#[test]
fn a_panic_of_a_sweep_keeps_completed_changes() {
    with_space(|sim, _, space| {
        let first = block(sim, 2);
        let range = pages(AT - 0x2000, 4);
        space.map_own(range, first, Attrs::USER_RW).unwrap();
        space.activate_own();
        let store = |at: u64| sim.store_own(virt(at), 1).is_ok();
        assert!(range.pages(PageSize::Size4K).all(|at| store(at.get())));
        let mut pending = space.no_flush();
        let change = |page: Mapping| {
            assert_ne!(page.page, virt(AT - 0x1000), "on purpose");
            SweepChange::Clear
        };
        panics(|| space.sweep_own(range, &mut pending, change));
        assert_eq!(pending.range(), Some(pages(AT - 0x2000, 1)));
        let change = |page: Mapping| {
            assert_ne!(page.page, virt(AT), "on purpose");
            SweepChange::Clear
        };
        panics(|| space.sweep_own(range, &mut pending, change));
        pending.flush();
        assert_eq!(mapped(space, range), [virt(AT), virt(AT + 0x1000)]);
        assert!(!store(AT - 0x2000) && !store(AT - 0x1000) && store(AT));
        space.unmap_own(range, |_| ()).unwrap().flush();
        assert!(sim.settle());
        assert_eq!(tables(sim), 1);
        release(sim, first);
    });
}

/// If the supplier panics, the pages mapped before are unmapped again, and their new tables go.
#[test]
fn a_panic_while_mapping_maps_nothing() {
    with_space(|sim, _, space| {
        let device = Frame::new(1 << 24).unwrap();
        // Longer than one batch, and across the border of a table.
        let range = pages(AT - 0x10_0000, 512);
        for last in [0, 1, 63, 64, 65, 255, 256, 300, 511] {
            let supply = |at: VirtAddr, _| {
                let number = (at.get() - range.start().get()) >> 12;
                assert_ne!(number, last, "on purpose");
                Ok((device.checked_add(number).unwrap(), PageSize::Size4K))
            };
            panics(|| space.map_with_own(range, Attrs::USER_RW, supply));
            assert_eq!(mapped(space, range), []);
            assert!(sim.settle());
            assert_eq!(tables(sim), 1, "after {last} pages");
        }
    });
}

/// Panics in `destruct`; in `construct`, too, unless its field is true.
struct Fails(bool);

impl<M> Construct<M> for Fails {
    fn construct(&self, _: &M, _: &mut [u64]) {
        assert!(self.0, "on purpose");
    }
    fn destruct(&self, _: &M, _: &mut [u64]) {
        panic!("on purpose");
    }
}

#[test]
fn a_panic_of_a_constructor_loses_no_frame() {
    let sim = Sim::new(Config { cpus: 1, frames: 64, ..Config::default() }).unwrap();
    let kinds: [Box<dyn Construct<Sim>>; 2] = [Box::new(Fails(false)), Box::new(Fails(true))];
    let lists = QuickLists::try_new(sim.clone(), kinds).unwrap();
    sim.on_cpu(0, || {
        panics(|| lists.alloc(0));
        let page = lists.alloc(1).unwrap();
        // SAFETY: it is ours, and unchanged.
        unsafe { lists.free(1, page) }.unwrap();
        panics(|| lists.drain());
        assert!(lists.is_empty());
    });
    sim.check_leaks().unwrap();
}

/// A frame that is a table, lies on a quicklist or is free cannot be a user page; nothing is mapped
/// then.
#[test]
fn frames_that_no_program_may_have() {
    with_space(|sim, shared, space| {
        let range = pages(AT, 1);
        let no_page = |frame: Frame, owner| {
            let error = Error::Frame(range.start(), frame, owner);
            assert_eq!(refused(space.map_own(range, frame, Attrs::USER_RW)), error);
            let failed = space.map_frames_own(range.start(), &[frame], Attrs::USER_RW);
            assert_eq!(refused(failed), error);
            assert_eq!(mapped(space, range), []);
        };
        no_page(space.root(), Owner::Table(3));
        // SAFETY: no top-level table.
        let table = unsafe { shared.quick().alloc(QUICK_TABLE) }.unwrap();
        // SAFETY: it came from there, and is unchanged.
        unsafe { shared.quick().free(QUICK_TABLE, table) }.unwrap();
        // The list may give the page to the mapping as a table, so read its owner again.
        let owner = sim.info(table).unwrap().owner();
        assert_eq!(owner, Owner::Quick(QUICK_TABLE));
        no_page(table, owner);
        let free = block(sim, 3);
        release(sim, free);
        no_page(free, Owner::Free);
        no_page(free.checked_add(3).unwrap(), Owner::Free);

        // In the middle of a range, and in a large page of single frames.
        let large = block(sim, 10);
        // SAFETY: it is ours.
        unsafe { sim.split(large) }.unwrap();
        let hole = large.checked_add(700).unwrap();
        release(sim, hole);
        let both = pages(4 << 20, 1024);
        let failed = space.map_own(both, large, Attrs::USER_RW);
        assert_eq!(refused(failed), Error::Frame(virt(6 << 20), hole, Owner::Free));
        assert_eq!(mapped(space, both), []);
        (0..1024).filter(|n| *n != 700).for_each(|n| release(sim, large.checked_add(n).unwrap()));

        // Allowed: pieces of blocks, devices, and pages that the kernel shares.
        let whole = block(sim, 4);
        let shared_page = block(sim, 0);
        // SAFETY: it is ours.
        unsafe { sim.set_owner(shared_page, Owner::Kernel) }.unwrap();
        let frames = [7, 3, 15].map(|n| whole.checked_add(n).unwrap());
        space.map_frames_own(virt(AT), &frames, Attrs::USER_RW).unwrap();
        space.map_own(pages(AT + 0x3000, 13), frames[1], Attrs::USER_RW).unwrap();
        space.map_own(pages(AT + 0x10000, 1), shared_page, Attrs::USER_RW).unwrap();
        space.map_own(pages(1 << 30, 513), Frame::new(0).unwrap(), Attrs::USER_RW).unwrap();
        space.unmap_own(pages(0, 1 << 20), |_| ()).unwrap().flush();
        [whole, shared_page].into_iter().for_each(|frame| release(sim, frame));
    });
}

/// A user page without USER would be a kernel page in the user's half. A `PROT_NONE` page needs no
/// USER.
#[test]
fn pages_that_no_program_could_use() {
    with_space(|sim, _, space| {
        let (page, range) = (block(sim, 0), pages(AT, 1));
        for attrs in [Attrs::new(Flags::READ), Attrs::new(Flags::RWX)] {
            let failed = space.map_own(range, page, attrs).unwrap_err();
            assert_eq!(failed.error, Error::NotUser(range.start()));
            drop(failed);
            let failed = space.map_frames_own(range.start(), &[page], attrs);
            assert_eq!(refused(failed), Error::NotUser(range.start()));
        }
        space.map_own(range, page, Attrs::new(Flags::empty())).unwrap();
        assert_eq!(refused(space.protect_own(range, Flags::READ)), Error::NotUser(range.start()));
        space.protect_own(range, Flags::READ | Flags::USER).unwrap().flush();
        space.protect_own(range, Flags::empty()).unwrap().flush();
        space.unmap_own(range, |_| ()).unwrap().flush();
        release(sim, page);
    });
}

/// The error names the page that is in the way, not the start of the range; and an empty table has
/// an error of its own.
#[test]
fn the_page_in_the_way_is_named() {
    with_kernel(|_, _, kernel| {
        let device = Frame::new(1 << 24).unwrap();
        let small = pages(TOP + 0x5000, 1);
        let large = pages(TOP, 512);
        let occupied = |range, at| {
            let failed = kernel.map_own(range, device, Attrs::KERNEL_RW);
            assert_eq!(refused(failed), Error::Occupied(at));
        };
        kernel.map_own(small, device, Attrs::KERNEL_RW).unwrap();
        occupied(large, small.start());
        occupied(pages(TOP, 1024), small.start());
        occupied(pages(TOP, 1 << 18), small.start());
        occupied(pages(TOP + 0x1000, 64), small.start());
        kernel.unmap_own(small, |_| ()).unwrap().flush();
        let failed = kernel.map_own(large, device, Attrs::KERNEL_RW).unwrap_err();
        assert_eq!(failed.error, Error::EmptyTable(large.start()));
        assert!(failed.error.to_string().contains("prune"), "{}", failed.error);
        drop(failed);
        kernel.prune_own(large).unwrap().flush();
        kernel.map_own(large, device, Attrs::KERNEL_RW).unwrap();
        occupied(pages(TOP + 0x3000, 1), large.start());
        let frames = [device; 2];
        let failed = kernel.map_frames_own(virt(TOP + 0x3000), &frames, Attrs::KERNEL_RW);
        assert_eq!(failed.unwrap_err().error, Error::Occupied(large.start()));
        assert_eq!(kernel.leaf(virt(TOP + 0x3000)), Err(Error::Occupied(large.start())));
        kernel.unmap_own(large, |_| ()).unwrap().flush();
    });
}

/// A forgotten flush leaks: its tables are never used again, and nothing else is lost.
#[test]
fn a_flush_that_is_forgotten_leaks_its_tables() {
    let (sim, shared) = machine_of::<X86_64L4>(Config { cpus: 1, frames: 64, ..Config::default() });
    let lost = sim.on_cpu(0, || {
        let space = Space::<Grace>::user(&shared, Asid(1), None).unwrap();
        mem::forget(unmap_prune(pages(AT, 1), &space));
        mem::forget(unmap_prune(pages(1 << 40, 1), &space).defer());
        assert_eq!(shared.waiting(), 6);
        // Other tables are made and given back as usual.
        unmap_prune(pages(AT, 1), &space).flush();
        assert!(sim.settle());
        assert_eq!(shared.waiting(), 6);
        drop(space);
        assert!(sim.settle());
        shared.quick().drain();
        sim.allocated().len()
    });
    assert_eq!(lost, 6);
    mem::forget(shared);
}

/// Safe code can see the CPUs to which flushes go, and add this one. It cannot remove one.
#[test]
fn a_cpu_that_enters_gets_the_flushes() {
    with_space(|_, _, space| {
        let mut seen = space.cpus();
        assert!(seen.is_empty());
        space.enter();
        assert_eq!(space.cpus(), CpuSet::first(1));
        seen.remove(CpuId::default());
        space.cpus().remove(CpuId::default());
        assert_eq!(space.cpus(), CpuSet::first(1));
        // SAFETY: the tables are not active.
        unsafe { space.leave() };
        assert!(space.cpus().is_empty());
    });
}

/// The kernel's tables end while pages on the lists hold their entries: no table is made from these
/// pages.
#[test]
fn no_table_is_made_from_a_kernel_that_is_gone() {
    on_machine(1, 64, |_, shared| {
        let kernel = Arc::new(Space::<Grace>::kernel(shared).unwrap());
        kernel.reserve(pages(TOP, 1)).unwrap();
        drop(Space::user(shared, Asid(1), Some(kernel.clone())).unwrap());
        drop(kernel);
        assert_eq!(Space::<Grace>::kernel(shared).map(drop), Err(Error::SecondKernel));
        // A space without a kernel half is empty there.
        let space = Space::<Grace>::user(shared, Asid(1), None).unwrap();
        assert_eq!(mapped(&space, pages(TOP, 1 << 34)), []);
        drop(space);
    });
}

/// A page of 1 GiB would be an entry of the top-level table itself, of which user spaces have
/// copies.
#[test]
fn the_kernel_maps_no_page_right_in_the_top_level_table() {
    let sim = Sim::new(Config { cpus: 1, frames: 64, ..Config::default() }).unwrap();
    let paging = Paging::<Sim, Sv39>::try_new(sim.clone(), PageSize::Size1G).unwrap();
    let at = VirtAddr::new(0xffff_ffc0_0000_0000);
    let range = VirtRange::new(at, 1 << 30).unwrap();
    let device = Frame::new(1 << 20).unwrap();
    let kernel = sim.on_cpu(0, || {
        let kernel = Arc::new(PageTables::<_, _, Grace>::kernel(&paging).unwrap());
        kernel.reserve(range).unwrap();
        let program = PageTables::user(&paging, Asid(1), Some(kernel.clone())).unwrap();
        // SAFETY: nothing else uses the range, and nothing accesses it.
        unsafe { kernel.map(range, device, Attrs::KERNEL_RW) }.unwrap();
        let guard = <Grace as grace::Reclaim>::pin();
        let found = program.walk(&guard).get(at).expect("user spaces see kernel mappings");
        assert_eq!(found.size, PageSize::Size2M);
        drop(guard);
        // SAFETY: as above.
        let failed = unsafe {
            kernel.map_with(range, Attrs::KERNEL_RW, |_, _| Ok((device, PageSize::Size1G)))
        };
        let error = failed.unwrap_err().error;
        assert!(matches!(error, Error::TooLarge(..) | Error::Occupied(_)), "{error}");
        drop(program);
        kernel
    });
    sim.on_cpu(0, || drop(kernel));
}

/// Rights that no page can have are an error also where no page is.
#[test]
fn impossible_rights_are_refused_over_holes() {
    with_space(|_, _, space| {
        let range = VirtRange::new(VirtAddr::new(AT), 4 * PageSize::Size4K.bytes()).unwrap();
        for rights in [Flags::WRITE | Flags::USER, Flags::EXECUTE | Flags::USER] {
            let failed = space.protect_own(range, rights).expect_err("no page has these rights");
            assert!(matches!(failed.error, Error::Format(FormatError::Rights(..))), "{rights:?}");
            failed.pending.flush();
        }
        assert_eq!(mapped(space, range), []);
    });
}

/// A corrupt entry ends a move. The pages before it have moved, and none is lost.
#[test]
fn a_move_ends_before_a_corrupt_entry() {
    with_space(|sim, _, space| {
        const LARGE: u64 = 0x20_0000;
        const TO: u64 = 64 * LARGE;
        // Three pages of one table, and two of the next.
        let range = pages(AT + LARGE - 0x3000, 5);
        space.map_own(range, Frame::new(1 << 24).unwrap(), Attrs::USER_RW).unwrap();
        let plan = space.prepare_relocation(range, virt(TO)).unwrap();
        let corrupt = virt(AT + LARGE + 0x1000);
        let entry = {
            let guard = <Grace as grace::Reclaim>::pin();
            let table = space.walk(&guard).table_at(corrupt).unwrap();
            // SAFETY: a table of the space, which is changed by this test only.
            unsafe { sim.entry(table, 1) }.unwrap()
        };
        let was = entry.load();
        // A page without rights that may be written.
        entry.store(1 << 58 | 2);
        let mut pending = space.no_flush();
        // SAFETY: the pages are this test's.
        let moved = unsafe { space.relocate(plan, &mut pending) };
        pending.flush();
        assert_eq!(moved, Err(Error::Malformed(corrupt)));
        entry.store(was);
        assert_eq!(mapped(space, range), [corrupt]);
        assert_eq!(mapped(space, pages(TO, 5)).len(), 4);
        for range in [range, pages(TO, 5)] {
            space.unmap_own(range, |_| ()).unwrap().flush();
        }
    });
}
