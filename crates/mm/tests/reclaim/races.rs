//! Reclaim concurrently with other CPUs, from seeds.

use std::mem::ManuallyDrop;

use paging::Swap;

use super::*;

/// Lets each CPU run `each` in a space with swap and with so many pages at [`AT`], which `prepare`
/// may use first. At the end nothing is left.
fn in_turns(
    seed: u64,
    [cpus, pages]: [usize; 2],
    prepare: impl FnOnce(&Space),
    each: impl Fn(usize, &Sim, &Space) + Sync,
) -> Result<(), Failure> {
    let ram = Arc::new(Ram::default());
    let swap = Some(ram.clone() as Arc<dyn Swap>);
    let (race, ()) = Race::with(racing(cpus, 512), swap, |_, space| {
        space.mmap(AT, pages * PAGE, 3, FIXED).unwrap();
        prepare(space);
    });
    let make = |cpu: usize| -> Program<'_> {
        let (sim, space, each) = (&race.sim, &*race.space, &each);
        Box::new(move || each(cpu, sim, space))
    };
    seeded(&race.sim, seed, (0..cpus).map(make).collect())?;
    race.end(())?;
    assert_eq!(ram.used(), 0);
    Ok(())
}

/// One CPU reclaims a page, one writes it, two read it. The readers see what was written, whichever
/// frame holds the page meanwhile.
fn one_page_for_all(seed: u64) -> Result<(), Failure> {
    let written = AtomicU64::new(0);
    in_turns(
        seed,
        [4, 4],
        |space| {
            // The other pages are replaced after the one that is used, before the flush.
            (0..4).for_each(|page| space.write(AT + page * PAGE, &[0]).unwrap());
        },
        |cpu, sim, space| {
            activate(space);
            for turn in 1..4 {
                match cpu {
                    0 => assert!(space.reclaim(4).unwrap().taken() <= 4),
                    1 => {
                        store(sim, space, AT, turn).unwrap();
                        written.store(turn, Ordering::Release);
                    }
                    _ => {
                        for _ in 0..3 {
                            let least = written.load(Ordering::Acquire);
                            let found = load(sim, space, AT).unwrap();
                            assert!(found >= least, "{found} after {least} was written");
                        }
                    }
                }
            }
            leave(space);
        },
    )
}

#[test]
fn all_cpus_see_one_page_during_reclaim() {
    each_seed(SEEDS, one_page_for_all);
}

/// Two CPUs write and read words of their own while the third reclaims, unmaps other pages and
/// forks. No write is lost.
fn during_reclaim(seed: u64) -> Result<(), Failure> {
    in_turns(
        seed,
        [3, 4],
        |_| {},
        |cpu, sim, space| {
            activate(space);
            for turn in 1..6 {
                if cpu == 0 {
                    space.reclaim(3).unwrap();
                    if seed.is_multiple_of(3) && turn == 2 {
                        drop(space.fork(Asid(2)).unwrap());
                    }
                    continue;
                }
                let (own, both) = (AT + cpu * PAGE, AT + 8 * cpu);
                for at in [own, both] {
                    store(sim, space, at, turn).unwrap();
                    assert_eq!(load(sim, space, at), Ok(turn));
                }
                if seed.is_multiple_of(2) {
                    let mut frames = [Frame::default(); 1];
                    let pins = space.pin_pages(own, Access::Write, &mut frames).unwrap();
                    store(sim, space, own, turn + 50).unwrap();
                    let seen = pinned_words(sim, pins.frames()[0])[0].load(Ordering::Relaxed);
                    assert_eq!(seen, turn + 50);
                }
                assert_eq!(load(sim, space, both), Ok(turn));
            }
            leave(space);
        },
    )
}

#[test]
fn no_write_is_lost_during_reclaim() {
    each_seed(SEEDS, during_reclaim);
}

/// One CPU reclaims; another one pins a page for writing, and writes to its frame, as a device
/// does, while it is pinned. The page has what was written.
fn pins_during_reclaim(seed: u64) -> Result<(), Failure> {
    use machine::Step;

    in_turns(
        seed,
        [2, 1],
        |_| {},
        |cpu, sim, space| {
            for turn in 1..5 {
                if cpu == 0 {
                    space.reclaim(1).unwrap();
                    continue;
                }
                let mut frames = [Frame::default(); 1];
                let pins = space.pin_pages(AT, Access::Write, &mut frames).unwrap();
                let pinned = &pinned_words(sim, pins.frames()[0])[0];
                for wait in 0..seed % 8 {
                    sim.step(machine::SharedAccess::Other);
                    pinned.store(wait, Ordering::Relaxed);
                }
                pinned.store(turn + 10, Ordering::Relaxed);
                drop(pins);
                assert_eq!(word(space, AT), turn + 10);
            }
        },
    )
}

#[test]
fn no_write_through_a_pin_is_lost_during_reclaim() {
    each_seed(SEEDS, pins_during_reclaim);
}

/// CPUs that race on a space with swap whose pages at [`AT`], which `prepare` uses, are cold.
fn cold_race(
    [cpus, frames, bytes]: [usize; 3],
    swap: Arc<dyn Swap>,
    prepare: impl FnOnce(&mut Space),
) -> Race {
    Race::with(racing(cpus, frames as u64), Some(swap), |_, space| {
        space.mmap(AT, bytes, 3, FIXED).unwrap();
        prepare(space);
        space.clear_referenced().unwrap();
    })
    .0
}

/// Runs two CPUs in a space with swap whose pages are cold.
fn with_cold_pages(
    seed: u64,
    [frames, bytes]: [usize; 2],
    prepare: impl FnOnce(&mut Space),
    [first, second]: [fn(&Space); 2],
) -> Result<(), Failure> {
    let ram = Arc::new(Ram::default());
    let race = cold_race([2, frames, bytes], ram.clone(), prepare);
    let space = &*race.space;
    let call = |call: fn(&Space)| Box::new(move || call(space)) as Program<'_>;
    seeded(&race.sim, seed, vec![call(first), call(second)])?;
    race.end(())?;
    assert_eq!(ram.used(), 0);
    Ok(())
}

fn reclaim_some(space: &Space) {
    for _ in 0..3 {
        space.reclaim(4).unwrap();
    }
}

/// A page that is neither pinned nor shared moves, also while it is on its way to swap.
#[test]
fn a_monitor_moves_pages_during_reclaim() {
    each_seed(SEEDS, |seed| {
        with_cold_pages(
            seed,
            [128, 2 * PAGE],
            |space| {
                space.set_userfault_handler(Arc::new(Never::default()));
                let modes = UserFaultModes::MISSING;
                space.userfault_register(AT, 2 * PAGE, modes, Uffd::new(1)).unwrap();
                space.userfault_copy(AT, &[7; PAGE], false).unwrap();
            },
            [
                |space| {
                    let moved = space.userfault_move(AT + PAGE, AT, PAGE, false);
                    assert_eq!(moved, Ok(()));
                    assert_eq!(byte(space, AT + PAGE), 7);
                },
                reclaim_some,
            ],
        )
    });
}

/// Pages become huge, also if some are on their way to swap.
#[test]
fn pages_become_huge_during_reclaim() {
    each_seed(SEEDS, |seed| {
        with_cold_pages(
            seed,
            [1 << 11, HUGE],
            |space| space.write(AT, &[7; 3 * PAGE]).unwrap(),
            [
                |space| {
                    assert_eq!(space.madvise(AT, HUGE, Advice::Collapse), Ok(()));
                    assert_eq!(byte(space, AT + PAGE), 7);
                },
                reclaim_some,
            ],
        )
    });
}

/// A page leaves memory before a fork, or stays with both spaces after it.
#[test]
fn a_page_is_in_memory_for_parent_and_child_or_for_neither() {
    each_meeting(SEEDS, |meeting| {
        let ram = Arc::new(Ram::default());
        let race = cold_race([2, 128, PAGE], ram.clone(), |space| space.write(AT, &[7]).unwrap());
        let (space, child) = (&*race.space, Forked::default());
        let calls: [Program<'_>; 2] =
            [Box::new(|| _ = space.reclaim(1).unwrap()), Box::new(|| _ = child.make(space))];
        meeting.run(&race.sim, calls)?;
        let child = ManuallyDrop::new(child.end());
        race.sim.on_cpu(0, || {
            let gone =
                [&race.space, &child].map(|space| pagemap_entry(space, AT) & pagemap::SWAPPED);
            assert_eq!(gone[0], gone[1]);
        });
        race.end(ManuallyDrop::into_inner(child))?;
        assert_eq!(ram.used(), 0);
        Ok(())
    });
}

/// Swap to which a page goes when another CPU has read it.
#[derive(Default)]
struct SlowRam {
    ram: Ram,
    sim: OnceLock<Sim>,
    turn: Turn,
}

/// The turn of a CPU.
#[derive(Default)]
struct Turn(AtomicU64);

impl Turn {
    fn wait_for(&self, sim: &Sim, turn: u64) {
        while self.0.load(Ordering::Acquire) < turn {
            machine::Step::relax(sim);
        }
    }

    fn give(&self, turn: u64) {
        self.0.store(turn, Ordering::Release);
    }
}

impl Swap for SlowRam {
    fn write(&self, page: &[u8; PAGE]) -> Option<u64> {
        let slot = self.ram.write(page);
        self.turn.give(1);
        self.turn.wait_for(self.sim.get().unwrap(), 2);
        slot
    }

    fn read(&self, slot: u64, page: &mut [u8; PAGE]) -> bool {
        self.ram.read(slot, page)
    }

    fn hold(&self, slot: u64) -> bool {
        self.ram.hold(slot)
    }

    fn release(&self, slot: u64) {
        self.ram.release(slot);
    }
}

/// A CPU that still has a translation of a page on its way to swap sees what another CPU writes
/// after it has brought the page back.
#[test]
fn a_page_comes_back_after_its_flush() {
    each_seed(SEEDS, |seed| {
        let ram = Arc::new(SlowRam::default());
        let race = cold_race([3, 128, PAGE], ram.clone(), |space| space.write(AT, &[7]).unwrap());
        ram.sim.set(race.sim.clone()).unwrap();
        let (sim, space, turn) = (&race.sim, &*race.space, &ram.turn);
        let calls = vec![
            race.active(|| {
                space.reclaim(1).unwrap();
                assert_ne!(turn.0.load(Ordering::Relaxed), 0, "the page was cold");
            }),
            race.active(|| {
                turn.wait_for(sim, 1);
                assert_eq!(load(sim, space, AT), Ok(7));
                turn.give(2);
                turn.wait_for(sim, 3);
                assert_eq!(load(sim, space, AT), Ok(8));
            }),
            race.active(|| {
                turn.wait_for(sim, 2);
                store(sim, space, AT, 8).unwrap();
                turn.give(3);
            }),
        ];
        seeded(sim, seed, calls)?;
        race.end(())?;
        assert_eq!(ram.ram.used(), 0);
        Ok(())
    });
}
