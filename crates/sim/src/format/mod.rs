//! Page-table entries as the machine's page walker reads them, for each architecture.
//!
//! Written from the manuals, and deliberately independent of the crate that builds the tables: so
//! an error in one is not repeated in the other.
//!
//! All have hardware that sets accessed and dirty bits. All but some of AArch64 have tables of 512
//! entries, and pages of 4 KiB, 2 MiB and 1 GiB at levels 0, 1 and 2.

mod aarch64;
mod ept;
mod riscv;
mod x86;

use machine::{Frame, PageSize, VirtAddr};

/// The architecture whose page tables the machine's hardware walks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Arch {
    /// x86-64 with 4 or 5 levels.
    #[default]
    X86_64,
    /// x86-64 in a guest of SEV, whose C bit is bit 51 of an address: set in the entries of private
    /// pages and of all tables, and no part of the address. An entry of a table without it is
    /// malformed.
    X86_64Sev,
    /// RISC-V with 3, 4 or 5 levels, the extension Svpbmt, and accessed and dirty bits that
    /// hardware sets (Svadu). The kernel may access pages of programs.
    RiscV,
    /// As [`RiscV`](Arch::RiscV), with Svnapot: hardware caches all 16 pages of a group (64 KiB)
    /// when it walks the entry of one.
    RiscVNapot,
    /// Extended page tables of VT-x, with 4 or 5 levels. The machine is a guest: its CPUs are
    /// virtual, its virtual addresses the guest's physical ones, its tags those of EPT pointers. A
    /// flush of a range drops all that is cached under the tag, as INVEPT does.
    Ept,
    /// Nested page tables of AMD-V, with 4 or 5 levels; otherwise as [`Ept`](Arch::Ept). Tags are
    /// ASIDs of guests, and a flush of a range drops all of one.
    Npt,
    /// AArch64 stage 1 with a granule of 4 KiB, with 4 levels or, with FEAT_LPA2, 5; hardware sets
    /// access flags and dirty states. The machine reports entries that are replaced without
    /// break-before-make ([`Violation::NotBroken`](crate::Violation::NotBroken)). When hardware
    /// walks the entry of a page with the contiguous hint, it caches all pages of the group.
    Aarch64,
    /// As [`Aarch64`](Arch::Aarch64), with a granule of 16 KiB: 3 levels, which translate 47 bits,
    /// or 4, which translate 49, since each half has 48 of its own. Pages have 16 KiB and 32 MiB.
    Aarch64G16,
    /// As [`Aarch64G16`](Arch::Aarch64G16), with FEAT_LPA2: 4 levels, addresses of 52 bits.
    Aarch64G16Lpa2,
    /// As [`Aarch64`](Arch::Aarch64), with a granule of 64 KiB: 3 levels, addresses of 48 bits.
    /// Pages have 64 KiB and 512 MiB.
    Aarch64G64,
    /// As [`Aarch64G64`](Arch::Aarch64G64), with FEAT_LVA and FEAT_LPA: addresses of 52 bits.
    Aarch64G64Lpa,
    /// AArch64 stage 2, with 3 or 4 levels: the machine is a guest, as with [`Ept`](Arch::Ept), but
    /// hardware flushes ranges. Tags are VMIDs.
    Aarch64Stage2,
}

/// The encoding of entries. Those of AArch64 also differ in addresses ([`Format::addresses`]).
#[derive(Clone, Copy, PartialEq, Eq)]
enum FormatKind {
    X86_64,
    RiscV,
    Ept,
    Npt,
    Aarch64,
    Aarch64Stage2,
}

impl Arch {
    /// Whether the tables are a second stage.
    fn is_second_stage(self) -> bool {
        matches!(self, Arch::Ept | Arch::Npt | Arch::Aarch64Stage2)
    }

    /// Whether a valid entry must be made invalid, and flushed, before another one replaces it.
    pub(crate) fn breaks_before_make(self) -> bool {
        matches!(self.kind(), FormatKind::Aarch64 | FormatKind::Aarch64Stage2)
    }

    /// The encoding of its entries.
    fn kind(self) -> FormatKind {
        match self {
            Arch::X86_64 | Arch::X86_64Sev => FormatKind::X86_64,
            Arch::RiscV | Arch::RiscVNapot => FormatKind::RiscV,
            Arch::Ept => FormatKind::Ept,
            Arch::Npt => FormatKind::Npt,
            Arch::Aarch64
            | Arch::Aarch64G16
            | Arch::Aarch64G16Lpa2
            | Arch::Aarch64G64
            | Arch::Aarch64G64Lpa => FormatKind::Aarch64,
            Arch::Aarch64Stage2 => FormatKind::Aarch64Stage2,
        }
    }

    /// The C bit of SEV.
    fn c_bit(self) -> u64 {
        if self == Arch::X86_64Sev { 1 << 51 } else { 0 }
    }

    /// Whether the tables are a second stage, whose hardware drops nothing less than all that is
    /// cached under a tag.
    pub(crate) fn flushes_whole(self) -> bool {
        matches!(self, Arch::Ept | Arch::Npt)
    }
}

/// The rights of a translation; each level on the way down can only remove some.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Rights {
    pub(crate) read: bool,
    pub(crate) write: bool,
    pub(crate) user: bool,
    pub(crate) execute: bool,
}

impl Rights {
    pub(crate) const ALL: Rights = Rights { read: true, write: true, user: true, execute: true };

    fn and(self, other: Rights) -> Rights {
        Rights {
            read: self.read && other.read,
            write: self.write && other.write,
            user: self.user && other.user,
            execute: self.execute && other.execute,
        }
    }

    /// Whether these allow no more than `other`.
    pub(crate) fn within(self, other: Rights) -> bool {
        self.and(other) == self
    }

    pub(crate) fn allow(self, want: Want) -> bool {
        (self.write || !want.write)
            && (self.user || !want.user)
            && if want.execute { self.execute } else { self.read }
    }
}

/// The rights that an access needs. The default is a read by the kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Want {
    /// A write.
    pub write: bool,
    /// An access in user mode, not by the kernel.
    pub user: bool,
    /// An instruction fetch.
    pub execute: bool,
}

/// A decoded entry of a level (0 for the table whose entries map 4 KiB).
pub(crate) enum Entry {
    Absent,
    Malformed,
    Table(Frame),
    Page(PageSize, Frame),
}

impl Entry {
    fn is_page(&self) -> bool {
        matches!(self, Entry::Page(..))
    }
}

/// The page tables of an architecture with a number of levels.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Format {
    pub(crate) arch: Arch,
    pub(crate) levels: u8,
}

impl Format {
    /// The base-2 logarithm of the bytes of a table, which is also the smallest page.
    pub(crate) fn granule(self) -> u32 {
        match self.arch {
            Arch::Aarch64G16 | Arch::Aarch64G16Lpa2 => 14,
            Arch::Aarch64G64 | Arch::Aarch64G64Lpa => 16,
            _ => 12,
        }
    }

    /// The order of a table's block of frames.
    pub(crate) fn order(self) -> u8 {
        (self.granule() - 12) as u8
    }

    /// The number of entries of a table.
    pub(crate) fn entries(self) -> usize {
        1 << (self.granule() - 3)
    }

    /// The base-2 logarithm of the bytes that an entry of this level decides about.
    pub(crate) fn shift(self, level: u8) -> u32 {
        self.granule() + (self.granule() - 3) * u32::from(level)
    }

    /// The sizes of pages.
    pub(crate) fn sizes(self) -> impl Iterator<Item = PageSize> {
        (0..3).filter_map(move |level| PageSize::from_shift(self.shift(level)))
    }

    /// The encoding of addresses in entries of AArch64.
    fn addresses(self) -> aarch64::Addresses {
        let high = match (self.arch, self.levels) {
            (Arch::Aarch64G16Lpa2, _) | (Arch::Aarch64, 5) => aarch64::High::Lpa2,
            (Arch::Aarch64G64Lpa, _) => aarch64::High::Lpa,
            _ => aarch64::High::None,
        };
        aarch64::Addresses { granule: self.granule(), high }
    }

    /// The meaning of an entry at this index of a table of this level.
    pub(crate) fn decode(self, entry: u64, level: u8, index: usize) -> Entry {
        let c_bit = self.arch.c_bit();
        match self.arch.kind() {
            FormatKind::X86_64 => match x86::decode(entry & !c_bit, level) {
                Entry::Table(_) if entry & c_bit != c_bit => Entry::Malformed,
                found => found,
            },
            FormatKind::Npt => x86::decode_nested(entry, level),
            FormatKind::Ept => ept::decode(entry, level),
            FormatKind::RiscV if self.is_group(entry, level) => riscv::decode_group(entry, index),
            FormatKind::RiscV => riscv::decode(entry, level),
            _ => aarch64::decode(entry, level, self.addresses()),
        }
    }

    /// Whether an entry is that of a page in a group: hardware that walks it may cache all pages of
    /// the group.
    pub(crate) fn is_group(self, entry: u64, level: u8) -> bool {
        level == 0
            && match self.arch.kind() {
                FormatKind::RiscV => self.arch == Arch::RiscVNapot && riscv::is_group(entry),
                FormatKind::Aarch64 | FormatKind::Aarch64Stage2 => aarch64::is_group(entry),
                _ => false,
            }
    }

    /// The number of entries of a group.
    pub(crate) fn group(self) -> usize {
        match self.granule() {
            14 => 128,
            16 => 32,
            _ => 16,
        }
    }

    /// The rights that are left of those above after this entry, which was decoded as `found`.
    pub(crate) fn narrow(self, above: Rights, entry: u64, found: &Entry) -> Rights {
        above.and(match self.arch.kind() {
            FormatKind::X86_64 | FormatKind::Npt => x86::rights(entry),
            FormatKind::Ept => ept::rights(entry),
            FormatKind::RiscV => riscv::rights(entry, found.is_page()),
            FormatKind::Aarch64 => aarch64::rights(entry, found.is_page()),
            FormatKind::Aarch64Stage2 => aarch64::rights2(entry, found.is_page()),
        })
    }

    /// The entry after an access by way of it has set its accessed bit and, for a write to a page,
    /// its dirty bit.
    pub(crate) fn with_accessed_dirty(self, entry: u64, found: &Entry, write: bool) -> u64 {
        match self.arch.kind() {
            FormatKind::X86_64 | FormatKind::Npt => {
                x86::with_accessed_dirty(entry, write && found.is_page())
            }
            FormatKind::Ept => ept::with_accessed_dirty(entry, write && found.is_page()),
            FormatKind::RiscV if found.is_page() => riscv::with_accessed_dirty(entry, write),
            FormatKind::Aarch64 if found.is_page() => aarch64::with_accessed_dirty(entry, write),
            FormatKind::Aarch64Stage2 if found.is_page() => {
                aarch64::with_accessed_dirty2(entry, write)
            }
            FormatKind::RiscV | FormatKind::Aarch64 | FormatKind::Aarch64Stage2 => entry,
        }
    }

    /// Whether the dirty bit of a page's entry is set.
    pub(crate) fn is_dirty(self, entry: u64) -> bool {
        match self.arch.kind() {
            FormatKind::X86_64 | FormatKind::Npt => entry & x86::DIRTY != 0,
            FormatKind::Ept => entry & ept::DIRTY != 0,
            FormatKind::RiscV => entry & riscv::DIRTY != 0,
            FormatKind::Aarch64 => entry & aarch64::AP2 == 0,
            FormatKind::Aarch64Stage2 => entry & aarch64::AP2 != 0,
        }
    }

    /// Whether the page of an entry belongs to all spaces.
    pub(crate) fn is_global(self, entry: u64) -> bool {
        match self.arch.kind() {
            FormatKind::X86_64 => entry & x86::GLOBAL != 0,
            FormatKind::RiscV => entry & riscv::GLOBAL != 0,
            // The guest's own tables know.
            FormatKind::Ept | FormatKind::Npt | FormatKind::Aarch64Stage2 => false,
            FormatKind::Aarch64 => entry & aarch64::NOT_GLOBAL == 0,
        }
    }

    /// Whether user mode may use the page of an entry.
    pub(crate) fn is_user(self, entry: u64) -> bool {
        match self.arch.kind() {
            FormatKind::X86_64 | FormatKind::Npt => entry & x86::USER != 0,
            FormatKind::Ept | FormatKind::Aarch64Stage2 => true,
            FormatKind::Aarch64 => aarch64::is_user(entry),
            FormatKind::RiscV => entry & riscv::USER != 0,
        }
    }

    /// Whether hardware regards an entry.
    pub(crate) fn is_present(self, entry: u64) -> bool {
        match self.arch.kind() {
            FormatKind::X86_64 | FormatKind::Npt => entry & x86::PRESENT != 0,
            FormatKind::Ept => ept::is_present(entry),
            FormatKind::RiscV => entry & riscv::VALID != 0,
            FormatKind::Aarch64 | FormatKind::Aarch64Stage2 => entry & aarch64::VALID != 0,
        }
    }

    /// The memory type of a page's entry, where replacing it needs break-before-make.
    pub(crate) fn memory_type(self, entry: u64) -> u8 {
        match self.arch.kind() {
            FormatKind::Aarch64 => (entry >> 2 & 7) as u8,
            FormatKind::Aarch64Stage2 => (entry >> 2 & 15) as u8,
            _ => 0,
        }
    }

    /// The bits of an entry that hold an address.
    pub(crate) fn address_bits(self) -> u64 {
        match self.arch.kind() {
            FormatKind::X86_64 | FormatKind::Npt | FormatKind::Ept => {
                x86::ADDRESS & !self.arch.c_bit()
            }
            FormatKind::RiscV => riscv::ADDRESS,
            _ => self.addresses().bits(),
        }
    }

    /// The frames that an entry of any level, at this index, may lead to.
    pub(crate) fn targets(self, entry: u64, index: usize) -> impl Iterator<Item = Frame> {
        let (frame, large) = match self.arch.kind() {
            FormatKind::RiscV if self.is_group(entry, 0) => {
                (riscv::frame_in_group(entry, index), None)
            }
            FormatKind::X86_64 | FormatKind::Npt | FormatKind::Ept => {
                x86::targets(entry & !self.arch.c_bit())
            }
            FormatKind::RiscV => (riscv::frame(entry), None),
            _ => (self.addresses().frame(entry), None),
        };
        [Some(frame), large].into_iter().flatten()
    }

    /// Whether an entry may be that of a large page.
    pub(crate) fn may_be_large(self, entry: u64) -> bool {
        self.is_present(entry)
            && match self.arch.kind() {
                FormatKind::X86_64 | FormatKind::Npt | FormatKind::Ept => entry & x86::LARGE != 0,
                FormatKind::RiscV | FormatKind::Aarch64 | FormatKind::Aarch64Stage2 => true,
            }
    }

    /// The index of the entry for `at` in a table of this level.
    pub(crate) fn index(self, at: VirtAddr, level: u8) -> usize {
        (at.get() >> self.shift(level)) as usize & (self.entries() - 1)
    }

    /// Whether the hardware translates the address: the bits above the translated ones repeat the
    /// highest of these, or, in a second stage, are clear.
    pub(crate) fn is_canonical(self, at: VirtAddr) -> bool {
        let bits = match (self.arch, self.levels) {
            (Arch::Aarch64G64, _) => 48,
            // 48 in each half.
            (Arch::Aarch64G16, 4) => 49,
            // The levels exceed them, as those of FEAT_LPA2 do with 4 KiB.
            (Arch::Aarch64G64Lpa | Arch::Aarch64G16Lpa2, _) | (Arch::Aarch64, 5) => 52,
            _ => self.shift(self.levels),
        };
        let unused = 64 - bits;
        if self.arch.is_second_stage() {
            return at.get() >> (64 - unused) == 0;
        }
        ((at.get() << unused) as i64 >> unused) as u64 == at.get()
    }

    /// Whether there is such an architecture with so many levels.
    pub(crate) fn exists(self) -> bool {
        match self.arch {
            Arch::X86_64 | Arch::X86_64Sev | Arch::Npt | Arch::Ept => {
                (4..=5).contains(&self.levels)
            }
            Arch::RiscV | Arch::RiscVNapot => (3..=5).contains(&self.levels),
            Arch::Aarch64 => (4..=5).contains(&self.levels),
            Arch::Aarch64Stage2 | Arch::Aarch64G16 => (3..=4).contains(&self.levels),
            Arch::Aarch64G16Lpa2 => self.levels == 4,
            Arch::Aarch64G64 | Arch::Aarch64G64Lpa => self.levels == 3,
        }
    }
}

/// A page at this level, with a granule of 4 KiB, if its frame is aligned.
fn page(level: u8, frame: Frame) -> Entry {
    page_of(12 + 9 * u32::from(level), frame)
}

/// A page of `1 << shift` bytes, if there are such pages, and its frame is aligned.
fn page_of(shift: u32, frame: Frame) -> Entry {
    let Some(size) = PageSize::from_shift(shift) else { return Entry::Malformed };
    if frame.is_aligned(size) { Entry::Page(size, frame) } else { Entry::Malformed }
}
