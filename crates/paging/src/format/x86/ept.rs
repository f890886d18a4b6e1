//! The second stage of VT-x: extended page tables, with the addresses of guests (Intel SDM 3C,
//! "The Extended Page Table Mechanism").
//!
//! The host sets bit 6 of the EPT pointer, so that the processor sets accessed and dirty bits, bits
//! 5:3 to the number of levels less one, and bits 2:0 to 6, since tables are write-back memory. A
//! walk of the guest's own tables then counts as a write: pages that hold them need the right to
//! write. The control "EPT-violation #VE" stays clear: no entry, absent ones included, has bit 63,
//! which suppresses that exception.
//!
//! No entry is one of the misconfigurations that the manual names. A page with the right to write
//! or to execute is readable, although most processors have pages that can only be executed. Memory
//! types are among the five that exist. Reserved bits are clear. The guest's PAT counts, too: the
//! bit that ignores it stays clear.
//!
//! With mode-based execute control, code of the guest's kernel and of its programs may execute a
//! page alike.

use super::{Sealed, WRITE, X86};
use crate::format::{Cache, Flags};
use machine::Frame;

const READ: u64 = 1;
/// Both bits: for the guest's kernel, and for its programs with mode-based execute control.
const EXECUTE: u64 = 1 << 2 | 1 << 10;
const TYPE: u32 = 3;
const ACCESSED: u64 = 1 << 8;
const DIRTY: u64 = 1 << 9;
const SOFT: u32 = 52;

/// The kind of extended page tables.
#[derive(Clone, Copy, Debug)]
pub struct Extended;

/// Extended page tables with this many levels.
pub type Ept<const LEVELS: u8> = X86<Extended, LEVELS>;
/// Four levels: 48-bit guest-physical addresses.
pub type Ept4 = Ept<4>;
/// Five levels: 57-bit guest-physical addresses.
pub type Ept5 = Ept<5>;

/// By their numbers.
const CACHES: [(Cache, u64); 5] = [
    (Cache::Uncached, 0),
    (Cache::WriteCombining, 1),
    (Cache::WriteThrough, 4),
    (Cache::WriteProtect, 5),
    (Cache::WriteBack, 6),
];

impl Sealed for Extended {
    const PRESENT: u64 = READ;
    const TABLE: u64 = READ | WRITE | EXECUTE | ACCESSED;
    const ACCESSED: u64 = ACCESSED;
    const DIRTY: u64 = DIRTY;
    const READABLE: u64 = READ;
    const SOFT_BITS: u32 = 5;
    /// Too few bits are left.
    const KEYS: u8 = 1;
    const SECOND_STAGE: bool = true;

    /// All accesses are the guest's.
    #[inline]
    fn has(flags: Flags) -> bool {
        flags.contains(Flags::READ) == flags.contains(Flags::USER) && !flags.contains(Flags::GLOBAL)
    }

    #[inline]
    fn encode(flags: Flags) -> u64 {
        let bit = |flag, bit| if flags.contains(flag) { bit } else { 0 };
        bit(Flags::WRITE, WRITE) | bit(Flags::EXECUTE, EXECUTE)
    }

    #[inline]
    fn flags(entry: u64) -> Option<Flags> {
        let mut flags = Flags::empty();
        flags.set(Flags::WRITE, entry & WRITE != 0);
        flags.set(Flags::EXECUTE, entry & EXECUTE == EXECUTE);
        flags.set(Flags::USER, entry & READ != 0);
        Some(flags)
    }

    #[inline]
    fn cache_bits(cache: Cache, _: u8) -> Option<u64> {
        let known = CACHES.iter().find(|(known, _)| *known == cache)?;
        Some(known.1 << TYPE)
    }

    #[inline]
    fn cache(entry: u64, _: u8) -> Option<Cache> {
        let number = entry >> TYPE & 7;
        CACHES.iter().find(|(_, known)| *known == number).map(|(cache, _)| *cache)
    }

    #[inline]
    fn soft_bits(soft: u16, _: u8) -> u64 {
        u64::from(soft) << SOFT
    }

    #[inline]
    fn soft(entry: u64) -> u16 {
        (entry >> SOFT & 31) as u16
    }

    #[inline]
    fn key(_: u64) -> u8 {
        0
    }

    #[inline]
    fn frame(number: u64, _: u8) -> Option<Frame> {
        Frame::new(number)
    }
}
