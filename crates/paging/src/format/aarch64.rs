//! AArch64, VMSAv8-64 with the granule of 4 KiB: stage 1, and stage 2 for guests.
//!
//! The two stages share all but the bits of rights and memory types, which a [`VmsaKind`] has.
//!
//! # What the host sets
//! - `TCR_EL1.HA` and `HD`, `VTCR_EL2.HA` and `HD`: hardware sets the access flag and the dirty
//!   state. A writable page is clean while it is marked read-only with the bit DBM; the first write
//!   takes the mark away. A page that has lost the right to write keeps its dirty state in a
//!   software bit.
//! - `MAIR_EL1` to [`MAIR`]. Memory is inner shareable. `TCR_EL1.HPD0` and `HPD1` stay clear: the
//!   entry of a table that a fork shares forbids writing by `APTable`.
//! - Stage 1: one top-level table serves both base registers. With four levels, addresses have 48
//!   bits, one of which chooses the half: `T0SZ` and `T1SZ` are 17, `TTBR0_EL1` has the address of
//!   the table, `TTBR1_EL1` that of its entry 256. With five levels (`TCR_EL1.DS`, FEAT_LPA2), they
//!   have 52 bits: `T0SZ` and `T1SZ` are 13, and `TTBR1_EL1` has the address of the table's entry
//!   504. Shareability is then that of `TCR_EL1`.
//! - Stage 2: `VTCR_EL2.T0SZ` is 16 with four levels, and 25 with three.
//!
//! # Break-before-make
//! The architecture forbids to replace a valid entry by one that maps pages of another size, other
//! memory that may be written, or another memory type: [`Format::BREAK_BEFORE_MAKE`]. The cursor
//! makes the entry invalid first, invalidates the TLBs, and then stores the new one.
//!
//! # Contiguous hint
//! Entries never have it. All 16 entries of a group would have to change together, each change of
//! one by break-before-make of all.
//!
//! A `PROT_NONE` page is not valid, and has bit 58 set. Hardware ignores all other bits then.

use super::{Attrs, Cache, Decoded, Flags, Format, FormatError, check, check_frame, size_at};
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
/// With five levels: bits 48 and 49 of the address in their places, 50 and 51 in those of SH.
const ADDRESS_LPA2: u64 = 0x0003_ffff_ffff_f000;
const HIGH: u32 = 8;
/// The page may be written: hardware takes its clean state away.
const DBM: u64 = 1 << 51;
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

/// What the stages do not share. Implemented in this crate only.
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

/// Page tables of AArch64 with this many levels.
#[derive(Clone, Copy)]
pub struct Vmsa<K, const LEVELS: u8>(PhantomData<K>);

/// Stage 1 with four levels: addresses of 48 bits.
pub type Aarch64 = Vmsa<Stage1, 4>;
/// Stage 1 with five levels (FEAT_LPA2): addresses of 52 bits.
pub type Aarch64Lpa2 = Vmsa<Stage1, 5>;
/// Stage 2 with four levels: guest-physical addresses of 48 bits.
pub type Aarch64Stage2 = Vmsa<Stage2, 4>;

impl<K: VmsaKind, const LEVELS: u8> fmt::Debug for Vmsa<K, LEVELS> {
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

impl<K: VmsaKind, const LEVELS: u8> Vmsa<K, LEVELS> {
    const LPA2: bool = LEVELS == 5;

    #[inline]
    fn address(frame: Frame) -> u64 {
        let start = frame.start().get();
        if Self::LPA2 { start & ADDRESS_LPA2 | start >> 50 << HIGH } else { start }
    }

    #[inline]
    fn frame(entry: u64) -> Option<Frame> {
        let start = match Self::LPA2 {
            true => entry & ADDRESS_LPA2 | (entry >> HIGH & 3) << 50,
            false => entry & ADDRESS,
        };
        Frame::new(start >> 12)
    }
}

// SAFETY: `decode` inverts `page`, `table` and `shared_table` (tests). Hardware changes the access
// flag and the dirty state of pages. In the entry of a table it might set the access flag, which is
// set already. An entry without the bits 0 and 58 is absent to hardware and to `decode`. The
// constants are in their ranges.
unsafe impl<K: VmsaKind, const LEVELS: u8> Format for Vmsa<K, LEVELS> {
    const LEVELS: u8 = {
        assert!(LEVELS == 4 || LEVELS == 5 && !K::SECOND_STAGE || LEVELS == 3 && K::SECOND_STAGE);
        LEVELS
    };
    const VIRTUAL_BITS: u32 = if Self::LPA2 { 52 } else { 12 + 9 * LEVELS as u32 };
    const PHYSICAL_BITS: u32 = if Self::LPA2 { 52 } else { 48 };
    const SOFT_BITS: u32 = 5;
    /// All bits have another use.
    const HOLDER: u64 = 0;
    const KEYS: u8 = 1;
    const OWN: u64 = OWN;
    const SHARED_IS_READ_ONLY: bool = K::READ_ONLY_BELOW != 0;
    const SECOND_STAGE: bool = K::SECOND_STAGE;
    const BREAK_BEFORE_MAKE: bool = true;

    #[inline]
    fn table(frame: Frame) -> Result<u64, FormatError> {
        check_frame::<Self>(frame)?;
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
            | bit(size == PageSize::Size4K, TYPE)
            | bit(!Self::LPA2, SHARED)
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
        check_frame::<Self>(frame)?;
        Ok(entry | Self::address(frame))
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
        let size = size_at(level).filter(|size| is_page && frame.is_aligned(*size));
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

    #[inline]
    fn is_marked(entry: u64) -> bool {
        entry & ACCESSED != 0
    }

    #[inline]
    fn next(entry: u64, level: u8) -> Option<Frame> {
        (entry & (VALID | TYPE) == VALID | TYPE && level != 0).then(|| Self::frame(entry)).flatten()
    }
}
