//! The configuration of a machine: its hardware and its checks.

use crate::format::{Arch, Format};
use core::fmt;

/// Which accesses by old translations are violations (I5).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Stale {
    /// None: no access is checked.
    Off,
    /// Accesses that lead to a frame that has been freed since the translation was cached. For
    /// tests in which accesses race with unmaps, as in user programs.
    Freed,
    /// Accesses that the current page tables would not allow, or would send elsewhere. For tests
    /// that never access a page that they unmap: the kernel's own areas.
    #[default]
    Changed,
}

/// The checks that the machine makes. Each costs time; measurements turn them off.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Checks {
    /// Accesses through stale translations (I5).
    pub stale: Stale,
    /// Walks into frames that are not tables any more, and tables given up while a CPU can still
    /// walk them (I3).
    pub tables: bool,
    /// Tables given up while a CPU is still in the section, guarded by [`Grace`](crate::Grace), in
    /// which it read them in software (I3). This also detects a frame that is a table again before
    /// that CPU reads it once more. Off in [`Checks::ALL`]: a table that no CPU can reach any more
    /// may be given up while a CPU is in such a section for another reason.
    pub walked: bool,
    /// Addresses reused while a TLB still translates them (I4).
    pub check_reuse: bool,
    /// Frames freed while a page table leads to them, or while pinned; present entries that lead to
    /// free frames.
    pub frames: bool,
    /// Frames freed while a TLB still translates to them: an error for user memory, but not where
    /// unmapping is lazy. Off in [`Checks::ALL`].
    pub freed_cached: bool,
    /// Pages that enter or leave a quicklist in another than their constructed state (I6).
    pub constructed: bool,
    /// Misplaced cached translations (I5): under a tag that other tables get, of global pages in
    /// spaces that do not share them, of two sizes for one address.
    pub spaces: bool,
    /// Accessed and dirty bits of user pages that a store loses. Only under the deterministic
    /// driver.
    pub accessed_dirty: bool,
    /// Entries that are replaced without break-before-make, where the architecture demands it.
    pub breaks: bool,
    /// Accesses of the kernel's half that fault since a valid entry was not published.
    pub published: bool,
}

impl Checks {
    /// All checks that hold for any correct code.
    pub const ALL: Checks = Checks {
        stale: Stale::Changed,
        tables: true,
        walked: false,
        check_reuse: true,
        frames: true,
        freed_cached: false,
        constructed: true,
        spaces: true,
        accessed_dirty: true,
        breaks: true,
        published: true,
    };

    /// No checks, for measurements.
    pub const NONE: Checks = Checks {
        stale: Stale::Off,
        tables: false,
        walked: false,
        check_reuse: false,
        frames: false,
        freed_cached: false,
        constructed: false,
        spaces: false,
        accessed_dirty: false,
        breaks: false,
        published: false,
    };
}

/// The configuration of a machine.
///
/// ```
/// use sim::{Config, Sim};
/// let sim = Sim::new(Config { cpus: 4, ..Config::default() }).unwrap();
/// assert!(Sim::new(Config { cpus: 65, ..Config::default() }).is_err());
/// # drop(sim);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Config {
    /// The number of CPUs, 1 to 64.
    pub cpus: usize,
    /// The number of frames, of 4 KiB, at least 1 for each node.
    pub frames: u64,
    /// The number of NUMA nodes, 1 to 8. Frames and CPUs are divided evenly among them.
    pub nodes: usize,
    /// The architecture of the page tables.
    pub arch: Arch,
    /// The levels of the page tables: 3 to 5; as many as the architecture has.
    pub levels: u8,
    /// The number of translations that a CPU's TLB holds, at least 1.
    pub tlb_entries: usize,
    /// The number of upper-level entries that a CPU caches for each level; may be 0.
    pub upper_entries: usize,
    /// Whether hardware performs flushes on other CPUs, with no interrupt, as AArch64 does by TLBI
    /// and DSB. The flush waits for page walks and accesses that are under way.
    pub broadcast: bool,
    /// The number of address-space tags, 1 (none) to 65536.
    pub tags: u32,
    /// Of a thousand accesses, the number at which a CPU speculatively translates the page before
    /// or after. Equally often, when other tables become active, it translates the page that it
    /// used last.
    pub speculation: u32,
    /// Whether a fault drops the cached translation and upper-level entries that caused it. x86-64
    /// promises that, so a fault by an old entry does not repeat. Other hardware, such as RISC-V,
    /// does not; there the page-fault handler has to flush.
    pub faults_drop: bool,
    /// Whether CPUs cache absent entries until [`published`](machine::Tlb::published) or a flush,
    /// also on x86-64. Those of the other architectures always do: so does RISC-V without Svvptc,
    /// and on AArch64 a walk need not see a new entry before a barrier.
    pub caches_absent: bool,
    /// The number of a CPU's own steps between two timer interrupts (see
    /// [`Sim::on_tick`](crate::Sim::on_tick)).
    pub tick: Option<u64>,
    /// The checks that are made.
    pub checks: Checks,
    /// The number of most recent events that are kept for reports; 0 for measurements.
    pub events: usize,
}

impl Default for Config {
    /// 2 CPUs, 16 MiB, all checks.
    fn default() -> Self {
        Config {
            cpus: 2,
            frames: 4096,
            nodes: 1,
            arch: Arch::X86_64,
            levels: 4,
            tlb_entries: 64,
            upper_entries: 8,
            broadcast: false,
            tags: 4096,
            speculation: 0,
            faults_drop: true,
            caches_absent: false,
            tick: None,
            checks: Checks::ALL,
            events: 512,
        }
    }
}

impl Config {
    /// A configuration for measurements: large TLBs, no checks and no events.
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

    pub(crate) fn format(&self) -> Format {
        Format { arch: self.arch, levels: self.levels }
    }

    /// Whether CPUs cache absent entries.
    pub(crate) fn caches_absent(&self) -> bool {
        self.caches_absent
            || !matches!(self.arch, Arch::X86_64 | Arch::X86_64Sev | Arch::Npt | Arch::Ept)
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
            _ if !self.format().exists() => wrong("levels", self.levels.into()),
            _ if !(1..=1 << 16).contains(&self.tlb_entries) => {
                wrong("tlb_entries", self.tlb_entries as u64)
            }
            _ if self.upper_entries > 1 << 10 => wrong("upper_entries", self.upper_entries as u64),
            _ if !(1..=65536).contains(&self.tags) => wrong("tags", self.tags.into()),
            _ if self.speculation > 1000 => wrong("speculation", self.speculation.into()),
            _ if self.tick == Some(0) => wrong("tick", 0),
            _ => Ok(()),
        }
    }
}

/// The reason why there can be no such machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ConfigError {
    /// A field is out of its range.
    OutOfRange {
        /// The field of [`Config`].
        what: &'static str,
        /// Its value.
        found: u64,
    },
    /// The host has not enough memory.
    OutOfMemory,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ConfigError::OutOfRange { what, found } => {
                write!(f, "{what} = {found} is out of range: see sim::Config")
            }
            ConfigError::OutOfMemory => {
                f.write_str("the host has not enough memory for the machine: use fewer frames")
            }
        }
    }
}

impl core::error::Error for ConfigError {}
