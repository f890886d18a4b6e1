//! x86-64: AMD64 Architecture Programmer's Manual 2, 5.3, 5.4, and 15.25 for nested tables; Intel
//! SDM 3A, 4.5.

use super::{Entry, Rights, page};
use machine::{Frame, PhysAddr};

pub(super) const PRESENT: u64 = 1;
const WRITE: u64 = 1 << 1;
pub(super) const USER: u64 = 1 << 2;
const ACCESSED: u64 = 1 << 5;
pub(super) const DIRTY: u64 = 1 << 6;
pub(super) const LARGE: u64 = 1 << 7;
pub(super) const GLOBAL: u64 = 1 << 8;
const NO_EXECUTE: u64 = 1 << 63;
pub(super) const ADDRESS: u64 = 0x000f_ffff_ffff_f000;

pub(super) fn decode(entry: u64, level: u8) -> Entry {
    let frame = Frame::containing(PhysAddr::new(entry & ADDRESS));
    if entry & PRESENT == 0 {
        return Entry::Absent;
    }
    // At level 0 the bit has another meaning.
    if level == 0 {
        return page(level, frame);
    }
    if entry & LARGE == 0 {
        return Entry::Table(frame);
    }
    // In the entry of a large page, bit 12 is part of the memory type. The bits between it and the
    // address must be clear.
    Frame::new(frame.number() & !1).map_or(Entry::Malformed, |frame| page(level, frame))
}

/// In a nested table, where each access is one of user mode. A page for the kernel alone could not
/// be used: it is an error of the code.
pub(super) fn decode_nested(entry: u64, level: u8) -> Entry {
    match decode(entry, level) {
        Entry::Table(_) | Entry::Page(..) if entry & USER == 0 => Entry::Malformed,
        found => found,
    }
}

pub(super) fn rights(entry: u64) -> Rights {
    Rights {
        read: true,
        write: entry & WRITE != 0,
        user: entry & USER != 0,
        execute: entry & NO_EXECUTE == 0,
    }
}

pub(super) fn with_accessed_dirty(entry: u64, dirty: bool) -> u64 {
    entry | ACCESSED | if dirty { DIRTY } else { 0 }
}

/// The frame, and another one if the entry may be a large page's, in which the lowest address bit
/// belongs to the memory type.
pub(super) fn targets(entry: u64) -> (Frame, Option<Frame>) {
    let frame = Frame::containing(PhysAddr::new(entry & ADDRESS));
    let large = Frame::new(frame.number() & !1).filter(|even| entry & LARGE != 0 && *even != frame);
    (frame, large)
}
