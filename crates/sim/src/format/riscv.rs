//! RISC-V: the Privileged Architecture, chapters "Supervisor-Level ISA" (Sv39, Sv48, Sv57),
//! Svpbmt, Svadu and Svnapot.

use super::{Entry, Rights, page};
use machine::Frame;

pub(super) const VALID: u64 = 1;
const READ: u64 = 1 << 1;
const WRITE: u64 = 1 << 2;
const EXECUTE: u64 = 1 << 3;
pub(super) const USER: u64 = 1 << 4;
pub(super) const GLOBAL: u64 = 1 << 5;
const ACCESSED: u64 = 1 << 6;
pub(super) const DIRTY: u64 = 1 << 7;
pub(super) const ADDRESS: u64 = 0x003f_ffff_ffff_fc00;
/// Svnapot: the entry of a group, whose size is in the lowest bits of the address.
const NAPOT: u64 = 1 << 63;
const GROUP_PLACE: u64 = 15 << 10;
const GROUP_64K: u64 = 8 << 10;
/// Bits 60 to 54 are reserved, and bit 63 without Svnapot.
const RESERVED: u64 = 0x9fc0_0000_0000_0000;
const MEMORY_TYPE: u64 = 3 << 61;

pub(super) fn frame(entry: u64) -> Frame {
    Frame::new((entry & ADDRESS) >> 10).unwrap_or_default()
}

pub(super) fn decode(entry: u64, level: u8) -> Entry {
    if entry & VALID == 0 {
        return Entry::Absent;
    }
    let rights = entry & (READ | WRITE | EXECUTE);
    match () {
        () if entry & RESERVED != 0 || rights & (READ | WRITE) == WRITE => Entry::Malformed,
        () if rights == 0 => {
            // In the pointer to a table these bits are reserved.
            let reserved = USER | ACCESSED | DIRTY | MEMORY_TYPE;
            let table = level > 0 && entry & reserved == 0;
            if table { Entry::Table(frame(entry)) } else { Entry::Malformed }
        }
        // The fourth memory type is reserved.
        () if entry & MEMORY_TYPE == MEMORY_TYPE => Entry::Malformed,
        () => page(level, frame(entry)),
    }
}

/// Only groups of 64 KiB are defined.
pub(super) fn is_group(entry: u64) -> bool {
    entry & (NAPOT | VALID) == NAPOT | VALID && entry & GROUP_PLACE == GROUP_64K
}

/// The frame of the page at this index, in a group.
pub(super) fn frame_in_group(entry: u64, index: usize) -> Frame {
    frame(entry & !GROUP_PLACE | (index as u64) << 10 & GROUP_PLACE)
}

/// The entry of a page in a group.
pub(super) fn decode_group(entry: u64, index: usize) -> Entry {
    match decode(entry & !NAPOT, 0) {
        Entry::Page(size, _) => Entry::Page(size, frame_in_group(entry, index)),
        _ => Entry::Malformed,
    }
}

/// Only the entry of a page has rights.
pub(super) fn rights(entry: u64, is_page: bool) -> Rights {
    if !is_page {
        return Rights::ALL;
    }
    Rights {
        read: entry & READ != 0,
        write: entry & WRITE != 0,
        user: entry & USER != 0,
        execute: entry & EXECUTE != 0,
    }
}

pub(super) fn with_accessed_dirty(entry: u64, dirty: bool) -> u64 {
    entry | ACCESSED | if dirty { DIRTY } else { 0 }
}
