//! The rights of pages, from the flags of their VMA.

use core::fmt;

use paging::{Attrs, Flags};
use vma::VmFlags;

/// The kind of an access.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Access {
    /// A load.
    Read,
    /// A store.
    Write,
    /// The fetch of an instruction.
    Execute,
}

impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Access::Read => "read",
            Access::Write => "write",
            Access::Execute => "execute",
        })
    }
}

/// The software bit of a page that no one shares and that may be written: its VMA has an anon_vma.
/// Only such a page gets WRITE, so each first write of a VMA faults.
pub(crate) const EXCLUSIVE: u16 = 1;

/// Whether a VMA with these flags allows the access. Hardware cannot forbid reading what may be
/// written or executed.
pub(crate) fn allows(flags: VmFlags, access: Access) -> bool {
    match access {
        Access::Read => flags.intersects(VmFlags::ACCESS),
        Access::Write => flags.contains(VmFlags::WRITE),
        Access::Execute => flags.contains(VmFlags::EXEC),
    }
}

/// The attributes of a page in a VMA with these flags.
pub(crate) fn attrs(flags: VmFlags, exclusive: bool) -> Attrs {
    let mut rights = Flags::empty();
    if flags.intersects(VmFlags::ACCESS) {
        rights |= Flags::READ | Flags::USER;
    }
    if flags.contains(VmFlags::WRITE) && exclusive {
        rights |= Flags::WRITE;
    }
    if flags.contains(VmFlags::EXEC) {
        rights |= Flags::EXECUTE;
    }
    let soft = if exclusive { EXCLUSIVE } else { 0 };
    Attrs { key: flags.pkey(), soft, ..Attrs::new(rights) }
}

/// Whether a page with these attributes allows the access.
pub(crate) fn suffices(attrs: Attrs, access: Access) -> bool {
    let needed = match access {
        Access::Read => Flags::READ,
        Access::Write => Flags::WRITE,
        Access::Execute => Flags::EXECUTE,
    };
    attrs.flags.contains(needed | Flags::USER)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_exclusive_pages_are_writable() {
        let writable = VmFlags::READ | VmFlags::WRITE;
        assert!(suffices(attrs(writable, true), Access::Write));
        assert!(!suffices(attrs(writable, false), Access::Write));
        assert!(suffices(attrs(writable, false), Access::Read));
        assert!(!suffices(attrs(VmFlags::empty(), true), Access::Read));
        assert_eq!(attrs(VmFlags::empty(), true).flags, Flags::empty());
    }
}
