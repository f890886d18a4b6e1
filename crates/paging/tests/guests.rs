//! Dirty logging: a guest's memory is copied while the guest writes to it, and the copy is right.

mod common;

use common::*;
use grace::Reclaim;
use machine::*;
use paging::*;
use sim::{Checks, Config, Failure, Grace, Program, Sim, Stale, seeded};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

type Tables<F> = PageTables<Sim, F, Grace>;

/// Where the guest's memory is: a block of 2 MiB.
const BASE: u64 = 0x4000_0000;
const PAGES: u64 = 512;
/// The pages that the guest writes to, at both ends of the block.
const USED: [u64; 4] = [0, 1, 510, 511];
const WRITERS: usize = 2;
const STORES: u64 = 24;
/// Stores of a writer in a round of logging: a page is written again after a round has seen it.
const EACH_ROUND: u64 = 4;

fn memory() -> VirtRange {
    pages(BASE, PAGES)
}

/// A store of the guest. The host handles its faults.
fn store<F: Format>(sim: &Sim, tables: &Tables<F>, at: VirtAddr, value: u64) {
    for _ in 0..64 {
        let Err(fault) = sim.store_own(at, value) else { return };
        assert!(matches!(fault.kind, FaultKind::Protection | FaultKind::NotPresent), "{fault}");
        let guard = Grace::pin();
        // SAFETY: the guest may write to all of its memory.
        let _ = unsafe { tables.log_write(&guard, at, |_| true) };
        drop(guard);
        sim.relax();
    }
    panic!("a store to {at} faults again and again");
}

/// A word of the guest's memory, as the host sees it.
fn word(sim: &Sim, block: Frame, page: u64, index: usize) -> u64 {
    let base = sim.frame_ptr(block.checked_add(page).unwrap()).unwrap();
    // SAFETY: within the frame. The guest accesses it by whole words, too.
    unsafe { base.cast::<AtomicU64>().add(index).as_ref() }.load(Relaxed)
}

fn machine<F: OnSim>(cpus: usize, seed: u64) -> (Sim, Arc<Paging<Sim, F>>) {
    let checks = Checks { stale: Stale::Freed, ..Checks::ALL };
    let speculation = [0, 200][seed as usize & 1];
    machine_of(Config { cpus, frames: 1024 + 64, speculation, checks, ..Config::default() })
}

/// Logs, copies and compares, while the guest runs. At the end the large page is whole again.
fn moved<F: OnSim>(seed: u64, how: Logging) -> Result<(), Failure> {
    let (sim, paging) = machine::<F>(WRITERS + 1, seed);
    let (tables, block) = sim.on_cpu(0, || {
        let tables = Tables::<F>::user(&paging, Asid(1), None).unwrap();
        let block = block(&sim, 9);
        tables.map_own(memory(), block, Attrs::USER_RW).unwrap();
        (tables, block)
    });
    let copy: Vec<[AtomicU64; WRITERS]> = (0..PAGES).map(|_| Default::default()).collect();
    let (running, rounds) = (AtomicUsize::new(WRITERS), AtomicU64::new(0));
    let (sim_, tables_, copy_, running_, rounds_) = (&sim, &tables, &copy, &running, &rounds);
    let writer = |cpu: usize| {
        Box::new(move || {
            tables_.activate_own();
            for number in 0..STORES {
                while rounds_.load(Relaxed) < number / EACH_ROUND {
                    sim_.relax();
                }
                let page = USED[(seed + number * (1 + cpu as u64)) as usize % USED.len()];
                let at = virt(BASE + page * 4096 + cpu as u64 * 8);
                store(sim_, tables_, at, number + 1);
            }
            running_.fetch_sub(1, Relaxed);
        }) as Program
    };
    let mover = Box::new(move || {
        let mut pending = tables_.no_flush();
        // SAFETY: the pages are this test's.
        unsafe { tables_.log_start(memory(), how, &mut pending) }.unwrap();
        pending.flush();
        let mut next: Vec<u64> = (0..PAGES).collect();
        loop {
            let last = running_.load(Relaxed) == 0;
            let mut pending = tables_.no_flush();
            let dirty = |page: Mapping| next.push((page.page.get() - BASE) >> 12);
            // SAFETY: as above.
            unsafe { tables_.collect_dirty(memory(), how, &mut pending, dirty) }.unwrap();
            pending.flush();
            for page in next.drain(..) {
                for (cpu, copy) in copy_[page as usize].iter().enumerate() {
                    copy.store(word(sim_, block, page, cpu), Relaxed);
                }
            }
            if last {
                return;
            }
            rounds_.fetch_add(1, Relaxed);
            sim_.relax();
        }
    }) as Program;
    let mut programs: Vec<Program<'_>> = (0..WRITERS).map(writer).collect();
    programs.push(mover);
    seeded(&sim, seed, programs)?;
    for (page, words) in (0..PAGES).zip(&copy) {
        for (cpu, copy) in words.iter().enumerate() {
            let (now, copied) = (word(&sim, block, page, cpu), copy.load(Relaxed));
            assert_eq!(copied, now, "word {cpu} of page {page} was written and not copied");
        }
    }
    sim.on_cpu(0, || {
        let mut pending = tables.no_flush();
        if how == Logging::WriteProtection {
            let rw = |page: Mapping| {
                let flags = page.attrs.flags | Flags::WRITE;
                SweepChange::Set(Attrs { flags, ..page.attrs })
            };
            tables.sweep_own(memory(), &mut pending, rw).unwrap();
        }
        pending.flush();
        assert_eq!(tables.rejoin_own(virt(BASE)), Ok(true));
        let page = tables.walk(&Grace::pin()).get(virt(BASE)).unwrap();
        assert_eq!((page.size, page.frame), (PageSize::Size2M, block));
        assert!(page.attrs.flags.contains(Flags::WRITE | Flags::DIRTY));
        tables.unmap_own(memory(), |_| ()).unwrap().flush();
        drop(tables);
        release(&sim, block);
    });
    Ok(all_given_back(&sim, &paging)?)
}

const SEEDS: u64 = if cfg!(debug_assertions) { 24 } else { 200 };

#[test]
fn by_dirty_bits() {
    right(SEEDS, |seed| moved::<Ept4>(seed, Logging::DirtyBits));
    right(SEEDS, |seed| moved::<Npt4>(seed, Logging::DirtyBits));
    right(SEEDS / 4, |seed| moved::<Ept5>(seed, Logging::DirtyBits));
    right(SEEDS, |seed| moved::<Aarch64Stage2>(seed, Logging::DirtyBits));
    right(SEEDS / 4, |seed| moved::<Aarch64>(seed, Logging::DirtyBits));
    right(SEEDS / 4, |seed| moved::<Sv39>(seed, Logging::DirtyBits));
    right(SEEDS / 4, |seed| moved::<X86_64L4>(seed, Logging::DirtyBits));
}

#[test]
fn by_write_protection() {
    right(SEEDS, |seed| moved::<Ept4>(seed, Logging::WriteProtection));
    right(SEEDS / 4, |seed| moved::<Npt5>(seed, Logging::WriteProtection));
    right(SEEDS, |seed| moved::<Aarch64Stage2>(seed, Logging::WriteProtection));
}

/// All of a guest's addresses are its own, to the last one, and there is no kernel's half.
#[test]
fn guests_have_no_kernel() {
    let (sim, paging) = machine::<Ept4>(1, 0);
    let tables = sim.on_cpu(0, || {
        assert_eq!(Tables::<Ept4>::kernel(&paging).map(drop), Err(Error::NotTheKernels));
        let tables = Tables::<Ept4>::user(&paging, Asid(1), None).unwrap();
        let top = 1 << 48;
        let (last, beyond) = (pages(top - 4096, 1), pages(top, 1));
        let frame = block(&sim, 0);
        tables.map_own(last, frame, Attrs::USER_RW).unwrap();
        let failed = tables.map_own(beyond, frame, Attrs::USER_RW);
        assert_eq!(refused(failed), Error::NotCanonical(virt(top)));
        let guard = Grace::pin();
        let all = VirtRange::new(virt(0), u64::MAX).unwrap();
        let found: Vec<_> = tables.walk(&guard).pages(all).map(|page| page.page).collect();
        assert_eq!(found, [last.start()]);
        drop(guard);
        tables.activate_own();
        store(&sim, &tables, last.start(), 7);
        let mut frames = [frame];
        let pins = tables.get_user_pages_fast_only(last.start(), true, &mut frames).unwrap();
        drop(pins);
        let global = Attrs { flags: Attrs::USER_RW.flags | Flags::GLOBAL, ..Attrs::USER_RW };
        assert_eq!(refused(tables.map_own(pages(0, 1), frame, global)), Error::Global(virt(0)));
        tables.unmap_own(last, |_| ()).unwrap().flush();
        release(&sim, frame);
        tables
    });
    sim.on_cpu(0, || drop(tables));
}

/// A fork shares all of a guest's addresses: also those that a program's space leaves to a kernel.
#[test]
fn a_fork_has_all_addresses() {
    fn forked<F: OnSim>() {
        let (sim, paging) = machine::<F>(1, 0);
        let (at, frame, parent, child) = sim.on_cpu(0, || {
            let parent = Tables::<F>::user(&paging, Asid(1), None).unwrap();
            let at = [0, 1, 2, 3].map(|part| pages(part << (F::VIRTUAL_BITS - 2), 1));
            let frame = block(&sim, 0);
            for (number, page) in at.into_iter().enumerate() {
                // Each entry holds a reference.
                assert!(number == 0 || sim.info(frame).unwrap().try_get());
                parent.map_own(page, frame, Attrs::USER_RW).unwrap();
            }
            let child = parent.fork_own(Asid(2), false);
            (at, frame, parent, child)
        });
        sim.on_cpu(0, || {
            let guard = Grace::pin();
            for (tables, page) in [&parent, &child].into_iter().flat_map(|of| at.map(|at| (of, at)))
            {
                let found = tables.walk(&guard).get(page.start()).expect("it is in both");
                assert_eq!((found.frame, found.attrs.flags.contains(Flags::WRITE)), (frame, false));
            }
            drop(guard);
            // Then the shared tables are the parent's alone, with a reference for each entry.
            drop(child);
            for page in at {
                parent.unmap_own(page, |_| ()).unwrap().flush();
                release(&sim, frame);
            }
            drop(parent);
        });
        all_given_back(&sim, &paging).unwrap();
    }
    forked::<Ept4>();
    forked::<Ept5>();
    forked::<Npt4>();
    forked::<Aarch64Stage2>();
}

/// The pieces must be whole, in order, and alike.
#[test]
fn only_pieces_of_a_block_are_joined() {
    let (sim, paging) = machine::<Npt4>(1, 0);
    sim.on_cpu(0, || {
        let tables = Tables::<Npt4>::user(&paging, Asid(1), None).unwrap();
        let rejoin = || tables.rejoin_own(virt(BASE));
        assert_eq!(rejoin(), Ok(false), "nothing is there");
        let first = Frame::new(0x8_0000).unwrap();
        tables.map_own(memory(), first, Attrs::USER_RW).unwrap();
        assert_eq!(rejoin(), Ok(false), "it is whole");
        tables.split_own(virt(BASE), PageSize::Size4K).unwrap().flush();
        let one = pages(BASE + 0x5000, 1);
        tables.protect_own(one, Flags::READ | Flags::USER).unwrap().flush();
        assert_eq!(rejoin(), Ok(false), "one has other rights");
        tables.unmap_own(one, |_| ()).unwrap().flush();
        assert_eq!(rejoin(), Ok(false), "one is not there");
        tables.map_own(one, first.checked_add(6).unwrap(), Attrs::USER_RW).unwrap();
        assert_eq!(rejoin(), Ok(false), "one is another frame");
        tables.unmap_own(one, |_| ()).unwrap().flush();
        let used = Flags::ACCESSED | Flags::DIRTY | Attrs::USER_RW.flags;
        tables.map_own(one, first.checked_add(5).unwrap(), Attrs::new(used)).unwrap();
        assert_eq!(rejoin(), Ok(true));
        tables.unmap_own(memory(), |page| assert_eq!(page.attrs.flags, used)).unwrap().flush();
    });
}
