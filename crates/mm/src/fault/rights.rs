//! The rights of pages, from the flags of their VMA.

use machine::Machine;
use paging::{Attrs, Flags, Format, Share};
use vma::{VmFlags, Vma};

use crate::{
    Backing,
    access::Access,
    entry_marks::{MARKS, marked},
};

/// Whether a VMA with these flags allows the access. Hardware cannot forbid reading what may be
/// written or executed.
pub(crate) fn allows(flags: VmFlags, access: Access) -> bool {
    match access {
        Access::Read => flags.intersects(VmFlags::ACCESS),
        Access::Write => flags.contains(VmFlags::WRITE),
        Access::Execute => flags.contains(VmFlags::EXEC),
    }
}

/// An access, and whether a debugger makes it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct WantedAccess {
    pub(crate) access: Access,
    /// The rights of the VMA do not matter, but those that it may have (FOLL_FORCE).
    pub(crate) forced: bool,
}

impl WantedAccess {
    pub(crate) fn new(access: Access) -> Self {
        WantedAccess { access, forced: false }
    }

    pub(crate) fn forced(access: Access) -> Self {
        WantedAccess { access, forced: true }
    }

    pub(crate) fn writes(self) -> bool {
        self.access == Access::Write
    }

    /// Whether a VMA with these flags allows it. A debugger writes to the copies of a private map
    /// only.
    pub(crate) fn is_allowed(self, flags: VmFlags) -> bool {
        match self.forced {
            false => allows(flags, self.access),
            true if flags.intersects(VmFlags::IO | VmFlags::PFNMAP) => false,
            true if self.writes() => {
                let copies = flags & (VmFlags::SHARED | VmFlags::MAYWRITE) == VmFlags::MAYWRITE;
                flags.contains(VmFlags::WRITE) || copies
            }
            true => flags.contains(VmFlags::MAYREAD),
        }
    }

    /// The marks that hardware leaves in the entry of the page.
    pub(crate) fn leaves(self) -> Flags {
        match self.writes() {
            true => Flags::ACCESSED | Flags::DIRTY,
            false => Flags::ACCESSED,
        }
    }

    /// Whether a page with these attributes needs no fault.
    pub(crate) fn is_met(self, attrs: Attrs) -> bool {
        let kept = attrs.share() == Share::Exclusive && attrs.soft & MARKS == 0;
        suffices(attrs, self.access) || self.forced && (!self.writes() || kept)
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

/// As [`attrs`], with the attributes of a device's memory, if the VMA's object is one.
pub(crate) fn attrs_in<M: Machine, F: Format>(vma: &Vma<Backing<M>>, share: Share) -> Attrs {
    let cache = vma.file.as_ref().and_then(|file| file.object().info().device_memory);
    let mut attrs = attrs(vma.flags, share);
    if let Some(cache) = cache {
        attrs.cache = cache;
        attrs.flags |= F::DEVICE;
    }
    attrs
}

/// As [`attrs_in`], for a page that a fault brings in or makes writable. As in Linux, it has the
/// marks of the access, also if software makes it: mlock, a copy by the kernel, a pin.
pub(crate) fn attrs_for<M: Machine, F: Format>(
    vma: &Vma<Backing<M>>,
    share: Share,
    want: WantedAccess,
) -> Attrs {
    let mut attrs = attrs_in::<M, F>(vma, share);
    attrs.flags |= want.leaves();
    attrs
}

/// As [`attrs_in`], for a page that keeps its marks ([`crate::monitor::page_marks`]).
pub(crate) fn attrs_kept<M: Machine, F: Format>(vma: &Vma<Backing<M>>, page: Attrs) -> Attrs {
    marked(attrs_in::<M, F>(vma, page.share()), page.soft)
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
