//! Page-table entries of x86-64, as the machine's page walker reads them.
//!
//! Written from the manual, and deliberately independent of the crate that builds the tables: so an
//! error in one is not repeated in the other.

use machine::{Frame, PageSize, PhysAddr, VirtAddr};

pub(crate) const PRESENT: u64 = 1;
pub(crate) const WRITE: u64 = 1 << 1;
pub(crate) const USER: u64 = 1 << 2;
pub(crate) const ACCESSED: u64 = 1 << 5;
pub(crate) const DIRTY: u64 = 1 << 6;
pub(crate) const LARGE: u64 = 1 << 7;
pub(crate) const GLOBAL: u64 = 1 << 8;
pub(crate) const NO_EXECUTE: u64 = 1 << 63;
const ADDRESS: u64 = 0x000f_ffff_ffff_f000;

/// The rights of a translation; each level on the way down can only remove some.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Rights {
    pub(crate) write: bool,
    pub(crate) user: bool,
    pub(crate) execute: bool,
}

impl Rights {
    pub(crate) const ALL: Rights = Rights { write: true, user: true, execute: true };

    pub(crate) fn and(self, entry: u64) -> Rights {
        Rights {
            write: self.write && entry & WRITE != 0,
            user: self.user && entry & USER != 0,
            execute: self.execute && entry & NO_EXECUTE == 0,
        }
    }

    /// Whether these allow no more than `other`.
    pub(crate) fn within(self, other: Rights) -> bool {
        self.write <= other.write && self.user <= other.user && self.execute <= other.execute
    }

    pub(crate) fn allow(self, want: Want) -> bool {
        (self.write || !want.write) && (self.user || !want.user) && (self.execute || !want.execute)
    }
}

/// The rights that an access needs. The default is a read by the kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Want {
    /// A write.
    pub write: bool,
    /// An access in user mode, not by the kernel.
    pub user: bool,
    /// An instruction fetch.
    pub execute: bool,
}

/// A decoded entry of a level (0 for the table whose entries map 4 KiB).
pub(crate) enum Entry {
    Absent,
    Malformed,
    Table(Frame),
    Page(PageSize, Frame),
}

pub(crate) fn decode(entry: u64, level: u8) -> Entry {
    let frame = Frame::containing(PhysAddr::new(entry & ADDRESS));
    if entry & PRESENT == 0 {
        return Entry::Absent;
    }
    let size = match (level, entry & LARGE != 0) {
        // At level 0 this bit has another meaning.
        (0, _) => PageSize::Size4K,
        (1, true) => PageSize::Size2M,
        (2, true) => PageSize::Size1G,
        (_, true) => return Entry::Malformed,
        (_, false) => return Entry::Table(frame),
    };
    // In the entry of a large page, bit 12 is part of the memory type. The bits between it and the
    // address must be clear.
    let number = if level == 0 { frame.number() } else { frame.number() & !1 };
    match Frame::new(number) {
        Some(frame) if frame.is_aligned(size) => Entry::Page(size, frame),
        _ => Entry::Malformed,
    }
}

/// The index of the entry for `at` in a table of this level.
pub(crate) fn index(at: VirtAddr, level: u8) -> usize {
    (at.get() >> (12 + 9 * u32::from(level))) as usize & 511
}

/// Whether the bits above the translated ones repeat the highest of these.
pub(crate) fn is_canonical(at: VirtAddr, levels: u8) -> bool {
    let unused = 64 - (12 + 9 * u32::from(levels));
    ((at.get() << unused) as i64 >> unused) as u64 == at.get()
}
