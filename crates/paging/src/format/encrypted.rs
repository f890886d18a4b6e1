//! Formats of guests whose memory is encrypted or otherwise protected from the host: one bit of
//! each physical address says whether a page is private to the guest or shared with the host.
//!
//! | machine | the bit is set for | its position |
//! |---|---|---|
//! | AMD SEV, SME | private pages, and tables | 47 or 51: CPUID 0x8000001f, EBX, bits 0 to 5 |
//! | Intel TDX | shared pages | 47 or 51: the width of the guest's physical addresses, less one |
//! | Arm CCA | shared pages | the width of the realm's addresses, less one |
//!
//! The bit is no part of the address, so no [`Frame`] has it. A page is private by default, and
//! shared with [`Flags::DECRYPTED`]: for buffers of virtual devices. Registers of devices are
//! shared ([`Format::DEVICE`]). Tables are always private. A kernel that finds the position at run
//! time chooses between two types, as it does for four and five levels.
//!
//! Before a page changes from private to shared or back, the host has to be told, and the old
//! translation flushed: on SEV and SME the cache has lines of either kind. This is the kernel's
//! part: unmap the page, tell the host, and map it again.

use super::{Attrs, Decoded, Flags, Format, FormatError};
use core::fmt;
use core::marker::PhantomData;
use machine::{Frame, PageSize};

/// The format `F` in a guest with private memory: bit `BIT` of an address says whether a page is
/// private, if `SET`, or shared, if not.
///
/// ```
/// use machine::{Frame, PageSize};
/// use paging::{Attrs, Decoded, Encrypted, Flags, Format, X86_64L4};
/// type Sev = Encrypted<X86_64L4, 51, true>;
/// let frame = Frame::new(0x1234).unwrap();
/// let entry = Sev::page(PageSize::Size4K, frame, Attrs::KERNEL_RW)?;
/// assert_eq!(entry >> 51 & 1, 1);
/// assert_eq!(Sev::decode(entry, 0), Decoded::Page(frame, Attrs::KERNEL_RW));
/// let shared = Attrs { flags: Attrs::KERNEL_RW.flags | Flags::DECRYPTED, ..Attrs::KERNEL_RW };
/// assert_eq!(Sev::page(PageSize::Size4K, frame, shared)? >> 51 & 1, 0);
/// # Ok::<(), paging::FormatError>(())
/// ```
///
/// A bit that is none of an address does not compile:
///
/// ```compile_fail,E0080
/// use paging::{Aarch64, Encrypted, Format};
/// // Its addresses have 48 bits.
/// println!("{:?}", Encrypted::<Aarch64, 51, false>::decode(0, 0));
/// ```
#[derive(Clone, Copy)]
pub struct Encrypted<F, const BIT: u32, const SET: bool>(PhantomData<F>);

impl<F: Format, const BIT: u32, const SET: bool> fmt::Debug for Encrypted<F, BIT, SET> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Encrypted")
    }
}

impl<F: Format, const BIT: u32, const SET: bool> Encrypted<F, BIT, SET> {
    /// The bit, as it is in an entry. A constant once it is compiled.
    #[inline(always)]
    fn mask() -> u64 {
        let entry = |frame| F::table(frame).unwrap_or_default();
        match Frame::new(1 << (Self::PHYSICAL_BITS - 12)) {
            Some(bit) => entry(bit) ^ entry(Frame::default()),
            None => 0,
        }
    }

    /// The entry with the bit of a page that is private or not.
    #[inline(always)]
    fn marked(entry: u64, private: bool) -> u64 {
        if private == SET { entry | Self::mask() } else { entry }
    }

    /// The entry without the bit.
    #[inline(always)]
    fn plain(entry: u64) -> u64 {
        entry & !Self::mask()
    }

    #[inline(always)]
    fn check(frame: Frame) -> Result<(), FormatError> {
        let beyond = frame.number() >> (Self::PHYSICAL_BITS - 12) != 0;
        if beyond { Err(FormatError::Beyond(frame)) } else { Ok(()) }
    }
}

// SAFETY: as that of `F`, which never sees the bit: a frame of either format lies below it, and
// `decode` removes it. The bit is one of an address, so no bit of an absent entry.
unsafe impl<F: Format, const BIT: u32, const SET: bool> Format for Encrypted<F, BIT, SET> {
    const PAGE: PageSize = F::PAGE;
    const LEVELS: u8 = F::LEVELS;
    const VIRTUAL_BITS: u32 = F::VIRTUAL_BITS;
    /// Each function that knows the bit uses this constant, so a wrong format does not compile.
    const PHYSICAL_BITS: u32 = {
        assert!(!F::SECOND_STAGE, "the bit belongs to a guest's own tables");
        assert!(44 <= BIT && BIT < F::PHYSICAL_BITS, "the bit must be one of an address");
        BIT
    };
    const SOFT_BITS: u32 = F::SOFT_BITS;
    const KEYS: u8 = F::KEYS;
    const OWN: u64 = F::OWN;
    const SHARED_IS_READ_ONLY: bool = F::SHARED_IS_READ_ONLY;
    const SECOND_STAGE: bool = false;
    const BREAK_BEFORE_MAKE: bool = F::BREAK_BEFORE_MAKE;
    const DEVICE: Flags = F::DEVICE.union(Flags::DECRYPTED);
    const GROUP: Option<PageSize> = F::GROUP;

    #[inline]
    fn table(frame: Frame) -> Result<u64, FormatError> {
        Self::check(frame)?;
        Ok(Self::marked(F::table(frame)?, true))
    }

    #[inline]
    fn shared_table(frame: Frame) -> Result<u64, FormatError> {
        Self::check(frame)?;
        Ok(Self::marked(F::shared_table(frame)?, true))
    }

    #[inline]
    fn page(size: PageSize, frame: Frame, attrs: Attrs) -> Result<u64, FormatError> {
        Self::check(frame)?;
        let private = !attrs.flags.contains(Flags::DECRYPTED);
        let attrs = Attrs { flags: attrs.flags - Flags::DECRYPTED, ..attrs };
        Ok(Self::marked(F::page(size, frame, attrs)?, private))
    }

    #[inline]
    fn alike(entry: u64, frame: Frame) -> Result<u64, FormatError> {
        Self::check(frame)?;
        Ok(F::alike(Self::plain(entry), frame)? | entry & Self::mask())
    }

    #[inline]
    fn grouped(entry: u64) -> u64 {
        F::grouped(entry)
    }

    #[inline]
    fn alone(entry: u64, index: usize) -> u64 {
        F::alone(entry, index)
    }

    #[inline]
    fn decode(entry: u64, level: u8) -> Decoded {
        let private = (entry & Self::mask() != 0) == SET;
        match F::decode(Self::plain(entry), level) {
            Decoded::Page(frame, mut attrs) if Self::check(frame).is_ok() => {
                attrs.flags.set(Flags::DECRYPTED, !private);
                Decoded::Page(frame, attrs)
            }
            // A loader may have made tables without the bit.
            Decoded::Table(frame) if Self::check(frame).is_ok() => Decoded::Table(frame),
            Decoded::Absent => Decoded::Absent,
            _ => Decoded::Malformed,
        }
    }

    #[inline]
    fn next(entry: u64, level: u8) -> Option<Frame> {
        F::next(Self::plain(entry), level).filter(|frame| Self::check(*frame).is_ok())
    }

    #[inline]
    fn rights_below(entry: u64) -> Flags {
        F::rights_below(entry)
    }

    #[inline]
    fn usable(entry: u64, level: u8, write: bool) -> Option<Frame> {
        F::usable(Self::plain(entry), level, write).filter(|frame| Self::check(*frame).is_ok())
    }
}
