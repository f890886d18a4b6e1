//! Extended page tables of VT-x: Intel SDM 3C, "The Extended Page Table Mechanism", with accessed
//! and dirty bits, without pages that can only be executed.

use super::{Entry, Rights, page};
use machine::{Frame, PhysAddr};

const READ: u64 = 1;
const WRITE: u64 = 1 << 1;
const EXECUTE: u64 = 1 << 2;
const LARGE: u64 = 1 << 7;
const ACCESSED: u64 = 1 << 8;
pub(super) const DIRTY: u64 = 1 << 9;
const ADDRESS: u64 = super::x86::ADDRESS;

pub(super) fn is_present(entry: u64) -> bool {
    entry & (READ | WRITE | EXECUTE) != 0
}

/// A misconfiguration is malformed.
pub(super) fn decode(entry: u64, level: u8) -> Entry {
    let frame = Frame::containing(PhysAddr::new(entry & ADDRESS));
    let is_page = level == 0 || entry & LARGE != 0;
    match () {
        () if !is_present(entry) => Entry::Absent,
        () if entry & READ == 0 => Entry::Malformed,
        // In the entry of a table, these bits are reserved.
        () if !is_page && entry & 0x78 != 0 => Entry::Malformed,
        () if !is_page => Entry::Table(frame),
        // Memory types that do not exist.
        () if matches!(entry >> 3 & 7, 2 | 3 | 7) => Entry::Malformed,
        () => page(level, frame),
    }
}

pub(super) fn rights(entry: u64) -> Rights {
    Rights {
        read: entry & READ != 0,
        write: entry & WRITE != 0,
        user: true,
        execute: entry & EXECUTE != 0,
    }
}

pub(super) fn with_accessed_dirty(entry: u64, dirty: bool) -> u64 {
    entry | ACCESSED | if dirty { DIRTY } else { 0 }
}
