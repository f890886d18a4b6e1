//! The machine behaves like silicon: walks, accessed and dirty bits, caches, flushes, interrupts.

mod common;

use common::*;
use machine::*;
use sim::{Checks, Config, Sim, SimStats, Want, threads};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

const AT: u64 = 0x40_0000_1000;
/// Miri takes milliseconds for each frame.
const FRAMES: u64 = if cfg!(miri) { 64 } else { 2048 };

/// A machine without checks, which lets stale translations pass.
fn blind() -> Config {
    Config { frames: FRAMES, checks: Checks::NONE, ..Config::default() }
}

fn stats_of(sim: &Sim, what: impl FnOnce()) -> SimStats {
    let before = sim.stats();
    what();
    sim.stats() - before
}

#[test]
fn memory_is_where_the_tables_say() {
    for levels in [4, 5] {
        with_space(Config { levels, frames: FRAMES, ..Config::default() }, |sim, space| {
            let (one, other) = (page(sim), page(sim));
            let high = if levels == 5 { 0xff00_0000_0000_2000 } else { 0xffff_8000_0000_2000 };
            space.map(AT, one);
            space.map(high, other);
            space.store(AT + 8, 7).unwrap();
            space.store(high + 4088, 8).unwrap();
            assert_eq!((space.load(AT + 8), space.load(high + 4088)), (Ok(7), Ok(8)));
            let word = |frame, at| {
                // SAFETY: within the frame, which only this test uses.
                unsafe { sim.frame_ptr(frame).unwrap().cast::<u64>().add(at).read() }
            };
            assert_eq!((word(one, 1), word(other, 511)), (7, 8));
            let fault = |at| space.load(at).unwrap_err().kind;
            assert_eq!(fault(AT + 4096), FaultKind::NotPresent);
            assert_eq!(fault(AT + 4), FaultKind::Misaligned);
            assert_eq!(fault(1 << (11 + 9 * levels + 1)), FaultKind::NotCanonical);
        });
    }
}

#[test]
fn bytes_cross_words_and_pages() {
    with_space(Config { frames: FRAMES, ..Config::default() }, |sim, space| {
        space.map(AT, page(sim));
        space.map(AT + 4096, page(sim));
        space.store(AT + 4088, u64::MAX).unwrap();
        let bytes: Vec<u8> = (0..20).collect();
        // SAFETY: ordinary memory of this test.
        unsafe {
            sim.write(virt(AT + 4090), &bytes).unwrap();
            let mut back = [0xee; 22];
            sim.read(virt(AT + 4088), &mut back).unwrap();
            assert_eq!(back[..2], [255, 255]);
            assert_eq!(back[2..], bytes);
            let fault = sim.write(virt(AT + 8180), &bytes).unwrap_err();
            assert_eq!((fault.address, fault.kind), (virt(AT + 8192), FaultKind::NotPresent));
            assert_eq!(
                sim.read(virt(u64::MAX), &mut [0; 2]).unwrap_err().kind,
                FaultKind::NotPresent
            );
        }
    });
}

#[test]
fn accessed_and_dirty() {
    with_space(Config { frames: FRAMES, ..Config::default() }, |sim, space| {
        space.map(AT, page(sim));
        let marks = |level| space.slot(AT, level).load() & (ACCESSED | DIRTY);
        assert_eq!((marks(0), marks(3)), (0, 0));
        space.load(AT).unwrap();
        assert_eq!((marks(0), marks(1), marks(3)), (ACCESSED, ACCESSED, ACCESSED));
        // The first write through a clean translation walks the tables once more.
        let first = stats_of(sim, || space.store(AT, 1).unwrap());
        let second = stats_of(sim, || space.store(AT, 2).unwrap());
        assert_eq!(((first.hits, first.walks), (second.hits, second.walks)), ((0, 1), (1, 0)));
        assert_eq!((marks(0), marks(1)), (ACCESSED | DIRTY, ACCESSED));
    });
}

#[test]
fn rights_narrow_on_the_way_down() {
    with_space(Config { frames: FRAMES, ..Config::default() }, |sim, space| {
        space.map(AT, page(sim));
        let kind = |want| sim.translate(virt(AT), want).map(drop).map_err(|fault| fault.kind);
        let (read, write) = (Want::default(), Want { write: true, ..Want::default() });
        let user = Want { user: true, ..Want::default() };
        let execute = Want { execute: true, ..Want::default() };
        assert_eq!(
            kind(user),
            Err(FaultKind::Protection),
            "the page forbids it, though the upper levels allow it"
        );
        assert_eq!((kind(read), kind(write), kind(execute)), (Ok(()), Ok(()), Ok(())));
        for (bits, want) in [(1 << 63, execute), (0, write)] {
            let upper = space.slot(AT, 2);
            let old = upper.load();
            upper.store(old & !WRITE | bits);
            sim.flush(Flush::All);
            assert_eq!((kind(want), kind(read)), (Err(FaultKind::Protection), Ok(())));
            upper.store(old);
            sim.flush(Flush::All);
        }
    });
}

#[test]
fn large_pages() {
    with_space(Config { frames: 1024, ..blind() }, |sim, space| {
        let block = sim.alloc(PageSize::Size2M.order(), NodePolicy::Local).unwrap();
        space.set(AT, 1, block.start().get() | RW | LARGE);
        let walk = stats_of(sim, || space.store(AT, 5).unwrap());
        assert_eq!((walk.walks, walk.entries_walked), (1, 3));
        let page = AT & !0x1f_ffff;
        let hit = stats_of(sim, || assert_eq!(space.load(page + 0x1f_fff8), Ok(0)));
        assert_eq!((hit.hits, hit.walks), (1, 0));
        // A bit that must be clear.
        space.set(AT, 1, block.start().get() | RW | LARGE | 1 << 13);
        sim.flush(Flush::All);
        assert_eq!(space.load(AT).unwrap_err().kind, FaultKind::Malformed);
        space.set(AT, 1, 1 << 50 | RW | LARGE);
        assert_eq!(space.load(AT).unwrap_err().kind, FaultKind::Malformed, "no memory there");
    });
}

#[test]
fn unflushed_translations_stay() {
    with_space(blind(), |sim, space| {
        let (old, new) = (page(sim), page(sim));
        space.map(AT, old);
        space.store(AT, 1).unwrap();
        space.map(AT, new);
        assert_eq!(space.load(AT), Ok(1), "still the old page");
        sim.flush(pages(None, range(AT + 4096, 4096), true));
        assert_eq!(space.load(AT), Ok(1));
        sim.flush(Flush::Space(Asid(2)));
        assert_eq!(space.load(AT), Ok(1));
        sim.flush(Flush::Space(Asid(1)));
        assert_eq!(space.load(AT), Ok(0));
    });
}

#[test]
fn a_stride_that_is_too_large_misses_pages() {
    with_space(blind(), |sim, space| {
        let base = 0x4000_0000;
        for at in [base, base + 4096] {
            space.map(at, page(sim));
            space.load(at).unwrap();
        }
        let what =
            |stride| Flush::Range { space: None, range: range(base, 8192), stride, tables: false };
        let both =
            || stats_of(sim, || [base, base + 4096].iter().for_each(|at| space.touch(*at))).walks;
        assert_eq!(both(), 0);
        sim.flush(what(PageSize::Size2M));
        assert_eq!(both(), 1);
        sim.flush(what(PageSize::Size4K));
        assert_eq!(both(), 2);
    });
}

#[test]
fn upper_levels_are_walked_from_where_they_are_cached() {
    with_space(blind(), |sim, space| {
        space.map(AT, page(sim));
        space.load(AT).unwrap();
        // Another table of the lowest level replaces the first.
        let second = table(sim, 0);
        let stale = space.table(AT, 0).unwrap();
        space.slot(AT, 1).store(second.start().get() | RW);
        space.entry(stale, index(AT + 4096, 0)).store(page(sim).start().get() | RW);
        sim.flush(pages(None, range(AT, 8192), false));
        assert_eq!(space.load(AT + 4096), Ok(0), "not by the old table");
        sim.flush(pages(None, range(AT, 8192), true));
        assert_eq!(space.load(AT + 4096).unwrap_err().kind, FaultKind::NotPresent);
    });
}

#[test]
fn tags_and_global_translations() {
    with_space(blind(), |sim, space| {
        let other = Space::new(sim);
        let (near, far) = (AT, AT + (1 << 39));
        space.map(near, page(sim));
        other.map(near, page(sim));
        space.set(far, 0, page(sim).start().get() | RW | GLOBAL);
        space.store(near, 1).unwrap();
        space.store(far, 3).unwrap();
        other.activate(2);
        other.store(near, 2).unwrap();
        assert_eq!(other.load(far), Ok(3), "global, though this space does not map it");
        space.activate(1);
        let back = stats_of(sim, || assert_eq!(space.load(near), Ok(1)));
        assert_eq!(back.walks, 0, "kept under its tag");
        // SAFETY: as in `Space::activate`.
        unsafe { sim.activate(space.root, Asid(1), false) };
        let dropped =
            stats_of(sim, || assert_eq!((space.load(near), space.load(far)), (Ok(1), Ok(3))));
        assert_eq!((dropped.walks, dropped.hits), (1, 1), "all but the global page is dropped");
        sim.flush(Flush::All);
        assert_eq!(stats_of(sim, || space.touch(far)).walks, 1);
    });
}

#[test]
fn a_small_tlb_forgets() {
    with_space(Config { tlb_entries: 4, ..blind() }, |sim, space| {
        let at = |page: u64| AT + page * 4096;
        (0..16).for_each(|i| space.map(at(i), page(sim)));
        let rounds = |pages| {
            stats_of(sim, || (0..10).for_each(|_| (0..pages).for_each(|i| space.touch(at(i)))))
        };
        assert_eq!(rounds(4).walks, 4);
        sim.flush(Flush::All);
        assert_eq!(rounds(16).hits, 0, "each is evicted before it is used again");
    });
}

#[test]
fn a_fault_may_be_spurious_once() {
    with_space(Config { frames: FRAMES, ..Config::default() }, |sim, space| {
        let frame = page(sim);
        space.set(AT, 0, frame.start().get() | PRESENT);
        space.load(AT).unwrap();
        space.map(AT, frame);
        assert_eq!(space.store(AT, 1).unwrap_err().kind, FaultKind::Protection);
        assert_eq!(space.store(AT, 1), Ok(()));
    });
}

/// Where a fault does not drop the cached entry that caused it, it repeats until the flush: with a
/// cached page, and with a cached upper-level entry.
#[test]
fn faults_that_come_again() {
    for faults_drop in [true, false] {
        with_space(Config { faults_drop, ..blind() }, |sim, space| {
            let (frame, other) = (page(sim), page(sim));
            space.set(AT, 0, frame.start().get() | PRESENT);
            space.load(AT).unwrap();
            space.map(AT, frame);
            let stores = [space.store(AT, 1), space.store(AT, 1)];
            assert_eq!(stores.map(|store| store.is_ok()), [false, faults_drop]);
            space.flush(AT, 4096, false);
            assert_eq!(space.store(AT, 1), Ok(()));
            // Another table replaces the cached one.
            let new = table(sim, 0);
            space.entry(new, index(AT + 4096, 0)).store(other.start().get() | RW);
            space.slot(AT, 1).store(new.start().get() | RW);
            let loads = [space.load(AT + 4096), space.load(AT + 4096)];
            assert_eq!(loads.map(|load| load.is_ok()), [false, faults_drop]);
            space.flush(AT + 4096, 4096, true);
            assert_eq!(space.load(AT + 4096), Ok(0));
        });
    }
}

#[test]
fn interrupts_wait_for_the_end_of_all_sections() {
    let sim = machine(2);
    let taken = Arc::new(AtomicUsize::new(0));
    sim.on_cpu(1, || {
        let (outer, inner) = (sim.irqs_off(), sim.irqs_off());
        let (also, handler) = (Arc::clone(&taken), sim.clone());
        sim.interrupt(1, move || {
            assert!(!handler.irqs_enabled());
            also.fetch_add(1, Relaxed);
        });
        sim.step(SharedAccess::Other);
        drop(outer);
        sim.step(SharedAccess::Other);
        assert_eq!((taken.load(Relaxed), sim.irqs_enabled()), (0, false));
        drop(inner);
        assert_eq!((taken.load(Relaxed), sim.irqs_enabled()), (1, true));
    });
}

#[test]
fn the_timer_ticks() {
    let sim = Sim::new(Config { tick: Some(10), frames: FRAMES, ..Config::default() }).unwrap();
    let ticks = Arc::new(AtomicUsize::new(0));
    let also = Arc::clone(&ticks);
    sim.on_tick(move |_| {
        also.fetch_add(1, Relaxed);
    })
    .unwrap();
    assert!(sim.on_tick(|_| ()).is_err());
    sim.on_cpu(0, || {
        (0..100).for_each(|_| sim.step(SharedAccess::Other));
        // The step after a tick is a step of its own, hence 11.
        assert_eq!(ticks.load(Relaxed), 11);
        let section = sim.irqs_off();
        (0..100).for_each(|_| sim.step(SharedAccess::Other));
        assert_eq!(ticks.load(Relaxed), 11);
        drop(section);
        assert_eq!(ticks.load(Relaxed), 12, "late, and once");
    });
    // On a machine for measurements, too.
    let sim = Sim::new(Config { tick: Some(10), ..Config::fast(1, 1) }).unwrap();
    sim.on_cpu(0, || {
        (0..100).for_each(|_| sim.step(SharedAccess::Other));
        assert_eq!(sim.stats().ticks, 10);
        let section = sim.irqs_off();
        (0..100).for_each(|_| sim.step(SharedAccess::Other));
        drop(section);
        assert_eq!(sim.stats().ticks, 11, "late, and once");
    });
}

#[test]
fn two_that_flush_each_other_do_not_wait_for_ever() {
    let sim = machine(4);
    let rounds = if cfg!(miri) { 5 } else { 200 };
    let program = || {
        for round in 0..rounds {
            // Also with interrupts disabled: a CPU that waits answers.
            let _section = (round % 2 == 0).then(|| sim.irqs_off());
            sim.flush_on(&CpuSet::first(4), Flush::All);
        }
    };
    threads(&sim, (0..4).map(|_| Box::new(program) as sim::Program).collect()).unwrap();
    let stats = sim.stats();
    // CPUs that have not started are skipped. CPUs that have ended are idle, and answer at once.
    assert!(stats.ipis_sent <= 4 * 3 * rounds && stats.ipis_sent >= 3 * rounds, "{stats:?}");
    assert!(stats.ipis_taken <= stats.ipis_sent);
    assert_eq!(stats.flushes, stats.ipis_sent + 4 * rounds);
}

#[test]
#[cfg_attr(miri, ignore = "Miri has no coroutines")]
fn one_that_spins_with_interrupts_off_answers() {
    let sim = machine(2);
    let mutex = spin::mutex::SpinMutex::<_>::new(());
    let program = || {
        for _ in 0..200 {
            let _section = sim.irqs_off();
            let _held = lock(&sim, &mutex);
            sim.flush_on(&CpuSet::first(2), Flush::All);
        }
    };
    threads(&sim, vec![Box::new(program), Box::new(program)]).unwrap();
    for seed in 0..50 {
        sim::seeded(&machine(2), seed, vec![]).unwrap();
        sim::seeded(&sim, seed, vec![Box::new(program), Box::new(program)]).unwrap();
    }
}

#[test]
fn nodes_share_memory_and_cpus() {
    let sim = Sim::new(Config { cpus: 4, nodes: 2, frames: 100, ..Config::default() }).unwrap();
    assert_eq!(sim.nodes(), 2);
    for cpu in 0..4 {
        sim.on_cpu(cpu, || {
            assert_eq!(sim.local_node(), NodeId(cpu as u8 / 2));
            let frame = page(&sim);
            assert_eq!(sim.info(frame).unwrap().node(), sim.local_node());
            free(&sim, frame);
        });
    }
    sim.check_leaks().unwrap();
}

/// A request for a tag that the machine does not have would affect no space or another one: it
/// panics.
#[test]
fn tags_that_there_are_not() {
    let config = Config { tags: 4, ..blind() };
    let asks: [fn(&Sim, &Space); 4] = [
        |_, space| space.activate(4),
        |sim, _| sim.flush(Flush::Space(Asid(u16::MAX))),
        |sim, _| sim.flush_on(&CpuSet::EMPTY, Flush::Space(Asid(4))),
        |sim, _| sim.flush(pages(Some(Asid(4)), range(AT, 4096), false)),
    ];
    for ask in asks {
        let asked = std::panic::catch_unwind(|| with_space(config, ask));
        let panic = asked.unwrap_err();
        let text = panic.downcast_ref::<String>().unwrap();
        assert!(text.contains("on a machine with 4"), "{text}");
    }
    with_space(config, |sim, space| {
        space.activate(3);
        sim.flush(Flush::Space(Asid(3)));
    });
}
