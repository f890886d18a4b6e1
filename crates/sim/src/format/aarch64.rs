//! AArch64, VMSAv8-64 with the granule of 4 KiB: Arm Architecture Reference Manual for A-profile,
//! chapter D8, with access flags and dirty states that hardware manages (FEAT_HAFDBS), for four
//! levels and, with FEAT_LPA2, for five.

use super::{Entry, Rights, page};
use machine::{Frame, PhysAddr};

pub(super) const VALID: u64 = 1;
const TYPE: u64 = 1 << 1;
const AP1: u64 = 1 << 6;
/// AP\[2\]: read-only. In stage 2, S2AP\[1\]: writable.
pub(super) const AP2: u64 = 1 << 7;
const AF: u64 = 1 << 10;
pub(super) const NOT_GLOBAL: u64 = 1 << 11;
const DBM: u64 = 1 << 51;
const CONTIGUOUS: u64 = 1 << 52;
const PXN: u64 = 1 << 53;
const UXN: u64 = 1 << 54;
/// APTable, UXNTable and PXNTable.
const NO_WRITE_BELOW: u64 = 1 << 62;
const NO_USER_BELOW: u64 = 1 << 61;
const NO_EXECUTE_BELOW: u64 = 3 << 59;

/// Five levels mean FEAT_LPA2.
pub(super) fn address_bits(levels: u8) -> u64 {
    if levels == 5 { 0x0003_ffff_ffff_f300 } else { 0x0000_ffff_ffff_f000 }
}

pub(super) fn frame(entry: u64, levels: u8) -> Frame {
    let bits = entry & address_bits(levels);
    Frame::containing(PhysAddr::new(bits & !0xfff | (bits >> 8 & 3) << 50))
}

pub(super) fn decode(entry: u64, level: u8, levels: u8) -> Entry {
    match (entry & VALID != 0, entry & TYPE != 0) {
        (false, _) => Entry::Absent,
        (true, true) if level > 0 => Entry::Table(frame(entry, levels)),
        // A block at the lowest level is reserved. This machine has no contiguous hint.
        (true, is_page) if is_page == (level == 0) && entry & CONTIGUOUS == 0 => {
            page(level, frame(entry, levels))
        }
        _ => Entry::Malformed,
    }
}

pub(super) fn is_user(entry: u64) -> bool {
    entry & AP1 != 0
}

pub(super) fn rights(entry: u64, is_page: bool) -> Rights {
    if !is_page {
        return Rights {
            read: true,
            write: entry & NO_WRITE_BELOW == 0,
            user: entry & NO_USER_BELOW == 0,
            execute: entry & NO_EXECUTE_BELOW == 0,
        };
    }
    Rights {
        read: true,
        write: entry & AP2 == 0 || entry & DBM != 0,
        user: is_user(entry),
        execute: entry & if is_user(entry) { UXN } else { PXN } == 0,
    }
}

/// In stage 2, the entries of tables have no rights.
pub(super) fn rights2(entry: u64, is_page: bool) -> Rights {
    if !is_page {
        return Rights::ALL;
    }
    Rights {
        read: entry & AP1 != 0,
        write: entry & AP2 != 0 || entry & DBM != 0,
        user: true,
        execute: entry & UXN == 0,
    }
}

/// A write takes the clean state away.
pub(super) fn marked(entry: u64, dirty: bool) -> u64 {
    let entry = entry | AF;
    if dirty && entry & DBM != 0 { entry & !AP2 } else { entry }
}

pub(super) fn marked2(entry: u64, dirty: bool) -> u64 {
    let entry = entry | AF;
    if dirty && entry & DBM != 0 { entry | AP2 } else { entry }
}
