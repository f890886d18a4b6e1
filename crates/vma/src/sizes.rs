//! The sizes of an address space and their limits.
//!
//! Each write to the tree changes the sizes by what it adds and removes, so they are exact at any
//! moment, and cost no walk. They are those of `/proc/PID/status`: VmSize, VmData, VmStk, VmLck.

use core::ops::Add;

use crate::VmFlags;

/// The sizes of an address space, in bytes.
///
/// ```
/// use vma::Sizes;
/// assert_eq!(Sizes::default().total, 0);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Sizes {
    /// All VMAs: VmSize.
    pub total: usize,
    /// Private VMAs that may be written, without stacks: VmData.
    pub data: usize,
    /// VMAs that grow downwards: VmStk.
    pub stack: usize,
    /// VMAs that may be executed and not written.
    pub exec: usize,
    /// Locked VMAs: VmLck.
    pub locked: usize,
    /// VMAs for which memory is promised ([`VmFlags::ACCOUNT`]).
    pub accounted: usize,
}

/// The limits of an address space, in bytes: setrlimit(2).
///
/// ```
/// use vma::Limits;
/// let limits = Limits { address_space: 1 << 30, ..Limits::NONE };
/// assert_eq!(limits.locked, usize::MAX);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// RLIMIT_AS: the most bytes of all VMAs.
    pub address_space: usize,
    /// RLIMIT_DATA: the most bytes of private VMAs that may be written, and of the heap alone.
    pub data: usize,
    /// RLIMIT_MEMLOCK: the most locked bytes.
    pub locked: usize,
    /// CAP_IPC_LOCK: locking has no limit.
    pub may_lock: bool,
}

impl Limits {
    /// No limit at all.
    pub const NONE: Limits =
        Limits { address_space: usize::MAX, data: usize::MAX, locked: usize::MAX, may_lock: true };
}

impl Default for Limits {
    fn default() -> Self {
        Limits::NONE
    }
}

pub(crate) const KINDS: usize = 6;

/// A change of the sizes, in the order of the fields of [`Sizes`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct SizeChange(pub(crate) [isize; KINDS]);

impl SizeChange {
    /// The change by so many bytes of a VMA with these flags.
    #[inline]
    pub(crate) fn of(flags: VmFlags, bytes: isize) -> SizeChange {
        let stack = flags.contains(VmFlags::GROWSDOWN);
        let writes = flags.contains(VmFlags::WRITE);
        let is = [
            true,
            is_data(flags),
            stack,
            flags.contains(VmFlags::EXEC) && !writes && !stack,
            flags.contains(VmFlags::LOCKED),
            flags.contains(VmFlags::ACCOUNT),
        ];
        SizeChange(is.map(|is| if is { bytes } else { 0 }))
    }

    pub(crate) fn total(self) -> isize {
        self.0[0]
    }

    pub(crate) fn accounted(self) -> isize {
        self.0[5]
    }
}

impl Add for SizeChange {
    type Output = SizeChange;

    #[inline]
    fn add(self, more: SizeChange) -> SizeChange {
        SizeChange(core::array::from_fn(|kind| self.0[kind] + more.0[kind]))
    }
}

/// Whether the size of a VMA counts for RLIMIT_DATA.
pub(crate) fn is_data(flags: VmFlags) -> bool {
    flags & (VmFlags::WRITE | VmFlags::SHARED | VmFlags::GROWSDOWN) == VmFlags::WRITE
}
