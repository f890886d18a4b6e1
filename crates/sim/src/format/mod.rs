//! Page-table entries as the machine's page walker reads them, for each architecture.
//!
//! Written from the manuals, and deliberately independent of the crate that builds the tables: so
//! an error in one is not repeated in the other.
//!
//! All have tables of 512 entries, pages of 4 KiB, 2 MiB and 1 GiB at levels 0, 1 and 2, and
//! hardware that sets accessed and dirty bits.

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
            Arch::RiscV => riscv::decode(entry, level),
        }
    }

    /// The rights that are left of those above after this entry, which was decoded as `found`.
    pub(crate) fn narrow(self, above: Rights, entry: u64, found: &Entry) -> Rights {
        above.and(match self.arch {
            Arch::X86_64 => x86::rights(entry),
            Arch::RiscV => riscv::rights(entry, found.is_page()),
        })
    }

    /// The entry after an access by way of it has set its accessed bit and, for a write to a page,
    /// its dirty bit.
    pub(crate) fn marked(self, entry: u64, found: &Entry, write: bool) -> u64 {
        match self.arch {
            Arch::X86_64 => x86::marked(entry, write && found.is_page()),
            Arch::RiscV if found.is_page() => riscv::marked(entry, write),
            Arch::RiscV => entry,
        }
    }

    /// Whether the dirty bit of a page's entry is set.
    pub(crate) fn is_dirty(self, entry: u64) -> bool {
        match self.arch {
            Arch::X86_64 => entry & x86::DIRTY != 0,
            Arch::RiscV => entry & riscv::DIRTY != 0,
        }
    }

    /// Whether the page of an entry belongs to all spaces.
    pub(crate) fn is_global(self, entry: u64) -> bool {
        match self.arch {
            Arch::X86_64 => entry & x86::GLOBAL != 0,
            Arch::RiscV => entry & riscv::GLOBAL != 0,
        }
    }

    /// Whether user mode may use the page of an entry.
    pub(crate) fn is_user(self, entry: u64) -> bool {
        match self.arch {
            Arch::X86_64 => entry & x86::USER != 0,
            Arch::RiscV => entry & riscv::USER != 0,
        }
    }

    /// Whether hardware regards an entry.
    pub(crate) fn is_present(self, entry: u64) -> bool {
        match self.arch {
            Arch::X86_64 => entry & x86::PRESENT != 0,
            Arch::RiscV => entry & riscv::VALID != 0,
        }
    }

    /// The bits of an entry that hold an address.
    pub(crate) fn address_bits(self) -> u64 {
        match self.arch {
            Arch::X86_64 => x86::ADDRESS,
            Arch::RiscV => riscv::ADDRESS,
        }
    }

    /// The frames that an entry of any level may lead to.
    pub(crate) fn targets(self, entry: u64) -> impl Iterator<Item = Frame> {
        let (frame, large) = match self.arch {
            Arch::X86_64 => x86::targets(entry),
            Arch::RiscV => (riscv::frame(entry), None),
        };
        [Some(frame), large].into_iter().flatten()
    }

    /// Whether an entry may be that of a large page.
    pub(crate) fn may_be_large(self, entry: u64) -> bool {
        self.is_present(entry)
            && match self.arch {
                Arch::X86_64 => entry & x86::LARGE != 0,
                Arch::RiscV => true,
            }
    }

    /// The index of the entry for `at` in a table of this level.
    pub(crate) fn index(self, at: VirtAddr, level: u8) -> usize {
        (at.get() >> (12 + 9 * u32::from(level))) as usize & 511
    }

    /// Whether the hardware translates the address: the bits above the translated ones repeat the
    /// highest of these.
    pub(crate) fn is_canonical(self, at: VirtAddr) -> bool {
        let unused = 64 - (12 + 9 * u32::from(self.levels));
        ((at.get() << unused) as i64 >> unused) as u64 == at.get()
    }

    /// Whether there is such an architecture with so many levels.
    pub(crate) fn exists(self) -> bool {
        match self.arch {
            Arch::X86_64 => (4..=5).contains(&self.levels),
            Arch::RiscV => (3..=5).contains(&self.levels),
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
