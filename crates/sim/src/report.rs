//! Reports of the checkers: the violation, and the events that led to it.

use crate::events::Event;
use core::fmt;
use machine::{CpuId, Frame, NodeId, Owner, PageSize, VirtAddr, VirtRange};

/// A violation that a checker has found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Violation {
    /// I5: an access used a cached translation that is outdated.
    StaleTranslation {
        /// The address.
        address: VirtAddr,
        /// Whether the access was a write.
        write: bool,
        /// The frame that the old translation led to.
        used: Frame,
        /// The frame that the page tables lead to now; `None` if they do not allow the access.
        now: Option<Frame>,
        /// Whether the frame has been freed since the translation was cached.
        freed: bool,
    },
    /// I5, in the caches: a TLB holds a translation that the page tables do not allow, after it
    /// should have been flushed.
    NotFlushed {
        /// The page.
        page: VirtAddr,
        /// The CPU that holds it.
        by: CpuId,
        /// The frame that it leads to.
        frame: Frame,
        /// The frame that the page tables lead to now; `None` if they allow less.
        now: Option<Frame>,
    },
    /// I3, in the caches: a CPU holds an upper-level entry that leads to another table than the
    /// page tables do, after it should have been flushed.
    UpperNotFlushed {
        /// The first address that the entry covers.
        start: VirtAddr,
        /// The level of the table that it leads to.
        level: u8,
        /// The CPU that holds it.
        by: CpuId,
        /// The table that it leads to.
        table: Frame,
        /// The table that the page tables lead to now; `None` if there is none of this level.
        now: Option<Frame>,
    },
    /// I3: a page walk, or code, read or changed an entry of a frame that is not a page table.
    NotATable {
        /// The frame.
        table: Frame,
        /// The owner that it has instead.
        owner: Owner,
        /// The level of the expected table, if a walk of the hardware went there.
        level: Option<u8>,
        /// The address that was translated, if it was a walk of the hardware.
        address: Option<VirtAddr>,
        /// Whether a cached upper-level entry led there.
        cached: bool,
    },
    /// I3: a page table was given up while a CPU could still walk it.
    TableInUse {
        /// The table.
        table: Frame,
        /// The owner that it was to get.
        becomes: Owner,
        /// The CPU.
        by: CpuId,
        /// The path by which the CPU can reach it.
        how: &'static str,
    },
    /// I5: a CPU began to use a tag for other tables, and kept its old cached entries.
    TagReused {
        /// The tag.
        tag: u16,
        /// The CPU.
        by: CpuId,
        /// A cached page, or the start of a cached upper-level entry.
        page: VirtAddr,
        /// The top-level table from which the entry was cached.
        before: Frame,
        /// The top-level table that is active now, or has become a new table since.
        root: Frame,
    },
    /// I3, I5: a space lost its tag while a CPU had it active.
    TagTakenActive {
        /// The tag.
        tag: u16,
        /// The CPU.
        by: CpuId,
        /// Its active top-level table.
        root: Frame,
    },
    /// I5: a CPU began to use a tag that a space had lost, and kept what it had cached under it.
    TagKept {
        /// The tag.
        tag: u16,
        /// The CPU.
        by: CpuId,
        /// The top-level table that is active now.
        root: Frame,
    },
    /// I5: a CPU began to use tables that do not share those of a cached global page.
    GlobalNotShared {
        /// The page.
        page: VirtAddr,
        /// The CPU.
        by: CpuId,
        /// The frame that it leads to.
        frame: Frame,
        /// The top-level table from which it was cached.
        before: Frame,
        /// The top-level table that is active now.
        root: Frame,
    },
    /// I5: a CPU cached two translations of an address, of two sizes, that lead to different
    /// frames.
    TwoSizes {
        /// The address.
        page: VirtAddr,
        /// The CPU.
        by: CpuId,
        /// The older one: its size and its first frame.
        held: (PageSize, Frame),
        /// The newer one.
        new: (PageSize, Frame),
    },
    /// I5, in the caches: a TLB holds a translation of another size than in the page tables, after
    /// it should have been flushed.
    OtherSize {
        /// The page.
        page: VirtAddr,
        /// The CPU that holds it.
        by: CpuId,
        /// Its size.
        held: PageSize,
        /// The size in the page tables.
        now: PageSize,
    },
    /// A store lost an accessed or dirty bit that hardware had set since the CPU last read the
    /// entry.
    LostAccessedDirty {
        /// The table.
        table: Frame,
        /// The index of the entry.
        index: usize,
        /// The lost bits.
        bits: u64,
    },
    /// An access of the kernel's half faulted, since a CPU still takes a valid entry for absent.
    Unpublished {
        /// The address.
        address: VirtAddr,
        /// The table.
        table: Frame,
        /// The index of the entry.
        index: usize,
    },
    /// A valid entry was replaced without break-before-make, where the architecture demands it.
    NotBroken {
        /// The table.
        table: Frame,
        /// The index of the entry.
        index: usize,
        /// Its value.
        old: u64,
        /// The new value.
        new: u64,
        /// The CPU that has still cached an earlier value; `None` if the old value itself is valid
        /// and conflicts.
        by: Option<CpuId>,
    },
    /// The entries of a group, whose pages hardware may cache as one translation, do not say the
    /// same.
    GroupUneven {
        /// The table.
        table: Frame,
        /// The index of the entry that was walked.
        index: usize,
        /// Its value.
        entry: u64,
        /// The index of another entry of the group.
        other: usize,
        /// Its value.
        value: u64,
    },
    /// Hardware has set an accessed or a dirty bit in an entry of a group. It may set it in any of
    /// the group's entries.
    GroupAccessedDirty {
        /// The table.
        table: Frame,
        /// The index of the entry.
        index: usize,
        /// Its value.
        entry: u64,
        /// The value with the bits.
        marked: u64,
    },
    /// I4: an address was reused while a TLB still translated it.
    ReusedEarly {
        /// The reused addresses.
        range: VirtRange,
        /// The CPU that holds the translation.
        by: CpuId,
        /// The page.
        page: VirtAddr,
        /// The frame that it leads to.
        frame: Frame,
    },
    /// A frame was freed while a page table led to it.
    FreedWhileMapped {
        /// The frame.
        frame: Frame,
        /// The table that has the entry.
        table: Frame,
        /// The index of the entry.
        index: usize,
    },
    /// A frame was freed while it was pinned.
    FreedWhilePinned {
        /// The frame.
        frame: Frame,
        /// The number of pins.
        pins: u32,
    },
    /// A frame was freed while a TLB still translated to it (only with `Checks::freed_cached`).
    FreedWhileCached {
        /// The frame.
        frame: Frame,
        /// The CPU that holds the translation.
        by: CpuId,
        /// The page.
        page: VirtAddr,
    },
    /// A present entry led to a frame that is not allocated.
    FreeFrame {
        /// The address.
        address: VirtAddr,
        /// The frame.
        frame: Frame,
    },
    /// I6: a page entered or left a quicklist in another than its constructed state.
    NotConstructed {
        /// The page.
        frame: Frame,
        /// The list.
        list: u8,
        /// Whether it enters the list; otherwise it leaves it.
        entering: bool,
        /// The index of the word.
        index: usize,
        /// Its value.
        found: u64,
        /// Its value in the constructed state.
        expected: u64,
    },
    /// I6: a page was constructed for one quicklist, and enters or leaves another.
    OtherList {
        /// The page.
        frame: Frame,
        /// The list that it enters or leaves.
        list: u8,
        /// The list that it was constructed for.
        made_for: u8,
    },
    /// Frames that were never given back.
    Leak(Vec<Leaked>),
}

/// A frame that was never given back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Leaked {
    /// The first frame of the block.
    pub frame: Frame,
    /// The block's order.
    pub order: u8,
    /// Its owner: its use.
    pub owner: Owner,
    /// Its node.
    pub node: NodeId,
    /// The number of references, and of pins among them.
    pub counts: (u32, u32),
    /// The time of its allocation.
    pub at: u64,
    /// The CPU that allocated it.
    pub by: CpuId,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Violation::StaleTranslation { address, write, used, now, freed } => {
                let what = if *write { "write to" } else { "read of" };
                write!(f, "stale translation (I5): {what} {address} went to frame {used}")?;
                f.write_str(if *freed { ", which has been freed since; " } else { "; " })?;
                match now {
                    Some(now) if now == used => write!(f, "the page tables still lead there"),
                    Some(now) => write!(f, "the page tables lead to frame {now}"),
                    None => write!(f, "the page tables do not allow it"),
                }
            }
            Violation::NotFlushed { page, by, frame, now } => {
                write!(
                    f,
                    "not flushed (I5): the TLB of {by} still translates {page} to frame {frame}, "
                )?;
                match now {
                    Some(now) => write!(f, "the page tables to frame {now}"),
                    None => write!(f, "the page tables allow less"),
                }
            }
            Violation::UpperNotFlushed { start, level, by, table, now } => {
                write!(
                    f,
                    "not flushed (I3): the upper-level entry for {start} that {by} has cached \
                     leads to table {table} of level {level}, "
                )?;
                match now {
                    Some(now) => write!(f, "the page tables to {now}"),
                    None => f.write_str("the page tables to none"),
                }
            }
            Violation::NotATable { table, owner, level, address, cached } => {
                write!(f, "walk into a freed table (I3): frame {table} is {owner:?}")?;
                if let Some(level) = level {
                    write!(f, ", not a table of level {level}")?;
                }
                match (address, cached) {
                    (Some(address), true) => {
                        write!(f, "; a cached upper-level entry for {address} led there")
                    }
                    (Some(address), false) => write!(f, "; the walk for {address} went there"),
                    (None, _) => write!(f, "; code read or changed an entry of it"),
                }
            }
            Violation::TableInUse { table, becomes, by, how } => write!(
                f,
                "table given up too early (I3): frame {table} becomes {becomes:?}, but {by} can \
                 still walk it: {how}"
            ),
            Violation::TagReused { tag, by, page, before, root } => write!(
                f,
                "tag used again (I5): {by} uses tag {tag} for table {root} and has kept the entry \
                 for {page}, which it cached from table {before}"
            ),
            Violation::TagTakenActive { tag, by, root } => write!(
                f,
                "tag taken too early (I3, I5): a space loses tag {tag}, and {by} has it active for \
                 table {root}"
            ),
            Violation::TagKept { tag, by, root } => write!(
                f,
                "tag kept (I5): {by} uses tag {tag} for table {root} and has not dropped what it \
                 cached before a space lost the tag"
            ),
            Violation::GlobalNotShared { page, by, frame, before, root } => write!(
                f,
                "global page not shared (I5): the TLB of {by} translates {page} to frame {frame} \
                 in every space, from table {before}, but the tables of {root} do not share that \
                 part"
            ),
            Violation::TwoSizes { page, by, held, new } => write!(
                f,
                "two sizes for one address (I5): the TLB of {by} translates {page} by a page of \
                 {:?} at frame {}, and would by one of {:?} at frame {}",
                held.0, held.1, new.0, new.1
            ),
            Violation::OtherSize { page, by, held, now } => write!(
                f,
                "not flushed (I5): the TLB of {by} translates {page} by a page of {held:?}, the \
                 page tables have one of {now:?}"
            ),
            Violation::LostAccessedDirty { table, index, bits } => write!(
                f,
                "accessed or dirty bit lost: a store to entry {index} of table {table} cleared \
                 bits {bits:#x}, set since this CPU last read it; use a swap or a \
                 compare-and-exchange"
            ),
            Violation::Unpublished { address, table, index } => write!(
                f,
                "not published: {address} faults, since entry {index} of table {table} was absent \
                 and may be cached so; call Tlb::published after the store, and before the page is \
                 used"
            ),
            Violation::NotBroken { table, index, old, new, by: None } => write!(
                f,
                "no break before make: entry {index} of table {table} is {old:#x}, which is valid \
                 and conflicts with {new:#x}; store an invalid entry and flush first"
            ),
            Violation::NotBroken { table, index, new, by: Some(by), .. } => write!(
                f,
                "no flush between break and make: entry {index} of table {table} becomes {new:#x}, \
                 and {by} has still cached a value that conflicts"
            ),
            Violation::GroupUneven { table, index, entry, other, value } => write!(
                f,
                "uneven group: entry {index} of table {table} is {entry:#x}, and entry {other} of \
                 its group is {value:#x}; change all entries of a group, or part it first"
            ),
            Violation::GroupAccessedDirty { table, index, entry, marked } => write!(
                f,
                "accessed and dirty bits in a group: hardware changes entry {index} of table \
                 {table} from {entry:#x} to {marked:#x}, and could change any other of its group; \
                 make groups of pages whose bits are set"
            ),
            Violation::ReusedEarly { range, by, page, frame } => write!(
                f,
                "address reused too early (I4): {range:?}, but the TLB of {by} still translates \
                 {page} to frame {frame}"
            ),
            Violation::FreedWhileMapped { frame, table, index } => {
                write!(
                    f,
                    "frame freed while mapped: frame {frame}, by entry {index} of table {table}"
                )
            }
            Violation::FreedWhilePinned { frame, pins } => {
                write!(f, "frame freed while pinned: frame {frame} has {pins} pins")
            }
            Violation::FreedWhileCached { frame, by, page } => write!(
                f,
                "frame freed while cached: the TLB of {by} still translates {page} to frame {frame}"
            ),
            Violation::FreeFrame { address, frame } => {
                write!(
                    f,
                    "access to a free frame: {address} is mapped to frame {frame}, which is not \
                     allocated"
                )
            }
            Violation::NotConstructed { frame, list, entering, index, found, expected } => write!(
                f,
                "not in its constructed state (I6): frame {frame} {} quicklist {list} with \
                 {found:#x} in word {index}, which should be {expected:#x}",
                if *entering { "enters" } else { "leaves" }
            ),
            Violation::OtherList { frame, list, made_for } => write!(
                f,
                "wrong quicklist (I6): frame {frame} enters or leaves list {list}, but was \
                 constructed for list {made_for}"
            ),
            Violation::Leak(leaked) => {
                write!(f, "leak: {} blocks of frames were never given back:", leaked.len())?;
                for leak in leaked.iter().take(8) {
                    let Leaked { frame, order, owner, counts: (refs, pins), at, by, .. } = leak;
                    write!(
                        f,
                        "\n  frame {frame}, 2^{order} frames, {owner:?}, {refs} references, \
                         {pins} of them pins, "
                    )?;
                    write!(f, "allocated by {by} at {at}")?;
                }
                Ok(())
            }
        }
    }
}

/// A violation, the place where it was detected, and its history.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Report {
    /// The violation.
    pub violation: Violation,
    /// The CPU that was running; `None` if none was.
    pub cpu: Option<CpuId>,
    /// The time: the number of the event.
    pub at: u64,
    /// The history of the frames and the entry concerned: the CPUs that freed or unmapped them, and
    /// when.
    pub history: Vec<String>,
    /// The most recent events, oldest first.
    pub events: Vec<Event>,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.violation)?;
        match self.cpu {
            Some(cpu) => writeln!(f, "  seen on {cpu} at {}", self.at)?,
            None => writeln!(f, "  seen at {}", self.at)?,
        }
        for line in &self.history {
            writeln!(f, "  {line}")?;
        }
        if !self.events.is_empty() {
            writeln!(f, "  last events:")?;
        }
        for event in &self.events {
            writeln!(f, "    {event}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Report {}
