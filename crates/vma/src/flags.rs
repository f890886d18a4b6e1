//! The flags of a VMA: permissions and behaviour, as `/proc/PID/smaps` shows them in `VmFlags`.
//!
//! The bits are in the order in which Linux lists them, so printing is one pass from the lowest bit
//! up. Two VMAs with different flags never merge, except for the [`STICKY`](VmFlags::STICKY) ones.

use core::{fmt, str::FromStr};

bitflags::bitflags! {
    /// Permissions, limits on permissions, and behaviour of a VMA.
    ///
    /// ```
    /// use vma::VmFlags;
    /// let flags: VmFlags = "rd,wr,mr,mw,me,ac".parse()?;
    /// assert!(flags.contains(VmFlags::ACCOUNT));
    /// assert_eq!((flags - VmFlags::WRITE).to_string(), "rd,mr,mw,me,ac");
    /// # Ok::<(), vma::UnknownFlag>(())
    /// ```
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, PartialOrd, Ord)]
    pub struct VmFlags: u64 {
        /// `rd`: pages can be read.
        const READ = 1 << 0;
        /// `wr`: pages can be written.
        const WRITE = 1 << 1;
        /// `ex`: pages can be executed.
        const EXEC = 1 << 2;
        /// `sh`: writes are visible to other maps of the object.
        const SHARED = 1 << 3;
        /// `mr`: mprotect may add [`READ`](Self::READ).
        const MAYREAD = 1 << 4;
        /// `mw`: mprotect may add [`WRITE`](Self::WRITE).
        const MAYWRITE = 1 << 5;
        /// `me`: mprotect may add [`EXEC`](Self::EXEC).
        const MAYEXEC = 1 << 6;
        /// `ms`: made with MAP_SHARED, even if [`SHARED`](Self::SHARED) was cleared for a read-only
        /// file.
        const MAYSHARE = 1 << 7;
        /// `gd`: grows downwards on a fault below it (stacks).
        const GROWSDOWN = 1 << 8;
        /// `um`: userfaultfd reports missing pages.
        const UFFD_MISSING = 1 << 9;
        /// `pf`: maps raw frames without reference counts.
        const PFNMAP = 1 << 10;
        /// `gu`: may hold guard pages (MADV_GUARD_INSTALL). It is never cleared, and a merge keeps
        /// it.
        const MAYBE_GUARD = 1 << 11;
        /// `uw`: userfaultfd reports writes.
        const UFFD_WP = 1 << 12;
        /// `lo`: pages are locked in memory.
        const LOCKED = 1 << 13;
        /// `io`: maps device memory.
        const IO = 1 << 14;
        /// `sr`: MADV_SEQUENTIAL.
        const SEQ_READ = 1 << 15;
        /// `rr`: MADV_RANDOM.
        const RAND_READ = 1 << 16;
        /// `dc`: not copied by fork (MADV_DONTFORK).
        const DONTCOPY = 1 << 17;
        /// `de`: mremap may not extend it.
        const DONTEXPAND = 1 << 18;
        /// `lf`: a page is locked when it is first touched, not at once.
        const LOCKONFAULT = 1 << 19;
        /// `ac`: counted against the commit limit.
        const ACCOUNT = 1 << 20;
        /// `nr`: exempt from the commit limit by MAP_NORESERVE.
        const NORESERVE = 1 << 21;
        /// `ht`: pages come from hugetlbfs.
        const HUGETLB = 1 << 22;
        /// `sf`: synchronous faults (DAX with MAP_SYNC).
        const SYNC = 1 << 23;
        /// `ar`: specific to the architecture.
        const ARCH_1 = 1 << 24;
        /// `wf`: empty in a forked child (MADV_WIPEONFORK).
        const WIPEONFORK = 1 << 25;
        /// `dd`: left out of core dumps.
        const DONTDUMP = 1 << 26;
        /// `sd`: written to since the soft-dirty bits were last cleared.
        const SOFTDIRTY = 1 << 27;
        /// `mm`: may map both raw frames and reference-counted pages.
        const MIXEDMAP = 1 << 28;
        /// `hg`: MADV_HUGEPAGE.
        const HUGEPAGE = 1 << 29;
        /// `nh`: MADV_NOHUGEPAGE, and every MAP_STACK mapping.
        const NOHUGEPAGE = 1 << 30;
        /// `mg`: MADV_MERGEABLE, pages may be shared by content.
        const MERGEABLE = 1 << 31;
        /// The lowest bit of the 4-bit protection key, which smaps shows in a line of its own.
        const PKEY_BIT0 = 1 << 32;
        /// Second bit of the protection key.
        const PKEY_BIT1 = 1 << 33;
        /// Third bit of the protection key.
        const PKEY_BIT2 = 1 << 34;
        /// Highest bit of the protection key.
        const PKEY_BIT3 = 1 << 35;
        /// `ss`: a shadow stack.
        const SHADOW_STACK = 1 << 37;
        /// `ui`: userfaultfd reports minor faults.
        const UFFD_MINOR = 1 << 38;
        /// `dp`: pages may be dropped under memory pressure (MAP_DROPPABLE).
        const DROPPABLE = 1 << 40;
        /// `sl`: sealed against changes (mseal).
        const SEALED = 1 << 42;

        /// Read, write and execute together.
        const ACCESS = Self::READ.bits() | Self::WRITE.bits() | Self::EXEC.bits();
        /// The flags that decide how a map is locked.
        const LOCKED_MASK = Self::LOCKED.bits() | Self::LOCKONFAULT.bits();
        /// All userfaultfd modes.
        const UFFD = Self::UFFD_MISSING.bits() | Self::UFFD_WP.bits() | Self::UFFD_MINOR.bits();
        /// All four bits of the protection key.
        const PKEY = Self::PKEY_BIT0.bits() | Self::PKEY_BIT1.bits() | Self::PKEY_BIT2.bits() | Self::PKEY_BIT3.bits();
        /// Flags that do not prevent a merge. The merged VMA has them if any part had them.
        const STICKY = Self::SOFTDIRTY.bits() | Self::MAYBE_GUARD.bits();
        /// VMAs with any of these flags never merge and cannot be locked.
        const SPECIAL = Self::IO.bits() | Self::DONTEXPAND.bits() | Self::PFNMAP.bits() | Self::MIXEDMAP.bits();
    }
}

/// Flags and their two-letter names, in listing order. Protection key bits have no name.
const NAMES: [(VmFlags, &str); 36] = [
    (VmFlags::READ, "rd"),
    (VmFlags::WRITE, "wr"),
    (VmFlags::EXEC, "ex"),
    (VmFlags::SHARED, "sh"),
    (VmFlags::MAYREAD, "mr"),
    (VmFlags::MAYWRITE, "mw"),
    (VmFlags::MAYEXEC, "me"),
    (VmFlags::MAYSHARE, "ms"),
    (VmFlags::GROWSDOWN, "gd"),
    (VmFlags::UFFD_MISSING, "um"),
    (VmFlags::PFNMAP, "pf"),
    (VmFlags::MAYBE_GUARD, "gu"),
    (VmFlags::UFFD_WP, "uw"),
    (VmFlags::LOCKED, "lo"),
    (VmFlags::IO, "io"),
    (VmFlags::SEQ_READ, "sr"),
    (VmFlags::RAND_READ, "rr"),
    (VmFlags::DONTCOPY, "dc"),
    (VmFlags::DONTEXPAND, "de"),
    (VmFlags::LOCKONFAULT, "lf"),
    (VmFlags::ACCOUNT, "ac"),
    (VmFlags::NORESERVE, "nr"),
    (VmFlags::HUGETLB, "ht"),
    (VmFlags::SYNC, "sf"),
    (VmFlags::ARCH_1, "ar"),
    (VmFlags::WIPEONFORK, "wf"),
    (VmFlags::DONTDUMP, "dd"),
    (VmFlags::SOFTDIRTY, "sd"),
    (VmFlags::MIXEDMAP, "mm"),
    (VmFlags::HUGEPAGE, "hg"),
    (VmFlags::NOHUGEPAGE, "nh"),
    (VmFlags::MERGEABLE, "mg"),
    (VmFlags::SHADOW_STACK, "ss"),
    (VmFlags::UFFD_MINOR, "ui"),
    (VmFlags::DROPPABLE, "dp"),
    (VmFlags::SEALED, "sl"),
];

impl VmFlags {
    /// The two-letter names of the flags that are set, in listing order.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        NAMES.iter().filter(move |(flag, _)| self.contains(*flag)).map(|&(_, name)| name)
    }

    /// The protection key, 0 to 15.
    pub fn pkey(self) -> u8 {
        ((self.bits() >> 32) & 15) as u8
    }

    /// The same flags with another protection key. Only the low four bits of `key` count.
    pub fn with_pkey(self, key: u8) -> Self {
        self.difference(Self::PKEY) | Self::from_bits_retain(u64::from(key & 15) << 32)
    }

    /// READ, WRITE and EXEC as `PROT_*` bits.
    pub fn from_prot(prot: u32) -> Self {
        Self::from_bits_retain(u64::from(prot & 7))
    }
}

/// Names joined by commas, as in a recording: `rd,wr,mr,mw,me,ac`. A protection key other than 0
/// follows: `ex,mr,mw,me,k1`.
impl fmt::Display for VmFlags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut comma = "";
        for name in self.names() {
            write!(f, "{comma}{name}")?;
            comma = ",";
        }
        match self.pkey() {
            0 => Ok(()),
            key => write!(f, "{comma}k{key}"),
        }
    }
}

/// The error for a name that no flag has.
///
/// ```
/// use vma::{UnknownFlag, VmFlags};
/// assert_eq!("rd,zz".parse::<VmFlags>(), Err(UnknownFlag));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UnknownFlag;

impl fmt::Display for UnknownFlag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("unknown VmFlags name; expected two-letter names joined by commas, such as rd,wr,mr,mw,me")
    }
}

impl core::error::Error for UnknownFlag {}

/// Accepts the output of `Display`. An empty string means no flags.
impl FromStr for VmFlags {
    type Err = UnknownFlag;
    fn from_str(text: &str) -> Result<Self, UnknownFlag> {
        let mut flags = VmFlags::empty();
        for name in text.split(',').filter(|n| !n.is_empty()) {
            if let Some(key) = name.strip_prefix('k').and_then(|key| key.parse().ok()) {
                if !(1..16).contains(&key) {
                    return Err(UnknownFlag);
                }
                flags = flags.with_pkey(key);
                continue;
            }
            let (flag, _) = NAMES.iter().find(|(_, known)| *known == name).ok_or(UnknownFlag)?;
            flags |= *flag;
        }
        Ok(flags)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn every_name_reads_back() {
        let all = VmFlags::all();
        assert_eq!(all.to_string().parse::<VmFlags>(), Ok(all));
        assert_eq!("rd,zz".parse::<VmFlags>(), Err(UnknownFlag));
    }

    #[test]
    fn listing_order_is_the_kernels() {
        let stack: VmFlags = "ac,gd,me,mw,mr,wr,rd".parse().unwrap();
        assert_eq!(stack.to_string(), "rd,wr,mr,mw,me,gd,ac");
    }

    #[test]
    fn protection_keys_follow_the_names() {
        let flags = VmFlags::READ.with_pkey(9);
        assert_eq!((flags.pkey(), flags.to_string().as_str()), (9, "rd,k9"));
        assert_eq!(flags.with_pkey(0), VmFlags::READ);
        let only = VmFlags::empty().with_pkey(15);
        assert_eq!((only.to_string().as_str(), "k15".parse()), ("k15", Ok(only)));
        for wrong in ["k0", "k16", "k256", "k", "k-1"] {
            assert_eq!(wrong.parse::<VmFlags>(), Err(UnknownFlag), "{wrong}");
        }
    }
}
