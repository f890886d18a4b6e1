//! Files that programs execute are not written, and files that are written are not executed
//! (ETXTBSY).
//!
//! An inode counts its users: up for descriptions that write, down for programs. Users of one kind
//! keep the other kind out. Each user is a guard, so none is forgotten. A program that was forked
//! shares the guard of its maker.

use super::inode::{Inode, InodeKind};
use crate::errno::Errno;
use alloc::sync::Arc;
use core::sync::atomic::Ordering;
use linux_raw_sys::errno::ETXTBSY;

/// Adds a user of a regular file.
fn add(node: &Inode, by: i32) -> Result<(), Errno> {
    // Relaxed, here and below: only the number. No user reads by it what another has written.
    node.users
        .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |users| {
            (users.signum() != -by).then_some(users + by)
        })
        .map(drop)
        .map_err(|_| Errno(ETXTBSY))
}

/// A user that writes.
pub(crate) struct Writer(Arc<Inode>);

impl Writer {
    /// A user of a regular file. None: another inode is not counted.
    ///
    /// # Errors
    /// ETXTBSY: a program executes it.
    pub(crate) fn new(node: &Arc<Inode>) -> Result<Option<Writer>, Errno> {
        if !matches!(node.kind, InodeKind::File(_)) {
            return Ok(None);
        }
        add(node, 1)?;
        Ok(Some(Writer(Arc::clone(node))))
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.0.users.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A program that executes a file.
pub(crate) struct Image(Arc<Inode>);

impl Image {
    /// # Errors
    /// ETXTBSY: a description may write it.
    pub(super) fn new(node: Arc<Inode>) -> Result<Image, Errno> {
        add(&node, -1)?;
        Ok(Image(node))
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        self.0.users.fetch_add(1, Ordering::Relaxed);
    }
}
