//! x86-64, with 4 and 5 levels.

use super::{Sealed, WRITE, X86};
use crate::format::{Cache, Flags};
use machine::Frame;

const PRESENT: u64 = 1;
pub(super) const USER: u64 = 1 << 2;
pub(super) const ACCESSED: u64 = 1 << 5;
pub(super) const DIRTY: u64 = 1 << 6;
const GLOBAL: u64 = 1 << 8;
const NO_EXECUTE: u64 = 1 << 63;
/// Three software bits begin at `SOFT_LOW`, and two at `SOFT_HIGH`.
const SOFT_LOW: u32 = 9;
const SOFT_HIGH: u32 = 52;
const KEY: u32 = 59;

/// The value that the host loads into `IA32_PAT` (model-specific register 0x277), so that entries
/// select the memory types that this module means. The first four types are as after a reset.
///
/// ```
/// assert_eq!(paging::PAT as u32, 0x0007_0406);
/// ```
pub const PAT: u64 = 0x0007_0501_0007_0406;

/// The kind of x86-64's own tables.
#[derive(Clone, Copy, Debug)]
pub struct LongMode;

/// x86-64 with this many levels: 4, or 5 with `CR4.LA57`.
pub type X86_64<const LEVELS: u8> = X86<LongMode, LEVELS>;
/// Four levels: 48-bit addresses.
pub type X86_64L4 = X86_64<4>;
/// Five levels: 57-bit addresses.
pub type X86_64L5 = X86_64<5>;

/// By their number in the PAT.
const CACHES: [Cache; 8] = [
    Cache::WriteBack,
    Cache::WriteThrough,
    Cache::UncachedMinus,
    Cache::Uncached,
    Cache::WriteCombining,
    Cache::WriteProtect,
    Cache::UncachedMinus,
    Cache::Uncached,
];

/// The position of the third bit of the PAT number. In large pages it is elsewhere, since bit 7
/// marks them as large.
const fn pat_bit(level: u8) -> u32 {
    if level == 0 { 7 } else { 12 }
}

impl Sealed for LongMode {
    const PRESENT: u64 = PRESENT;
    const TABLE: u64 = PRESENT | WRITE | USER | ACCESSED;
    const ACCESSED: u64 = ACCESSED;
    const DIRTY: u64 = DIRTY;
    const READABLE: u64 = PRESENT | USER;
    const SOFT_BITS: u32 = 5;
    const KEYS: u8 = 16;
    const SECOND_STAGE: bool = false;

    #[inline]
    fn has(_: Flags) -> bool {
        true
    }

    #[inline]
    fn encode(flags: Flags) -> u64 {
        let bit = |flag, bit| if flags.contains(flag) { bit } else { 0 };
        bit(Flags::WRITE, WRITE)
            | bit(Flags::USER, USER)
            | bit(Flags::GLOBAL, GLOBAL)
            | (NO_EXECUTE ^ bit(Flags::EXECUTE, NO_EXECUTE))
    }

    #[inline]
    fn flags(entry: u64) -> Option<Flags> {
        let mut flags = Flags::empty();
        flags.set(Flags::WRITE, entry & WRITE != 0);
        flags.set(Flags::EXECUTE, entry & NO_EXECUTE == 0);
        flags.set(Flags::USER, entry & USER != 0);
        flags.set(Flags::GLOBAL, entry & GLOBAL != 0);
        Some(flags)
    }

    #[inline]
    fn cache_bits(cache: Cache, level: u8) -> Option<u64> {
        let number = CACHES.iter().position(|known| *known == cache)? as u64;
        Some((number & 3) << 3 | (number >> 2) << pat_bit(level))
    }

    #[inline]
    fn cache(entry: u64, level: u8) -> Option<Cache> {
        let number = entry >> 3 & 3 | (entry >> pat_bit(level) & 1) << 2;
        CACHES.get(number as usize).copied()
    }

    #[inline]
    fn soft_bits(soft: u16, key: u8) -> u64 {
        let soft = u64::from(soft);
        (soft & 7) << SOFT_LOW | (soft >> 3) << SOFT_HIGH | u64::from(key) << KEY
    }

    #[inline]
    fn soft(entry: u64) -> u16 {
        (entry >> SOFT_LOW & 7 | (entry >> SOFT_HIGH & 3) << 3) as u16
    }

    #[inline]
    fn key(entry: u64) -> u8 {
        (entry >> KEY & 15) as u8
    }

    /// In a large page, the lowest address bit belongs to the memory type.
    #[inline]
    fn frame(number: u64, level: u8) -> Option<Frame> {
        Frame::new(if level == 0 { number } else { number & !1 })
    }
}
