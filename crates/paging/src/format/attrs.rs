//! The attributes of a page, apart from how a format spells them.

use bitflags::bitflags;

bitflags! {
    /// What a page allows, and what has been done to it.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    pub struct Flags: u8 {
        /// It may be read.
        const READ = 1;
        /// It may be written.
        const WRITE = 1 << 1;
        /// Instructions may be fetched from it.
        const EXECUTE = 1 << 2;
        /// Programs may use it, not the kernel alone.
        const USER = 1 << 3;
        /// It is the same in all address spaces: its translation outlives a change of the space.
        const GLOBAL = 1 << 4;
        /// It has been used. Hardware sets it.
        const ACCESSED = 1 << 5;
        /// It has been written. Hardware sets it.
        const DIRTY = 1 << 6;
    }
}

impl Flags {
    /// READ, WRITE and EXECUTE.
    pub const RWX: Flags = Flags::READ.union(Flags::WRITE).union(Flags::EXECUTE);
    /// What [`protect`](crate::PageTables::protect) changes: READ, WRITE, EXECUTE and USER.
    pub const RIGHTS: Flags = Flags::RWX.union(Flags::USER);
}

/// How accesses to a page go through the CPU's caches.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Cache {
    /// As ordinary memory.
    #[default]
    WriteBack,
    /// Writes go to memory at once.
    WriteThrough,
    /// Not at all, unless the range registers of x86 say that writes are combined.
    UncachedMinus,
    /// Not at all: for devices.
    Uncached,
    /// Not at all, but writes are gathered.
    WriteCombining,
    /// Reads are cached, writes go to memory.
    WriteProtect,
}

/// All attributes of a page.
///
/// ```
/// use paging::{Attrs, Cache, Flags};
/// let device = Attrs { cache: Cache::Uncached, ..Attrs::KERNEL_RW };
/// assert!(device.flags.contains(Flags::WRITE | Flags::GLOBAL));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Attrs {
    /// What it allows, and what has been done to it.
    pub flags: Flags,
    /// How it is cached.
    pub cache: Cache,
    /// Its protection key; 0 where there are none.
    pub key: u8,
    /// Software's own bits, as many as [`Format::SOFT_BITS`](crate::Format::SOFT_BITS).
    pub soft: u16,
}

impl Attrs {
    /// Ordinary memory with these flags.
    pub const fn new(flags: Flags) -> Attrs {
        Attrs { flags, cache: Cache::WriteBack, key: 0, soft: 0 }
    }

    /// The kernel's data.
    pub const KERNEL_RW: Attrs = Attrs::new(Flags::READ.union(Flags::WRITE).union(Flags::GLOBAL));
    /// A program's data.
    pub const USER_RW: Attrs = Attrs::new(Flags::READ.union(Flags::WRITE).union(Flags::USER));
    /// A program's data that it may only read.
    pub const USER_RO: Attrs = Attrs::new(Flags::READ.union(Flags::USER));

    /// These, with other rights.
    #[must_use]
    pub const fn with_rights(self, rights: Flags) -> Attrs {
        let kept = self.flags.difference(Flags::RIGHTS);
        Attrs { flags: kept.union(rights.intersection(Flags::RIGHTS)), ..self }
    }
}
