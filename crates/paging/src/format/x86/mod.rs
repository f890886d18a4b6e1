//! x86: page tables of x86-64, and the second stages of Intel (EPT) and AMD (NPT) for guests.
//!
//! The three have the same tables: addresses in bits 12 to 51, a bit for large pages, the right to
//! write at every level. A [`X86Kind`] has what they do not share.
//!
//! Entries that lead to tables have the accessed bit set from the start, so hardware never changes
//! them. A table of tables that software has emptied is therefore in its constructed state (I6).
//!
//! A `PROT_NONE` page has no present bit, and bit 58 set. Hardware ignores all other bits then.

mod ept;
mod long_mode;
mod npt;

pub use ept::{Ept, Ept4, Ept5, Extended};
pub use long_mode::{LongMode, PAT, X86_64, X86_64L4, X86_64L5};
pub use npt::{Nested, Npt, Npt4, Npt5};

use super::{Attrs, Cache, Decoded, Flags, Format, FormatError, Geometry, check, check_frame};
use core::fmt;
use core::marker::PhantomData;
use machine::{Frame, PageSize, PhysAddr};

const WRITE: u64 = 1 << 1;
const LARGE: u64 = 1 << 7;
const PROT_NONE: u64 = 1 << 58;
const ADDRESS: u64 = 0x000f_ffff_ffff_f000;

/// The differences between the kinds of x86 tables. Implemented in this crate only.
#[expect(private_bounds, reason = "only this crate implements it")]
pub trait X86Kind: Sealed {}

impl<K: Sealed> X86Kind for K {}

/// The encoding of a kind.
trait Sealed: Copy + fmt::Debug + Send + Sync + 'static {
    /// The bit that every present entry has.
    const PRESENT: u64;
    /// The bits of a table's entry that restrict nothing, the accessed bit included.
    const TABLE: u64;
    const ACCESSED: u64;
    const DIRTY: u64;
    /// The bits of a page that user mode may read.
    const READABLE: u64;
    const SOFT_BITS: u32;
    const KEYS: u8;
    const SECOND_STAGE: bool;

    /// Whether a page can have these rights. READ is there if any of READ, WRITE and EXECUTE is.
    fn has(flags: Flags) -> bool;

    /// The bits for the flags other than READ, ACCESSED and DIRTY.
    fn encode(flags: Flags) -> u64;

    /// These flags of an entry; `None` if no page has such.
    fn flags(entry: u64) -> Option<Flags>;

    fn cache_bits(cache: Cache, level: u8) -> Option<u64>;

    fn cache(entry: u64, level: u8) -> Option<Cache>;

    /// The bits for the software bits and the protection key.
    fn soft_bits(soft: u16, key: u8) -> u64;

    fn soft(entry: u64) -> u16;

    fn key(entry: u64) -> u8;

    /// The first frame of the page of an entry of this level, from its address bits.
    fn frame(number: u64, level: u8) -> Option<Frame>;
}

/// Page tables of an x86 kind with this many levels.
#[derive(Clone, Copy)]
pub struct X86<K, const LEVELS: u8>(PhantomData<K>);

impl<K: X86Kind, const LEVELS: u8> fmt::Debug for X86<K, LEVELS> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("X86")
    }
}

// SAFETY: `decode` inverts `page` and `table` (tests). Hardware sets nothing but accessed bits in
// the entries of tables, and these are set already. An entry with bits 0 to 11 clear is absent to
// hardware, and to `decode` if bit 58 is clear, too. The constants are in their ranges.
unsafe impl<K: X86Kind, const LEVELS: u8> Format for X86<K, LEVELS> {
    const LEVELS: u8 = {
        // Three levels are enough for models.
        assert!(LEVELS == 4 || LEVELS == 5 || LEVELS == 3 && cfg!(loom));
        LEVELS
    };
    const PHYSICAL_BITS: u32 = 52;
    const SOFT_BITS: u32 = K::SOFT_BITS;
    const KEYS: u8 = K::KEYS;
    const SECOND_STAGE: bool = K::SECOND_STAGE;
    /// An access needs the right to write at every level.
    const OWN: u64 = WRITE;
    const SHARED_IS_READ_ONLY: bool = true;

    #[inline]
    fn table(frame: Frame) -> Result<u64, FormatError> {
        check_frame::<Self>(frame)?;
        Ok(frame.start().get() | K::TABLE)
    }

    #[inline]
    fn page(size: PageSize, frame: Frame, attrs: Attrs) -> Result<u64, FormatError> {
        check::<Self>(size, frame, attrs)?;
        let Attrs { flags, cache, key, soft } = attrs;
        // Every present page is readable.
        if !flags.contains(Flags::READ) && flags.intersects(Flags::RWX) || !K::has(flags) {
            return Err(FormatError::Rights(flags));
        }
        let bit = |flag, bit| if flags.contains(flag) { bit } else { 0 };
        let present = if flags.contains(Flags::READ) { K::PRESENT } else { PROT_NONE };
        // All large pages are alike.
        let level = u8::from(size != Self::PAGE);
        let cache = K::cache_bits(cache, level).ok_or(FormatError::Cache(cache))?;
        Ok(frame.start().get()
            | present
            | K::encode(flags)
            | bit(Flags::ACCESSED, K::ACCESSED)
            | bit(Flags::DIRTY, K::DIRTY)
            | if level == 0 { 0 } else { LARGE }
            | cache
            | K::soft_bits(soft, key))
    }

    #[inline]
    fn alike(entry: u64, frame: Frame) -> Result<u64, FormatError> {
        check_frame::<Self>(frame)?;
        Ok(entry | frame.start().get())
    }

    #[inline]
    fn decode(entry: u64, level: u8) -> Decoded {
        if entry & (K::PRESENT | PROT_NONE) == 0 {
            return Decoded::Absent;
        }
        let present = entry & K::PRESENT != 0;
        let page = match level {
            0 => true,
            _ => entry & LARGE != 0,
        };
        let Some(size) = Self::size_at(level).filter(|_| page) else {
            let table = !page && present;
            let frame = Frame::containing(PhysAddr::new(entry & ADDRESS));
            return if table { Decoded::Table(frame) } else { Decoded::Malformed };
        };
        let frame = K::frame((entry & ADDRESS) >> 12, level).filter(|frame| frame.is_aligned(size));
        let (Some(frame), Some(mut flags), Some(cache)) =
            (frame, K::flags(entry), K::cache(entry, level))
        else {
            return Decoded::Malformed;
        };
        flags.set(Flags::READ, present);
        flags.set(Flags::ACCESSED, entry & K::ACCESSED != 0);
        flags.set(Flags::DIRTY, entry & K::DIRTY != 0);
        if !present && flags.intersects(Flags::RWX) {
            return Decoded::Malformed;
        }
        Decoded::Page(frame, Attrs { flags, cache, key: K::key(entry), soft: K::soft(entry) })
    }

    #[inline]
    fn next(entry: u64, level: u8) -> Option<Frame> {
        (entry & (K::PRESENT | LARGE) == K::PRESENT && level != 0)
            .then(|| Frame::containing(PhysAddr::new(entry & ADDRESS)))
    }

    /// The bits for rights are the same at every level.
    #[inline]
    fn rights_below(entry: u64) -> Flags {
        K::flags(entry).unwrap_or_default() & Flags::RIGHTS | Flags::READ
    }

    #[inline]
    fn usable(entry: u64, level: u8, write: bool) -> Option<Frame> {
        let wanted = K::READABLE | if write { WRITE } else { 0 };
        // Nothing else in such an entry of long mode can be malformed.
        if level == 0 && !K::SECOND_STAGE {
            return (entry & wanted == wanted)
                .then(|| Frame::containing(PhysAddr::new(entry & ADDRESS)));
        }
        match Self::decode(entry, level) {
            Decoded::Page(frame, _) if entry & wanted == wanted => Some(frame),
            _ => None,
        }
    }
}
