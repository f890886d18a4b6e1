//! Advisory locks on files: those of fcntl(2) on ranges, and those of flock(2).
//!
//! Each lock has an owner: a table of descriptors (F_SETLK), or an open description (F_OFD_SETLK,
//! flock). Locks of one owner replace each other; those of two owners conflict if one is exclusive.
//! Deadlocks are not looked for: a signal ends the waiting.

use crate::errno::Errno;
use crate::lock::lock;
use crate::task::WaitQueue;
use alloc::vec::Vec;
use core::ops::Range;
use linux_raw_sys::errno::ENOLCK;
use spin::mutex::SpinMutex;

/// The most locks of a file.
const MOST: usize = 4096;

/// A lock on bytes. The end of the file is `u64::MAX`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct FileLock {
    pub(crate) owner: usize,
    /// The process that asked for it; 0 for an open description.
    pub(crate) pid: u32,
    pub(crate) exclusive: bool,
    pub(crate) bytes: Range<u64>,
}

/// The locks of an inode.
#[derive(Default)]
pub(crate) struct FileLocks {
    /// Of fcntl.
    ranges: SpinMutex<Vec<FileLock>>,
    /// Of flock.
    whole: SpinMutex<Vec<FileLock>>,
    /// Woken when a lock goes.
    pub(crate) freed: WaitQueue,
}

/// The two kinds of locks, which do not see each other.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum LockScope {
    Ranges,
    Whole,
}

impl FileLocks {
    fn of(&self, of: LockScope) -> &SpinMutex<Vec<FileLock>> {
        if of == LockScope::Ranges { &self.ranges } else { &self.whole }
    }

    /// A lock that conflicts with this one.
    pub(crate) fn conflict(&self, of: LockScope, new: &FileLock) -> Option<FileLock> {
        lock(self.of(of)).iter().find(|old| conflicts(old, new)).cloned()
    }

    /// Takes a lock. Returns false if another one conflicts; nothing has changed then.
    ///
    /// # Errors
    /// ENOLCK: too many locks; nothing has changed.
    pub(crate) fn take(&self, of: LockScope, new: FileLock) -> Result<bool, Errno> {
        let mut locks = lock(self.of(of));
        if locks.iter().any(|old| conflicts(old, &new)) {
            return Ok(false);
        }
        cut(&mut locks, new.owner, &new.bytes, Some(new.clone()))?;
        drop(locks);
        // It may have replaced an exclusive one.
        self.freed.wake_all();
        Ok(true)
    }

    /// Gives up the locks of an owner in a range.
    ///
    /// # Errors
    /// ENOLCK: a lock would become two, which are too many; nothing has changed.
    pub(crate) fn release(
        &self,
        of: LockScope,
        owner: usize,
        bytes: Range<u64>,
    ) -> Result<(), Errno> {
        let mut locks = lock(self.of(of));
        if !locks.iter().any(|old| old.owner == owner) {
            return Ok(());
        }
        cut(&mut locks, owner, &bytes, None)?;
        drop(locks);
        self.freed.wake_all();
        Ok(())
    }
}

fn overlap(one: &Range<u64>, other: &Range<u64>) -> bool {
    one.start < other.end && other.start < one.end
}

fn conflicts(old: &FileLock, new: &FileLock) -> bool {
    old.owner != new.owner && (old.exclusive || new.exclusive) && overlap(&old.bytes, &new.bytes)
}

/// Takes a range out of the locks of an owner, and adds one.
fn cut(
    locks: &mut Vec<FileLock>,
    owner: usize,
    bytes: &Range<u64>,
    new: Option<FileLock>,
) -> Result<(), Errno> {
    // One lock at most becomes two.
    if locks.len() + 2 > MOST || locks.try_reserve(2).is_err() {
        return Err(Errno(ENOLCK));
    }
    let hit = |old: &FileLock| old.owner == owner && overlap(&old.bytes, bytes);
    let mut rest = None;
    for old in locks.iter_mut().filter(|old| hit(old)) {
        let after = bytes.end..old.bytes.end;
        if old.bytes.start >= bytes.start {
            old.bytes.start = after.start.min(after.end);
        } else {
            old.bytes.end = bytes.start;
            if !after.is_empty() {
                rest = Some(FileLock { bytes: after, ..old.clone() });
            }
        }
    }
    locks.retain(|old| !old.bytes.is_empty());
    locks.extend(rest.into_iter().chain(new));
    Ok(())
}
