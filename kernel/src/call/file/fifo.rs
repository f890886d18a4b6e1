//! The opening of pipes that have a name: a reader waits for a writer, and a writer for a reader.
//!
//! The description is made first, so that each finds the other, and is kept while the call waits.
//! If a signal ends the call, the description goes. A pipe counts its openings: an end that came
//! and went meanwhile counts, too.

use super::{Call, Outcome};
use crate::call::{Stop, fail};
use crate::file::open::Open;
use crate::task::thread::Opening;
use alloc::sync::Arc;
use linux_raw_sys::errno::EINVAL;
use linux_raw_sys::general::O_CLOEXEC;

impl Call<'_> {
    /// Gives a descriptor to a description that was opened, when its other end is there.
    pub(super) fn finish_open(&mut self, open: Arc<Open>, flags: u32) -> Outcome {
        match open.other_before.filter(|_| !open.is_nonblocking()) {
            None => Ok(self.files()?.insert(open, flags & O_CLOEXEC != 0, 0)?.into()),
            Some(before) => {
                self.own.resume.opening = Some(Opening { open, flags, before });
                self.go_on_opening()
            }
        }
    }

    /// Goes on with an opening that waits.
    pub(super) fn go_on_opening(&mut self) -> Outcome {
        let Some(Opening { open, flags, before }) = self.own.resume.opening.take() else {
            return fail(EINVAL);
        };
        if let Some(pipe) = open.pipe_of() {
            let pipe = Arc::clone(pipe);
            let came = |_: &mut Self| (pipe.openings(open.mode.write) != before).then_some(());
            let waited = self.wait(&pipe.changed.threads, came);
            if let Err(stop) = waited {
                if matches!(stop, Stop::Wait | Stop::Interrupted) {
                    self.own.resume.opening = Some(Opening { open, flags, before });
                }
                return Err(stop);
            }
        }
        Ok(self.files()?.insert(open, flags & O_CLOEXEC != 0, 0)?.into())
    }
}
