//! Concurrent use of huge pages, from many seeds: faults, cuts, forks, pins and copies.

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::common::*;
use machine::{Asid, Frame, Step};
use mm::*;
use paging::{Aarch64, Format, X86_64L4};
use sim::{Arch, Config, Failure, Sim, seeded};

const SEEDS: u64 = if cfg!(debug_assertions) { 25 } else { 1_500 };
const AT: usize = 0x4000_0000;

/// A source of random numbers below a bound.
type Random = Box<dyn FnMut(usize) -> usize + Send>;

/// Runs CPUs on a space with two huge pages' worth of memory, which is active on each until its
/// program ends.
fn run(seed: u64, make: impl Fn(&Sim, &Space, usize, Random) + Sync) -> Result<(), Failure> {
    run_on::<X86_64L4>(Arch::X86_64, seed, make)
}

/// As [`run`], with another format.
fn run_on<F: Format>(
    arch: Arch,
    seed: u64,
    make: impl Fn(&Sim, &SpaceOf<F>, usize, Random) + Sync,
) -> Result<(), Failure> {
    let race = RaceOf::<F>::new(Config { arch, ..racing(3, 1 << 12) }, |space| {
        space.set_huge_pages(HugePages::Always).unwrap();
        space.mmap(AT, 2 * HUGE, 3, FIXED).unwrap();
        // Every other time the pages begin small.
        if seed % 2 == 1 {
            space.madvise(AT, 2 * HUGE, Advice::NoHugePage).unwrap();
            space.write(AT, &[0; 4 * PAGE]).unwrap();
            space.madvise(AT, 2 * HUGE, Advice::HugePage).unwrap();
        }
        // And then, every other time, in blocks.
        if seed % 4 == 3 {
            space.set_fault_blocks(FaultBlocks { always: 0b1_0101_0100, madvise: 0 }).unwrap();
        }
    });
    let (sim, space, make) = (&race.sim, &*race.space, &make);
    let program = |cpu: usize| {
        race.active(move || {
            make(sim, space, cpu, Box::new(random(seed, cpu)));
            leave(space);
        })
    };
    seeded(sim, seed, (0..3).map(program).collect())?;
    race.end(())
}

/// Holes are no error here, and all else is.
fn vma_error(done: Result<(), Error>) {
    assert!(matches!(done, Ok(()) | Err(Error::Vma(_))), "{done:?}");
}

/// Each CPU writes words of its own and finds them, whatever another one cuts, protects, discards
/// or moves in the other half of the same huge page.
fn writes_are_kept_during_cuts_on<F: Format>(arch: Arch, seeds: fn(u64) -> u64) {
    each_seed(SEEDS, |seed| {
        run_on::<F>(arch, seeds(seed), |sim, space, cpu, mut random| {
            for turn in 0..6 {
                if cpu == 0 {
                    let page = AT + 300 * PAGE + random(300) * PAGE;
                    let len = (1 + random(40)) * PAGE;
                    match random(7) {
                        0 => space.munmap(page, len).unwrap(),
                        1 => vma_error(space.madvise(page, len, Advice::DontNeed)),
                        2 => vma_error(space.mprotect(page, len, 1, None)),
                        3 => vma_error(space.madvise(page, len, Advice::GuardInstall)),
                        4 => vma_error(space.mmap(page, len, 3, FIXED).map(drop)),
                        5 => vma_error(space.madvise(page, len, Advice::GuardRemove)),
                        _ => {
                            let to = AT + 4 * HUGE + 7 * PAGE;
                            let moved = space.mremap(RemapRequest::moving(page, len, to));
                            vma_error(moved.map(drop));
                        }
                    }
                } else {
                    let at = AT + (random(140) * 2 + cpu) * PAGE;
                    store(sim, space, at, turn).unwrap();
                    assert_eq!(load(sim, space, at), Ok(turn));
                    let other = AT + (300 + random(700)) * PAGE + 8 * cpu;
                    if store(sim, space, other, 1).is_ok() {
                        // It may have been discarded since.
                        let found = load(sim, space, other);
                        assert!(matches!(found, Ok(0 | 1) | Err(_)), "{found:?}");
                    }
                }
            }
        })
    });
}

#[test]
fn writes_are_kept_during_cuts() {
    writes_are_kept_during_cuts_on::<X86_64L4>(Arch::X86_64, |seed| seed);
    // With blocks, which are groups there.
    writes_are_kept_during_cuts_on::<Aarch64>(Arch::Aarch64, |seed| 4 * seed + 3);
}

/// A fork during writes and pins: the child is what the parent was, word by word, and a
/// pin sees what the parent writes.
fn forks_during_writes_and_pins_on<F: Format>(arch: Arch, seeds: fn(u64) -> u64) {
    each_seed(SEEDS, |seed| {
        run_on::<F>(arch, seeds(seed), |sim, space, cpu, mut random| {
            match cpu {
                0 => {
                    for turn in 0..3 {
                        let child = space.fork(Asid(2 + turn)).unwrap();
                        let mut words = [[0; 8]; 2];
                        for (page, word) in [(1, 0), (2, 1)] {
                            child.read(AT + page * PAGE, &mut words[word]).unwrap();
                        }
                        // Written in this order.
                        let [first, second] = words.map(u64::from_le_bytes);
                        assert!(first >= second, "{first} {second}");
                        child.write(AT + random(512) * PAGE, &[0xff]).unwrap();
                    }
                }
                1 => {
                    for value in 1..6 {
                        store(sim, space, AT + PAGE, value).unwrap();
                        store(sim, space, AT + 2 * PAGE, value).unwrap();
                    }
                    assert_eq!(load(sim, space, AT + PAGE), Ok(5));
                }
                _ => {
                    for value in 0..3 {
                        let page = AT + (3 + random(500)) * PAGE;
                        let mut frames = [Frame::default(); 2];
                        let pins = space.pin_pages(page, Access::Write, &mut frames).unwrap();
                        store(sim, space, page + 8, value).unwrap();
                        let word = pinned_words(sim, pins.frames()[0])[1].load(Ordering::Relaxed);
                        assert_eq!(word, value);
                    }
                }
            }
        })
    });
}

#[test]
fn forks_during_writes_and_pins() {
    forks_during_writes_and_pins_on::<X86_64L4>(Arch::X86_64, |seed| seed);
    // With blocks, which are groups there.
    forks_during_writes_and_pins_on::<Aarch64>(Arch::Aarch64, |seed| 4 * seed + 3);
}

/// Reads bring in the zero page; writes of two CPUs replace it. No write is lost.
#[test]
fn the_zero_page_is_replaced_once() {
    each_seed(SEEDS, |seed| {
        run(seed, |sim, space, cpu, _| {
            let at = AT + cpu * PAGE;
            assert_eq!(load(sim, space, at), Ok(0));
            store(sim, space, at, 1 + cpu as u64).unwrap();
            for other in 0..3 {
                let found = load(sim, space, AT + other * PAGE).unwrap();
                assert!(found == 0 || found == 1 + other as u64);
            }
            assert_eq!(load(sim, space, at), Ok(1 + cpu as u64));
        })
    });
}

/// Two CPUs write words, and find them, while the third makes the memory huge and cuts it.
#[test]
fn collapse_during_writes_and_pins() {
    each_seed(SEEDS, |seed| {
        run(seed, |sim, space, cpu, mut random| {
            for turn in 1..8 {
                if cpu == 0 {
                    let done = space.madvise(AT, 2 * HUGE, Advice::Collapse);
                    assert!(matches!(done, Ok(()) | Err(Error::Collapse(_))), "{done:?}");
                    let page = AT + (400 + random(300)) * PAGE;
                    vma_error(space.madvise(page, PAGE, Advice::DontNeed));
                    continue;
                }
                let at = AT + (random(190) * 2 + cpu) * PAGE;
                store(sim, space, at, turn).unwrap();
                let mut frames = [Frame::default(); 1];
                let pins = space.pin_pages(at, Access::Write, &mut frames).unwrap();
                store(sim, space, at, turn + 100).unwrap();
                let seen = pinned_words(sim, pins.frames()[0])[0].load(Ordering::Relaxed);
                assert_eq!(seen, turn + 100);
                drop(pins);
                assert_eq!(load(sim, space, at), Ok(turn + 100));
            }
        })
    });
}

/// The first touches of a huge page, or of a block, during one call that cuts it in the
/// middle.
fn touch_during_a_cut<F: Format>(
    arch: Arch,
    begin: usize,
    pages: usize,
    run_of: impl Fn(u64) -> u64 + Sync,
) {
    each_seed(4 * SEEDS, |seed| {
        run_on::<F>(arch, run_of(seed), |sim, space, cpu, _| {
            let (half, len) = (begin + pages / 2 * PAGE, (pages / 2 + 44) * PAGE);
            let moved = AT + 4 * HUGE + PAGE;
            match (cpu, seed % 4) {
                (0, 0) => space.munmap(half, len).unwrap(),
                (0, 1) => space.mprotect(half, len, 1, None).unwrap(),
                (0, 2) => space.madvise(half, len, Advice::DontNeed).unwrap(),
                (0, _) => {
                    let moved = space.mremap(RemapRequest::moving(half, len, moved));
                    moved.map(drop).unwrap();
                }
                _ => {
                    let at = begin + cpu * PAGE;
                    store(sim, space, at, cpu as u64).unwrap();
                    assert_eq!(load(sim, space, at), Ok(cpu as u64));
                }
            }
            if cpu == 0 {
                let found = store(sim, space, half, 1);
                assert_eq!(found.is_ok(), seed % 4 == 2, "{found:?}");
            }
        })
    });
}

#[test]
fn a_first_touch_during_a_cut() {
    touch_during_a_cut::<X86_64L4>(Arch::X86_64, AT, 512, |seed| 2 * seed);
}

/// Blocks of 64 pages, and blocks of groups, one of which is cut.
#[test]
fn a_block_during_a_cut() {
    let with_blocks = |seed| 4 * seed + 3;
    touch_during_a_cut::<X86_64L4>(Arch::X86_64, AT + 64 * PAGE, 64, with_blocks);
    touch_during_a_cut::<Aarch64>(Arch::Aarch64, AT + 64 * PAGE, 24, with_blocks);
}

/// A huge page that a child shares moves while another CPU writes to it, and so splits it.
#[test]
fn a_split_during_a_move() {
    each_seed(SEEDS, |seed| {
        let go = AtomicUsize::new(0);
        run(2 * seed, |sim, space, cpu, _| {
            if cpu == 0 {
                store(sim, space, AT, 1).unwrap();
                let child = space.fork(Asid(2)).unwrap();
                go.store(1, Ordering::Release);
                let moved = space.mremap(RemapRequest::moving(AT, HUGE, AT + 4 * HUGE));
                assert_eq!(moved, Ok(AT + 4 * HUGE));
                let found = load(sim, space, AT + 4 * HUGE);
                assert!(matches!(found, Ok(1 | 2)), "{found:?}");
                go.store(2, Ordering::Release);
                drop(child);
            } else if cpu == 1 {
                while go.load(Ordering::Acquire) == 0 {
                    sim.relax();
                }
                let _moved = store(sim, space, AT, 2);
                while go.load(Ordering::Acquire) != 2 {
                    sim.relax();
                }
                assert!(load(sim, space, AT).is_err());
            }
        })
    })
}

/// A huge page moves and comes back, while the other CPUs write words of their own where it was and
/// where it goes, and while a forked child shares it, so that they split it. No write that was done
/// is lost.
#[test]
fn writes_are_kept_during_moves_of_whole_pages() {
    each_seed(SEEDS, |seed| {
        run(2 * seed, |sim, space, cpu, mut random| {
            let away = 4 * HUGE;
            if cpu == 0 {
                for turn in 0..4 {
                    let child = (seed % 2 == 1 && turn == 1).then(|| space.fork(Asid(2)));
                    let (from, to) = if turn % 2 == 0 { (0, away) } else { (away, 0) };
                    let moved = space.mremap(RemapRequest::moving(AT + from, HUGE, AT + to));
                    assert_eq!(moved, Ok(AT + to));
                    drop(child);
                }
            } else {
                let mut last = 0;
                for turn in 1..12 {
                    let own = AT + cpu * PAGE + if random(2) == 0 { 0 } else { away };
                    match random(2) {
                        0 if store(sim, space, own, turn).is_ok() => last = turn,
                        _ => {
                            let found = load(sim, space, own);
                            assert!(found.is_err() || found == Ok(last), "{found:?} {last}");
                        }
                    }
                }
            }
        })
    })
}

/// Few words, written while they become huge.
#[test]
fn writes_during_one_collapse() {
    each_seed(4 * SEEDS, |seed| {
        run(2 * seed + 1, |sim, space, cpu, _| {
            if cpu == 0 {
                let done = space.madvise(AT, HUGE, Advice::Collapse);
                assert!(matches!(done, Ok(()) | Err(Error::Collapse(_))), "{done:?}");
            } else {
                let at = AT + cpu * PAGE;
                for value in 1..5 {
                    store(sim, space, at, value).unwrap();
                    assert_eq!(load(sim, space, at), Ok(value));
                }
                // Not touched before.
                let other = AT + (10 + cpu) * PAGE;
                store(sim, space, other, 7).unwrap();
                assert_eq!(load(sim, space, other), Ok(7));
                assert_eq!(load(sim, space, at), Ok(4));
            }
        })
    });
}
