//! munmap by TLB grace periods, step by step: ranges that wait, calls that flush, and the view of
//! other CPUs.

mod bounds;
#[path = "../common/mod.rs"]
mod common;
mod effects;
mod kept;
mod places;

use std::{iter::from_fn, mem::ManuallyDrop, ops::Range, sync::Arc};

use common::*;
use machine::{Asid, Checker, Frame, FrameSource, NodePolicy, Owner, VirtAddr, VirtRange};
use mm::*;
use paging::{TlbGrace, X86_64L4};
use sim::{Checks, Config, Grace, Leaked, Sim};

type Periods = Arc<TlbGrace<Sim>>;

const FAR: usize = 0x1234_5000;

/// A machine of two CPUs that both use a space under the policy. CPU 1 has pages cached.
struct World {
    sim: Sim,
    shared: SharedPaging,
    periods: Periods,
    /// Leaked by a failed test: there is no CPU on which it could be dropped.
    space: ManuallyDrop<Space>,
}

impl World {
    fn new(frames: u64, policy: bool) -> World {
        // Frames are freed only when no TLB translates to them.
        let checks = Checks { freed_cached: true, ..RACING };
        let sim = Sim::new(Config { cpus: 2, frames, checks, ..Config::default() }).unwrap();
        let shared = paging(&sim);
        let periods = TlbGrace::try_new(sim.clone()).unwrap();
        let space = sim.on_cpu(0, || new_space(&shared, 1).unwrap());
        if policy {
            // SAFETY: the machine's periods; no CPU has the space active, and none goes idle while
            // it has.
            sim.on_cpu(0, || unsafe {
                space.set_unmap_policy(UnmapPolicy::Grace(periods.clone()))
            })
            .unwrap();
        }
        World { sim, shared, periods, space: ManuallyDrop::new(space) }
    }

    fn space(&self) -> &Space {
        &self.space
    }

    /// Runs `f` on a CPU that has the space active.
    fn on<T>(&self, cpu: usize, f: impl FnOnce(&Space) -> T) -> T {
        self.sim.on_cpu(cpu, || {
            activate(self.space());
            f(self.space())
        })
    }

    /// The page tables that are in use or wait, once guards have let go of what does not.
    fn tables(&self) -> usize {
        (0..2).for_each(|cpu| self.sim.on_cpu(cpu, || assert!(self.sim.settle())));
        let is_table = |leaked: &&Leaked| matches!(leaked.owner, Owner::Table(_));
        self.sim.allocated().iter().filter(is_table).count()
    }

    fn map(&self, pages: usize) -> usize {
        self.on(0, |space| space.mmap(0, pages * PAGE, 3, PRIVATE).unwrap())
    }

    /// Maps pages, writes `value` to each on CPU 0, and lets CPU 1 cache them.
    fn cached(&self, pages: usize, value: u64) -> usize {
        self.cached_at(self.map(pages), pages, value)
    }

    fn cached_at(&self, at: usize, pages: usize, value: u64) -> usize {
        self.write(at..at + pages * PAGE, value);
        self.read_all(at, pages, value);
        at
    }

    fn write(&self, range: Range<usize>, value: u64) {
        self.on(0, |space| {
            range.step_by(PAGE).for_each(|at| store(&self.sim, space, at, value).unwrap());
        });
    }

    fn read_all(&self, at: usize, pages: usize, value: u64) {
        let all = (0..pages).map(|page| at + page * PAGE);
        all.for_each(|at| assert_eq!(self.read(at), Ok(value), "at {at:#x}"));
    }

    /// Reads on CPU 1.
    fn read(&self, at: usize) -> Result<u64, FaultError> {
        self.on(1, |space| load(&self.sim, space, at))
    }

    fn unmap(&self, at: usize, pages: usize) {
        self.on(0, |space| space.munmap(at, pages * PAGE).unwrap());
    }

    fn ipis(&self) -> u64 {
        self.sim.stats().ipis_sent
    }

    /// Both CPUs tick until a period that begins now has ended.
    fn tick(&self) {
        for _ in 0..3 {
            (0..2).for_each(|cpu| self.sim.on_cpu(cpu, || self.periods.tick()));
        }
    }

    /// The same, called on CPU 0.
    fn tick_others(&self) {
        for _ in 0..3 {
            self.periods.tick();
            self.sim.on_cpu(1, || self.periods.tick());
        }
    }

    /// Checks that no TLB translates addresses of the space.
    fn nothing_cached(&self, range: Range<usize>) {
        let range = VirtRange::new(VirtAddr::new(range.start as u64), range.len() as u64).unwrap();
        self.sim.on_cpu(0, || self.sim.check_reuse(Some(Asid(1)), range));
    }

    fn end(self) {
        let World { sim, shared, space, .. } = self;
        sim.on_cpu(0, || drop(ManuallyDrop::into_inner(space)));
        all_given_back(&sim, &shared).unwrap();
    }
}

fn invisible(space: &Space, at: usize, pages: usize) {
    let end = at + pages * PAGE;
    let maps = listing(space);
    assert!(!maps.contains(&format!("{at:x}-")), "{maps}");
    let mut smaps = String::new();
    space.write_smaps(&mut smaps).unwrap();
    assert!(!smaps.contains(&format!("{at:x}-")), "{smaps}");
    assert_eq!(space.resident(at..end), 0);
    assert!(space.mincore(at, &mut [0]).is_err());
    assert_eq!(space.usage(at..end), Usage::default());
    let fault = space.handle_fault(VirtAddr::new(at as u64), Access::Read);
    assert_eq!(fault, Err(FaultError::Unmapped(VirtAddr::new(at as u64))));
}

#[test]
fn munmap_interrupts_no_cpu() {
    for policy in [false, true] {
        let world = World::new(512, policy);
        let at = world.cached(3, 7);
        let before = world.ipis();
        world.unmap(at, 3);
        assert_eq!(world.ipis() == before, policy);
        world.on(0, |space| invisible(space, at, 3));
        if policy {
            assert!(world.space().waiting() >= 3);
            // A racing program may still read, and reads its own memory.
            world.read_all(at, 3, 7);
            world.tick();
            world.on(0, |space| space.mmap(FAR, PAGE, 3, FIXED).unwrap());
            assert_eq!((world.space().waiting(), world.ipis()), (0, before));
        }
        world.nothing_cached(at..at + 3 * PAGE);
        let at = VirtAddr::new(at as u64);
        assert_eq!(world.read(at.get() as usize), Err(FaultError::Unmapped(at)));
        world.end();
    }
}

/// The type is part of the interface.
#[test]
fn it_is_shared_between_threads() {
    fn is_shared<T: Send + Sync>() {}
    is_shared::<AddressSpace<Sim, X86_64L4, Grace>>();
    is_shared::<UnmapPolicy<Sim>>();
}
