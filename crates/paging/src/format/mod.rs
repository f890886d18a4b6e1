//! The meaning of a page-table entry, and its encoding on each architecture.
//!
//! A [`Format`] is a type without values. Page tables are generic over it, so nothing is decided at
//! run time. A format has a granule, [`Format::PAGE`]: the size of its smallest page, and of a
//! table, which is full of entries of 64 bits. Formats also differ in the number of levels and in
//! the bits of an entry.
//!
//! | granule | entries of a table | address bits of a level | pages at levels 0, 1, 2 |
//! |---|---|---|---|
//! | 4 KiB | 512 | 9 | 4 KiB, 2 MiB, 1 GiB |
//! | 16 KiB | 2048 | 11 | 16 KiB, 32 MiB |
//! | 64 KiB | 8192 | 13 | 64 KiB, 512 MiB |
//!
//! AArch64 has more pages, of 64 GiB, 512 GiB and 4 TiB, where addresses have 52 bits. No frame
//! source has such blocks, so they are left out.
//!
//! Frames are always numbered in 4 KiB ([`Frame`]). A page or a table of a larger granule is an
//! aligned block of 4 or 16 of them, and has the number of the first.
//!
//! # Groups
//! Hardware may cache neighbouring pages of level 0 as one translation, where their entries say
//! that they form a group: the contiguous hint of AArch64, and Svnapot of RISC-V.
//!
//! | format | entries of a group | bytes |
//! |---|---|---|
//! | AArch64, granule of 4 KiB | 16 | 64 KiB |
//! | AArch64, granule of 16 KiB | 128 | 2 MiB |
//! | AArch64, granule of 64 KiB | 32 | 2 MiB |
//! | RISC-V with Svnapot | 16 | 64 KiB |
//!
//! The cursor makes and parts them (`cursor/group.rs`). The groups of large pages that AArch64 has
//! besides are left out.
//!
//! # Three kinds of entries without a translation
//! - *Absent*: nothing is mapped.
//! - *`PROT_NONE`*: a page without any right. Its frame and its other
//!   attributes are kept in bits that hardware ignores.
//! - A [`note`]: absent to hardware and software, but with a number in it. It links tables in a
//!   chain that no new user may reach and an old walk may still read.
//!
//! # Where things are
//! `attrs`, `geometry`: attributes and sizes. `x86` (`long_mode`, and the second stages `ept`,
//! `npt`), `aarch64` (with what the host sets in its registers), `riscv`. `encrypted`: guests whose
//! memory is encrypted.

mod aarch64;
mod attrs;
mod encrypted;
mod geometry;
mod riscv;
#[cfg(test)]
mod tests;
mod x86;

pub use aarch64::{
    Aarch64, Aarch64G16, Aarch64G16L3, Aarch64G16Lpa2, Aarch64G64, Aarch64G64Lpa, Aarch64Lpa2,
    Aarch64Stage2, MAIR, Stage1, Stage2, Vmsa, VmsaKind,
};
pub use attrs::{Attrs, Cache, Flags, Share};
pub use encrypted::Encrypted;
pub use geometry::Geometry;
pub use riscv::{Riscv, Sv39, Sv39Napot, Sv48, Sv48Napot, Sv57, Sv57Napot};
pub use x86::{
    Ept, Ept4, Ept5, Extended, LongMode, Nested, Npt, Npt4, Npt5, PAT, X86, X86_64, X86_64L4,
    X86_64L5, X86Kind,
};

use core::fmt;
use machine::{Entries, Entry, Frame, Memory, PageSize, VirtAddr, VirtRange};

/// The meaning of an entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Decoded {
    /// Nothing is mapped.
    Absent,
    /// The next table.
    Table(Frame),
    /// A page: its first frame, and its attributes. The level gives its size.
    Page(Frame, Attrs),
    /// A combination of bits that no valid entry has.
    Malformed,
}

/// The reason why an entry cannot be made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FormatError {
    /// The format cannot express these rights.
    Rights(Flags),
    /// The format does not have this memory type.
    Cache(Cache),
    /// The format does not have this protection key.
    Key(u8),
    /// The format does not have that many software bits.
    Soft(u16),
    /// The tables have no level for pages of this size.
    Size(PageSize),
    /// The frame is not aligned to a page of this size.
    Misaligned(Frame, PageSize),
    /// The frame lies beyond the physical addresses of the format.
    Beyond(Frame),
}

impl fmt::Display for FormatError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FormatError::Rights(rights) => write!(f, "no page can have the rights {rights:?}"),
            FormatError::Cache(cache) => write!(f, "no page can be {cache:?}"),
            FormatError::Key(key) => write!(f, "there is no protection key {key}"),
            FormatError::Soft(soft) => write!(f, "there are no software bits for {soft:#x}"),
            FormatError::Size(size) => write!(f, "the tables have no pages of {size:?}"),
            FormatError::Misaligned(frame, size) => {
                write!(f, "frame {frame} does not begin a page of {size:?}")
            }
            FormatError::Beyond(frame) => {
                write!(f, "frame {frame} lies beyond the physical addresses")
            }
        }
    }
}

impl core::error::Error for FormatError {}

/// The page-table format of an architecture. [`Geometry`] has what follows from it: sizes, levels
/// and indices.
///
/// ```
/// use machine::{Frame, PageSize, VirtAddr};
/// use paging::{Attrs, Decoded, Format, Geometry, Sv39, X86_64L4};
/// let frame = Frame::new(0x200).unwrap();
/// for entry in [X86_64L4::page, Sv39::page] {
///     assert!(entry(PageSize::Size2M, frame, Attrs::USER_RW).is_ok());
/// }
/// let entry = X86_64L4::page(PageSize::Size2M, frame, Attrs::USER_RW).unwrap();
/// assert_eq!(X86_64L4::decode(entry, 1), Decoded::Page(frame, Attrs::USER_RW));
/// assert_eq!(X86_64L4::index(VirtAddr::new(3 << 21), 1), 3);
/// ```
///
/// # Safety
/// Lock-free walks rely on all of this:
/// - [`decode`](Format::decode) returns the arguments of [`table`](Format::table),
///   [`shared_table`](Format::shared_table) and [`page`](Format::page), whatever accessed and dirty
///   bits hardware has set in a page since;
/// - [`table`](Format::table) sets [`OWN`](Format::OWN), and if
///   [`SHARED_IS_READ_ONLY`](Format::SHARED_IS_READ_ONLY), hardware lets no write pass an entry
///   without it;
/// - hardware changes nothing in the entry of a table;
/// - an entry with bits 0 to 11 and 56 to 63 clear is [`Decoded::Absent`], to hardware too;
/// - [`LEVELS`](Format::LEVELS) is 3 to 5; [`PHYSICAL_BITS`](Format::PHYSICAL_BITS) is 44 to 56;
///   [`VIRTUAL_BITS`](Format::VIRTUAL_BITS) is at most what the levels translate, and more than
///   what all but the top level translate;
/// - [`PAGE`](Format::PAGE) is 4, 16 or 64 KiB;
/// - [`GROUP`](Format::GROUP) has a power of two of pages, at most 128, and fewer than a table;
///   [`alone`](Format::alone) inverts [`grouped`](Format::grouped), changes each entry that has the
///   mark of a group, and leaves other entries;
/// - a table is accepted only at a frame that is aligned to [`PAGE`](Format::PAGE).
pub unsafe trait Format: Copy + fmt::Debug + Send + Sync + 'static {
    /// The granule: the smallest page, and the size of a table.
    const PAGE: PageSize = PageSize::Size4K;
    /// The number of levels; the top-level table has level `LEVELS - 1`. With two, a large page
    /// could be in a top-level table, of which each space has a copy.
    const LEVELS: u8;
    /// The width of virtual addresses, in bits.
    const VIRTUAL_BITS: u32 = Self::PAGE.shift() + (Self::PAGE.shift() - 3) * Self::LEVELS as u32;
    /// The width of physical addresses, in bits.
    const PHYSICAL_BITS: u32;
    /// The number of software bits in a page's entry.
    const SOFT_BITS: u32;
    /// The number of protection keys; 1 where there are none.
    const KEYS: u8;
    /// The bit of a table's entry that says that the table belongs to this space alone. It is clear
    /// in an entry of a table that a fork shares ([`shared_table`](Format::shared_table)).
    const OWN: u64;
    /// Whether hardware forbids all writes below an entry that lacks [`OWN`](Format::OWN). Then a
    /// fork shares tables of any level, otherwise those of the lowest level.
    const SHARED_IS_READ_ONLY: bool;
    /// Whether the tables are a second stage, which translates the physical addresses of a guest.
    /// Addresses are not sign-extended then, all are the guest's, and there are no kernel's tables.
    /// All pages have USER, and none is GLOBAL: the guest's own tables make these distinctions. The
    /// second stage is a [`Machine`](machine::Machine) of its own, next to the host's: see
    /// [`Asid`](machine::Asid).
    const SECOND_STAGE: bool = false;
    /// Whether the architecture forbids to replace a valid entry by one with another size, another
    /// memory type, or another frame where either may be written, or by a global one. The cursor
    /// then makes the entry invalid, flushes, and stores the new one. Meanwhile the page is
    /// `PROT_NONE` to walks, and an access of any CPU faults. A fault of a program is harmless: it
    /// makes the access again. The kernel does not use a page of its own half while a call splits
    /// it, changes its memory type, or makes it global: not as data, code, or stack, nor in an
    /// interrupt handler of another CPU.
    const BREAK_BEFORE_MAKE: bool = false;
    /// The flags of a page of device registers, in addition to its rights:
    /// [`DECRYPTED`](Flags::DECRYPTED) where the host emulates devices of an encrypted guest.
    const DEVICE: Flags = Flags::empty();
    /// The pages of level 0 that hardware may cache as one translation, if the entry of each has
    /// the mark of a group. They lie side by side from a multiple of this size on, as do their
    /// frames, and have the same attributes. `None` where there are no groups.
    const GROUP: Option<PageSize> = None;

    /// The entry that leads to a table of this space alone. It restricts no access: the page's own
    /// entry does.
    ///
    /// # Errors
    /// [`FormatError::Beyond`]; [`FormatError::Misaligned`] with a larger granule than 4 KiB.
    fn table(frame: Frame) -> Result<u64, FormatError>;

    /// The entry that leads to a table that a fork shares.
    ///
    /// # Errors
    /// As for [`table`](Format::table).
    #[inline]
    fn shared_table(frame: Frame) -> Result<u64, FormatError> {
        Ok(Self::table(frame)? & !Self::OWN)
    }

    /// The entry of a page. Without READ, WRITE and EXECUTE it is a `PROT_NONE` page.
    ///
    /// # Errors
    /// [`FormatError`].
    fn page(size: PageSize, frame: Frame, attrs: Attrs) -> Result<u64, FormatError>;

    /// The entry of a page of level 0 with `frame`, and otherwise like `entry`, which
    /// [`page`](Format::page) made for frame 0. A fast path for many pages with the same
    /// attributes.
    ///
    /// # Errors
    /// As for [`table`](Format::table).
    #[inline]
    fn alike(entry: u64, frame: Frame) -> Result<u64, FormatError> {
        match Self::decode(entry, 0) {
            Decoded::Page(_, attrs) => Self::page(Self::PAGE, frame, attrs),
            _ => Err(FormatError::Beyond(frame)),
        }
    }

    /// The entry of a page of level 0, with the mark of a [`GROUP`](Format::GROUP).
    #[inline]
    fn grouped(entry: u64) -> u64 {
        entry
    }

    /// The entry of level 0, which is at this index of its table, without the mark of a group.
    #[inline]
    fn alone(entry: u64, _index: usize) -> u64 {
        entry
    }

    /// Decodes an entry of a table of this level. Accepts any 64 bits. The entry of a group is
    /// [`Decoded::Malformed`] until it is [`alone`](Format::alone).
    fn decode(entry: u64, level: u8) -> Decoded;

    /// The next table, if the entry leads to one: for each entry of a walk but the last. The same
    /// answer as by [`decode`](Format::decode), in fewer instructions.
    #[inline]
    fn next(entry: u64, level: u8) -> Option<Frame> {
        match Self::decode(entry, level) {
            Decoded::Table(frame) => Some(frame),
            _ => None,
        }
    }

    /// Those of [`Flags::RIGHTS`] that the entry of a table leaves to the pages below it. An entry
    /// that [`table`](Format::table) made leaves all. A boot loader's may leave fewer.
    #[inline]
    fn rights_below(_entry: u64) -> Flags {
        Flags::RIGHTS
    }

    /// The first frame of the page that the entry leads to, if user mode may read it and, with
    /// `write`, write it: for the last entry of a walk that pins. The same answer as by
    /// [`decode`](Format::decode), in fewer instructions.
    #[inline]
    fn usable(entry: u64, level: u8, write: bool) -> Option<Frame> {
        let write = if write { Flags::WRITE } else { Flags::empty() };
        match Self::decode(entry, level) {
            Decoded::Page(frame, attrs) => {
                attrs.flags.contains(Flags::READ | Flags::USER | write).then_some(frame)
            }
            _ => None,
        }
    }
}

/// The first address that the entry for `at` at this level decides about.
#[inline]
pub(crate) fn start_at<F: Format>(at: VirtAddr, level: u8) -> VirtAddr {
    VirtAddr::new(at.get() >> F::shift(level) << F::shift(level))
}

/// All that the entry for `at` at this level decides about.
#[inline]
pub(crate) fn span_at<F: Format>(at: VirtAddr, level: u8) -> Option<VirtRange> {
    VirtRange::new(start_at::<F>(at, level), 1 << F::shift(level))
}

/// The number of entries of a top-level table that are not the kernel's.
pub(crate) const fn lower_entries<F: Format>() -> usize {
    if F::SECOND_STAGE { F::ENTRIES } else { F::ENTRIES / 2 }
}

/// The entries of the table that begins at this frame.
///
/// # Safety
/// As for [`Memory::entry`], for all frames of the table.
#[inline(always)]
pub(crate) unsafe fn entries<M: Memory, F: Format>(
    machine: &M,
    table: Frame,
) -> Option<Entries<'_, M>> {
    // SAFETY: the caller's promise.
    unsafe { machine.entries_in(table, F::PAGE.order()) }
}

/// An entry of the table that begins at this frame.
///
/// # Safety
/// As for [`Memory::entry`], for all frames of the table.
#[inline(always)]
pub(crate) unsafe fn entry<M: Memory, F: Format>(
    machine: &M,
    table: Frame,
    index: usize,
) -> Option<Entry<'_, M>> {
    // SAFETY: the caller's promise.
    unsafe { entries::<M, F>(machine, table) }?.get(index)
}

/// The value of an entry, as if its page were in no group. A load.
#[inline(always)]
pub(crate) fn load<M: Memory, F: Format>(entry: &Entry<'_, M>, level: u8) -> u64 {
    alone::<F>(entry.load(), level, entry.index())
}

/// The value of an entry of this level, at this index, as if its page were in no group.
#[inline(always)]
pub(crate) fn alone<F: Format>(value: u64, level: u8, index: usize) -> u64 {
    if F::GROUP.is_some() && level == 0 { F::alone(value, index) } else { value }
}

/// Whether the entry of this level has the mark of a group.
#[inline(always)]
pub(crate) fn is_grouped<F: Format>(value: u64, level: u8) -> bool {
    F::GROUP.is_some() && level == 0 && F::alone(value, 0) != value
}

/// The entry of a single page, with the mark of a group if `old` has it.
#[inline(always)]
pub(crate) fn like<F: Format>(old: u64, single: u64, level: u8) -> u64 {
    if is_grouped::<F>(old, level) { F::grouped(single) } else { single }
}

/// The number of entries of a group; 1 where there are none.
pub(crate) const fn group_entries<F: Format>() -> usize {
    match F::GROUP {
        Some(size) => 1 << (size.shift() - F::PAGE.shift()),
        None => 1,
    }
}

/// The checks that all formats share.
fn check<F: Format>(size: PageSize, frame: Frame, attrs: Attrs) -> Result<(), FormatError> {
    match () {
        () if F::level_of(size).is_none_or(|level| level >= F::LEVELS) => {
            Err(FormatError::Size(size))
        }
        () if !frame.is_aligned(size) => Err(FormatError::Misaligned(frame, size)),
        () if attrs.flags.contains(Flags::DECRYPTED) => Err(FormatError::Rights(attrs.flags)),
        () if attrs.key >= F::KEYS => Err(FormatError::Key(attrs.key)),
        () if u32::from(attrs.soft) >> F::SOFT_BITS != 0 => Err(FormatError::Soft(attrs.soft)),
        () => check_frame::<F>(frame),
    }
}

fn check_frame<F: Format>(frame: Frame) -> Result<(), FormatError> {
    if frame.number() >> (F::PHYSICAL_BITS - 12) != 0 {
        return Err(FormatError::Beyond(frame));
    }
    Ok(())
}

/// An entry that is absent to hardware and software, with a number below 2^44 in it.
#[inline]
pub(crate) const fn note(number: u64) -> u64 {
    number << 12
}

/// The number in a [`note`].
#[inline]
pub(crate) const fn noted(entry: u64) -> u64 {
    entry >> 12
}
