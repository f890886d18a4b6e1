//! The second stage of AMD-V: nested page tables, with the addresses of guests.
//!
//! They are tables of long mode. The processor treats each access of a guest as one of user mode,
//! so every present page has the user bit. It treats a walk of the guest's own tables as a write:
//! pages that hold them need the right to write. The host sets `EFER.NXE`.
//!
//! A guest has no pages that are global or belong to its kernel alone: such rights are in its own
//! tables. Memory types are by the host's PAT.

use super::long_mode::{ACCESSED, DIRTY, LongMode, USER};
use super::{Sealed, X86};
use crate::format::{Cache, Flags};
use machine::Frame;

/// The kind of nested page tables.
#[derive(Clone, Copy, Debug)]
pub struct Nested;

/// Nested page tables with as many levels as the host's own tables.
pub type Npt<const LEVELS: u8> = X86<Nested, LEVELS>;
/// Four levels: 48-bit guest-physical addresses.
pub type Npt4 = Npt<4>;
/// Five levels: 57-bit guest-physical addresses.
pub type Npt5 = Npt<5>;

impl Sealed for Nested {
    const PRESENT: u64 = LongMode::PRESENT;
    const TABLE: u64 = LongMode::TABLE;
    const ACCESSED: u64 = ACCESSED;
    const DIRTY: u64 = DIRTY;
    const READABLE: u64 = LongMode::READABLE;
    const SOFT_BITS: u32 = LongMode::SOFT_BITS;
    const KEYS: u8 = 1;
    const SECOND_STAGE: bool = true;

    #[inline]
    fn has(flags: Flags) -> bool {
        flags.contains(Flags::READ) <= flags.contains(Flags::USER) && !flags.contains(Flags::GLOBAL)
    }

    #[inline]
    fn encode(flags: Flags) -> u64 {
        LongMode::encode(flags)
    }

    #[inline]
    fn flags(entry: u64) -> Option<Flags> {
        let present = entry & Self::PRESENT != 0;
        let flags = LongMode::flags(entry)?;
        (present <= (entry & USER != 0) && !flags.contains(Flags::GLOBAL)).then_some(flags)
    }

    #[inline]
    fn cache_bits(cache: Cache, level: u8) -> Option<u64> {
        LongMode::cache_bits(cache, level)
    }

    #[inline]
    fn cache(entry: u64, level: u8) -> Option<Cache> {
        LongMode::cache(entry, level)
    }

    #[inline]
    fn soft_bits(soft: u16, _: u8) -> u64 {
        LongMode::soft_bits(soft, 0)
    }

    #[inline]
    fn soft(entry: u64) -> u16 {
        LongMode::soft(entry)
    }

    #[inline]
    fn key(_: u64) -> u8 {
        0
    }

    #[inline]
    fn frame(number: u64, level: u8) -> Option<Frame> {
        LongMode::frame(number, level)
    }
}
