//! The machine in software on which the address spaces of a recording live.

use std::{
    cell::Cell,
    collections::BTreeSet,
    panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook},
    sync::Once,
};

use machine::{Asid, FrameSource, Owner, PageSize};
use paging::Paging;
use sim::{Checks, Config, Sim};

use super::{SharedPaging, figures::Figures, objects::Objects};

/// The CPUs. Threads are spread over them.
pub(super) const CPUS: usize = 4;

/// The memory, in frames: 1 GiB. The host provides it on first touch.
const FRAMES: u64 = 1 << 18;

/// The machine, and the state that the address spaces on it share.
pub(super) struct SimMachine {
    pub(super) sim: Sim,
    pub(super) paging: SharedPaging,
    pub(super) objects: Objects,
    pub(super) figures: Figures,
    /// The tags of address spaces that ended, and the first that no space had yet.
    free_tags: BTreeSet<u16>,
    next_tag: u16,
    /// The words that were written so far. Each is another one.
    words: u64,
}

impl SimMachine {
    /// A machine with all checkers on.
    ///
    /// # Errors
    /// A description: the host has not enough memory.
    pub(super) fn new() -> Result<SimMachine, String> {
        // Each call flushes before it gives frames back, so a translation to a free frame is an
        // error here.
        let checks = Checks { freed_cached: true, ..Checks::ALL };
        let config =
            Config { cpus: CPUS, frames: FRAMES, tick: Some(512), checks, ..Config::default() };
        let sim = Sim::new(config).map_err(|error| error.to_string())?;
        let paging = Paging::try_new(sim.clone(), PageSize::Size1G)
            .map_err(|error| format!("no page tables: {error}"))?;
        Ok(SimMachine {
            sim,
            paging,
            objects: Objects::default(),
            figures: Figures::default(),
            free_tags: BTreeSet::new(),
            next_tag: 1,
            words: 0,
        })
    }

    /// Runs `work` as a CPU.
    ///
    /// # Errors
    /// The report of the checker that halted the machine, or the message of a panic.
    pub(super) fn on<T>(
        &mut self,
        cpu: usize,
        work: impl FnOnce(&mut SimMachine) -> T,
    ) -> Result<T, String> {
        let sim = self.sim.clone();
        let found = quietly(|| sim.on_cpu(cpu, || work(self)));
        found.map_err(|message| match sim.found() {
            Some(report) => {
                self.figures.violations = 1;
                format!("a checker of the machine halted it: {report}")
            }
            None => format!("the address spaces panicked: {message}"),
        })
    }

    /// A tag that no address space has.
    pub(super) fn take_tag(&mut self) -> Result<Asid, String> {
        if let Some(tag) = self.free_tags.pop_first() {
            return Ok(Asid(tag));
        }
        let tag = self.next_tag;
        if u32::from(tag) >= self.sim.config().tags {
            return Err(format!("more than {tag} address spaces at once: the machine has no tag"));
        }
        self.next_tag += 1;
        Ok(Asid(tag))
    }

    /// The address space with the tag has ended, and no CPU has a translation of it.
    pub(super) fn give_tag(&mut self, tag: Asid) {
        self.free_tags.insert(tag.0);
    }

    /// A word that was not written before.
    pub(super) fn new_word(&mut self) -> u64 {
        self.words += 1;
        // The words of files are odd, those of programs even.
        self.words << 1
    }

    /// Looks at the frames in use. Cheap.
    pub(super) fn measure(&mut self) {
        let used = self.sim.config().frames - self.sim.free_frames() as u64;
        self.figures.frames_peak = self.figures.frames_peak.max(used);
    }

    /// Looks at the page tables. Reads the state of each frame.
    pub(super) fn measure_tables(&mut self) {
        let tables =
            self.sim.allocated().into_iter().filter(|f| matches!(f.owner, Owner::Table(_)));
        self.figures.tables_peak = self.figures.tables_peak.max(tables.count() as u64);
    }

    /// Ends the machine, on which no address space is left: every table is on a list again, and
    /// every frame is back.
    ///
    /// # Errors
    /// A description of the frames or tables that are left.
    pub(super) fn end(&mut self) -> Result<(), String> {
        let stats = self.sim.stats();
        self.figures.flushes = (stats.flushes, stats.ipis_sent);
        let objects = std::mem::take(&mut self.objects);
        self.on(0, |_| drop(objects))?;
        for cpu in 0..CPUS {
            if !self.on(cpu, |sim_machine| sim_machine.sim.settle())? {
                return Err("after the end, a grace period does not end".into());
            }
        }
        self.figures.left.1 = self.paging.waiting();
        for cpu in 0..CPUS {
            self.on(cpu, |sim_machine| sim_machine.paging.quick().drain())?;
        }
        let leaked = self.sim.allocated();
        self.figures.left.0 = leaked.iter().map(|block| 1 << block.order).sum();
        match self.figures.left {
            (0, 0) => Ok(()),
            (0, tables) => Err(format!("after the end, {tables} tables are on no list")),
            (frames, _) => {
                let report = self.sim.check_leaks().map_or_else(|r| r.to_string(), |()| "".into());
                Err(format!("after the end, {frames} frames are not given back: {report}"))
            }
        }
    }
}

thread_local! {
    /// Whether a panic of this thread is caught and reported in another way.
    static QUIET: Cell<bool> = const { Cell::new(false) };
}

/// Runs `work`, and returns the message of its panic, which is not printed.
fn quietly<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    static HOOKED: Once = Once::new();
    HOOKED.call_once(|| {
        let usual = take_hook();
        set_hook(Box::new(move |info| {
            if !QUIET.get() {
                usual(info);
            }
        }));
    });
    let before = QUIET.replace(true);
    // The state that `work` changes is not used after a panic: the replay with pages ends there.
    let done = catch_unwind(AssertUnwindSafe(work));
    QUIET.set(before);
    done.map_err(|panic| match panic.downcast::<String>() {
        Ok(message) => *message,
        Err(other) => {
            other.downcast::<&str>().map_or_else(|_| String::new(), |text| text.to_string())
        }
    })
}
