//! Where experiments are made: a machine, its clocks, its CPUs.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use core::marker::PhantomData;
use grace::Concurrent;
use machine::{FrameError, Host, Machine, PageSize, VirtRange};
use paging::{PageTables, Paging, X86_64L4};
use report::Row;

/// Of the lab's clock.
pub(crate) const SECOND: u64 = 1_000_000_000;

/// How much is measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Scale {
    /// Times that each figure is taken; the median counts.
    pub rounds: usize,
    /// Batches in a round.
    pub batches: usize,
    /// Seconds, by the lab's clock, after which a measure ends whose baseline may wait for long.
    /// The report says that it was cut.
    pub limit: u64,
}

impl Scale {
    /// For figures.
    pub const FULL: Scale = Scale { rounds: 9, batches: 200, limit: 60 };
    /// For a first look: a third of the time.
    pub const QUICK: Scale = Scale { rounds: 5, batches: 120, limit: 10 };
    /// Enough to see that it works.
    pub const LEAST: Scale = Scale { rounds: 1, batches: 2, limit: 10 };
}

/// What the host did to a measure: how often, so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Disturbed {
    /// Times that a CPU lost its processor without giving it away (involuntary context switches).
    pub switches: u64,
    /// Milliseconds in which a hypervisor ran something else on the host's processors (steal).
    pub stolen: u64,
}

/// What one operation takes, whatever the clock says. What nobody can tell is not a number.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Counted {
    /// Instructions.
    pub instructions: f64,
    /// Locked instructions: atomic reads that write.
    pub atomics: f64,
    /// Cache lines of data, apart from the stack, that are read or written.
    pub lines: f64,
    /// Those of them that are written.
    pub written: f64,
}

/// Counts what `operation` does, each time after `prepare` has run, on the CPU that calls it.
/// `None` where nothing can count.
pub type Count<'a> = dyn Fn(&mut dyn FnMut(), &mut dyn FnMut()) -> Option<Counted> + Sync + 'a;

/// What a CPU does in each of its timer interrupts.
pub type Tick = Arc<dyn Fn() + Send + Sync>;

/// The kernel's half of a machine's address spaces, for experiments with the kernel's own areas.
pub struct KernelHalf<'a, M: Machine, G: Concurrent> {
    /// The kernel's tables.
    pub tables: &'a Arc<PageTables<M, X86_64L4, G>>,
    /// Addresses that nobody else uses: 128 GiB are enough for all experiments.
    pub range: VirtRange,
    /// Makes this CPU translate by the tables; nothing where it does all the time.
    pub enter: &'a (dyn Fn() + Sync),
    /// Has all CPUs do something in their timer interrupts from now on, or nothing more. `None`
    /// where there is no timer.
    pub ticks: Option<&'a (dyn Fn(Option<Tick>) + Sync)>,
}

impl<M: Machine, G: Concurrent> fmt::Debug for KernelHalf<'_, M, G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KernelHalf")
            .field("tables", self.tables)
            .field("range", &self.range)
            .finish_non_exhaustive()
    }
}

/// A machine, and what it takes to measure there. `G` is the engine for its walks in software, `R`
/// the best lock for readers and writers that there is.
pub struct Lab<'a, M: Machine, G: Concurrent, R> {
    /// The machine, and the means to run programs on its CPUs.
    pub host: Host<'a, M>,
    /// The kernel's half of its address spaces.
    pub kernel: KernelHalf<'a, M, G>,
    /// Processor time of this CPU, in nanoseconds since some moment.
    pub time: fn() -> u64,
    /// Time on the wall, in nanoseconds since some moment: as cheap as can be.
    pub clock: fn() -> u64,
    /// Interrupts that CPUs have sent each other so far, in order to flush.
    pub interrupts: &'a (dyn Fn() -> u64 + Sync),
    /// Flushes that CPUs have made so far of their own translations, asked for by themselves or by
    /// others.
    pub flushes: &'a (dyn Fn() -> u64 + Sync),
    /// What the host has done to measures so far: told beside those that came out as nonsense.
    pub disturbed: fn() -> Disturbed,
    /// Counts, where that can be done.
    pub count: Option<&'a Count<'a>>,
    /// Told what is being measured.
    pub progress: &'a (dyn Fn(&str) + Sync),
    /// How much is measured.
    pub scale: Scale,
    /// The numbers of CPUs to try, each no larger than the machine has.
    pub cpus: &'a [usize],
    /// Whether CPUs run at the same time. Where an emulator runs one after the other, what some
    /// take beside each other says nothing: such targets are left out.
    pub at_once: bool,
    /// The engine and the lock.
    pub types: PhantomData<fn() -> (G, R)>,
}

impl<M: Machine, G: Concurrent, R> Lab<'_, M, G, R> {
    /// Runs a program on CPU 0.
    pub(crate) fn on_first<T: Send>(&self, program: impl FnOnce() -> T + Send) -> T {
        self.host.on_first(program).expect("the host runs every program to its end")
    }

    /// Adds what is counted of an operation, if the lab can count.
    pub(crate) fn count(
        &self,
        rows: &mut Vec<Row>,
        like: &Row,
        prepare: &mut dyn FnMut(),
        operation: &mut dyn FnMut(),
    ) -> Option<Counted> {
        let counted = (self.count?)(prepare, operation)?;
        let figures = [
            ("instructions", counted.instructions),
            ("locked instructions", counted.atomics),
            ("lines", counted.lines),
            ("lines written", counted.written),
        ];
        let told = figures.into_iter().filter(|(_, value)| !value.is_nan());
        rows.extend(told.map(|(metric, value)| like.with(metric, value, "")));
        Some(counted)
    }

    /// Has all CPUs give back what they have retired, and the tables that they keep for themselves:
    /// all at once, and then what was still waiting.
    pub(crate) fn settle(&self, paging: &Paging<M, X86_64L4>) {
        let settle = || {
            self.host.quiesce();
            paging.quick().drain();
        };
        self.host.everywhere(settle);
        self.on_first(settle);
    }

    /// What page tables of the machine share, for an experiment of its own.
    pub(crate) fn paging(&self) -> Result<Arc<Paging<M, X86_64L4>>, FrameError> {
        let paging = Paging::try_new(self.host.machine.clone(), PageSize::Size1G);
        paging.map_err(|_| FrameError::OutOfFrames { order: 0 })
    }
}

impl<M: Machine + fmt::Debug, G: Concurrent, R> fmt::Debug for Lab<'_, M, G, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lab")
            .field("host", &self.host)
            .field("scale", &self.scale)
            .field("cpus", &self.cpus)
            .finish_non_exhaustive()
    }
}
