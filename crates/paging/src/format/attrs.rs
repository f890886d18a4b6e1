//! The attributes of a page, independent of the format's encoding.

use bitflags::bitflags;

bitflags! {
    /// The rights of a page, its accessed and dirty bits, and its permitted users.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    pub struct Flags: u8 {
        /// Readable.
        const READ = 1;
        /// Writable.
        const WRITE = 1 << 1;
        /// Executable.
        const EXECUTE = 1 << 2;
        /// Accessible to user mode, not the kernel alone.
        const USER = 1 << 3;
        /// The same in all address spaces: its translation survives a switch of the address space.
        const GLOBAL = 1 << 4;
        /// Accessed. Set by hardware.
        const ACCESSED = 1 << 5;
        /// Dirty: written. Set by hardware.
        const DIRTY = 1 << 6;
        /// Shared with the host, in a guest whose memory is encrypted
        /// ([`Encrypted`](crate::Encrypted)). No other format has such pages.
        const DECRYPTED = 1 << 7;
    }
}

impl Flags {
    /// READ, WRITE and EXECUTE.
    pub const RWX: Flags = Flags::READ.union(Flags::WRITE).union(Flags::EXECUTE);
    /// The flags that [`protect`](crate::PageTables::protect) changes: READ, WRITE, EXECUTE and
    /// USER.
    pub const RIGHTS: Flags = Flags::RWX.union(Flags::USER);
}

/// The memory type of a page: how accesses go through the CPU's caches.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Cache {
    /// Ordinary cached memory.
    #[default]
    WriteBack,
    /// Write-through: writes go to memory at once.
    WriteThrough,
    /// Uncached, unless the MTRRs of x86 say write-combining.
    UncachedMinus,
    /// Uncached: for devices.
    Uncached,
    /// Uncached, with writes combined.
    WriteCombining,
    /// Write-protect: reads are cached, writes go to memory.
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
    /// Its rights, its accessed and dirty bits, and its permitted users.
    pub flags: Flags,
    /// Its memory type.
    pub cache: Cache,
    /// Its protection key; 0 where there are none.
    pub key: u8,
    /// Software bits, as many as [`Format::SOFT_BITS`](crate::Format::SOFT_BITS).
    pub soft: u16,
}

impl Attrs {
    /// Attributes of ordinary memory with these flags.
    pub const fn new(flags: Flags) -> Attrs {
        Attrs { flags, cache: Cache::WriteBack, key: 0, soft: 0 }
    }

    /// Kernel data.
    pub const KERNEL_RW: Attrs = Attrs::new(Flags::READ.union(Flags::WRITE).union(Flags::GLOBAL));
    /// User data.
    pub const USER_RW: Attrs = Attrs::new(Flags::READ.union(Flags::WRITE).union(Flags::USER));
    /// Read-only user data.
    pub const USER_RO: Attrs = Attrs::new(Flags::READ.union(Flags::USER));

    /// The same attributes with other rights.
    #[must_use]
    pub const fn with_rights(self, rights: Flags) -> Attrs {
        let kept = self.flags.difference(Flags::RIGHTS);
        Attrs { flags: kept.union(rights.intersection(Flags::RIGHTS)), ..self }
    }
}

/// The other users of a page: the two lowest software bits of an entry, in tables that fork.
///
/// ```
/// use paging::{Attrs, Share};
/// let page = Attrs::USER_RO.with_share(Share::Exclusive);
/// assert_eq!((page.share(), Attrs::USER_RO.share()), (Share::Exclusive, Share::CopyOnWrite));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Share {
    /// Others may use the frame, and rely on its contents: a write copies it.
    #[default]
    CopyOnWrite,
    /// No other entry leads to the frame. A fork that copies the entry ends that.
    Exclusive,
    /// A page of an object, such as shared memory: all users see each write. A fork leaves it so.
    Object,
    /// The page has replaced another one, of the same contents, which CPUs may still have cached.
    /// It becomes exclusive after the flush.
    Flushing,
}

impl Attrs {
    /// The other users of the page.
    #[inline]
    pub const fn share(self) -> Share {
        match self.soft & 3 {
            0 => Share::CopyOnWrite,
            1 => Share::Exclusive,
            2 => Share::Object,
            _ => Share::Flushing,
        }
    }

    /// The same attributes for a page that others use like this.
    #[inline]
    #[must_use]
    pub const fn with_share(self, share: Share) -> Attrs {
        Attrs { soft: self.soft & !3 | share as u16, ..self }
    }
}
