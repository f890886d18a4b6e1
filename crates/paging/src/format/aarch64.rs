//! AArch64, VMSAv8-64: stage 1 with granules of 4, 16 and 64 KiB, and stage 2 for guests.
//!
//! The two stages share all but the bits of rights and memory types, which a [`VmsaKind`] has. The
//! granules differ in sizes, and in the bits of an address of 52 bits.
//!
//! # What the host sets
//! - `TCR_EL1.HA` and `HD`, `VTCR_EL2.HA` and `HD`: hardware sets the access flag and the dirty
//!   state. A writable page is clean while it is marked read-only with the bit DBM; the first write
//!   takes the mark away. A page that has lost the right to write keeps its dirty state in a
//!   software bit.
//! - `MAIR_EL1` to [`MAIR`]. Memory is inner shareable. `TCR_EL1.HPD0` and `HPD1` stay clear: the
//!   entry of a table that a fork shares forbids writing by `APTable`.
//! - Stage 1: one top-level table serves both base registers. The highest bit of an address chooses
//!   the half. `TTBR0_EL1` has the address of the table, and `TTBR1_EL1` that of the first entry of
//!   the upper half, which the table of formats names. It is aligned as hardware demands.
//! - Stage 2: `VTCR_EL2.T0SZ` is 16 and `SL0` is 2 with four levels, 25 and 1 with three. `DS` and
//!   `HCR_EL2.FWB` stay clear: the latter gives memory types other numbers.
//!
//! | format | granule | levels | bits | `TCR_EL1`: `T0SZ`, `T1SZ` | `TG0`, `TG1` | `DS` | entry for `TTBR1_EL1` |
//! |---|---|---|---|---|---|---|---|
//! | [`Aarch64`] | 4 KiB | 4 | 48 | 17 | 0, 2 | 0 | 256 |
//! | [`Aarch64Lpa2`] | 4 KiB | 5 | 52 | 13 | 0, 2 | 1 | 504 |
//! | [`Aarch64G16L3`] | 16 KiB | 3 | 47 | 18 | 2, 1 | 0 | 1024 |
//! | [`Aarch64G16`] | 16 KiB | 4 | 49 | 16 | 2, 1 | 0 | 2046 |
//! | [`Aarch64G16Lpa2`] | 16 KiB | 4 | 52 | 13 | 2, 1 | 1 | 2032 |
//! | [`Aarch64G64`] | 64 KiB | 3 | 48 | 17 | 1, 3 | 0 | 8160 |
//! | [`Aarch64G64Lpa`] | 64 KiB | 3 | 52 | 13 | 1, 3 | 0 | 7680 |
//!
//! The bits are those of both halves together. `Aarch64G16` has one more than others, since with
//! 48, 47 in each half, hardware begins a level lower. The formats of 52 bits also have physical
//! addresses of 52 bits (`TCR_EL1.IPS` is 6): with `DS` (FEAT_LPA2), their two highest bits are in
//! the place of shareability, which is that of `TCR_EL1` then; with 64 KiB (FEAT_LPA, FEAT_LVA),
//! their four highest bits are in bits 12 to 15.
//!
//! Two levels of 64 KiB, 42 bits, are left out: a large page would be in the top-level table, of
//! which each space has a copy for the kernel's half.
//!
//! # Break-before-make
//! The architecture forbids to replace a valid entry by one that maps pages of another size, other
//! memory that may be written, or another memory type, or an entry that is not global by one that
//! is: [`Format::BREAK_BEFORE_MAKE`]. The cursor makes the entry invalid first, invalidates the
//! TLBs, and then stores the new one.
//!
//! # Contiguous hint
//! It is the mark of a [group](Format::GROUP): of 16 pages, or of 128 or 32 with the larger
//! granules, at level 0. It is not used for large pages.
//!
//! A `PROT_NONE` page is not valid, and has bit 58 set. Hardware ignores all other bits then.

use super::{Attrs, Cache, Decoded, Flags, Format, FormatError, Geometry, check, check_frame};
use core::fmt;
use core::marker::PhantomData;
use machine::{Frame, PageSize};

const VALID: u64 = 1;
/// A table, or at the lowest level a page; not a block.
const TYPE: u64 = 1 << 1;
/// Inner shareable.
const SHARED: u64 = 3 << 8;
const ACCESSED: u64 = 1 << 10;
const NOT_GLOBAL: u64 = 1 << 11;
const ADDRESS: u64 = 0x0000_ffff_ffff_f000;
/// With FEAT_LPA2: bits 48 and 49 of the address in their places, 50 and 51 in those of SH.
const ADDRESS_LPA2: u64 = 0x0003_ffff_ffff_f000;
const HIGH: u32 = 8;
/// With 64 KiB and 52 bits: bits 48 to 51 of the address in bits 12 to 15.
const ADDRESS_LPA: u64 = 0x0000_ffff_ffff_0000;
const HIGH_LPA: u32 = 12;
/// The page may be written: hardware takes its clean state away.
const DBM: u64 = 1 << 51;
/// The contiguous hint.
const CONTIGUOUS: u64 = 1 << 52;
/// In the entry of a page without the right to write: it is dirty.
const WAS_DIRTY: u64 = 1 << 55;
/// In the entry of a table.
const OWN: u64 = 1 << 55;
/// Two software bits begin here, and three more above the bit of `PROT_NONE`.
const SOFT_LOW: u32 = 56;
const SOFT_HIGH: u32 = 59;
const PROT_NONE: u64 = 1 << 58;

/// The value that the host loads into `MAIR_EL1`, so that entries select the memory types that this
/// module means: write-back, Device-nGnRE, Normal non-cacheable, write-through.
///
/// ```
/// assert_eq!(paging::MAIR as u8, 0xff);
/// ```
pub const MAIR: u64 = 0xbb44_04ff;

/// The differences between the stages. Implemented in this crate only.
#[expect(private_bounds, reason = "only this crate implements it")]
pub trait VmsaKind: Sealed {}

impl<K: Sealed> VmsaKind for K {}

/// The encoding of a stage.
trait Sealed: Copy + fmt::Debug + Send + Sync + 'static {
    const SECOND_STAGE: bool;
    /// In the entry of a table that a fork shares: forbids writing below.
    const READ_ONLY_BELOW: u64;

    /// Whether a page can have these rights. READ is there if any of READ, WRITE and EXECUTE is.
    fn has(flags: Flags) -> bool;

    /// The bits for rights; `written` says whether hardware may let writes pass without a mark.
    fn encode(flags: Flags, written: bool) -> u64;

    /// USER, GLOBAL and EXECUTE of an entry, and whether it lets writes pass without a mark. `None`
    /// if no page has such bits.
    fn flags(entry: u64) -> Option<(Flags, bool)>;

    /// The bits for a memory type.
    fn cache_bits(cache: Cache) -> Option<u64>;

    fn cache(entry: u64) -> Option<Cache>;
}

/// Stage 1: the tables of programs and kernels.
#[derive(Clone, Copy, Debug)]
pub struct Stage1;

/// Stage 2: the tables of guests, by VMID.
#[derive(Clone, Copy, Debug)]
pub struct Stage2;

/// Page tables of AArch64 with this many levels, a granule of `1 << GRANULE` bytes, and physical
/// addresses of so many bits, 48 or 52.
#[derive(Clone, Copy)]
pub struct Vmsa<K, const LEVELS: u8, const GRANULE: u32 = 12, const BITS: u32 = 48>(PhantomData<K>);

/// Stage 1 with a granule of 4 KiB and four levels: addresses of 48 bits.
pub type Aarch64 = Vmsa<Stage1, 4>;
/// Stage 1 with a granule of 4 KiB and five levels (FEAT_LPA2): addresses of 52 bits.
pub type Aarch64Lpa2 = Vmsa<Stage1, 5, 12, 52>;
/// Stage 1 with a granule of 16 KiB and three levels: addresses of 47 bits.
pub type Aarch64G16L3 = Vmsa<Stage1, 3, 14>;
/// Stage 1 with a granule of 16 KiB and four levels: addresses of 49 bits, 48 in each half.
///
/// ```
/// use machine::{Frame, PageSize};
/// use paging::{Aarch64G16, Attrs, Format, Geometry};
/// assert_eq!((Aarch64G16::PAGE, Aarch64G16::LARGE), (PageSize::Size16K, PageSize::Size32M));
/// // Frames are numbered in 4 KiB, and those of a page are aligned.
/// let entry = |number| {
///     Aarch64G16::page(Aarch64G16::PAGE, Frame::new(number).unwrap(), Attrs::USER_RW)
/// };
/// assert!(entry(8).is_ok() && entry(9).is_err());
/// ```
pub type Aarch64G16 = Vmsa<Stage1, 4, 14>;
/// Stage 1 with a granule of 16 KiB and four levels (FEAT_LPA2): addresses of 52 bits.
pub type Aarch64G16Lpa2 = Vmsa<Stage1, 4, 14, 52>;
/// Stage 1 with a granule of 64 KiB and three levels: addresses of 48 bits.
pub type Aarch64G64 = Vmsa<Stage1, 3, 16>;
/// Stage 1 with a granule of 64 KiB and three levels (FEAT_LVA, FEAT_LPA): addresses of 52 bits.
pub type Aarch64G64Lpa = Vmsa<Stage1, 3, 16, 52>;
/// Stage 2 with four levels: guest-physical addresses of 48 bits.
pub type Aarch64Stage2 = Vmsa<Stage2, 4>;

impl<K: VmsaKind, const LEVELS: u8, const GRANULE: u32, const BITS: u32> fmt::Debug
    for Vmsa<K, LEVELS, GRANULE, BITS>
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Vmsa")
    }
}

impl Sealed for Stage1 {
    const SECOND_STAGE: bool = false;
    const READ_ONLY_BELOW: u64 = 1 << 62;

    #[inline]
    fn has(_: Flags) -> bool {
        true
    }

    #[inline]
    fn encode(flags: Flags, written: bool) -> u64 {
        let user = flags.contains(Flags::USER);
        let never = match (flags.contains(Flags::EXECUTE), user) {
            (false, _) => PXN | UXN,
            (true, true) => PXN,
            (true, false) => UXN,
        };
        let bit = |is: bool, bit| if is { bit } else { 0 };
        never
            | bit(user, EL0)
            | bit(!written, READ_ONLY)
            | bit(!flags.contains(Flags::GLOBAL), NOT_GLOBAL)
    }

    #[inline]
    fn flags(entry: u64) -> Option<(Flags, bool)> {
        let user = entry & EL0 != 0;
        let mut flags = Flags::empty();
        flags.set(Flags::USER, user);
        flags.set(Flags::GLOBAL, entry & NOT_GLOBAL == 0);
        flags.set(Flags::EXECUTE, entry & if user { UXN } else { PXN } == 0);
        Some((flags, entry & READ_ONLY == 0))
    }

    /// By the numbers in [`MAIR`].
    #[inline]
    fn cache_bits(cache: Cache) -> Option<u64> {
        Some(CACHES.iter().position(|known| *known == cache)? as u64)
    }

    #[inline]
    fn cache(entry: u64) -> Option<Cache> {
        CACHES.get((entry >> 2 & 7) as usize).copied()
    }
}

/// AP\[1\]: programs may access the page.
const EL0: u64 = 1 << 6;
/// AP\[2\].
const READ_ONLY: u64 = 1 << 7;
const PXN: u64 = 1 << 53;
const UXN: u64 = 1 << 54;
/// In the entry of a table: PXNTable, UXNTable, APTable\[0\] and NSTable.
const PXN_BELOW: u64 = 1 << 59;
const UXN_BELOW: u64 = 1 << 60;
const NO_EL0_BELOW: u64 = 1 << 61;
const NOT_SECURE_BELOW: u64 = 1 << 63;
const CACHES: [Cache; 4] =
    [Cache::WriteBack, Cache::Uncached, Cache::WriteCombining, Cache::WriteThrough];

impl Sealed for Stage2 {
    const SECOND_STAGE: bool = true;
    /// Entries of tables have no rights.
    const READ_ONLY_BELOW: u64 = 0;

    /// All accesses are the guest's.
    #[inline]
    fn has(flags: Flags) -> bool {
        flags.contains(Flags::READ) == flags.contains(Flags::USER) && !flags.contains(Flags::GLOBAL)
    }

    #[inline]
    fn encode(flags: Flags, written: bool) -> u64 {
        let bit = |is: bool, bit| if is { bit } else { 0 };
        bit(flags.contains(Flags::READ), MAY_READ)
            | bit(written, MAY_WRITE)
            | bit(!flags.contains(Flags::EXECUTE), NEVER)
    }

    #[inline]
    fn flags(entry: u64) -> Option<(Flags, bool)> {
        let read = entry & MAY_READ != 0;
        let mut flags = Flags::empty();
        flags.set(Flags::USER, read);
        flags.set(Flags::EXECUTE, entry & NEVER == 0);
        (read == (entry & VALID != 0)).then_some((flags, entry & MAY_WRITE != 0))
    }

    #[inline]
    fn cache_bits(cache: Cache) -> Option<u64> {
        let known = CACHES2.iter().find(|(known, _)| *known == cache)?;
        Some(known.1)
    }

    #[inline]
    fn cache(entry: u64) -> Option<Cache> {
        let number = entry >> 2 & 15;
        CACHES2.iter().find(|(_, known)| *known == number).map(|(cache, _)| *cache)
    }
}

/// S2AP, and the higher bit of XN.
const MAY_READ: u64 = 1 << 6;
const MAY_WRITE: u64 = 1 << 7;
const NEVER: u64 = 1 << 54;
/// By MemAttr.
const CACHES2: [(Cache, u64); 4] = [
    (Cache::WriteBack, 15),
    (Cache::WriteThrough, 10),
    (Cache::WriteCombining, 5),
    (Cache::Uncached, 1),
];

/// The place of the highest bits of an address in an entry.
enum High {
    None,
    /// FEAT_LPA2.
    Lpa2,
    /// 64 KiB: FEAT_LPA.
    Lpa,
}

impl<K: VmsaKind, const LEVELS: u8, const GRANULE: u32, const BITS: u32>
    Vmsa<K, LEVELS, GRANULE, BITS>
{
    const HIGH: High = match (BITS, GRANULE) {
        (52, 16) => High::Lpa,
        (52, _) => High::Lpa2,
        _ => High::None,
    };

    #[inline]
    fn address(frame: Frame) -> u64 {
        let start = frame.start().get();
        match Self::HIGH {
            High::None => start,
            High::Lpa2 => start & ADDRESS_LPA2 | start >> 50 << HIGH,
            High::Lpa => start & ADDRESS_LPA | start >> 48 << HIGH_LPA,
        }
    }

    /// The frame of a valid entry; `None` if it is not aligned to the granule.
    #[inline]
    fn frame(entry: u64) -> Option<Frame> {
        let start = match Self::HIGH {
            High::None => entry & ADDRESS,
            High::Lpa2 => entry & ADDRESS_LPA2 | (entry >> HIGH & 3) << 50,
            High::Lpa => entry & ADDRESS_LPA | (entry >> HIGH_LPA & 15) << 48,
        };
        Frame::new(start >> 12).filter(|frame| frame.is_aligned(Self::PAGE))
    }

    fn check_table(frame: Frame) -> Result<(), FormatError> {
        check_frame::<Self>(frame)?;
        match frame.is_aligned(Self::PAGE) {
            true => Ok(()),
            false => Err(FormatError::Misaligned(frame, Self::PAGE)),
        }
    }
}

// SAFETY: `decode` inverts `page`, `table` and `shared_table` (tests). Hardware changes the access
// flag and the dirty state of pages. In the entry of a table it might set the access flag, which is
// set already. An entry without the bits 0 and 58 is absent to hardware and to `decode`. The
// constants are in their ranges.
unsafe impl<K: VmsaKind, const LEVELS: u8, const GRANULE: u32, const BITS: u32> Format
    for Vmsa<K, LEVELS, GRANULE, BITS>
{
    const PAGE: PageSize = match PageSize::from_shift(GRANULE) {
        Some(size) => size,
        None => panic!("the granule is none of 4, 16 and 64 KiB"),
    };
    const LEVELS: u8 = {
        let exists = match (K::SECOND_STAGE, GRANULE, BITS) {
            (true, 12, 48) => LEVELS == 3 || LEVELS == 4,
            (false, 12, 48) => LEVELS == 4,
            (false, 12, 52) => LEVELS == 5,
            (false, 14, 48) => LEVELS == 3 || LEVELS == 4,
            (false, 14, 52) => LEVELS == 4,
            (false, 16, 48 | 52) => LEVELS == 3,
            _ => false,
        };
        assert!(exists, "there is no such format");
        LEVELS
    };
    const VIRTUAL_BITS: u32 = match (GRANULE, BITS, LEVELS) {
        (_, 52, _) => 52,
        (14, _, 4) => 49,
        (16, ..) => 48,
        _ => GRANULE + (GRANULE - 3) * LEVELS as u32,
    };
    const PHYSICAL_BITS: u32 = BITS;
    const SOFT_BITS: u32 = 5;
    /// All bits have another use.
    const KEYS: u8 = 1;
    const OWN: u64 = OWN;
    const SHARED_IS_READ_ONLY: bool = K::READ_ONLY_BELOW != 0;
    const SECOND_STAGE: bool = K::SECOND_STAGE;
    const BREAK_BEFORE_MAKE: bool = true;
    /// Models have tables of 8 entries.
    const GROUP: Option<PageSize> = PageSize::from_shift(match GRANULE {
        12 if cfg!(loom) => 14,
        12 => 16,
        _ => 21,
    });

    #[inline]
    fn table(frame: Frame) -> Result<u64, FormatError> {
        Self::check_table(frame)?;
        Ok(Self::address(frame) | VALID | TYPE | ACCESSED | OWN)
    }

    #[inline]
    fn shared_table(frame: Frame) -> Result<u64, FormatError> {
        Ok(Self::table(frame)? & !OWN | K::READ_ONLY_BELOW)
    }

    #[inline]
    fn page(size: PageSize, frame: Frame, attrs: Attrs) -> Result<u64, FormatError> {
        check::<Self>(size, frame, attrs)?;
        let Attrs { flags, cache, soft, .. } = attrs;
        if !flags.contains(Flags::READ) && flags.intersects(Flags::RWX) || !K::has(flags) {
            return Err(FormatError::Rights(flags));
        }
        let cache = K::cache_bits(cache).ok_or(FormatError::Cache(cache))?;
        let (write, dirty) = (flags.contains(Flags::WRITE), flags.contains(Flags::DIRTY));
        let bit = |is: bool, bit| if is { bit } else { 0 };
        let soft = u64::from(soft);
        Ok(Self::address(frame)
            | if flags.contains(Flags::READ) { VALID } else { PROT_NONE }
            | bit(size == Self::PAGE, TYPE)
            | bit(!matches!(Self::HIGH, High::Lpa2), SHARED)
            | K::encode(flags, write && dirty)
            | bit(write, DBM)
            | bit(dirty && !write, WAS_DIRTY)
            | bit(flags.contains(Flags::ACCESSED), ACCESSED)
            | cache << 2
            | (soft & 3) << SOFT_LOW
            | (soft >> 2) << SOFT_HIGH)
    }

    #[inline]
    fn alike(entry: u64, frame: Frame) -> Result<u64, FormatError> {
        Self::check_table(frame)?;
        Ok(entry | Self::address(frame))
    }

    #[inline]
    fn grouped(entry: u64) -> u64 {
        entry | CONTIGUOUS
    }

    #[inline]
    fn alone(entry: u64, _: usize) -> u64 {
        const MARK: u64 = VALID | CONTIGUOUS;
        if entry & MARK == MARK { entry & !CONTIGUOUS } else { entry }
    }

    #[inline]
    fn decode(entry: u64, level: u8) -> Decoded {
        let valid = entry & VALID != 0;
        if !valid && entry & PROT_NONE == 0 {
            return Decoded::Absent;
        }
        let Some(frame) = Self::frame(entry) else { return Decoded::Malformed };
        if valid && level > 0 && entry & TYPE != 0 {
            return Decoded::Table(frame);
        }
        let is_page = (entry & TYPE != 0) == (level == 0) && entry & CONTIGUOUS == 0;
        let size = Self::size_at(level).filter(|size| is_page && frame.is_aligned(*size));
        let (Some(_), Some((mut flags, written)), Some(cache)) =
            (size, K::flags(entry), K::cache(entry))
        else {
            return Decoded::Malformed;
        };
        flags.set(Flags::READ, valid);
        flags.set(Flags::WRITE, written || entry & DBM != 0);
        flags.set(Flags::DIRTY, written || entry & WAS_DIRTY != 0);
        flags.set(Flags::ACCESSED, entry & ACCESSED != 0);
        if !valid && flags.intersects(Flags::RWX) {
            return Decoded::Malformed;
        }
        let soft = entry >> SOFT_LOW & 3 | (entry >> SOFT_HIGH & 7) << 2;
        Decoded::Page(frame, Attrs { flags, cache, key: 0, soft: soft as u16 })
    }

    /// By APTable and PXNTable. The entry of a page does not say what UXNTable and NSTable
    /// restrict: below these, no right is left.
    #[inline]
    fn rights_below(entry: u64) -> Flags {
        if K::SECOND_STAGE {
            return Flags::RIGHTS;
        }
        if entry & (UXN_BELOW | NOT_SECURE_BELOW) != 0 {
            return Flags::empty();
        }
        let mut rights = Flags::RIGHTS;
        rights.set(Flags::EXECUTE, entry & PXN_BELOW == 0);
        rights.set(Flags::USER, entry & NO_EL0_BELOW == 0);
        rights.set(Flags::WRITE, entry & Stage1::READ_ONLY_BELOW == 0);
        rights
    }

    #[inline]
    fn next(entry: u64, level: u8) -> Option<Frame> {
        (entry & (VALID | TYPE) == VALID | TYPE && level != 0).then(|| Self::frame(entry)).flatten()
    }
}
