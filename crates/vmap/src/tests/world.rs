//! A machine with one space for areas.

use crate::{Error, Options, TlbGrace, Vmap};
use machine::{Cpus, Frame, FrameSource, PageSize, Place, Translated, VirtAddr, VirtRange};
use paging::{PageTables, Paging, X86_64L4};
use sim::{Config, Grace, Report, Sim};
use std::boxed::Box;
use std::sync::Arc;

type Tables = PageTables<Sim, X86_64L4, Grace>;

pub(super) const PAGE: u64 = 4096;
const SPACE: u64 = 0xffff_c900_0000_0000;

/// Unmapping for the tests, which access areas only through translations, which the machine checks.
pub(super) trait Ends {
    fn end_vmap(&self, at: VirtAddr) -> Result<(), Error>;
    fn end_ram(&self, at: VirtAddr, pages: usize) -> Result<(), Error>;
}

impl Ends for Vmap<Sim, X86_64L4, Grace> {
    fn end_vmap(&self, at: VirtAddr) -> Result<(), Error> {
        // SAFETY: the tests use the addresses afterwards only to see that the machine refuses the
        // access.
        unsafe { self.vunmap(at) }
    }

    fn end_ram(&self, at: VirtAddr, pages: usize) -> Result<(), Error> {
        // SAFETY: as above.
        unsafe { self.vm_unmap_ram(at, pages) }
    }
}

pub(super) struct World {
    pub(super) sim: Sim,
    paging: Arc<Paging<Sim, X86_64L4>>,
    pub(super) tlb_grace: Arc<TlbGrace<Sim>>,
    /// `None` after `end`.
    space: Option<Vmap<Sim, X86_64L4, Grace>>,
}

impl World {
    /// With a space of `mib` MiB. The timer interrupts of the CPUs in `ticking` flush if a period
    /// is pending.
    pub(super) fn new(config: Config, mib: u64, options: Options, ticking: u64) -> World {
        let sim = Sim::new(config).unwrap();
        let paging = Paging::try_new(sim.clone(), PageSize::Size1G).unwrap();
        let tlb_grace = TlbGrace::try_new(sim.clone()).unwrap();
        // The machine owns the handler, so the handler must not keep the machine alive.
        let ticks = Arc::downgrade(&tlb_grace);
        let tick = move |sim: &Sim| {
            if ticking >> sim.current().index() & 1 != 0
                && let Some(tlb_grace) = ticks.upgrade()
            {
                tlb_grace.tick();
            }
        };
        sim.on_tick(tick).unwrap();
        let space = sim.on_cpu(0, || {
            let tables = Arc::new(Tables::kernel(&paging).unwrap());
            let range = VirtRange::new(VirtAddr::new(SPACE), mib << 20).unwrap();
            // SAFETY: no other code uses these addresses.
            unsafe { Vmap::try_new(tables, tlb_grace.clone(), range, options) }.unwrap()
        });
        World { sim, paging, tlb_grace, space: Some(space) }
    }

    pub(super) fn vmap(&self) -> &Vmap<Sim, X86_64L4, Grace> {
        self.space.as_ref().unwrap()
    }

    /// This CPU uses areas from now on. It takes part in the grace periods before its hardware can
    /// cache translations.
    pub(super) fn start(&self) {
        self.tlb_grace.idle_exit();
        // SAFETY: the tests need no other mapping.
        unsafe { self.vmap().tables().activate() };
    }

    /// This CPU uses no areas until it starts again.
    pub(super) fn stop(&self) {
        self.vmap().idle();
        // SAFETY: the programs of the tests use areas between `start` and `stop` only.
        unsafe { self.tlb_grace.idle_enter() };
    }

    /// Runs `f` on a CPU that starts and stops.
    pub(super) fn on<T>(&self, cpu: usize, f: impl FnOnce() -> T) -> T {
        self.sim.on_cpu(cpu, || {
            self.start();
            let done = f();
            self.stop();
            done
        })
    }

    pub(super) fn frame(&self) -> Frame {
        self.sim.alloc(0, Place::Local).unwrap()
    }

    pub(super) fn release(&self, frame: Frame) {
        // SAFETY: the tests access the frame only through translations, which the machine checks.
        unsafe { self.sim.release(frame) }.unwrap();
    }

    pub(super) fn store(&self, at: VirtAddr, value: u64) {
        // SAFETY: ordinary memory.
        unsafe { self.sim.store(at, value) }.unwrap_or_else(|fault| panic!("{fault}"));
    }

    pub(super) fn load(&self, at: VirtAddr) -> u64 {
        // SAFETY: ordinary memory.
        unsafe { self.sim.load(at) }.unwrap_or_else(|fault| panic!("{fault}"))
    }

    /// Checks that everything has been given back: no area exists, no address waits, no frame is
    /// allocated. All CPUs have stopped and purged.
    pub(super) fn end(mut self) -> Result<(), Box<Report>> {
        let space = self.space.take().unwrap();
        let cpus = self.sim.config().cpus;
        self.sim.on_cpu(cpus - 1, || {
            let left = space.get_vmalloc_info();
            drop(space);
            assert_eq!((left.used, left.waiting, left.areas), (0, 0, 0), "something is left");
        });
        for cpu in 0..cpus {
            self.sim.on_cpu(cpu, || {
                assert!(self.sim.settle(), "something is never freed");
                self.paging.quick().drain();
            });
        }
        self.sim.check_leaks()
    }
}
