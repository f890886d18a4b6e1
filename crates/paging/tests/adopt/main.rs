//! Adopting tables that a boot loader has made.

#[path = "../common/mod.rs"]
mod common;
mod loader;

use common::*;
use grace::Reclaim;
use loader::{Loader, Loads, Tables};
use machine::*;
use paging::*;
use proptest::prelude::*;
use sim::{Checks, Config, Grace, Sim};
use std::sync::Arc;

fn machine<F: OnSim>() -> (Sim, Arc<Paging<Sim, F>>) {
    let frames = 2 * F::LARGE.frames() + 2048;
    machine_of(Config { frames, ..Config::default() })
}

const RWX: Flags = Flags::RWX;

/// All that a kernel does with the tables of its loader.
fn a_kernel_goes_on<F: Loads>() {
    let (sim, shared) = machine::<F>();
    let (page, large) = (F::PAGE.bytes(), F::LARGE.bytes());
    let base = F::upper_half().get() + 4 * large;
    let kernel = sim.on_cpu(0, || {
        let mut loader = Loader::new::<F>(&sim);
        let block = sim.alloc(F::LARGE.order(), NodePolicy::Local).unwrap();
        let single = sim.alloc(F::PAGE.order(), NodePolicy::Local).unwrap();
        // The same memory in both halves.
        loader.map::<F>(2 * large, F::LARGE, block, Attrs::new(RWX));
        loader.map::<F>(base, F::LARGE, block, Attrs::KERNEL_RW);
        loader.map::<F>(base + large, F::PAGE, single, Attrs::KERNEL_RW);
        // An entry that translates nothing, and is not 0.
        let lowest = loader.way::<F>(base + large, 0);
        loader.write(lowest, 5, 1 << 20);
        let before = sim.allocated().len();
        let kernel = Arc::new(loader.adopt::<F>(&shared).unwrap());
        assert_eq!((kernel.root(), kernel.space()), (loader.root, None));
        assert_eq!((tables(&sim), sim.allocated().len()), (loader.tables.len(), before));
        assert_eq!(loader.read(lowest, 5), 0);
        kernel.activate_own();
        let get = |at: u64| kernel.walk(&Grace::pin()).get(virt(at));
        let use_page = |at: u64, value: u64| {
            sim.store_own(virt(at), value).unwrap();
        };
        let load = |at: u64| sim.load_own(virt(at)).ok();
        use_page(2 * large + page, 7);
        assert_eq!(load(base + page), Some(7));
        use_page(base + large, 8);

        // A page of the loader's large one goes.
        kernel.split_own(virt(base), F::PAGE).unwrap().flush();
        let one = |at: u64| pages_of::<F>(at, 1);
        kernel.unmap_own(one(base + page), |_| ()).unwrap().flush();
        assert_eq!((load(base + page), load(2 * large + page)), (None, Some(7)));
        // Another one comes in its place, and in a table of the loader's, where junk was.
        kernel.map_own(one(base + page), single, Attrs::KERNEL_RW).unwrap();
        kernel.map_own(one(base + large + 5 * page), single, Attrs::KERNEL_RW).unwrap();
        assert_eq!((load(base + page), load(base + large + 5 * page)), (Some(8), Some(8)));
        kernel.protect_own(one(base), Flags::READ).unwrap().flush();
        assert!(!get(base).unwrap().attrs.flags.contains(Flags::WRITE));

        // The identity map goes, and its tables go to the quicklists.
        let lower = VirtRange::new(virt(0), 4 * large).unwrap();
        kernel.unmap_own(lower, |_| ()).unwrap().flush();
        let whole = VirtRange::new(virt(0), 1 << F::shift(F::LEVELS - 1)).unwrap();
        let before = tables(&sim);
        kernel.prune_own(whole).unwrap().flush();
        assert!(sim.settle());
        // All but the top-level table, and the one below it.
        assert_eq!(tables(&sim), before - usize::from(F::LEVELS - 3));
        assert_eq!(load(2 * large + page), None);

        // Programs get the upper half.
        let space = Tables::<F>::user(&shared, Asid(1), Some(kernel.clone())).unwrap();
        space.activate_own();
        assert_eq!(load(base + large), Some(8));
        space.map_own(one(2 * large), single, Attrs::USER_RW).unwrap();
        assert_eq!(load(2 * large), Some(8));
        drop(space);
        [block, single].map(|frame| (frame, kernel.clone()))
    });
    let [(block, kernel), (single, other)] = kernel;
    sim.on_cpu(0, || {
        let upper = VirtRange::new(virt(base), 2 * large).unwrap();
        kernel.unmap_own(upper, |_| ()).unwrap().flush();
        drop((kernel, other));
        release(&sim, block);
        release(&sim, single);
    });
    all_given_back(&sim, &shared).unwrap();
}

#[test]
fn a_kernel_goes_on_with_the_tables_of_its_loader() {
    a_kernel_goes_on::<X86_64L4>();
    a_kernel_goes_on::<X86_64L5>();
    a_kernel_goes_on::<Sv39>();
    a_kernel_goes_on::<Sv48>();
    a_kernel_goes_on::<Aarch64>();
    a_kernel_goes_on::<Aarch64G16>();
}

/// The tables are active while they are adopted, and stay so, also where that fails.
#[test]
fn tables_that_are_active() {
    // The machine does not know that they are tables yet.
    let checks = Checks { tables: false, ..Checks::ALL };
    let (sim, shared) =
        machine_of::<X86_64L4>(Config { cpus: 1, frames: 2048, checks, ..Config::default() });
    let kernel = sim.on_cpu(0, || {
        let mut loader = Loader::new::<X86_64L4>(&sim);
        let frame = block(&sim, 0);
        loader.map::<X86_64L4>(UP, PageSize::Size4K, frame, Attrs::KERNEL_RW);
        // SAFETY: the test needs no other mapping.
        unsafe { sim.activate(loader.root, Asid(0), false) };
        let load = || sim.load_own(virt(UP));
        sim.store_own(virt(UP), 9).unwrap();
        loader.write(loader.root, 300, u64::MAX);
        assert!(loader.adopt::<X86_64L4>(&shared).is_err());
        assert_eq!(load(), Ok(9));
        loader.write(loader.root, 300, 0);
        let kernel = loader.adopt::<X86_64L4>(&shared).unwrap();
        assert_eq!(load(), Ok(9));
        // A program's page below an entry that was the kernel's alone: nothing of it is cached.
        kernel.map_own(pages(UP + 0x1000, 1), frame, Attrs::USER_RW).unwrap();
        let want = sim::Want { user: true, ..Default::default() };
        assert!(sim.translate(virt(UP + 0x1000), want).is_ok());
        kernel.unmap_own(pages(UP, 2), |_| ()).unwrap().flush();
        release(&sim, frame);
        kernel
    });
    sim.on_cpu(0, || drop(kernel));
}

const UP: u64 = 0xffff_8000_0040_0000;

/// Adoption reports each fault with its entry. Without the faults, it succeeds.
fn faults<F: Loads>() {
    let (sim, shared) = machine::<F>();
    let large = F::LARGE.bytes();
    let base = F::upper_half().get() + 4 * large;
    sim.on_cpu(0, || {
        let mut loader = Loader::new::<F>(&sim);
        let frame = sim.alloc(F::PAGE.order(), NodePolicy::Local).unwrap();
        for at in [4 * large, base, base + large] {
            loader.map::<F>(at, F::PAGE, frame, Attrs::KERNEL_RW);
        }
        let (root, top) = (loader.root, F::LEVELS - 1);
        let lowest = loader.way::<F>(base, 0);
        let (above, index) = (loader.way::<F>(base, 1), F::index(virt(base + 9 * large), 1));
        let after = base + 9 * large;
        let link = |table: Frame| F::table(table).unwrap() & !F::LEFT_OUT;
        // Puts an entry behind all good ones of its table, so that these are checked first.
        let entry = |table: Frame, index: usize, level: u8, at: u64, value: u64, fault| {
            loader.write(table, index, value);
            loader.refused::<F>(&shared, AdoptError::Entry { level, at: virt(at), value, fault });
            loader.write(table, index, 0);
        };
        // Tables: twice, recursive, beyond the memory, of other code, free, with more references.
        entry(above, index, 1, after, link(lowest), EntryFault::Twice(lowest));
        let last = F::ENTRIES - 1;
        let end = (F::ENTRIES as u64 - 1) << F::shift(top) | F::upper_half().get();
        entry(root, last, top, end, link(root), EntryFault::Twice(root));
        let beyond = Frame::new(1 << 24).unwrap();
        entry(above, index, 1, after, link(beyond), EntryFault::Unknown(beyond));
        let other = sim.alloc(F::PAGE.order(), NodePolicy::Local).unwrap();
        let not_raw = |owner| EntryFault::NotRaw(other, owner);
        // SAFETY: the frame is the test's.
        let own = |owner| unsafe { sim.set_owner(other, owner) }.unwrap();
        for owner in [Owner::Kernel, Owner::User] {
            own(owner);
            entry(above, index, 1, after, link(other), not_raw(owner));
        }
        own(Owner::Raw);
        assert!(sim.info(other).unwrap().try_get());
        entry(above, index, 1, after, link(other), not_raw(Owner::Raw));
        release(&sim, other);
        // The only reference is a pin.
        assert!(sim.info(other).unwrap().try_pin(1));
        release(&sim, other);
        entry(above, index, 1, after, link(other), not_raw(Owner::Raw));
        // SAFETY: the test's pin.
        unsafe { sim.unpin(other, 1) }.unwrap();
        entry(above, index, 1, after, link(other), not_raw(Owner::Free));
        let block = sim.alloc(F::PAGE.order() + 1, NodePolicy::Local).unwrap();
        let raw = |frame, owner| EntryFault::NotRaw(frame, owner);
        entry(above, index, 1, after, link(block), raw(block, Owner::Raw));
        let inner = block.checked_add(F::PAGE.frames()).unwrap();
        entry(above, index, 1, after, link(inner), raw(inner, Owner::Free));
        release(&sim, block);
        // Pages.
        entry(above, index, 1, after, F::MALFORMED, EntryFault::Malformed);
        let group = F::GROUP.map(|_| {
            let value = F::grouped(F::page(F::PAGE, Frame::default(), Attrs::KERNEL_RW).unwrap());
            entry(lowest, 7, 0, base + 7 * F::PAGE.bytes(), value, EntryFault::Grouped);
        });
        assert_eq!(group.is_some(), F::GROUP.is_some());
        // The tables are good without all that.
        let kernel = loader.adopt::<F>(&shared).unwrap();
        // There is one kernel. The second one's tables stay its loader's.
        let mut second = Loader::new::<F>(&sim);
        second.map::<F>(base, F::PAGE, frame, Attrs::KERNEL_RW);
        second.refused::<F>(&shared, AdoptError::Kernel(Error::SecondKernel));
        second.tables.iter().for_each(|table| release(&sim, *table));
        // SAFETY: it is refused.
        let taken = unsafe { Tables::<F>::adopt(&shared, root) }.map(drop);
        assert_eq!(taken, Err(AdoptError::Root(root, EntryFault::Twice(root))));
        drop(kernel);
        release(&sim, frame);
    });
    all_given_back(&sim, &shared).unwrap();
}

#[test]
fn what_is_wrong_is_named() {
    faults::<X86_64L4>();
    faults::<Sv39>();
    faults::<Sv48>();
    faults::<Aarch64>();
    faults::<Aarch64G64>();
}

/// The page, or an entry above it, allows more than the other.
#[test]
fn rights_of_the_way() {
    /// With a right of the way taken by these bits, pages with the right are refused.
    fn check<F: Loads>(taken: &[(Flags, u64, u64)]) {
        let at = F::upper_half().get();
        for (right, clear, set) in taken {
            for flags in [Flags::READ, RWX, RWX | Flags::USER] {
                for level in 1..F::LEVELS {
                    let (sim, shared) = machine::<F>();
                    sim.on_cpu(0, || {
                        let mut loader = Loader::new::<F>(&sim);
                        loader.map::<F>(at, F::PAGE, loader.root, Attrs::new(flags));
                        let lowest = loader.way::<F>(at, 0);
                        for above in 1..F::LEVELS {
                            let (table, index) =
                                (loader.way::<F>(at, above), F::index(virt(at), above));
                            let full =
                                loader.read(table, index) | F::table(lowest).unwrap() & F::LEFT_OUT;
                            let value = if above == level { full & !clear | set } else { full };
                            loader.write(table, index, value);
                        }
                        let more = flags & *right;
                        if more.is_empty() {
                            let kernel = loader.adopt::<F>(&shared).unwrap();
                            let found = kernel.walk(&Grace::pin()).get(virt(at)).unwrap();
                            assert_eq!(found.attrs.flags & Flags::RIGHTS, flags);
                            let index = F::index(virt(at), level);
                            let table = loader.way::<F>(at, level);
                            let now = loader.read(table, index);
                            assert_eq!(
                                now & (clear | set),
                                F::table(Frame::default()).unwrap() & clear
                            );
                        } else {
                            let value = F::page(F::PAGE, loader.root, Attrs::new(flags)).unwrap();
                            let fault = EntryFault::Rights(more);
                            let at = virt(at);
                            loader.refused::<F>(
                                &shared,
                                AdoptError::Entry { level: 0, at, value, fault },
                            );
                        }
                    });
                }
            }
        }
    }
    let x86 = [(Flags::WRITE, 2, 0), (Flags::USER, 4, 0), (Flags::EXECUTE, 0, 1 << 63)];
    check::<X86_64L4>(&x86);
    check::<Aarch64>(&[
        (Flags::EXECUTE, 0, 1 << 59),
        (Flags::RIGHTS, 0, 1 << 60),
        (Flags::USER, 0, 1 << 61),
        (Flags::WRITE, 0, 1 << 62),
        (Flags::RIGHTS, 0, 1 << 63),
    ]);
}

/// Pages that the machine does not have, and pages in the top-level table.
#[test]
fn sizes_that_do_not_fit() {
    let (sim, _) = machine::<Sv39>();
    let shared = Paging::<Sim, Sv39>::try_new(sim.clone(), PageSize::Size1G).unwrap();
    let small = Paging::<Sim, Sv39>::try_new(sim.clone(), PageSize::Size4K).unwrap();
    sim.on_cpu(0, || {
        let mut loader = Loader::new::<Sv39>(&sim);
        let at = Sv39::upper_half().get();
        let huge = |at, size| {
            let value = Sv39::page(size, Frame::default(), Attrs::KERNEL_RW).unwrap();
            (virt(at), value)
        };
        loader.map::<Sv39>(1 << 30, PageSize::Size1G, Frame::default(), Attrs::KERNEL_RW);
        loader.map::<Sv39>(at, PageSize::Size1G, Frame::default(), Attrs::KERNEL_RW);
        let (at, value) = huge(at, PageSize::Size1G);
        let fault = EntryFault::TopLevel;
        loader.refused::<Sv39>(&shared, AdoptError::Entry { level: 2, at, value, fault });
        loader.write(loader.root, 256, 0);
        // In the lower half it is the kernel's alone.
        let (at, value) = huge(1 << 30, PageSize::Size1G);
        let fault = EntryFault::Size(PageSize::Size1G);
        loader.refused::<Sv39>(&small, AdoptError::Entry { level: 2, at, value, fault });
        let kernel = loader.adopt::<Sv39>(&shared).unwrap();
        kernel.split_own(at, PageSize::Size4K).unwrap().flush();
        kernel.unmap_own(pages(1 << 30, 3), |_| ()).unwrap().flush();
        assert_eq!(kernel.walk(&Grace::pin()).pages(pages(1 << 30, 6)).count(), 3);
        drop(kernel);
    });
    all_given_back(&sim, &shared).unwrap();
}

/// Frames that cannot be the top-level table; and a second stage has no kernel.
#[test]
fn no_top_level_table() {
    let (sim, shared) = machine::<X86_64L4>();
    sim.on_cpu(0, || {
        let adopt = |root| {
            // SAFETY: it is refused.
            unsafe { Space::<Grace>::adopt(&shared, root) }.map(drop)
        };
        let root = |frame, fault| Err(AdoptError::Root(frame, fault));
        let beyond = Frame::new(1 << 24).unwrap();
        assert_eq!(adopt(beyond), root(beyond, EntryFault::Unknown(beyond)));
        let page = block(&sim, 0);
        assert_eq!(adopt(page), root(page, EntryFault::NotRaw(page, Owner::User)));
        release(&sim, page);
    });
    let (sim, guests) = machine::<Ept4>();
    sim.on_cpu(0, || {
        // SAFETY: as above.
        let refused = unsafe { Tables::<Ept4>::adopt(&guests, Frame::default()) }.map(drop);
        assert_eq!(refused, Err(AdoptError::Kernel(Error::NotTheKernels)));
    });
}

/// Pages that a loader maps: in which half, at which page, of which size, with which rights.
fn loaded() -> impl Strategy<Value = Vec<(bool, u64, bool, bool)>> {
    prop::collection::vec((any::<bool>(), 0u64..6000, any::<bool>(), any::<bool>()), 0..40)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    /// The pages of random tables are found after adopting, and the tables are given back.
    #[test]
    #[cfg_attr(miri, ignore = "slow")]
    fn every_page_stays(loaded in loaded(), fault in prop::option::of(0u64..6000)) {
        let (sim, shared) = machine::<X86_64L4>();
        sim.on_cpu(0, || {
            let mut loader = Loader::new::<X86_64L4>(&sim);
            let half = |upper: bool| if upper { X86_64L4::upper_half().get() } else { 0 };
            let mut model = std::collections::BTreeMap::new();
            for (upper, page, large, write) in loaded {
                let size = if large { PageSize::Size2M } else { PageSize::Size4K };
                let at = virt(half(upper) + (page << 12)).align_down(size);
                let range = VirtRange::new(at, size.bytes()).unwrap();
                let frame = Frame::new(page << 9).unwrap();
                let attrs = if write { Attrs::KERNEL_RW } else { Attrs::new(Flags::READ) };
                let whole = VirtRange::new(at.align_down(PageSize::Size2M), 2 << 20).unwrap();
                let other = |found: &(PageSize, Frame, Attrs)| found.0 != size;
                if model.range(whole.start()..=whole.last().unwrap()).any(|(_, found)| other(found)) {
                    continue;
                }
                model.insert(range.start(), (size, frame, attrs));
                loader.map::<X86_64L4>(at.get(), size, frame, attrs);
            }
            if let Some(page) = fault {
                // Somewhere, an entry is malformed.
                let table = loader.tables[page as usize % loader.tables.len()];
                let index = page as usize % 512;
                if loader.read(table, index) == 0 && table != loader.root {
                    loader.write(table, index, X86_64L4::MALFORMED);
                    let before = loader.state::<X86_64L4>();
                    if loader.adopt::<X86_64L4>(&shared).is_ok() {
                        // In a lowest table, it was a page.
                        return;
                    }
                    assert!(loader.state::<X86_64L4>() == before);
                    loader.write(table, index, 0);
                }
            }
            let kernel = loader.adopt::<X86_64L4>(&shared).unwrap();
            let guard = Grace::pin();
            for upper in [false, true] {
                let range = VirtRange::new(virt(half(upper)), 32 << 20).unwrap();
                let found = kernel.walk(&guard).pages(range).map(|page| {
                    (page.page, (page.size, page.frame, page.attrs))
                });
                let last = range.last().unwrap();
                let expected = model.range(range.start()..=last).map(|(at, page)| (*at, *page));
                assert!(found.eq(expected));
                kernel.unmap_own(range, |page| {
                    assert!(model.remove(&page.page).is_some());
                }).unwrap().flush();
                kernel.prune_own(range).unwrap().flush();
            }
            assert!(model.is_empty());
            drop(guard);
            drop(kernel);
            assert!(sim.settle());
            shared.quick().drain();
            sim.check_leaks().unwrap();
        });
    }
}
