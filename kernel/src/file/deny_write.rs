//! Files that programs execute are not written, and files that are written are not executed
//! (ETXTBSY).
//!
//! A regular file counts its users: up for descriptions that write, down for programs. Users of one
//! kind keep the other kind out. Each user is a guard, so none is forgotten. A program that was
//! forked shares the guard of its maker.

use crate::errno::Errno;
use alloc::sync::Arc;
use core::sync::atomic::{AtomicI32, Ordering};
use linux_raw_sys::errno::ETXTBSY;

/// The users of a regular file: those that write it, or minus those that execute it.
#[derive(Default)]
pub(crate) struct Users(AtomicI32);

impl Users {
    fn change(&self, by: i32) -> Result<(), Errno> {
        // Relaxed, here and below: only the number. No user reads by it what another has written.
        self.0
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |users| {
                (users.signum() != -by).then_some(users + by)
            })
            .map(drop)
            .map_err(|_| Errno(ETXTBSY))
    }
}

/// A user that writes.
pub(crate) struct Writer(Arc<Users>);

impl Writer {
    /// # Errors
    /// ETXTBSY: a program executes the file.
    pub(super) fn new(users: &Arc<Users>) -> Result<Writer, Errno> {
        users.change(1)?;
        Ok(Writer(Arc::clone(users)))
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A program that executes a file.
pub(crate) struct Image(Arc<Users>);

impl Image {
    /// # Errors
    /// ETXTBSY: a description may write the file.
    pub(super) fn new(users: &Arc<Users>) -> Result<Image, Errno> {
        users.change(-1)?;
        Ok(Image(Arc::clone(users)))
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        self.0.0.fetch_add(1, Ordering::Relaxed);
    }
}
