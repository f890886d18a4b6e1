//! The sizes of an address space, and the limits that calls keep.
//!
//! Each write to the tree changes the sizes by what it adds and removes, so they are exact at any
//! moment, and cost no walk. They are those of `/proc/PID/status`: VmSize, VmData, VmStk, VmLck.
//! Which call checks which limit, and in which order, is Linux's.

use core::ops::Add;

use crate::{Error, MappedFile, VmFlags, host::Host, space::Writer};

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
fn is_data(flags: VmFlags) -> bool {
    flags & (VmFlags::WRITE | VmFlags::SHARED | VmFlags::GROWSDOWN) == VmFlags::WRITE
}

impl<F: MappedFile, R: grace::Reclaim, H: Host<F, R>> Writer<'_, F, R, H> {
    /// The sizes of the address space. Constant time.
    pub fn sizes(&self) -> Sizes {
        let [total, data, stack, exec, locked, accounted] =
            self.vmas.state.counts().sizes.0.map(isize::unsigned_abs);
        Sizes { total, data, stack, exec, locked, accounted }
    }

    /// The limits. A new address space has none; a forked child has its parent's.
    pub fn limits(&self) -> Limits {
        self.vmas.state.limits()
    }

    /// Sets the limits. Maps beyond them stay.
    pub fn set_limits(&mut self, limits: Limits) {
        self.vmas.state.set_limits(limits);
    }

    /// Whether a limit is set.
    pub(crate) fn is_limited(&self) -> bool {
        self.vmas.state.limits() != Limits::NONE
    }

    /// Checks that a VMA with these flags may become `more` bytes larger, if `less` bytes of others
    /// go.
    pub(crate) fn may_expand(&self, flags: VmFlags, more: usize, less: usize) -> Result<(), Error> {
        let (sizes, limits) = (self.sizes(), self.vmas.state.limits());
        let fits = |size: usize, limit: usize| {
            size.checked_add(more).is_some_and(|size| size.saturating_sub(less) <= limit)
        };
        match fits(sizes.total, limits.address_space)
            && (!is_data(flags) || fits(sizes.data, limits.data))
        {
            true => Ok(()),
            false => Err(Error::SizeLimit),
        }
    }

    /// Checks that the process may lock memory at all.
    pub(crate) fn may_lock(&self) -> Result<(), Error> {
        let limits = self.vmas.state.limits();
        if limits.locked == 0 && !limits.may_lock { Err(Error::MayNotLock) } else { Ok(()) }
    }

    /// Whether `more` bytes may be locked, if `less` of them are locked already.
    pub(crate) fn has_lock_room(&self, more: usize, less: usize) -> bool {
        let limits = self.vmas.state.limits();
        let locked = self.sizes().locked.saturating_add(more).saturating_sub(less);
        limits.may_lock || locked <= limits.locked
    }

    /// The same for new memory of a VMA with these flags.
    pub(crate) fn may_lock_more(&self, flags: VmFlags, more: usize) -> Result<(), Error> {
        match !flags.contains(VmFlags::LOCKED) || self.has_lock_room(more, 0) {
            true => Ok(()),
            false => Err(Error::LockLimitAgain),
        }
    }
}
