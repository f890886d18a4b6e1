//! The limits that calls keep: which call checks which limit, and in which order, is Linux's.

use crate::{Error, Limits, MappedFile, Sizes, VmFlags, host::Host, sizes::is_data, space::Writer};

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
