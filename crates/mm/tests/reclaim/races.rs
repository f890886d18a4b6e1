//! Reclaim beside other CPUs, from seeds.

use super::*;

/// Lets each CPU run `each` in a space with swap and with so many pages at [`AT`], which `prepare`
/// may use first. At the end nothing is left.
fn in_turns(
    seed: u64,
    [cpus, pages]: [usize; 2],
    prepare: impl FnOnce(&Space),
    each: impl Fn(usize, &Sim, &Space) + Sync,
) -> Result<(), Failure> {
    let config = Config { cpus, frames: 512, checks: RACING, ..Config::default() };
    let sim = Sim::new(config).unwrap();
    let ram = Arc::new(Ram::default());
    let swap = Some(ram.clone() as Arc<dyn Swap>);
    let shared = Paging::<_, X86_64L4>::try_with_swap(sim.clone(), PageSize::Size1G, swap).unwrap();
    let space = sim.on_cpu(0, || {
        let space = ManuallyDrop::new(new_space(&shared, 1).unwrap());
        space.mmap(AT, pages * PAGE, 3, FIXED).unwrap();
        prepare(&space);
        space
    });
    let make = |cpu: usize| -> Program<'_> {
        let (sim, space, each) = (&sim, &space, &each);
        Box::new(move || each(cpu, sim, space))
    };
    seeded(&sim, seed, (0..cpus).map(make).collect())?;
    sim.on_cpu(0, || {
        assert!(sim.settle());
        drop(ManuallyDrop::into_inner(space));
    });
    assert_eq!(ram.used(), 0);
    Ok(all_given_back(&sim, &shared)?)
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
            // SAFETY: no other mapping is needed, and no other tables have the tag.
            unsafe { space.activate() };
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
            // SAFETY: nothing of it is used on this CPU any more.
            unsafe { space.leave() };
        },
    )
}

#[test]
fn all_cpus_see_one_page_beside_reclaim() {
    explore(SEEDS, one_page_for_all).unwrap_or_else(|failure| panic!("{failure}"));
}

/// Two CPUs write and read words of their own while the third reclaims, unmaps other pages and
/// forks. No write is lost.
fn beside_reclaim(seed: u64) -> Result<(), Failure> {
    in_turns(
        seed,
        [3, 4],
        |_| {},
        |cpu, sim, space| {
            // SAFETY: no other mapping is needed, and no other tables have the tag.
            unsafe { space.activate() };
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
                    use machine::Memory;
                    let seen = sim.frame_ptr(pins.frames()[0]).unwrap().cast::<u64>();
                    // SAFETY: within a pinned frame.
                    assert_eq!(unsafe { seen.as_ptr().read_volatile() }, turn + 50);
                }
                assert_eq!(load(sim, space, both), Ok(turn));
            }
            // SAFETY: nothing of it is used on this CPU any more.
            unsafe { space.leave() };
        },
    )
}

#[test]
fn no_write_is_lost_beside_reclaim() {
    explore(SEEDS, beside_reclaim).unwrap_or_else(|failure| panic!("{failure}"));
}

/// One CPU reclaims; another one pins a page for writing, and writes to its frame, as a device
/// does, while it is pinned. The page has what was written.
fn pins_beside_reclaim(seed: u64) -> Result<(), Failure> {
    use machine::{Memory, Step};

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
                let words = sim.frame_ptr(pins.frames()[0]).unwrap().cast::<AtomicU64>();
                for wait in 0..seed % 8 {
                    sim.step(machine::SharedAccess::Other);
                    // SAFETY: within a pinned frame, which others access by atomic words.
                    unsafe { words.as_ref() }.store(wait, Ordering::Relaxed);
                }
                // SAFETY: as above.
                unsafe { words.as_ref() }.store(turn + 10, Ordering::Relaxed);
                drop(pins);
                assert_eq!(word(space, AT), turn + 10);
            }
        },
    )
}

#[test]
fn no_write_through_a_pin_is_lost_beside_reclaim() {
    explore(SEEDS, pins_beside_reclaim).unwrap_or_else(|failure| panic!("{failure}"));
}
