//! Descriptors of processes (pidfd_open(2)). One keeps its process's number from meaning another:
//! it holds the process itself, which may have ended.

use super::budget::Charge;
use crate::errno::Errno;
use crate::lock::lock;
use crate::task::{Process, process};
use alloc::sync::Arc;
use linux_raw_sys::errno::{ENFILE, ESRCH};

/// What such a descriptor leads to.
pub(crate) struct PidFd {
    pub(crate) process: Arc<Process>,
    _charge: Charge,
}

impl PidFd {
    /// # Errors
    /// ENFILE: no budget for a process that has ended.
    pub(crate) fn new(process: Arc<Process>) -> Result<PidFd, Errno> {
        /// What the maps and lists of a process use besides, about.
        const MORE: usize = 512;
        let charge = Charge::new(size_of::<Process>() + MORE).map_err(|_| Errno(ENFILE))?;
        Ok(PidFd { process, _charge: charge })
    }

    /// Whether the process has ended.
    pub(crate) fn is_ready(&self) -> bool {
        lock(&self.process.ended).is_some()
    }

    /// The process, unless its parent has waited for its end.
    ///
    /// # Errors
    /// ESRCH.
    pub(crate) fn process(&self) -> Result<&Arc<Process>, Errno> {
        let found = process::process(self.process.pid);
        match found.is_some_and(|found| Arc::ptr_eq(&found, &self.process)) {
            true => Ok(&self.process),
            false => Err(Errno(ESRCH)),
        }
    }
}
