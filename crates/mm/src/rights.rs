//! The rights of pages, from the flags of their VMA.

use core::fmt;

use paging::{Attrs, Flags, Share};
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
///
/// Only an exclusive page of a private map, whose VMA has an anon_vma, and a page of an object in a
/// shared one get WRITE. So each first write to any other page faults.
pub(crate) fn attrs(flags: VmFlags, share: Share) -> Attrs {
    let mut rights = Flags::empty();
    if flags.intersects(VmFlags::ACCESS) {
        rights |= Flags::READ | Flags::USER;
    }
    if flags.contains(VmFlags::WRITE) && matches!(share, Share::Exclusive | Share::Object) {
        rights |= Flags::WRITE;
    }
    if flags.contains(VmFlags::EXEC) {
        rights |= Flags::EXECUTE;
    }
    Attrs { key: flags.pkey(), ..Attrs::new(rights) }.with_share(share)
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
        assert!(suffices(attrs(writable, Share::Exclusive), Access::Write));
        for share in [Share::CopyOnWrite, Share::Flushing] {
            assert!(!suffices(attrs(writable, share), Access::Write));
            assert!(suffices(attrs(writable, share), Access::Read));
        }
        assert!(!suffices(attrs(VmFlags::empty(), Share::Exclusive), Access::Read));
        assert_eq!(attrs(VmFlags::empty(), Share::Exclusive).flags, Flags::empty());
    }
}
