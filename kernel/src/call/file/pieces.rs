//! Calls that move many bytes, between two pieces.
//!
//! A program chooses how much such a call moves. So the call gives its CPU to other threads when
//! its turn is over, and is made again later. It records the bytes that it has moved, and the files
//! that its descriptors named: another thread may close these in the meantime. What the program
//! changes of the arguments in its memory counts for the bytes that are left.

use super::{Call, Errno};
use crate::call::Stop;
use crate::file::open::Open;
use crate::task::run;
use alloc::sync::Arc;

impl Call<'_> {
    /// The open description of a descriptor: that of when the call began.
    pub(super) fn moving(&self, fd: u64) -> Result<Arc<Open>, Errno> {
        match self.own.resume.files.iter().flatten().find(|(of, _)| *of == fd) {
            Some((_, open)) => Ok(Arc::clone(open)),
            None => self.open(fd),
        }
    }

    /// The bytes that the call has moved before it is made again.
    pub(in crate::call) fn moved(&self) -> u64 {
        self.own.resume.done as u64
    }

    /// Whether the call goes on after `done` bytes. It does not if the thread is to end. `files`
    /// are its descriptors. Cost: two locks, and two loads for a turn that is not over.
    ///
    /// # Errors
    /// [`Stop::Turn`]: other threads come first.
    pub(in crate::call) fn goes_on<const N: usize>(
        &mut self,
        done: u64,
        files: [(u64, &Arc<Open>); N],
    ) -> Result<bool, Stop> {
        if self.is_ending() {
            return Ok(false);
        }
        if !run::is_turn_over(self.own) {
            return Ok(true);
        }
        let resume = &mut self.own.resume;
        resume.done = done as usize;
        for (kept, (fd, open)) in resume.files.iter_mut().zip(files) {
            *kept = Some((fd, Arc::clone(open)));
        }
        Err(Stop::Turn)
    }
}
