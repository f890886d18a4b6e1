//! What kind of machine it is, and what it looks out for.

use core::fmt;

/// Which accesses through old translations are violations (I5).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Stale {
    /// None: nothing is compared.
    Off,
    /// Those that lead to a frame which has been freed since the translation was cached. For tests
    /// in which accesses race with unmaps, as a program's threads may.
    Freed,
    /// Those that the page tables, as they are at that moment, would not allow or would send
    /// elsewhere. For tests that never touch what they unmap: the kernel's own areas.
    #[default]
    Changed,
}

/// What the machine looks out for. Each check costs time; measurements turn them off.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Checks {
    /// Accesses through stale translations (I5).
    pub stale: Stale,
    /// Walks into what is not a table any more, and tables given up while a CPU can still walk them
    /// (I3).
    pub tables: bool,
    /// Tables given up while a CPU that has looked into them in software is still in the same
    /// section, guarded by [`Grace`](crate::Grace) (I3): also where the frame is a table again
    /// before that CPU looks once more. Off in [`Checks::ALL`]: tables that nobody can find any
    /// more may be given up while a CPU is in such a section for another reason.
    pub walked: bool,
    /// Addresses handed out while a TLB still translates them (I4).
    pub check_reuse: bool,
    /// Frames freed while a page table leads to them, or pinned; present entries that lead to free
    /// frames.
    pub frames: bool,
    /// Frames freed while a TLB still translates to them: an error for programs' memory, but not
    /// where unmapping is lazy. Off in [`Checks::ALL`].
    pub freed_cached: bool,
    /// Pages that enter or leave a quicklist in another than their constructed state (I6).
    pub constructed: bool,
    /// Translations kept where they do not belong (I5): under a tag that other tables get, of
    /// global pages in spaces that do not share them, of two sizes for one address.
    pub spaces: bool,
    /// Accessed and dirty bits of programs' pages that a store loses. Only under the deterministic
    /// driver.
    pub marks: bool,
}

impl Checks {
    /// All that hold for any correct code.
    pub const ALL: Checks = Checks {
        stale: Stale::Changed,
        tables: true,
        walked: false,
        check_reuse: true,
        frames: true,
        freed_cached: false,
        constructed: true,
        spaces: true,
        marks: true,
    };

    /// None, for measurements.
    pub const NONE: Checks = Checks {
        stale: Stale::Off,
        tables: false,
        walked: false,
        check_reuse: false,
        frames: false,
        freed_cached: false,
        constructed: false,
        spaces: false,
        marks: false,
    };
}

/// A description of a machine.
///
/// ```
/// use sim::{Config, Sim};
/// let sim = Sim::new(Config { cpus: 4, ..Config::default() }).unwrap();
/// assert!(Sim::new(Config { cpus: 65, ..Config::default() }).is_err());
/// # drop(sim);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Config {
    /// CPUs, 1 to 64.
    pub cpus: usize,
    /// Frames of memory, of 4 KiB, at least 1 for each node.
    pub frames: u64,
    /// NUMA nodes, 1 to 8; frames and CPUs are shared out evenly among them.
    pub nodes: usize,
    /// Levels of page tables: 4 or 5.
    pub levels: u8,
    /// Translations that a CPU's TLB holds, at least 1.
    pub tlb_entries: usize,
    /// Upper-level entries that a CPU caches for each level; may be 0.
    pub upper_entries: usize,
    /// Address-space tags, 1 (none) to 4096.
    pub tags: u32,
    /// How often, in a thousand accesses, a CPU also translates the page before or behind, as it
    /// may at any time; and, as often, when other tables become active, the page that it used last.
    pub speculation: u32,
    /// Whether a fault drops what it came from: the translation, and the cached upper-level entries
    /// that led to it. x86-64 promises that, so a fault by an old entry does not come twice. Where
    /// hardware does not, as on RISC-V, the handler of page faults has to flush.
    pub faults_drop: bool,
    /// After how many of its own steps a CPU takes the timer interrupt (see
    /// [`Sim::on_tick`](crate::Sim::on_tick)).
    pub tick: Option<u64>,
    /// What is looked out for.
    pub checks: Checks,
    /// How many of the last events are kept for reports; 0 for measurements.
    pub events: usize,
}

impl Default for Config {
    /// 2 CPUs, 16 MiB, all checks.
    fn default() -> Self {
        Config {
            cpus: 2,
            frames: 4096,
            nodes: 1,
            levels: 4,
            tlb_entries: 64,
            upper_entries: 8,
            tags: 4096,
            speculation: 0,
            faults_drop: true,
            tick: None,
            checks: Checks::ALL,
            events: 512,
        }
    }
}

impl Config {
    /// A machine for measurements: large TLBs, no checks, no events.
    pub fn fast(cpus: usize, frames: u64) -> Config {
        Config {
            cpus,
            frames,
            tlb_entries: 1536,
            upper_entries: 32,
            checks: Checks::NONE,
            events: 0,
            ..Config::default()
        }
    }

    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        let wrong = |what, found: u64| Err(ConfigError::OutOfRange { what, found });
        match self {
            _ if !(1..=64).contains(&self.cpus) => wrong("cpus", self.cpus as u64),
            _ if !(1..=machine::MAX_NODES).contains(&self.nodes) => {
                wrong("nodes", self.nodes as u64)
            }
            _ if self.frames < self.nodes as u64 || self.frames > 1 << 28 => {
                wrong("frames", self.frames)
            }
            _ if !(4..=5).contains(&self.levels) => wrong("levels", self.levels.into()),
            _ if !(1..=1 << 16).contains(&self.tlb_entries) => {
                wrong("tlb_entries", self.tlb_entries as u64)
            }
            _ if self.upper_entries > 1 << 10 => wrong("upper_entries", self.upper_entries as u64),
            _ if !(1..=4096).contains(&self.tags) => wrong("tags", self.tags.into()),
            _ if self.speculation > 1000 => wrong("speculation", self.speculation.into()),
            _ if self.tick == Some(0) => wrong("tick", 0),
            _ => Ok(()),
        }
    }
}

/// Why there can be no such machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ConfigError {
    /// A number is outside of its range.
    OutOfRange {
        /// The field of [`Config`].
        what: &'static str,
        /// What it is.
        found: u64,
    },
    /// The host has no memory for it.
    OutOfMemory,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ConfigError::OutOfRange { what, found } => write!(f, "no machine has {what} = {found}"),
            ConfigError::OutOfMemory => f.write_str("the host has no memory for such a machine"),
        }
    }
}

impl core::error::Error for ConfigError {}
