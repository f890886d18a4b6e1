//! The machine as a whole: its state, and how a violation halts it.
//!
//! # The host's locks
//! A CPU's caches and its mail are behind locks of the host, because other CPUs read them. No such
//! lock is held at a step. So under the deterministic driver, where all CPUs are one host thread,
//! none is ever contended.
//!
//! # Halting
//! The first violation is kept and halts the machine. Every CPU that comes to a step then unwinds
//! up to the driver, which returns the violation. Steps of an unwinding CPU do nothing, so
//! destructors run through.

use crate::accessed_dirty::SetByHardware;
use crate::alloc_failure::Failing;
use crate::arena::Arena;
use crate::cached_absent::CachedAbsent;
use crate::config::{Config, ConfigError};
use crate::constructed::Constructed;
use crate::cpu::Cpu;
use crate::current_cpu::{self, not_a_cpu};
use crate::drive::Halt;
use crate::events::{EventKind, Log, Stamped};
use crate::format::Format;
use crate::lock::locked;
use crate::report::{Report, Violation};
use crate::reverse_map::ReverseMap;
use crate::stats::SimStats;
use crate::tables::Tables;
use ::grace::quiescent::{CpuSlot, Shared};
use machine::{CpuId, Frame, FrameRange, Frames, NodeId};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::{cell::Cell, collections::BTreeSet, fmt, panic::resume_unwind};

/// The handler of the timer interrupt.
type Tick = dyn Fn(&Sim) + Send + Sync;

pub(crate) struct Inner {
    pub(crate) config: Config,
    pub(crate) arena: Arena,
    pub(crate) frames: Frames,
    pub(crate) cpus: Vec<crossbeam_utils::CachePadded<Cpu>>,
    pub(crate) online: AtomicU64,
    pub(crate) log: Log,
    /// For each frame: when it was last allocated, last freed, and last began or ceased to be a
    /// table.
    pub(crate) born: Vec<Stamped>,
    pub(crate) died: Vec<Stamped>,
    pub(crate) tables: Vec<Stamped>,
    pub(crate) roots: Mutex<BTreeSet<Frame>>,
    pub(crate) grace: Shared,
    pub(crate) graces: Vec<CpuSlot>,
    pub(crate) constructed: Constructed,
    pub(crate) accessed_dirty: SetByHardware,
    /// On a machine whose CPUs cache absent entries.
    pub(crate) absent: Option<CachedAbsent>,
    pub(crate) reverse_map: ReverseMap,
    pub(crate) tick: OnceLock<Box<Tick>>,
    pub(crate) failing: Failing,
    halted: AtomicBool,
    found: Mutex<Option<Report>>,
}

/// A machine in software: a handle, whose clones are the same machine.
///
/// It implements [`machine::Machine`] and [`machine::Translated`]. Methods on "this CPU" may be
/// called only on a host thread that is one: within a driver ([`threads`](crate::threads),
/// [`seeded`](crate::seeded)) or [`on_cpu`](Sim::on_cpu). Elsewhere they panic.
///
/// ```
/// use machine::{FrameSource, Memory, NodePolicy};
/// use sim::{Config, Sim};
///
/// let sim = Sim::new(Config::default())?;
/// sim.on_cpu(0, || {
///     let frame = sim.alloc(0, NodePolicy::Local).unwrap();
///     assert!(sim.frame_ptr(frame).is_some());
///     assert!(sim.check_leaks().is_err());
///     // SAFETY: no pointer to it exists.
///     unsafe { sim.free(frame) }.unwrap();
/// });
/// assert!(sim.check_leaks().is_ok());
/// # Ok::<(), sim::ConfigError>(())
/// ```
#[derive(Clone)]
pub struct Sim(pub(crate) Arc<Inner>);

impl Sim {
    /// Makes a machine.
    ///
    /// # Errors
    /// [`ConfigError`].
    pub fn new(config: Config) -> Result<Sim, ConfigError> {
        config.check()?;
        let arena = Arena::new(config.frames).ok_or(ConfigError::OutOfMemory)?;
        let mut frames =
            Frames::try_new(arena.span(), config.cpus).map_err(|_| ConfigError::OutOfMemory)?;
        let cpus: Vec<_> = (0..config.cpus).filter_map(CpuId::new).collect();
        share(&mut frames, &config, &cpus).ok_or(ConfigError::OutOfMemory)?;
        let stamps = |_| Stamped::default();
        Ok(Sim(Arc::new(Inner {
            cpus: cpus.iter().map(|id| Cpu::new(*id, &config).into()).collect(),
            online: AtomicU64::new(0),
            log: Log::new(config.events),
            born: (0..config.frames).map(stamps).collect(),
            died: (0..config.frames).map(stamps).collect(),
            tables: (0..config.frames).map(stamps).collect(),
            roots: Mutex::default(),
            grace: Shared::new(),
            graces: cpus.iter().map(|_| CpuSlot::new()).collect(),
            constructed: Constructed::default(),
            accessed_dirty: SetByHardware::default(),
            absent: config.caches_absent().then(CachedAbsent::default),
            reverse_map: ReverseMap::default(),
            tick: OnceLock::new(),
            failing: Failing::default(),
            halted: AtomicBool::new(false),
            found: Mutex::default(),
            config,
            arena,
            frames,
        })))
    }

    /// The configuration that the machine was made with.
    pub fn config(&self) -> &Config {
        &self.0.config
    }

    /// The page tables that the hardware walks.
    #[inline]
    pub(crate) fn format(&self) -> Format {
        self.0.config.format()
    }

    /// The page tables in memory.
    pub(crate) fn tables(&self) -> Tables<'_> {
        Tables { arena: &self.0.arena, format: self.format(), levels: self.0.config.levels }
    }

    /// This CPU.
    #[inline]
    pub(crate) fn cpu(&self) -> &Cpu {
        self.cpu_if_any().unwrap_or_else(|| not_a_cpu())
    }

    /// The CPU that the host thread is, if it is one of this machine.
    #[inline]
    pub(crate) fn cpu_if_any(&self) -> Option<&Cpu> {
        let here = current_cpu::get();
        // SAFETY: it is one of this machine's, which lives as long as `self`.
        std::ptr::eq(here.machine, &*self.0).then(|| unsafe { &*here.cpu })
    }

    /// A point at which another CPU may run, and at which this one stops if the machine has halted.
    #[inline]
    pub(crate) fn point(&self, cpu: &Cpu) {
        cpu.stats.steps.add(1);
        let here = current_cpu::get();
        if !here.turn.is_null() && !std::thread::panicking() {
            // SAFETY: the seeded driver keeps it alive while anything runs under it.
            unsafe { &*here.turn }.point(cpu.id.index(), false);
        }
        self.stop_if_halted();
    }

    /// Makes allocations of frames fail, on any CPU: the `nth` from now on (1 is the next one). If
    /// `lasting`, all later ones fail, too, and no frame counts as free.
    ///
    /// For tests of exhausted memory at each allocation (I7): raise `nth` until
    /// [`alloc_failed`](Sim::alloc_failed) returns `false`.
    pub fn fail_alloc(&self, nth: u64, lasting: bool) {
        self.0.failing.begin(nth, lasting);
    }

    /// Whether an allocation has failed because of [`fail_alloc`](Sim::fail_alloc). No more fail
    /// after this call.
    pub fn alloc_failed(&self) -> bool {
        self.0.failing.end()
    }

    /// Adds a note to the log of events, for reports.
    pub fn note(&self, text: impl Into<String>) {
        if let Some(cpu) = self.cpu_if_any() {
            self.0.log.note(cpu.id, || EventKind::Note(text.into()));
        }
    }

    /// The counts of all CPUs together.
    pub fn stats(&self) -> SimStats {
        self.0.cpus.iter().fold(SimStats::default(), |sum, cpu| sum + cpu.stats.read())
    }

    /// The counts of one CPU; `None` if there is no such CPU.
    pub fn stats_of(&self, cpu: CpuId) -> Option<SimStats> {
        Some(self.0.cpus.get(cpu.index())?.stats.read())
    }

    /// The violation that halted the machine, if any.
    pub fn found(&self) -> Option<Report> {
        locked(&self.0.found).clone()
    }

    pub(crate) fn is_halted(&self) -> bool {
        // Acquire: pairs with `halt`.
        self.0.halted.load(Ordering::Acquire)
    }

    #[inline]
    pub(crate) fn stop_if_halted(&self) {
        if self.is_halted() && !std::thread::panicking() {
            stop();
        }
    }

    pub(crate) fn halt(&self) {
        // Release: the report comes before the flag; pairs with `is_halted`.
        self.0.halted.store(true, Ordering::Release);
        for cpu in &self.0.cpus {
            // Under the lock, so that a CPU that would clear its flag sees that the machine has
            // halted, and leaves it set.
            let _mail = locked(&cpu.mail);
            // Release: as for mail.
            cpu.flag.store(true, Ordering::Release);
        }
    }

    /// Halts the machine with a report, unless something has halted it before.
    #[cold]
    pub(crate) fn violation(&self, violation: Violation, history: Vec<String>) {
        if std::thread::panicking() {
            return;
        }
        let report = Report {
            violation,
            cpu: self.cpu_if_any().map(|cpu| cpu.id),
            at: self.0.log.now(),
            history,
            events: self.0.log.last(32),
        };
        locked(&self.0.found).get_or_insert(report.clone());
        self.halt();
        if current_cpu::get().driven {
            stop();
        }
        let text = report.to_string();
        UNDRIVEN.set(Some(Box::new(report)));
        panic!("{text}");
    }
}

thread_local! {
    /// The report of this host thread's last panic outside of a driver.
    static UNDRIVEN: Cell<Option<Box<Report>>> = const { Cell::new(None) };
}

/// Takes the report of this host thread's last panic outside of a driver, in [`Sim::on_cpu`].
pub(crate) fn undriven() -> Option<Box<Report>> {
    UNDRIVEN.take()
}

#[cold]
fn stop() -> ! {
    resume_unwind(Box::new(Halt))
}

/// Divides memory and CPUs among the nodes.
fn share(frames: &mut Frames, config: &Config, cpus: &[CpuId]) -> Option<()> {
    let each = config.frames / config.nodes as u64;
    for node in 0..config.nodes {
        let start = frames.span().start().checked_add(each * node as u64)?;
        let len = if node + 1 == config.nodes { config.frames - each * node as u64 } else { each };
        // SAFETY: the arena has memory for its whole span, and it is new.
        unsafe { frames.add(FrameRange::new(start, len)?, NodeId(node as u8)) }.ok()?;
    }
    for cpu in cpus {
        frames.set_home(*cpu, NodeId((cpu.index() * config.nodes / cpus.len()) as u8)).ok()?;
    }
    Some(())
}

impl fmt::Debug for Sim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sim").field("config", &self.0.config).finish_non_exhaustive()
    }
}

/// A frame's stamps; `None` for frames that the arena does not have.
impl Inner {
    pub(crate) fn born(&self, frame: Frame) -> Option<&Stamped> {
        self.born.get(self.arena.index(frame)?)
    }

    pub(crate) fn died(&self, frame: Frame) -> Option<&Stamped> {
        self.died.get(self.arena.index(frame)?)
    }

    pub(crate) fn table(&self, frame: Frame) -> Option<&Stamped> {
        self.tables.get(self.arena.index(frame)?)
    }
}
