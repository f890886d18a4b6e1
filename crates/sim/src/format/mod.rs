//! Page-table entries as the machine's page walker reads them, for each architecture.
//!
//! Written from the manuals, and deliberately independent of the crate that builds the tables: so
//! an error in one is not repeated in the other.
//!
//! All have tables of 512 entries, pages of 4 KiB, 2 MiB and 1 GiB at levels 0, 1 and 2, and
//! hardware that sets accessed and dirty bits.

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
    /// RISC-V with 3, 4 or 5 levels, the extension Svpbmt, and accessed and dirty bits that
    /// hardware sets (Svadu). The kernel may access pages of programs.
    RiscV,
    /// Extended page tables of VT-x, with 4 or 5 levels. The machine is a guest: its CPUs are
    /// virtual, its virtual addresses the guest's physical ones, its tags those of EPT pointers. A
    /// flush of a range drops all that is cached under the tag, as INVEPT does.
    Ept,
    /// Nested page tables of AMD-V, with 4 or 5 levels; otherwise as [`Ept`](Arch::Ept). Tags are
    /// ASIDs of guests, and a flush of a range drops all of one.
    Npt,
    /// AArch64 stage 1 with a granule of 4 KiB, with 4 levels or, with FEAT_LPA2, 5; hardware sets
    /// access flags and dirty states. The machine reports entries that are replaced without
    /// break-before-make ([`Violation::NotBroken`](crate::Violation::NotBroken)).
    Aarch64,
    /// AArch64 stage 2, with 3 or 4 levels: the machine is a guest, as with [`Ept`](Arch::Ept), but
    /// hardware flushes ranges. Tags are VMIDs.
    Aarch64Stage2,
}

impl Arch {
    /// Whether the tables are a second stage.
    fn is_second_stage(self) -> bool {
        matches!(self, Arch::Ept | Arch::Npt | Arch::Aarch64Stage2)
    }

    /// Whether a valid entry must be made invalid, and flushed, before another one replaces it.
    pub(crate) fn breaks_before_make(self) -> bool {
        matches!(self, Arch::Aarch64 | Arch::Aarch64Stage2)
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
    pub(crate) fn decode(self, entry: u64, level: u8) -> Entry {
        match self.arch {
            Arch::X86_64 => x86::decode(entry, level),
            Arch::Npt => x86::decode_nested(entry, level),
            Arch::Ept => ept::decode(entry, level),
            Arch::RiscV => riscv::decode(entry, level),
            Arch::Aarch64 | Arch::Aarch64Stage2 => aarch64::decode(entry, level, self.levels),
        }
    }

    /// The rights that are left of those above after this entry, which was decoded as `found`.
    pub(crate) fn narrow(self, above: Rights, entry: u64, found: &Entry) -> Rights {
        above.and(match self.arch {
            Arch::X86_64 | Arch::Npt => x86::rights(entry),
            Arch::Ept => ept::rights(entry),
            Arch::RiscV => riscv::rights(entry, found.is_page()),
            Arch::Aarch64 => aarch64::rights(entry, found.is_page()),
            Arch::Aarch64Stage2 => aarch64::rights2(entry, found.is_page()),
        })
    }

    /// The entry after an access by way of it has set its accessed bit and, for a write to a page,
    /// its dirty bit.
    pub(crate) fn marked(self, entry: u64, found: &Entry, write: bool) -> u64 {
        match self.arch {
            Arch::X86_64 | Arch::Npt => x86::marked(entry, write && found.is_page()),
            Arch::Ept => ept::marked(entry, write && found.is_page()),
            Arch::RiscV if found.is_page() => riscv::marked(entry, write),
            Arch::Aarch64 if found.is_page() => aarch64::marked(entry, write),
            Arch::Aarch64Stage2 if found.is_page() => aarch64::marked2(entry, write),
            Arch::RiscV | Arch::Aarch64 | Arch::Aarch64Stage2 => entry,
        }
    }

    /// Whether the dirty bit of a page's entry is set.
    pub(crate) fn is_dirty(self, entry: u64) -> bool {
        match self.arch {
            Arch::X86_64 | Arch::Npt => entry & x86::DIRTY != 0,
            Arch::Ept => entry & ept::DIRTY != 0,
            Arch::RiscV => entry & riscv::DIRTY != 0,
            Arch::Aarch64 => entry & aarch64::AP2 == 0,
            Arch::Aarch64Stage2 => entry & aarch64::AP2 != 0,
        }
    }

    /// Whether the page of an entry belongs to all spaces.
    pub(crate) fn is_global(self, entry: u64) -> bool {
        match self.arch {
            Arch::X86_64 => entry & x86::GLOBAL != 0,
            Arch::RiscV => entry & riscv::GLOBAL != 0,
            // The guest's own tables know.
            Arch::Ept | Arch::Npt | Arch::Aarch64Stage2 => false,
            Arch::Aarch64 => entry & aarch64::NOT_GLOBAL == 0,
        }
    }

    /// Whether user mode may use the page of an entry.
    pub(crate) fn is_user(self, entry: u64) -> bool {
        match self.arch {
            Arch::X86_64 | Arch::Npt => entry & x86::USER != 0,
            Arch::Ept | Arch::Aarch64Stage2 => true,
            Arch::Aarch64 => aarch64::is_user(entry),
            Arch::RiscV => entry & riscv::USER != 0,
        }
    }

    /// Whether hardware regards an entry.
    pub(crate) fn is_present(self, entry: u64) -> bool {
        match self.arch {
            Arch::X86_64 | Arch::Npt => entry & x86::PRESENT != 0,
            Arch::Ept => ept::is_present(entry),
            Arch::RiscV => entry & riscv::VALID != 0,
            Arch::Aarch64 | Arch::Aarch64Stage2 => entry & aarch64::VALID != 0,
        }
    }

    /// The memory type of a page's entry, where replacing it needs break-before-make.
    pub(crate) fn memory_type(self, entry: u64) -> u8 {
        match self.arch {
            Arch::Aarch64 => (entry >> 2 & 7) as u8,
            Arch::Aarch64Stage2 => (entry >> 2 & 15) as u8,
            _ => 0,
        }
    }

    /// The bits of an entry that hold an address.
    pub(crate) fn address_bits(self) -> u64 {
        match self.arch {
            Arch::X86_64 | Arch::Npt | Arch::Ept => x86::ADDRESS,
            Arch::RiscV => riscv::ADDRESS,
            Arch::Aarch64 | Arch::Aarch64Stage2 => aarch64::address_bits(self.levels),
        }
    }

    /// The frames that an entry of any level may lead to.
    pub(crate) fn targets(self, entry: u64) -> impl Iterator<Item = Frame> {
        let (frame, large) = match self.arch {
            Arch::X86_64 | Arch::Npt | Arch::Ept => x86::targets(entry),
            Arch::RiscV => (riscv::frame(entry), None),
            Arch::Aarch64 | Arch::Aarch64Stage2 => (aarch64::frame(entry, self.levels), None),
        };
        [Some(frame), large].into_iter().flatten()
    }

    /// Whether an entry may be that of a large page.
    pub(crate) fn may_be_large(self, entry: u64) -> bool {
        self.is_present(entry)
            && match self.arch {
                Arch::X86_64 | Arch::Npt | Arch::Ept => entry & x86::LARGE != 0,
                Arch::RiscV | Arch::Aarch64 | Arch::Aarch64Stage2 => true,
            }
    }

    /// The index of the entry for `at` in a table of this level.
    pub(crate) fn index(self, at: VirtAddr, level: u8) -> usize {
        (at.get() >> (12 + 9 * u32::from(level))) as usize & 511
    }

    /// Whether the hardware translates the address: the bits above the translated ones repeat the
    /// highest of these, or, in a second stage, are clear.
    pub(crate) fn is_canonical(self, at: VirtAddr) -> bool {
        let bits = 12 + 9 * u32::from(self.levels);
        // FEAT_LPA2 has 52 bits, which five levels exceed.
        let bits = if self.arch == Arch::Aarch64 { bits.min(52) } else { bits };
        let unused = 64 - bits;
        if self.arch.is_second_stage() {
            return at.get() >> (64 - unused) == 0;
        }
        ((at.get() << unused) as i64 >> unused) as u64 == at.get()
    }

    /// Whether there is such an architecture with so many levels.
    pub(crate) fn exists(self) -> bool {
        match self.arch {
            Arch::X86_64 | Arch::Npt | Arch::Ept => (4..=5).contains(&self.levels),
            Arch::RiscV => (3..=5).contains(&self.levels),
            Arch::Aarch64 => (4..=5).contains(&self.levels),
            Arch::Aarch64Stage2 => (3..=4).contains(&self.levels),
        }
    }
}

/// A page at this level, if its frame is aligned.
fn page(level: u8, frame: Frame) -> Entry {
    let size = match level {
        0 => PageSize::Size4K,
        1 => PageSize::Size2M,
        2 => PageSize::Size1G,
        _ => return Entry::Malformed,
    };
    if frame.is_aligned(size) { Entry::Page(size, frame) } else { Entry::Malformed }
}
