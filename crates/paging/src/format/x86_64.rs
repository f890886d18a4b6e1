//! x86-64, with 4 and 5 levels.
//!
//! Entries that lead to tables have the accessed bit set from the start, so hardware never changes
//! them. A table of tables that software has emptied is therefore in its constructed state (I6).
//!
//! A `PROT_NONE` page has bit 0 clear and bit 58, a software bit, set. Hardware ignores all other
//! bits then.

use super::{Attrs, Cache, Decoded, Flags, Format, FormatError, check, check_frame, size_at};
use machine::{Frame, PageSize, PhysAddr};

const PRESENT: u64 = 1;
const WRITE: u64 = 1 << 1;
const USER: u64 = 1 << 2;
const ACCESSED: u64 = 1 << 5;
const DIRTY: u64 = 1 << 6;
const LARGE: u64 = 1 << 7;
const GLOBAL: u64 = 1 << 8;
const PROT_NONE: u64 = 1 << 58;
const NO_EXECUTE: u64 = 1 << 63;
const ADDRESS: u64 = 0x000f_ffff_ffff_f000;
/// Three software bits begin at `SOFT_LOW`, and two at `SOFT_HIGH`.
const SOFT_LOW: u32 = 9;
const SOFT_HIGH: u32 = 52;
/// Four bits name a holder. The lowest alone means that there is none.
const HOLDER: u64 = 15 << 54;
const HELD: u64 = 14 << 54;
const KEY: u32 = 59;

/// The value that the host loads into `IA32_PAT` (model-specific register 0x277), so that entries
/// select the memory types that this module means. The first four types are as after a reset.
///
/// ```
/// assert_eq!(paging::PAT as u32, 0x0007_0406);
/// ```
pub const PAT: u64 = 0x0007_0501_0007_0406;

/// x86-64 with this many levels: 4, or 5 with `CR4.LA57`.
#[derive(Clone, Copy, Debug)]
pub struct X86_64<const LEVELS: u8>;

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

// SAFETY: `decode` inverts `page` and `table` (tests). Hardware sets nothing but accessed bits in
// the entries of tables, and these are set already. An entry with bit 0 clear is absent to
// hardware, and to `decode` if bit 58 is clear, too. The constants are in their ranges.
unsafe impl<const LEVELS: u8> Format for X86_64<LEVELS> {
    const LEVELS: u8 = {
        // Three levels are enough for models.
        assert!(LEVELS == 4 || LEVELS == 5 || LEVELS == 3 && cfg!(loom));
        LEVELS
    };
    const PHYSICAL_BITS: u32 = 52;
    const SOFT_BITS: u32 = 5;
    const HOLDER: u64 = HOLDER;
    const KEYS: u8 = 16;
    /// An access needs the right to write at every level.
    const OWN: u64 = WRITE;
    const SHARED_IS_READ_ONLY: bool = true;

    #[inline]
    fn table(frame: Frame) -> Result<u64, FormatError> {
        check_frame::<Self>(frame)?;
        Ok(frame.start().get() | PRESENT | WRITE | USER | ACCESSED)
    }

    #[inline]
    fn page(size: PageSize, frame: Frame, attrs: Attrs) -> Result<u64, FormatError> {
        check::<Self>(size, frame, attrs)?;
        let Attrs { flags, cache, key, soft } = attrs;
        // Every present page is readable.
        if !flags.contains(Flags::READ) && flags.intersects(Flags::RWX) {
            return Err(FormatError::Rights(flags));
        }
        let bit = |flag, bit| if flags.contains(flag) { bit } else { 0 };
        let present = if flags.contains(Flags::READ) { PRESENT } else { PROT_NONE };
        let level = super::level_of(size);
        let number = CACHES.iter().position(|known| *known == cache);
        let number = number.ok_or(FormatError::Cache(cache))? as u64;
        let soft = u64::from(soft);
        Ok(frame.start().get()
            | present
            | bit(Flags::WRITE, WRITE)
            | bit(Flags::USER, USER)
            | bit(Flags::GLOBAL, GLOBAL)
            | bit(Flags::ACCESSED, ACCESSED)
            | bit(Flags::DIRTY, DIRTY)
            | (NO_EXECUTE ^ bit(Flags::EXECUTE, NO_EXECUTE))
            | if level == 0 { 0 } else { LARGE }
            | (number & 3) << 3
            | (number >> 2) << pat_bit(level)
            | (soft & 7) << SOFT_LOW
            | (soft >> 3) << SOFT_HIGH
            | u64::from(key) << KEY)
    }

    #[inline]
    fn alike(entry: u64, frame: Frame) -> Result<u64, FormatError> {
        check_frame::<Self>(frame)?;
        Ok(entry | frame.start().get())
    }

    #[inline]
    fn decode(entry: u64, level: u8) -> Decoded {
        if entry & (PRESENT | PROT_NONE) == 0 {
            return Decoded::Absent;
        }
        let frame = Frame::containing(PhysAddr::new(entry & ADDRESS));
        let page = match level {
            0 => true,
            _ => entry & LARGE != 0,
        };
        let Some(size) = size_at(level).filter(|_| page) else {
            let table = !page && entry & PRESENT != 0;
            return if table { Decoded::Table(frame) } else { Decoded::Malformed };
        };
        let pat = pat_bit(level);
        let own = if level == 0 { frame.number() } else { frame.number() & !1 };
        let Some(frame) = Frame::new(own).filter(|frame| frame.is_aligned(size)) else {
            return Decoded::Malformed;
        };
        let mut flags = Flags::empty();
        flags.set(Flags::READ, entry & PRESENT != 0);
        flags.set(Flags::WRITE, entry & WRITE != 0);
        flags.set(Flags::EXECUTE, entry & NO_EXECUTE == 0);
        flags.set(Flags::USER, entry & USER != 0);
        flags.set(Flags::GLOBAL, entry & GLOBAL != 0);
        // The holder may use the page without a mark.
        flags.set(Flags::ACCESSED, entry & (ACCESSED | HELD) != 0);
        flags.set(Flags::DIRTY, entry & DIRTY != 0);
        if !flags.contains(Flags::READ) && flags.intersects(Flags::RWX) {
            return Decoded::Malformed;
        }
        let number = (entry >> 3 & 3 | (entry >> pat & 1) << 2) as usize;
        let soft = entry >> SOFT_LOW & 7 | (entry >> SOFT_HIGH & 3) << 3;
        let key = (entry >> KEY & 15) as u8;
        Decoded::Page(frame, Attrs { flags, cache: CACHES[number], key, soft: soft as u16 })
    }

    #[inline]
    fn is_marked(entry: u64) -> bool {
        entry & ACCESSED != 0
    }

    #[inline]
    fn next(entry: u64, level: u8) -> Option<Frame> {
        (entry & (PRESENT | LARGE) == PRESENT && level != 0)
            .then(|| Frame::containing(PhysAddr::new(entry & ADDRESS)))
    }

    #[inline]
    fn usable(entry: u64, level: u8, write: bool) -> Option<Frame> {
        let wanted = PRESENT | USER | if write { WRITE } else { 0 };
        if level == 0 {
            // Nothing else in such an entry can be malformed.
            return (entry & wanted == wanted)
                .then(|| Frame::containing(PhysAddr::new(entry & ADDRESS)));
        }
        match Self::decode(entry, level) {
            Decoded::Page(frame, _) if entry & wanted == wanted => Some(frame),
            _ => None,
        }
    }
}
