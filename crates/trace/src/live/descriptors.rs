//! The tracer's own descriptors: a listing for each address space, and a copy for each mapped file.
//!
//! The program's limit stays unchanged. After the start of the program, this process raises its own
//! limit to the maximum. Some descriptors stay free for files that are open for a moment, because
//! without them nothing could be read any more. If there is no descriptor for a copy, files are
//! told apart by device and inode, which is recorded as a doubt.

use std::{
    io,
    os::fd::{AsFd, AsRawFd, OwnedFd, RawFd},
};

use super::{
    follower::Follower,
    sys::{self, Tid},
};
use crate::record::{Doubt, MmId};

/// The number of descriptors below the limit that no copy of a file uses.
const KEPT: u64 = 24;

/// Whether this process or the system has no descriptor left.
pub(super) fn ran_out(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE))
}

impl Follower<'_> {
    /// A copy of a descriptor of `tid`, with the same open file description.
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

    /// Closes descriptors that can be opened again. Returns whether there were any.
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

    /// Reports that open files of `mm` are from here on told apart only by device and inode.
    pub(super) fn lacks_descriptors(&mut self, mm: MmId) {
        self.notice(&format!(
            "the tracer ran out of file descriptors: its limit is {} (ulimit -n); open files are \
             told apart by device and inode, so merges may be mispredicted",
            self.descriptors
        ));
        self.doubt(mm, Doubt::Files);
    }
}
