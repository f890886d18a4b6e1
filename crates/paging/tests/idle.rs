//! Idle CPUs: no IPI for the flushes of a space that they have left for a while, and nothing stale
//! when they come back.

mod common;

use common::*;
use machine::*;
use paging::*;
use sim::{Checks, Config, Failure, Program, Sim, Stale, seeded};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const AT: u64 = 0x5000;
const TAGS: [Tag; 2] = [Tag::Fixed(Asid(1)), Tag::Assigned];

struct World {
    sim: Sim,
    shared: Shared,
    kernel: Arc<Space>,
    space: Leaked<Space>,
}

impl World {
    fn new(config: Config, tag: Tag) -> World {
        let (sim, shared) = machine_of::<X86_64L4>(Config { frames: 256, ..config });
        let (kernel, space) = sim.on_cpu(0, || {
            let kernel = Arc::new(Space::kernel(&shared).unwrap());
            let space = Space::user(&shared, tag, Some(Arc::clone(&kernel))).unwrap();
            space.map_own(pages(AT, 1), numbered_page(&sim, 1), Attrs::USER_RO).unwrap();
            (kernel, Leaked::new(space))
        });
        World { sim, shared, kernel, space }
    }

    fn activate(&self, space: &Space) {
        space.activate_own();
    }

    /// Makes this CPU run the kernel's tables, idle in the space.
    fn idle(&self) {
        self.activate(&self.kernel);
        // SAFETY: the kernel's tables are active.
        unsafe { self.space.idle() };
    }

    fn number(&self) -> Option<u64> {
        // SAFETY: ordinary memory.
        unsafe { self.sim.load(virt(AT)) }.ok()
    }

    /// Replaces the page by another one with this number. The old one is freed.
    fn replace(&self, number: u64) {
        self.remove();
        let frame = numbered_page(&self.sim, number);
        self.space.map_own(pages(AT, 1), frame, Attrs::USER_RO).unwrap();
    }

    fn remove(&self) {
        let mut gone = None;
        let pending = self.space.unmap_own(pages(AT, 1), |page| gone = Some(page.frame)).unwrap();
        pending.flush();
        release(&self.sim, gone.unwrap());
    }

    fn end(self) -> Result<(), Failure> {
        self.sim.on_cpu(0, || self.remove());
        let World { sim, shared, kernel, space } = self;
        sim.on_cpu(0, || drop((Leaked::into_inner(space), kernel)));
        Ok(all_given_back(&sim, &shared)?)
    }
}

/// All CPUs but one are idle in the space. A flush interrupts none of them; each finds the new page
/// when it comes back. One that comes back before a flush has kept its translations.
#[test]
fn a_flush_beside_idle_cpus_sends_no_ipi() {
    for tag in TAGS {
        let world = World::new(Config { cpus: 8, ..Config::default() }, tag);
        let idle = |cpu, number| {
            world.sim.on_cpu(cpu, || {
                world.activate(&world.space);
                assert_eq!(world.number(), Some(number));
                world.idle();
            });
        };
        (0..8).for_each(|cpu| idle(cpu, 1));
        assert!(world.space.cpus().is_empty());
        let before = world.sim.stats();
        (1..8).for_each(|cpu| idle(cpu, 1));
        let done = world.sim.stats() - before;
        assert_eq!(done.hits, 7, "the translations are kept");
        assert_eq!(done.flushes, 0);
        world.sim.on_cpu(0, || {
            let before = world.sim.stats();
            world.activate(&world.space);
            assert!(!world.space.no_flush().interrupts_others());
            world.replace(2);
            let done = world.sim.stats() - before;
            assert_eq!((done.ipis_sent, done.flushes), (0, 1), "only the CPU that runs it");
            assert_eq!(world.number(), Some(2));
            world.idle();
        });
        let before = world.sim.stats();
        (1..8).for_each(|cpu| idle(cpu, 2));
        assert_eq!((world.sim.stats() - before).flushes, 7);
        world.end().unwrap();
    }
}

/// With one tag, an idle CPU has nothing cached: it leaves without a flush.
#[test]
fn with_one_tag_an_idle_cpu_leaves() {
    let world = World::new(Config { tags: 1, ..Config::default() }, Tag::Assigned);
    world.sim.on_cpu(0, || {
        world.activate(&world.space);
        assert_eq!(world.number(), Some(1));
        world.activate(&world.kernel);
        let before = world.sim.stats();
        // SAFETY: the kernel's tables are active.
        unsafe { world.space.idle() };
        assert_eq!((world.sim.stats() - before).flushes, 0);
        assert!(world.space.cpus().is_empty());
        world.replace(2);
        world.activate(&world.space);
        assert_eq!(world.number(), Some(2));
    });
    world.end().unwrap();
}

/// Idle CPUs of a space that shares a tag have left, with a flush.
#[test]
fn with_a_shared_tag_an_idle_cpu_leaves() {
    let world = World::new(Config { tags: 3, ..Config::default() }, Tag::Assigned);
    world.sim.on_cpu(0, || {
        world.activate(&world.space);
        assert_eq!(world.number(), Some(1));
        let before = world.sim.stats();
        world.idle();
        assert_eq!((world.sim.stats() - before).flushes, 2, "the kernel's first, and this");
        world.replace(2);
        world.activate(&world.space);
        assert_eq!(world.number(), Some(2));
    });
    world.end().unwrap();
}

/// A CPU that has entered and becomes idle has left.
#[test]
fn an_idle_cpu_has_not_entered() {
    for tag in TAGS {
        let world = World::new(Config::default(), tag);
        world.sim.on_cpu(1, || {
            world.space.enter();
            assert_eq!(world.space.cpus().len(), 1);
            world.idle();
            assert!(world.space.cpus().is_empty());
        });
        world.end().unwrap();
    }
}

/// Two CPUs come and go, while a third one replaces the page, as it does itself at times.
fn come_and_go(seed: u64, tag: Tag) -> Result<(), Failure> {
    let checks = Checks { stale: Stale::Freed, walked: true, freed_cached: true, ..Checks::ALL };
    let config = Config { cpus: 3, tags: 16, checks, speculation: 300, ..Config::default() };
    let world = Leaked::new(World::new(config, tag));
    let (begun, ended) = (AtomicU64::new(1), AtomicU64::new(1));
    let comes = |cpu: u64| {
        let (world, begun, ended) = (&world, &begun, &ended);
        Box::new(move || {
            for round in 0..10 {
                world.sim.step(SharedAccess::Other);
                // SeqCst: the driver runs one CPU at a time.
                let least = ended.load(Ordering::SeqCst);
                world.activate(&world.space);
                if let Some(found) = world.number() {
                    let most = begun.load(Ordering::SeqCst);
                    assert!((least..=most).contains(&found), "{found}, not {least} to {most}");
                }
                match (seed + cpu + round) % 5 {
                    0 => {
                        world.activate(&world.kernel);
                        // SAFETY: other tables are active.
                        unsafe { world.space.leave() };
                    }
                    1 => {}
                    _ => world.idle(),
                }
            }
            world.idle();
        }) as Program
    };
    let replaces = || {
        for number in 2..10 {
            if (seed + number).is_multiple_of(3) {
                world.activate(&world.space);
            }
            begun.store(number, Ordering::SeqCst);
            world.replace(number);
            ended.store(number, Ordering::SeqCst);
            if number.is_multiple_of(2) {
                world.idle();
            }
        }
    };
    seeded(&world.sim, seed, vec![comes(1), comes(2), Box::new(replaces)])?;
    Leaked::into_inner(world).end()
}

#[test]
#[cfg_attr(miri, ignore = "Miri has no coroutines")]
fn idle_cpus_come_back_beside_flushes() {
    for tag in TAGS {
        right(300, |seed| come_and_go(seed, tag));
    }
}
