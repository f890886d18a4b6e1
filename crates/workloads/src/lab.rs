//! The place where experiments run: a machine, its clocks, its CPUs.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use core::marker::PhantomData;
use grace::Concurrent;
use machine::{FrameError, Host, Machine, PageSize, VirtRange};
use paging::{PageTables, Paging, X86_64L4};
use report::Row;

/// In nanoseconds, the unit of the lab's clock.
pub(crate) const SECOND: u64 = 1_000_000_000;

/// The amount of measuring.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Scale {
    /// Measurements of each figure; the median counts.
    pub rounds: usize,
    /// Batches in a round.
    pub batches: usize,
    /// Seconds by the lab's clock after which a measurement ends whose baseline may wait for long.
    /// The report says that it was cut.
    pub limit: u64,
}

impl Scale {
    /// For figures.
    pub const FULL: Scale = Scale { rounds: 9, batches: 200, limit: 60 };
    /// For a first look, in a third of the time.
    pub const QUICK: Scale = Scale { rounds: 5, batches: 120, limit: 10 };
    /// Enough to see that an experiment works.
    pub const LEAST: Scale = Scale { rounds: 1, batches: 2, limit: 10 };
}

/// Counts of disturbances of the measurements by the host so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Disturbed {
    /// Involuntary context switches.
    pub switches: u64,
    /// Steal time: milliseconds in which a hypervisor ran something else on the host's processors.
    pub stolen: u64,
}

/// The counts of one operation, which depend on no clock. A count that the lab cannot tell is NaN.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct OpCost {
    /// Instructions.
    pub instructions: f64,
    /// Locked instructions: atomic read-modify-write operations.
    pub atomics: f64,
    /// Cache lines of data that are read or written, without the stack.
    pub lines: f64,
    /// Cache lines that are written.
    pub written: f64,
}

/// Counts the second function on the CPU that calls it, each time after it has run the first.
/// `None` if nothing can be measured.
pub type MeasureCost<'a> = dyn Fn(&mut dyn FnMut(), &mut dyn FnMut()) -> Option<OpCost> + Sync + 'a;

/// The function that a CPU calls in each timer interrupt.
pub type Tick = Arc<dyn Fn() + Send + Sync>;

/// The kernel's half of a machine's address spaces, for experiments with kernel areas.
pub struct KernelHalf<'a, M: Machine, G: Concurrent> {
    /// The kernel's tables.
    pub tables: &'a Arc<PageTables<M, X86_64L4, G>>,
    /// Addresses that nothing else uses: 128 GiB are enough for all experiments.
    pub range: VirtRange,
    /// Makes this CPU translate by the kernel's tables. Does nothing where it always does.
    pub enter: &'a (dyn Fn() + Sync),
    /// Makes all CPUs call a function in their timer interrupts from now on, or none. `None` if the
    /// machine has no timer.
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

/// A machine with everything that an experiment needs. `G` is the engine for the grace periods of
/// lockless walks. `R` is the host's best reader-writer lock.
pub struct Lab<'a, M: Machine, G: Concurrent, R> {
    /// The machine, and the means to run programs on its CPUs.
    pub host: Host<'a, M>,
    /// The kernel's half of its address spaces.
    pub kernel: KernelHalf<'a, M, G>,
    /// Processor time of this CPU in nanoseconds, from an arbitrary start.
    pub time: fn() -> u64,
    /// Wall-clock time in nanoseconds, from an arbitrary start. It should be as cheap as possible.
    pub clock: fn() -> u64,
    /// IPIs that CPUs have sent so far for TLB shootdowns.
    pub interrupts: &'a (dyn Fn() -> u64 + Sync),
    /// Flushes of their own TLBs that CPUs have made so far, for themselves or for others.
    pub flushes: &'a (dyn Fn() -> u64 + Sync),
    /// The disturbances by the host so far. A note about a refused measurement has them.
    pub disturbed: fn() -> Disturbed,
    /// Counts an operation, where that is possible.
    pub measure_cost: Option<&'a MeasureCost<'a>>,
    /// Receives a line about each measurement that begins.
    pub progress: &'a (dyn Fn(&str) + Sync),
    /// The amount of measuring.
    pub scale: Scale,
    /// The numbers of CPUs to measure on, each no larger than the machine has.
    pub cpus: &'a [usize],
    /// Whether CPUs run at the same time. An emulator that runs one CPU at a time says nothing
    /// about the time that CPUs take concurrently, so such targets are left out.
    pub at_once: bool,
    /// The engine and the lock.
    pub types: PhantomData<fn() -> (G, R)>,
}

impl<M: Machine, G: Concurrent, R> Lab<'_, M, G, R> {
    /// Runs a program on CPU 0.
    pub(crate) fn on_first<T: Send>(&self, program: impl FnOnce() -> T + Send) -> T {
        self.host.on_first(program).expect("the host runs every program to its end")
    }

    /// Adds rows with the counts of an operation, if the lab can count.
    pub(crate) fn cost(
        &self,
        rows: &mut Vec<Row>,
        like: &Row,
        prepare: &mut dyn FnMut(),
        operation: &mut dyn FnMut(),
    ) -> Option<OpCost> {
        let cost = (self.measure_cost?)(prepare, operation)?;
        let figures = [
            ("instructions", cost.instructions),
            ("locked instructions", cost.atomics),
            ("lines", cost.lines),
            ("lines written", cost.written),
        ];
        let told = figures.into_iter().filter(|(_, value)| !value.is_nan());
        rows.extend(told.map(|(metric, value)| like.with(metric, value, "")));
        Some(cost)
    }

    /// Frees all retired memory and the tables that CPUs keep in quicklists: on all CPUs at once,
    /// then once more on CPU 0 for what was still waiting.
    pub(crate) fn settle(&self, paging: &Paging<M, X86_64L4>) {
        let settle = || {
            self.host.quiesce();
            paging.quick().drain();
        };
        self.host.everywhere(settle);
        self.on_first(settle);
    }

    /// New shared state of page tables, for an experiment that makes its own tables.
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
