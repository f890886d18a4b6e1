//! Threads of one space that map, touch and unmap under TLB grace periods, from seeds on the
//! machine in software.
//!
//! Each CPU writes to pages of its own, and reads those that the others have published, also while
//! they are unmapped. A word holds its address, so a CPU that reads or writes by an old translation
//! must still find a page of that address: its frame waits, and no other page is there. The
//! checkers of the machine see frames that are freed, and addresses that are reused, while a TLB
//! still translates them.

use std::{
    mem::ManuallyDrop,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
};

use crate::common::*;
use machine::{Asid, Step};
use mm::*;
use paging::TlbGrace;
use sim::{Checks, Config, Failure, Grace, Program, Sim, seeded};

const SEEDS: u64 = if cfg!(debug_assertions) { 100 } else { 400 };
const CPUS: usize = 3;

/// The state that the CPUs of a run share.
struct World<'s> {
    sim: &'s Sim,
    space: &'s Space,
    periods: &'s TlbGrace<Sim>,
    /// The pages that each CPU has published last, or 0.
    published: [AtomicUsize; CPUS],
}

impl World<'_> {
    /// The last thing that a CPU does.
    fn stop(&self) {
        // SAFETY: the program ends, and the machine has no tables active on the CPU then.
        unsafe { self.periods.idle_enter() };
    }

    /// Reads and writes what the others have published.
    fn touch_others(&self, cpu: usize) {
        for (other, published) in self.published.iter().enumerate() {
            self.sim.step(machine::SharedAccess::Other);
            // SeqCst, here and below: the driver runs one CPU at a time.
            let at = published.load(SeqCst);
            if other == cpu || at == 0 {
                continue;
            }
            // Writes first: replacing the zero page flushes.
            let word = at + 8 + 8 * cpu;
            let _unmapped = store(self.sim, self.space, word, word as u64);
            if let Ok(found) = load(self.sim, self.space, at) {
                assert!(found == 0 || found == at as u64, "{found:#x} is read at {at:#x}");
            }
        }
    }

    /// Writes to a page that this CPU has just mapped, and publishes it.
    fn fill(&self, cpu: usize, at: usize) {
        store(self.sim, self.space, at, at as u64).unwrap();
        self.publish(cpu, at);
        for word in (1..4).map(|word| at + 8 * word) {
            let found = load(self.sim, self.space, word).unwrap();
            assert!(found == 0 || found == word as u64, "{found:#x} is in a new page at {word:#x}");
        }
    }

    fn publish(&self, cpu: usize, at: usize) {
        self.sim.step(machine::SharedAccess::Other);
        self.published[cpu].store(at, SeqCst);
    }

    fn check(&self, at: usize) {
        assert_eq!(load(self.sim, self.space, at), Ok(at as u64), "at {at:#x}");
    }
}

/// Maps, touches and unmaps, again and again.
fn churn(world: &World<'_>, cpu: usize, rounds: usize) {
    for _ in 0..rounds {
        let at = world.space.mmap(0, PAGE, 3, PRIVATE).unwrap();
        world.fill(cpu, at);
        world.touch_others(cpu);
        world.check(at);
        // A CPU that read the next page there, before it is written, would get the zero page.
        world.publish(cpu, 0);
        world.space.munmap(at, PAGE).unwrap();
        Grace::reclaim(usize::MAX);
    }
}

/// The same, among other calls that meet what waits.
fn mixed(world: &World<'_>, cpu: usize, seed: u64) {
    let mut random = random(seed, cpu);
    let (sim, space) = (world.sim, world.space);
    for _ in 0..6 {
        let pages = 1 + random(2);
        let at = space.mmap(0, pages * PAGE, 3, PRIVATE).unwrap();
        (0..pages).for_each(|page| world.fill(cpu, at + page * PAGE));
        world.touch_others(cpu);
        let last = at + (pages - 1) * PAGE;
        match random(6) {
            0 => {
                space.madvise(last, PAGE, Advice::DontNeed).unwrap();
                let found = load(sim, space, last);
                assert_eq!(found, Ok(0), "at {last:#x} after MADV_DONTNEED");
                world.fill(cpu, last);
            }
            1 => {
                let child = ManuallyDrop::new(space.fork(Asid(2 + cpu as u16)).unwrap());
                activate(&child);
                assert_eq!(load(sim, &child, last), Ok(last as u64), "in a child");
                store(sim, &child, last, 1).unwrap();
                child.munmap(at, pages * PAGE).unwrap();
                activate(space);
                drop(ManuallyDrop::into_inner(child));
                world.check(last);
            }
            2 => space.poll(),
            _ => {}
        }
        space.munmap(at, pages * PAGE).unwrap();
        world.touch_others(cpu);
        match random(4) {
            // Nothing else is there, unless another CPU was faster.
            0 if space.mmap(at, PAGE, 3, PRIVATE | MapFlags::FIXED_NOREPLACE) == Ok(at) => {
                world.fill(cpu, at);
                world.touch_others(cpu);
                world.check(at);
                space.munmap(at, PAGE).unwrap();
            }
            1 => drop(space.purge()),
            _ => {}
        }
        Grace::reclaim(usize::MAX);
    }
}

/// Runs a program on each CPU, and returns the IPIs that they have sent.
fn run(
    seed: u64,
    policy: bool,
    program: impl Fn(&World<'_>, usize) + Sync,
) -> Result<u64, Failure> {
    let config = Config {
        tick: Some(40 + seed % 300),
        speculation: 100,
        // Also where a fault keeps an upper-level entry that leads to an unlinked table.
        faults_drop: !seed.is_multiple_of(3),
        caches_absent: seed.is_multiple_of(4),
        checks: Checks { freed_cached: true, ..RACING },
        ..racing(CPUS, 512)
    };
    let (race, periods) = Race::with(config, None, |shared, space| {
        let periods = TlbGrace::try_new(shared.machine().clone()).unwrap();
        if policy {
            // SAFETY: the machine's periods. No CPU has the space active, and each goes idle only
            // when its program ends.
            unsafe { space.set_unmap_policy(UnmapPolicy::Grace(Arc::clone(&periods))) }.unwrap();
        }
        periods
    });
    // The machine owns the handler, so the handler must not keep the machine alive.
    let ticks = Arc::downgrade(&periods);
    race.sim.on_tick(move |_| ticks.upgrade().iter().for_each(|periods| periods.tick())).unwrap();
    let published = Default::default();
    let world = World { sim: &race.sim, space: &race.space, periods: &periods, published };
    let programs = (0..CPUS).map(|cpu| {
        let (world, program) = (&world, &program);
        Box::new(move || {
            world.periods.idle_exit();
            activate(world.space);
            program(world, cpu);
            world.stop();
        }) as Program
    });
    seeded(&race.sim, seed, programs.collect())?;
    let ipis = race.sim.stats().ipis_sent;
    race.end(())?;
    Ok(ipis)
}

#[test]
fn threads_that_map_touch_and_unmap_interrupt_no_cpu() {
    each_seed(SEEDS, |seed| {
        let ipis = run(seed, true, |world, cpu| churn(world, cpu, 20))?;
        assert_eq!(ipis, 0, "seed {seed}");
        Ok(())
    });
    let ipis = run(0, false, |world, cpu| churn(world, cpu, 20)).unwrap();
    assert!(ipis >= 30, "without the policy there are {ipis}");
}

#[test]
fn calls_with_and_without_the_policy() {
    for policy in [true, false] {
        each_seed(SEEDS, |seed| run(seed, policy, |world, cpu| mixed(world, cpu, seed)).map(drop));
    }
}
