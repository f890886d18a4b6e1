//! A CPU: its caches, its active tables, its interrupt state, and the requests of other CPUs.

use crate::config::Config;
use crate::stats::Counters;
use crate::tlb::{Tlb, Uppers, flush};
use machine::{Asid, CpuId, Flush, Frame, VirtAddr};
use oorandom::Rand32;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// A flush that a CPU has requested from others.
pub(crate) struct Request {
    pub(crate) what: Flush,
    /// The number of CPUs that have not performed it.
    pub(crate) open: AtomicUsize,
}

pub(crate) type Handler = Box<dyn FnOnce() + Send>;

/// Requests of other CPUs to a CPU.
#[derive(Default)]
pub(crate) struct Mail {
    /// Whether a program runs as this CPU. If not, the CPU is idle, and senders perform their
    /// requests themselves.
    pub(crate) attached: bool,
    pub(crate) requests: Vec<Arc<Request>>,
    pub(crate) interrupts: Vec<Handler>,
    /// Whether it shall take its timer interrupt now.
    pub(crate) hurried: bool,
}

/// The state of a CPU's hardware.
pub(crate) struct CpuState {
    pub(crate) tlb: Tlb,
    pub(crate) uppers: Uppers,
    pub(crate) root: Option<(Frame, Asid)>,
    /// Tags that spaces have lost, and that this CPU has not dropped since.
    pub(crate) void: BTreeSet<Asid>,
    /// The table at which a walk in progress is, for the check of tables that are given up.
    pub(crate) walking: Option<Frame>,
    /// The tables that code has read since it began its current section; only if that is checked.
    pub(crate) walked: Vec<Frame>,
    /// The address that was translated last.
    pub(crate) last: VirtAddr,
    pub(crate) random: Rand32,
}

pub(crate) struct Cpu {
    pub(crate) id: CpuId,
    /// Whether a flush of a range drops all of a space.
    flushes_whole: bool,
    /// The number of open interrupt-disabled sections. Only this CPU uses it.
    depth: AtomicU32,
    /// Whether there is mail. Set under the mail's lock.
    pub(crate) flag: AtomicBool,
    pub(crate) mail: Mutex<Mail>,
    pub(crate) state: Mutex<CpuState>,
    pub(crate) stats: Counters,
    /// Whether the CPU translates and accesses, if flushes are broadcast.
    pub(crate) busy: AtomicBool,
    /// The number of broadcast flushes under way on it. No access begins meanwhile.
    pub(crate) closed: AtomicU32,
    /// The number of its step at which it takes the next timer interrupt. Only this CPU uses it.
    pub(crate) next_tick: AtomicU64,
}

impl Cpu {
    pub(crate) fn new(id: CpuId, config: &Config) -> Cpu {
        Cpu {
            id,
            flushes_whole: config.arch.flushes_whole(),
            depth: AtomicU32::new(0),
            flag: AtomicBool::new(false),
            mail: Mutex::default(),
            state: Mutex::new(CpuState {
                tlb: Tlb::new(config.tlb_entries),
                uppers: Uppers::new(config.format(), config.upper_entries),
                root: None,
                void: BTreeSet::new(),
                walking: None,
                walked: Vec::new(),
                last: VirtAddr::default(),
                random: Rand32::new(id.index() as u64),
            }),
            stats: Counters::default(),
            busy: AtomicBool::new(false),
            closed: AtomicU32::new(0),
            next_tick: AtomicU64::new(config.tick.unwrap_or(u64::MAX)),
        }
    }

    #[inline]
    pub(crate) fn depth(&self) -> u32 {
        // Relaxed: only this CPU uses it.
        self.depth.load(Ordering::Relaxed)
    }

    #[inline]
    pub(crate) fn set_depth(&self, depth: u32) {
        // Relaxed: only this CPU uses it.
        self.depth.store(depth, Ordering::Relaxed)
    }

    /// Drops the entries that the flush covers from this CPU's caches.
    pub(crate) fn drop_cached(&self, what: Flush) {
        let dropped = self.drop_uncounted(what);
        self.stats.flushes.add(1);
        self.stats.dropped.add(dropped as u64);
    }

    /// As [`drop_cached`](Self::drop_cached), by hardware. Returns how many translations it dropped.
    pub(crate) fn drop_uncounted(&self, what: Flush) -> usize {
        self.drop_silently(if self.flushes_whole { what.whole_space() } else { what })
    }

    /// Drops these entries and no others.
    pub(crate) fn drop_silently(&self, what: Flush) -> usize {
        let state = &mut *crate::lock::locked(&self.state);
        flush(&mut state.tlb, &mut state.uppers, what)
    }
}
