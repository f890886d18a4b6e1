//! Calls that wait for a file, or move many bytes, between two pieces.
//!
//! Such a call is made again. It goes on with the files that its descriptors named when it began:
//! another thread may close these in the meantime, and the numbers may be other files by then.
//!
//! A program chooses how much a call moves. So the call gives its CPU to other threads when its
//! turn is over, and is made again later. It records the bytes that it has moved. Changes of the
//! arguments in the program's memory count for the bytes that are left.

use super::Call;
use crate::call::Stop;
use crate::clock;
use crate::errno::Errno;
use crate::file::open::Open;
use crate::file::ready::Changed;
use crate::task::WaitQueue;
use alloc::sync::Arc;
use linux_raw_sys::errno::ENOMEM;

impl Call<'_> {
    /// The open description of a descriptor: that of when the call began.
    pub(super) fn moving(&self, fd: u64) -> Result<Arc<Open>, Errno> {
        match self.own.resume.files.iter().flatten().find(|(of, _)| *of == fd) {
            Some((_, open)) => Ok(Arc::clone(open)),
            None => self.open(fd),
        }
    }

    /// Keeps the files that the descriptors of the call name.
    pub(super) fn keep<const N: usize>(&mut self, files: [(u64, &Arc<Open>); N]) {
        for (kept, (fd, open)) in self.own.resume.files.iter_mut().zip(files) {
            *kept = Some((fd, Arc::clone(open)));
        }
    }

    /// Waits until `ready` gives a value. `files` are the descriptors of the call.
    pub(super) fn wait_on<T, const N: usize>(
        &mut self,
        files: [(u64, &Arc<Open>); N],
        changed: &Changed,
        ready: impl FnMut(&mut Self) -> Option<T>,
    ) -> Result<T, Stop> {
        let outcome = self.wait(&changed.threads, ready);
        if let Err(Stop::Wait | Stop::Interrupted) = outcome {
            self.keep(files);
        }
        outcome
    }

    /// Waits at all of these queues until `ready` gives a value, or until the deadline.
    pub(super) fn wait_until<'q, T>(
        &mut self,
        queues: impl Iterator<Item = &'q WaitQueue>,
        deadline: Option<u64>,
        mut ready: impl FnMut() -> Option<T>,
    ) -> Result<Option<T>, Stop> {
        if let Some(done) = ready() {
            return Ok(Some(done));
        }
        if deadline.is_some_and(|deadline| clock::now() >= deadline) {
            return Ok(None);
        }
        self.thread.begin_wait();
        for queue in queues {
            if !queue.add(self.thread) {
                self.thread.end_wait();
                return Err(Errno(ENOMEM).into());
            }
        }
        if let Some(done) = ready() {
            self.thread.end_wait();
            return Ok(Some(done));
        }
        if let Some(deadline) = deadline {
            self.own.resume.wake_at(deadline, self.thread);
        }
        Err(self.rest())
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
        if !self.own.is_turn_over() {
            return Ok(true);
        }
        self.own.resume.done = done as usize;
        self.keep(files);
        Err(Stop::Turn)
    }
}
