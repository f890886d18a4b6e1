//! AArch64, VMSAv8-64: Arm Architecture Reference Manual for A-profile, chapter D8, with access
//! flags and dirty states that hardware manages (FEAT_HAFDBS); with granules of 4, 16 and 64 KiB,
//! and with addresses of 52 bits (FEAT_LPA2, or FEAT_LPA with 64 KiB).

use super::{Entry, Rights, page_of};
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

/// The place of the address bits above bit 47 in an entry.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum High {
    /// There are none.
    None,
    /// FEAT_LPA2: 49 and 48 in place, 51 and 50 in bits 9 and 8.
    Lpa2,
    /// FEAT_LPA: 51 to 48 in bits 15 to 12.
    Lpa,
}

/// The encoding of addresses.
#[derive(Clone, Copy)]
pub(super) struct Addresses {
    /// The base-2 logarithm of its bytes.
    pub(super) granule: u32,
    pub(super) high: High,
}

impl Addresses {
    /// The bits of an entry that hold an address. Those below the granule must be clear.
    pub(super) fn bits(self) -> u64 {
        match self.high {
            High::None | High::Lpa => 0x0000_ffff_ffff_f000,
            High::Lpa2 => 0x0003_ffff_ffff_f300,
        }
    }

    pub(super) fn frame(self, entry: u64) -> Frame {
        let bits = entry & self.bits();
        Frame::containing(PhysAddr::new(match self.high {
            High::None => bits,
            High::Lpa2 => bits & !0xfff | (bits >> 8 & 3) << 50,
            High::Lpa => bits & !0xffff | (bits >> 12 & 15) << 48,
        }))
    }

    fn table(self, entry: u64) -> Entry {
        let frame = self.frame(entry);
        match frame.number() & ((1 << (self.granule - 12)) - 1) {
            0 => Entry::Table(frame),
            _ => Entry::Malformed,
        }
    }
}

pub(super) fn decode(entry: u64, level: u8, addresses: Addresses) -> Entry {
    let granule = addresses.granule;
    match (entry & VALID != 0, entry & TYPE != 0) {
        (false, _) => Entry::Absent,
        (true, true) if level > 0 => addresses.table(entry),
        // A block at the lowest level is reserved. This machine knows the contiguous hint of pages.
        (true, is_page) if is_page == (level == 0) && (is_page || entry & CONTIGUOUS == 0) => {
            page_of(granule + (granule - 3) * u32::from(level), addresses.frame(entry))
        }
        _ => Entry::Malformed,
    }
}

/// The contiguous hint in the entry of a page.
pub(super) fn is_group(entry: u64) -> bool {
    entry & (VALID | CONTIGUOUS) == VALID | CONTIGUOUS
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
pub(super) fn with_accessed_dirty(entry: u64, dirty: bool) -> u64 {
    let entry = entry | AF;
    if dirty && entry & DBM != 0 { entry & !AP2 } else { entry }
}

pub(super) fn with_accessed_dirty2(entry: u64, dirty: bool) -> u64 {
    let entry = entry | AF;
    if dirty && entry & DBM != 0 { entry | AP2 } else { entry }
}
