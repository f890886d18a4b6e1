//! Descriptors of processes (pidfd_open(2)).

use super::budget::Charge;
use super::ready::READABLE;
use crate::errno::Errno;
use crate::lock::lock;
use crate::task::pid::Pid;
use alloc::sync::Arc;
use linux_raw_sys::errno::ENFILE;
use linux_raw_sys::general::POLLHUP;

/// The file of a pidfd: the process, by its [`Pid`].
pub(crate) struct PidFd {
    pub(crate) pid: Arc<Pid>,
    _charge: Charge,
}

impl PidFd {
    /// # Errors
    /// ENFILE: no budget for the [`Pid`], which may outlive the process.
    pub(crate) fn new(pid: Arc<Pid>) -> Result<PidFd, Errno> {
        let charge = Charge::new(size_of::<Pid>()).map_err(|_| Errno(ENFILE))?;
        Ok(PidFd { pid, _charge: charge })
    }

    /// The events for which it is ready: READABLE if the process has ended, POLLHUP if its parent
    /// has waited.
    pub(super) fn ready(&self) -> u32 {
        let ended = if lock(&self.pid.ended).is_some() { READABLE } else { 0 };
        ended | if self.pid.is_reaped() { POLLHUP } else { 0 }
    }
}
