//! The recent events, and the last event of each kind for each frame.
//!
//! Time is the number of an event. Each frame has stamps of its last allocation, of its last free,
//! and of the last time that it began or ceased to be a table. The ring of events does not
//! overwrite them. So a report can always name the CPU and the time; the ring adds the events
//! around it.

use core::fmt;
use machine::{
    Asid, CpuId, CpuSet, EntryOp, Flush, Frame, Owner, PageSize, SharedAccess, VirtAddr, VirtRange,
};
use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// An event on a CPU.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Event {
    /// The time: events are numbered.
    pub at: u64,
    /// The CPU.
    pub cpu: CpuId,
    /// The kind of event.
    pub kind: EventKind,
}

/// The kind of an event.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum EventKind {
    /// Code changed an entry of a page table. Logged just before the change.
    Entry {
        /// The table.
        table: Frame,
        /// The index of the entry.
        index: usize,
        /// The operation.
        op: EntryOp,
    },
    /// A block of frames was allocated.
    Alloc(Frame, u8),
    /// A block of frames was freed.
    Free(Frame),
    /// A frame got another owner.
    Owner(Frame, Owner),
    /// A CPU flushed its own caches, as its code demanded.
    Flush(Flush),
    /// A CPU requested a flush from others.
    FlushRequest(CpuSet, Flush),
    /// A CPU performed a flush that another had requested.
    RequestedFlush(Flush),
    /// A CPU cached a translation.
    Fill(VirtAddr, PageSize, Frame),
    /// A CPU activated a top-level table.
    Activate(Frame, Asid),
    /// A space lost its tag.
    TagTaken(Asid),
    /// Absent entries of a space, or of the kernel's half, became valid.
    Published(Option<Asid>, VirtRange),
    /// Addresses were reused.
    Reused(VirtRange),
    /// A note by the code under test.
    Note(String),
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:>8} {:<6} ", self.at, self.cpu.to_string())?;
        match &self.kind {
            EventKind::Entry { table, index, op } => match op {
                EntryOp::Load => write!(f, "read entry {index} of table {table}"),
                EntryOp::Store(value) => {
                    write!(f, "stored {value:#x} in entry {index} of table {table}")
                }
                EntryOp::Swap(value) => {
                    write!(f, "swapped {value:#x} into entry {index} of table {table}")
                }
                EntryOp::CompareExchange(old, new) => {
                    write!(
                        f,
                        "replaced {old:#x} by {new:#x} in entry {index} of table {table}, if equal"
                    )
                }
                EntryOp::And(mask) => {
                    write!(f, "masked entry {index} of table {table} with {mask:#x}")
                }
                EntryOp::Or(mask) => write!(f, "set {mask:#x} in entry {index} of table {table}"),
            },
            EventKind::Alloc(frame, order) => {
                write!(f, "allocated frame {frame}, 2^{order} frames")
            }
            EventKind::Free(frame) => write!(f, "freed frame {frame}"),
            EventKind::Owner(frame, owner) => write!(f, "frame {frame} became {owner:?}"),
            EventKind::Flush(what) => write!(f, "flushed {}", Shown(what)),
            EventKind::FlushRequest(cpus, what) => {
                write!(f, "asked {cpus:?} to flush {}", Shown(what))
            }
            EventKind::RequestedFlush(what) => write!(f, "flushed {}, on request", Shown(what)),
            EventKind::Fill(page, size, frame) => {
                write!(f, "cached {page} ({size:?}) to frame {frame}")
            }
            EventKind::Activate(root, asid) => {
                write!(f, "activated table {root}, space {}", asid.0)
            }
            EventKind::TagTaken(asid) => write!(f, "took tag {} from its space", asid.0),
            EventKind::Published(space, range) => write!(f, "published {range:?} of {space:?}"),
            EventKind::Reused(range) => write!(f, "reused {range:?}"),
            EventKind::Note(text) => f.write_str(text),
        }
    }
}

struct Shown<'a>(&'a Flush);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Flush::Range { space, range, stride, tables } => {
                write!(f, "{range:?} by {stride:?}")?;
                if let Some(space) = space {
                    write!(f, " of space {}", space.0)?;
                }
                f.write_str(if *tables { " with upper levels" } else { "" })
            }
            Flush::Space(space) => write!(f, "space {}", space.0),
            Flush::All => f.write_str("everything"),
        }
    }
}

/// A time, a CPU, and one bit of meaning.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Stamp(u64);

impl Stamp {
    pub(crate) fn at(self) -> u64 {
        self.0 >> 9
    }

    pub(crate) fn cpu(self) -> CpuId {
        CpuId::new((self.0 >> 1) as usize & 0xff).unwrap_or_default()
    }

    /// The bit: whether the frame became a table, rather than ceased to be one.
    pub(crate) fn yes(self) -> bool {
        self.0 & 1 != 0
    }
}

#[derive(Default)]
pub(crate) struct Stamped(AtomicU64);

impl Stamped {
    pub(crate) fn get(&self) -> Stamp {
        // Acquire: pairs with `set`.
        Stamp(self.0.load(Ordering::Acquire))
    }

    pub(crate) fn set(&self, at: u64, cpu: CpuId, yes: bool) {
        // Release: pairs with `get`.
        self.0.store(at << 9 | (cpu.index() as u64) << 1 | u64::from(yes), Ordering::Release)
    }
}

/// The ring of the last events, and the clock.
pub(crate) struct Log {
    clock: AtomicU64,
    capacity: usize,
    ring: Mutex<VecDeque<Event>>,
}

impl Log {
    pub(crate) fn new(capacity: usize) -> Log {
        Log {
            clock: AtomicU64::new(1),
            capacity,
            ring: Mutex::new(VecDeque::with_capacity(capacity)),
        }
    }

    pub(crate) fn now(&self) -> u64 {
        // Acquire: stamps of earlier times are visible; pairs with `note`.
        self.clock.load(Ordering::Acquire)
    }

    /// Logs an event and returns its time.
    pub(crate) fn note(&self, cpu: CpuId, kind: impl FnOnce() -> EventKind) -> u64 {
        // AcqRel: times are in the order of the events; pairs with `now`.
        let at = self.clock.fetch_add(1, Ordering::AcqRel) + 1;
        if self.capacity != 0 {
            let mut ring = crate::lock::locked(&self.ring);
            if ring.len() == self.capacity {
                ring.pop_front();
            }
            ring.push_back(Event { at, cpu, kind: kind() });
        }
        at
    }

    pub(crate) fn last(&self, count: usize) -> Vec<Event> {
        let ring = crate::lock::locked(&self.ring);
        ring.iter().skip(ring.len().saturating_sub(count)).cloned().collect()
    }

    /// The last event that changed an entry, if it is still in the ring.
    pub(crate) fn last_change(&self, table: Frame, index: usize) -> Option<Event> {
        let changes = |event: &&Event| match &event.kind {
            EventKind::Entry { op: EntryOp::Load, .. } => false,
            EventKind::Entry { table: of, index: at, .. } => (*of, *at) == (table, index),
            _ => false,
        };
        crate::lock::locked(&self.ring).iter().rev().find(changes).cloned()
    }
}

/// The change of an entry that an access is about to make, if any.
pub(crate) fn change(access: SharedAccess) -> Option<EventKind> {
    match access {
        SharedAccess::Entry { op: EntryOp::Load, .. } | SharedAccess::Other => None,
        SharedAccess::Entry { table, index, op } => Some(EventKind::Entry { table, index, op }),
    }
}
