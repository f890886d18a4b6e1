//! Shared by the tests: a machine, its kernel's page tables, and a space for areas.
#![allow(dead_code, reason = "each test uses some of it")]

use machine::*;
use paging::*;
use sim::{Config, Grace, Report, Sim};
use std::sync::Arc;
#[allow(unused_imports, reason = "the unit tests have no prelude of `std`")]
use std::{boxed::Box, string::ToString, vec::Vec};
use vmap::{AreaInfo, AreaState, Made, Options, TlbGrace};

pub(crate) type Tables = PageTables<Sim, X86_64L4, Grace>;
pub(crate) type Vmap = vmap::Vmap<Sim, X86_64L4, Grace>;

/// The start of the tests' areas.
pub(crate) const SPACE: u64 = 0xffff_c900_0000_0000;
pub(crate) const PAGE: u64 = 4096;

pub(crate) fn virt(at: u64) -> VirtAddr {
    VirtAddr::new(at)
}

/// The address plus so many bytes.
pub(crate) fn plus(at: VirtAddr, bytes: u64) -> VirtAddr {
    at.checked_add(bytes).unwrap()
}

/// The page that is mapped at an address.
pub(crate) fn page(world: &World, at: VirtAddr) -> Mapping {
    let guard = <Grace as grace::Reclaim>::pin();
    world.vmap().tables().walk(&guard).get(at).unwrap()
}

pub(crate) fn try_free(world: &World, at: VirtAddr) -> Result<(), vmap::Error> {
    // SAFETY: the tests access freed memory only through translations, which the machine checks.
    unsafe { world.vmap().vfree(at) }
}

pub(crate) fn free(world: &World, at: VirtAddr) {
    try_free(world, at).unwrap();
}

/// Unmapping for the tests, which access areas only through translations, which the machine checks.
pub(crate) trait Ends {
    fn end_vmap(&self, at: VirtAddr) -> Result<(), vmap::Error>;
    fn end_ram(&self, at: VirtAddr, pages: usize) -> Result<(), vmap::Error>;
    fn end_io(&self, at: VirtAddr) -> Result<(), vmap::Error>;
}

impl<M: Machine, G: grace::Concurrent> Ends for vmap::Vmap<M, X86_64L4, G> {
    fn end_vmap(&self, at: VirtAddr) -> Result<(), vmap::Error> {
        // SAFETY: the tests use the addresses afterwards only to see that the machine refuses the
        // access.
        unsafe { self.vunmap(at) }
    }

    fn end_ram(&self, at: VirtAddr, pages: usize) -> Result<(), vmap::Error> {
        // SAFETY: as above.
        unsafe { self.vm_unmap_ram(at, pages) }
    }

    fn end_io(&self, at: VirtAddr) -> Result<(), vmap::Error> {
        // SAFETY: as above.
        unsafe { self.iounmap(at) }
    }
}

/// A machine with a space for areas.
pub(crate) struct World {
    pub(crate) sim: Sim,
    pub(crate) paging: Arc<Paging<Sim, X86_64L4>>,
    pub(crate) tlb_grace: Arc<TlbGrace<Sim>>,
    /// `None` after `end`.
    pub(crate) space: Option<Vmap>,
}

impl World {
    /// With a space of `mib` MiB. Each CPU's timer interrupt flushes if a period is pending.
    pub(crate) fn new(config: Config, mib: u64, options: Options) -> World {
        World::over(config, VirtRange::new(virt(SPACE), mib << 20).unwrap(), options)
    }

    /// With a space of these addresses.
    pub(crate) fn over(config: Config, range: VirtRange, options: Options) -> World {
        // Each area is published before a call returns it.
        World::make(Config { caches_absent: true, ..config }, range, options, u64::MAX)
    }

    /// Only the timer interrupts of these CPUs flush.
    pub(crate) fn ticking(config: Config, mib: u64, options: Options, cpus: u64) -> World {
        World::make(config, VirtRange::new(virt(SPACE), mib << 20).unwrap(), options, cpus)
    }

    fn make(config: Config, range: VirtRange, options: Options, cpus: u64) -> World {
        let sim = Sim::new(config).unwrap();
        let paging = Paging::try_new(sim.clone(), PageSize::Size1G).unwrap();
        let tlb_grace = TlbGrace::try_new(sim.clone()).unwrap();
        // The machine owns the handler, so the handler must not keep the machine alive.
        let ticks = Arc::downgrade(&tlb_grace);
        let tick = move |sim: &Sim| {
            if cpus >> sim.current().index() & 1 != 0
                && let Some(tlb_grace) = ticks.upgrade()
            {
                tlb_grace.tick();
            }
        };
        sim.on_tick(tick).unwrap();
        let space = sim.on_cpu(0, || {
            let tables = Arc::new(Tables::kernel(&paging).unwrap());
            // SAFETY: no other code uses these addresses.
            unsafe { Vmap::try_new(tables, tlb_grace.clone(), range, options) }.unwrap()
        });
        World { sim, paging, tlb_grace, space: Some(space) }
    }

    pub(crate) fn vmap(&self) -> &Vmap {
        self.space.as_ref().unwrap()
    }

    /// This CPU uses areas from now on. It takes part in the grace periods before its hardware can
    /// cache translations.
    pub(crate) fn start(&self) {
        self.tlb_grace.idle_exit();
        // SAFETY: the tests need no other mapping.
        unsafe { self.vmap().tables().activate() };
    }

    /// This CPU uses no areas until it starts again.
    pub(crate) fn stop(&self) {
        self.vmap().idle();
        // SAFETY: the programs of the tests use areas between `start` and `stop` only.
        unsafe { self.tlb_grace.idle_enter() };
    }

    /// Runs `f` on a CPU that starts and stops.
    pub(crate) fn on<T>(&self, cpu: usize, f: impl FnOnce() -> T) -> T {
        self.sim.on_cpu(cpu, || {
            self.start();
            let done = f();
            self.stop();
            done
        })
    }

    /// Runs a test on CPU 0, and checks that everything is given back.
    pub(crate) fn test(self, test: impl FnOnce(&World, &Vmap)) {
        self.on(0, || test(&self, self.vmap()));
        self.end().unwrap();
    }

    pub(crate) fn frame(&self) -> Frame {
        self.sim.alloc(0, NodePolicy::Local).unwrap()
    }

    /// So many frames, each allocated separately.
    pub(crate) fn frames(&self, count: usize) -> Vec<Frame> {
        (0..count).map(|_| self.frame()).collect()
    }

    pub(crate) fn release(&self, frames: &[Frame]) {
        for frame in frames {
            // SAFETY: the tests access the frames only through translations, which the machine
            // checks.
            unsafe { self.sim.release(*frame) }.unwrap();
        }
    }

    pub(crate) fn store(&self, at: VirtAddr, value: u64) {
        // SAFETY: ordinary memory.
        unsafe { self.sim.store(at, value) }.unwrap_or_else(|fault| panic!("{fault}"));
    }

    pub(crate) fn load(&self, at: VirtAddr) -> u64 {
        // SAFETY: ordinary memory.
        unsafe { self.sim.load(at) }.unwrap_or_else(|fault| panic!("{fault}"))
    }

    /// Checks that everything has been given back: areas, frames and addresses. All CPUs have
    /// stopped.
    pub(crate) fn end(mut self) -> Result<(), Box<Report>> {
        for cpu in 0..self.sim.config().cpus {
            self.on(cpu, || self.vmap().purge());
        }
        let space = self.space.take().unwrap();
        let last = self.sim.config().cpus - 1;
        self.sim.on_cpu(last, || {
            let left = space.get_vmalloc_info();
            let mut areas = Vec::new();
            space.vmallocinfo(|info| areas.push(info.to_string()));
            assert_eq!((left.used, left.kept, left.areas), (0, 0, 0), "{areas:#?}");
            drop(space);
        });
        for cpu in 0..self.sim.config().cpus {
            self.sim.on_cpu(cpu, || {
                assert!(self.sim.settle(), "something is never freed");
                self.paging.quick().drain();
            });
        }
        self.sim.check_leaks()
    }
}

/// All areas that are mapped: not those that wait, nor blocks without a page in use.
pub(crate) fn mapped<M: Machine, G: grace::Concurrent>(
    space: &vmap::Vmap<M, X86_64L4, G>,
) -> Vec<AreaInfo> {
    let mut list = Vec::new();
    space.vmallocinfo(|info| {
        let is_spare = info.made == Made::Block && info.pages == 0;
        list.extend((info.state != AreaState::Waiting && !is_spare).then_some(*info));
    });
    list
}

/// A test that fails on a CPU unwinds to a point where its thread is no longer a CPU. Nothing of
/// the machine can be given back there, so it is leaked.
impl Drop for World {
    fn drop(&mut self) {
        if std::thread::panicking() {
            std::mem::forget(self.space.take());
        }
    }
}
