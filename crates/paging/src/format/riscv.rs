//! RISC-V: Sv39, Sv48 and Sv57, with the memory types of Svpbmt, and with or without Svnapot.
//!
//! The memory types are PMA, NC and IO of the extension Svpbmt: [`Cache::WriteBack`],
//! [`Cache::WriteCombining`] and [`Cache::Uncached`]. On a machine without it there is
//! [`Cache::WriteBack`] alone, which has the same encoding. Entries never have the fourth type,
//! which is reserved.
//!
//! An implementation may leave the accessed and dirty bits to software, by a page fault. On such a
//! machine, map pages with both bits set.
//!
//! With Svnapot, 16 pages of 64 KiB can be a group. Each of their entries has bit 63, and a number
//! in the place of the lowest four bits of the frame: 8. So a frame of the group follows from the
//! entry's index.
//!
//! A `PROT_NONE` page has the valid bit clear and bit 60 set. Hardware ignores all other bits then.

use super::{Attrs, Cache, Decoded, Flags, Format, FormatError, Geometry, check, check_frame};
use machine::{Frame, PageSize};

const VALID: u64 = 1;
const READ: u64 = 1 << 1;
const WRITE: u64 = 1 << 2;
const EXECUTE: u64 = 1 << 3;
const USER: u64 = 1 << 4;
const GLOBAL: u64 = 1 << 5;
const ACCESSED: u64 = 1 << 6;
const DIRTY: u64 = 1 << 7;
const SOFT: u32 = 8;
/// In the entry of a table, hardware ignores the software bits, too.
const OWN: u64 = 1 << SOFT;
const NUMBER: u32 = 10;
const PROT_NONE: u64 = 1 << 60;
const MEMORY_TYPE: u32 = 61;
/// Svnapot: the entry of a group.
const NAPOT: u64 = 1 << 63;
/// Bits 54 to 60, and the mark of a group, which [`Format::alone`] takes away.
const RESERVED: u64 = 0x7f << 54 | NAPOT;
/// The place in the entry of a group that has the group's size, and otherwise the lowest bits of
/// the frame; and the size of 64 KiB there.
const GROUP_PLACE: u64 = 15 << NUMBER;
const GROUP_64K: u64 = 8 << NUMBER;

/// RISC-V with this many levels, and with or without Svnapot.
#[derive(Clone, Copy, Debug)]
pub struct Riscv<const LEVELS: u8, const SVNAPOT: bool = false>;

/// Three levels: addresses of 39 bits.
pub type Sv39 = Riscv<3>;
/// Four levels: addresses of 48 bits.
pub type Sv48 = Riscv<4>;
/// Five levels: addresses of 57 bits.
pub type Sv57 = Riscv<5>;
/// [`Sv39`] with Svnapot.
pub type Sv39Napot = Riscv<3, true>;
/// [`Sv48`] with Svnapot.
pub type Sv48Napot = Riscv<4, true>;
/// [`Sv57`] with Svnapot.
pub type Sv57Napot = Riscv<5, true>;

const CACHES: [Cache; 3] = [Cache::WriteBack, Cache::WriteCombining, Cache::Uncached];

// SAFETY: `decode` inverts `page` and `table` (tests). Hardware does not change the entries of
// tables. An entry with bit 0 clear is absent to hardware, and to `decode` if bit 60 is clear, too.
// The constants are in their ranges.
unsafe impl<const LEVELS: u8, const SVNAPOT: bool> Format for Riscv<LEVELS, SVNAPOT> {
    const LEVELS: u8 = {
        assert!(LEVELS >= 3 && LEVELS <= 5);
        LEVELS
    };
    const PHYSICAL_BITS: u32 = 56;
    const SOFT_BITS: u32 = 2;
    /// All bits have another use.
    const KEYS: u8 = 1;
    const OWN: u64 = OWN;
    /// Only the entry of a page has rights.
    const SHARED_IS_READ_ONLY: bool = false;
    const GROUP: Option<PageSize> = if SVNAPOT { Some(PageSize::Size64K) } else { None };

    #[inline]
    fn table(frame: Frame) -> Result<u64, FormatError> {
        check_frame::<Self>(frame)?;
        Ok(frame.number() << NUMBER | VALID | OWN)
    }

    #[inline]
    fn page(size: PageSize, frame: Frame, attrs: Attrs) -> Result<u64, FormatError> {
        check::<Self>(size, frame, attrs)?;
        let Attrs { flags, cache, soft, .. } = attrs;
        if flags.contains(Flags::WRITE) && !flags.contains(Flags::READ) {
            return Err(FormatError::Rights(flags));
        }
        let bit = |flag, bit| if flags.contains(flag) { bit } else { 0 };
        let number = CACHES.iter().position(|known| *known == cache);
        let number = number.ok_or(FormatError::Cache(cache))? as u64;
        Ok(frame.number() << NUMBER
            | if flags.intersects(Flags::RWX) { VALID } else { PROT_NONE }
            | bit(Flags::READ, READ)
            | bit(Flags::WRITE, WRITE)
            | bit(Flags::EXECUTE, EXECUTE)
            | bit(Flags::USER, USER)
            | bit(Flags::GLOBAL, GLOBAL)
            | bit(Flags::ACCESSED, ACCESSED)
            | bit(Flags::DIRTY, DIRTY)
            | u64::from(soft) << SOFT
            | number << MEMORY_TYPE)
    }

    #[inline]
    fn alike(entry: u64, frame: Frame) -> Result<u64, FormatError> {
        check_frame::<Self>(frame)?;
        Ok(entry | frame.number() << NUMBER)
    }

    #[inline]
    fn grouped(entry: u64) -> u64 {
        entry & !GROUP_PLACE | GROUP_64K | NAPOT
    }

    #[inline]
    fn alone(entry: u64, index: usize) -> u64 {
        const MARK: u64 = NAPOT | GROUP_PLACE | VALID;
        if !SVNAPOT || entry & MARK != NAPOT | GROUP_64K | VALID {
            return entry;
        }
        entry & !(NAPOT | GROUP_PLACE) | (index as u64) << NUMBER & GROUP_PLACE
    }

    #[inline]
    fn decode(entry: u64, level: u8) -> Decoded {
        let valid = entry & VALID != 0;
        if !valid && entry & PROT_NONE == 0 {
            return Decoded::Absent;
        }
        let (reserved, rights) =
            (if valid { 0 } else { PROT_NONE }, entry & (READ | WRITE | EXECUTE));
        let Some(frame) = Frame::new(entry >> NUMBER & ((1 << 44) - 1)) else {
            return Decoded::Malformed;
        };
        // Only a page has rights, except a `PROT_NONE` page.
        if valid && rights == 0 {
            let zero = USER | ACCESSED | DIRTY | 3 << MEMORY_TYPE | RESERVED;
            let table = level > 0 && entry & zero == 0;
            return if table { Decoded::Table(frame) } else { Decoded::Malformed };
        }
        let bits = entry & RESERVED == reserved && (valid || rights == 0);
        let pair = rights & WRITE == 0 || rights & READ != 0;
        let fits = Self::size_at(level).is_some_and(|size| frame.is_aligned(size));
        let cache = CACHES.get((entry >> MEMORY_TYPE & 3) as usize);
        let (true, Some(cache)) = (bits && pair && fits, cache) else {
            return Decoded::Malformed;
        };
        let mut flags = Flags::empty();
        flags.set(Flags::READ, entry & READ != 0);
        flags.set(Flags::WRITE, entry & WRITE != 0);
        flags.set(Flags::EXECUTE, entry & EXECUTE != 0);
        flags.set(Flags::USER, entry & USER != 0);
        flags.set(Flags::GLOBAL, entry & GLOBAL != 0);
        flags.set(Flags::ACCESSED, entry & ACCESSED != 0);
        flags.set(Flags::DIRTY, entry & DIRTY != 0);
        Decoded::Page(
            frame,
            Attrs { flags, cache: *cache, key: 0, soft: (entry >> SOFT & 3) as u16 },
        )
    }

    #[inline]
    fn next(entry: u64, level: u8) -> Option<Frame> {
        const ZERO: u64 =
            READ | WRITE | EXECUTE | USER | ACCESSED | DIRTY | 3 << MEMORY_TYPE | RESERVED;
        if level == 0 || entry & (ZERO | VALID) != VALID {
            return None;
        }
        Frame::new(entry >> NUMBER & ((1 << 44) - 1))
    }
}
