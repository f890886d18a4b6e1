//! The users and groups of a process: the numbers that a program sets and sees.
//!
//! The rules of setuid(2) and its kin are Linux's, with the effective user 0 as the one that may do
//! everything. New files belong to the user and the group here. Nothing else goes by them: each
//! program may open, signal and change everything, and a program with the set-user-ID bit starts
//! as its caller. So a change to another user is kept and shown, and protects nothing. The threads
//! of a process share one identity; in Linux the C library brings that about.

use crate::errno::Errno;
use alloc::sync::Arc;
use alloc::vec::Vec;
use linux_raw_sys::errno::EPERM;

/// The number that leaves an identity as it is.
const SAME: u32 = u32::MAX;

/// Real, effective, saved, and that of new files.
pub(crate) type Numbers = [u32; 4];

const REAL: usize = 0;
pub(crate) const EFFECTIVE: usize = 1;
const SAVED: usize = 2;
pub(crate) const OF_FILES: usize = 3;

/// The users and groups of a process. The first process is root in no other group.
#[derive(Clone, Default)]
pub(crate) struct Identity {
    pub(crate) user: Numbers,
    pub(crate) group: Numbers,
    /// The other groups, in order.
    pub(crate) groups: Arc<Vec<u32>>,
}

/// The numbers that a call changes: of users or of groups.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum IdKind {
    User,
    Group,
}

impl Identity {
    /// Whether the process may take any user and group.
    pub(crate) fn may_change(&self) -> bool {
        self.user[EFFECTIVE] == 0
    }

    pub(crate) fn of(&mut self, which: IdKind) -> &mut Numbers {
        match which {
            IdKind::User => &mut self.user,
            IdKind::Group => &mut self.group,
        }
    }

    /// setuid(2), setgid(2).
    ///
    /// # Errors
    /// EPERM: nothing has changed; so for the others.
    pub(crate) fn set(&mut self, which: IdKind, new: u32) -> Result<(), Errno> {
        let may = self.may_change();
        let numbers = self.of(which);
        match numbers {
            all if may => *all = [new; 4],
            [real, effective, saved, of_files] if new == *real || new == *saved => {
                (*effective, *of_files) = (new, new);
            }
            _ => return Err(Errno(EPERM)),
        }
        Ok(())
    }

    /// setreuid(2), setregid(2).
    pub(crate) fn set_two(
        &mut self,
        which: IdKind,
        real: u32,
        effective: u32,
    ) -> Result<(), Errno> {
        let may = self.may_change();
        let numbers = self.of(which);
        let before = *numbers;
        let allowed = |new, among: &[u32]| may || new == SAME || among.contains(&new);
        if !allowed(real, &before[..2]) || !allowed(effective, &before[..3]) {
            return Err(Errno(EPERM));
        }
        let other = |new, old| if new == SAME { old } else { new };
        numbers[REAL] = other(real, before[REAL]);
        numbers[EFFECTIVE] = other(effective, before[EFFECTIVE]);
        if real != SAME || effective != SAME && effective != before[REAL] {
            numbers[SAVED] = numbers[EFFECTIVE];
        }
        numbers[OF_FILES] = numbers[EFFECTIVE];
        Ok(())
    }

    /// setresuid(2), setresgid(2).
    pub(crate) fn set_three(&mut self, which: IdKind, new: [u32; 3]) -> Result<(), Errno> {
        let may = self.may_change();
        let numbers = self.of(which);
        let before = *numbers;
        if !may && new.iter().any(|new| *new != SAME && !before[..3].contains(new)) {
            return Err(Errno(EPERM));
        }
        for (number, new) in numbers.iter_mut().zip(new) {
            *number = if new == SAME { *number } else { new };
        }
        numbers[OF_FILES] = numbers[EFFECTIVE];
        Ok(())
    }

    /// setfsuid(2), setfsgid(2): returns the number before, whether it changes or not.
    pub(crate) fn set_of_files(&mut self, which: IdKind, new: u32) -> u32 {
        let may = self.may_change();
        let numbers = self.of(which);
        let before = numbers[OF_FILES];
        if new != SAME && (may || numbers.contains(&new)) {
            numbers[OF_FILES] = new;
        }
        before
    }

    /// A new program starts.
    pub(crate) fn exec(&mut self) {
        for numbers in [&mut self.user, &mut self.group] {
            (numbers[SAVED], numbers[OF_FILES]) = (numbers[EFFECTIVE], numbers[EFFECTIVE]);
        }
    }
}
