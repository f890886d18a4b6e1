//! userfaultfd, for write-protection that needs no monitor (UFFD_FEATURE_WP_ASYNC): a write to a
//! protected page gives the page its rights back, and PAGEMAP_SCAN tells which were written. So a
//! descriptor has no messages. Other modes, for which a program waits until its monitor acts, are
//! refused.

use super::budget::Charge;
use crate::call::Errno;
use crate::task::Space;
use alloc::sync::{Arc, Weak};
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use linux_raw_sys::errno::{EINVAL, ESRCH};
use mm::{Uffd, UserFault, UserFaultHandler, UserFaultModes};

/// The features, by the numbers of UFFDIO_API: writes are told apart, memory of files can be
/// protected, and absent pages; writes are resolved without a monitor. An absent page of a file
/// gets no mark: it counts as written.
pub(crate) const FEATURES: u64 = 1 | 1 << 12 | 1 << 13 | ASYNC;
const ASYNC: u64 = 1 << 15;
/// The heap that one uses, about.
const SIZE: usize = 128;

static NUMBER: AtomicU64 = AtomicU64::new(1);

/// What a descriptor of userfaultfd leads to. Dropping it unregisters its memory.
pub(crate) struct Monitor {
    id: u64,
    space: Weak<Space>,
    /// UFFDIO_API was called.
    is_ready: AtomicBool,
    _charge: Charge,
}

impl Monitor {
    /// # Errors
    /// ENOSPC: the budget is used up.
    pub(crate) fn new(space: &Arc<Space>) -> Result<Monitor, Errno> {
        Ok(Monitor {
            // Relaxed: only the number.
            id: NUMBER.fetch_add(1, Ordering::Relaxed),
            space: Arc::downgrade(space),
            is_ready: AtomicBool::new(false),
            _charge: Charge::new(SIZE)?,
        })
    }

    /// Chooses the features.
    ///
    /// # Errors
    /// EINVAL: unknown ones, or none by which it works here, or it was called before.
    pub(crate) fn start(&self, features: u64) -> Result<(), Errno> {
        let known = features & !FEATURES == 0 && features & ASYNC != 0;
        // Relaxed: only the mark.
        match known && !self.is_ready.swap(true, Ordering::Relaxed) {
            true => Ok(()),
            false => Err(Errno(EINVAL)),
        }
    }

    /// Whether the features were chosen.
    pub(crate) fn is_ready(&self) -> bool {
        // Relaxed: only the mark.
        self.is_ready.load(Ordering::Relaxed)
    }

    fn ready_space(&self) -> Result<Arc<Space>, Errno> {
        match self.is_ready() {
            true => self.space.upgrade().ok_or(Errno(ESRCH)),
            false => Err(Errno(EINVAL)),
        }
    }

    /// UFFDIO_REGISTER.
    ///
    /// # Errors
    /// EINVAL, EBUSY, EPERM, ENOMEM, as in Linux; EINVAL: other modes than write-protection.
    pub(crate) fn register(&self, at: u64, len: u64, modes: u64) -> Result<(), Errno> {
        let space = self.ready_space()?;
        let modes = UserFaultModes::from_bits(modes as u32).filter(|_| modes >> 32 == 0);
        if modes != Some(UserFaultModes::WP) {
            return Err(Errno(EINVAL));
        }
        let uffd = Uffd::new(self.id);
        let done = space.userfault_register(at as usize, len as usize, UserFaultModes::WP, uffd);
        done.map_err(no_hole)
    }

    /// UFFDIO_UNREGISTER.
    ///
    /// # Errors
    /// EINVAL, ENOMEM.
    pub(crate) fn unregister(&self, at: u64, len: u64) -> Result<(), Errno> {
        let space = self.ready_space()?;
        space.userfault_unregister(at as usize, len as usize).map_err(no_hole)
    }

    /// UFFDIO_WRITEPROTECT.
    ///
    /// # Errors
    /// EINVAL; ENOENT: not registered.
    pub(crate) fn protect(&self, at: u64, len: u64, protect: bool) -> Result<(), Errno> {
        let space = self.ready_space()?;
        Ok(space.userfault_write_protect(at as usize, len as usize, protect)?)
    }
}

/// The error of a call on a range in which nothing is mapped: EINVAL.
fn no_hole(error: mm::Error) -> Errno {
    match error {
        mm::Error::Vma(vma::Error::Unmapped) => Errno(EINVAL),
        other => other.into(),
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        if let (Some(space), true) = (self.space.upgrade(), self.is_ready()) {
            // Without memory it stays registered. As it is asynchronous, no program waits for it.
            let _ = space.userfault_close(self.id);
        }
    }
}

/// All descriptors here are asynchronous.
pub(crate) struct Async;

impl UserFaultHandler for Async {
    fn handle(&self, _: UserFault) -> bool {
        // No memory is registered for faults that a monitor resolves.
        false
    }

    fn is_write_protect_async(&self, _: u64) -> bool {
        true
    }
}
