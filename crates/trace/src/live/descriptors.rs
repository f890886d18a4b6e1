//! The tracer's own descriptors: a listing for each address space, a copy for each mapped file.
//!
//! The program's limit is left alone; this process, once the program runs, has as many as it may.
//! Some are kept free for what is opened for a moment: without those nothing could be read any
//! more.
//! Where copies end, files are told apart by device and inode: that is recorded as a doubt.

use std::{
    io,
    os::fd::{AsFd, AsRawFd, OwnedFd, RawFd},
};

use super::{
    follower::Follower,
    sys::{self, Tid},
};
use crate::record::{Doubt, MmId};

/// Numbers below the limit that no copy of a file takes.
const KEPT: u64 = 24;

/// Whether this process has no descriptor left, or the system.
pub(super) fn ran_out(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE))
}

impl Follower<'_> {
    /// A copy of a descriptor of `tid`: same open file description.
    pub(super) fn copy_descriptor(&mut self, mm: MmId, tid: Tid, fd: RawFd) -> Option<OwnedFd> {
        if !self.facilities.identity {
            return None;
        }
        let copied = self.try_copy(tid, fd).or_else(|error| match ran_out(&error) {
            true if self.shed() => self.try_copy(tid, fd),
            _ => Err(error),
        });
        if copied.as_ref().is_err_and(ran_out) {
            self.lacks_descriptors(mm);
        }
        copied.ok()
    }

    fn try_copy(&mut self, tid: Tid, fd: RawFd) -> io::Result<OwnedFd> {
        let Some(task) = self.tasks.get_mut(&tid) else {
            return Err(io::ErrorKind::NotFound.into());
        };
        let process = match &task.pidfd {
            Some(process) => process,
            None => task.pidfd.insert(sys::pidfd_open(tid)?),
        };
        let copy = sys::pidfd_getfd(process.as_fd(), fd)?;
        match (copy.as_raw_fd() as u64).saturating_add(KEPT) < self.descriptors {
            true => Ok(copy),
            false => Err(io::Error::from_raw_os_error(libc::EMFILE)),
        }
    }

    /// Closes what can be opened again. Whether there was anything.
    fn shed(&mut self) -> bool {
        let mut shed = false;
        for task in self.tasks.values_mut() {
            shed |= task.pidfd.take().is_some();
        }
        for space in self.spaces.values_mut() {
            shed |= space.pagemap.take().is_some();
        }
        shed
    }

    /// What `mm` maps from here on is not told apart as it should be.
    pub(super) fn lacks_descriptors(&mut self, mm: MmId) {
        self.notice(&format!(
            "the tracer ran out of file descriptors: its limit is {} (ulimit -n); open files are told \
             apart by device and inode, so merges may be mispredicted",
            self.descriptors
        ));
        self.doubt(mm, Doubt::Files);
    }
}
