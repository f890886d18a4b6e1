//! Accounts: how many frames of a group of users are freed, and on which CPU.
//!
//! A user of frames puts each frame that it has allocated on its account, and counts that itself.
//! A frame may be freed by any CPU that drops the last reference, also by a lockless pin, so the
//! source counts the frames that are freed. The count of charged frames less that of freed ones is
//! what the account holds, exactly.
//!
//! The account is in the frame's word, which has no other use for the frames of programs.
//!
//! Cost of freeing a frame on an account: a locked instruction on a line of this CPU. Other frames
//! cost a load of a line that is written anyway.

use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use alloc::collections::TryReserveError;

use crate::storage::{NoMemory, Storage};
use crate::{CpuId, FrameInfo, Owner, PerCpu};

/// The largest number of accounts that are open at once.
pub const MAX_ACCOUNTS: usize = 64;

/// An account of a frame source.
///
/// ```
/// use machine::Accounts;
/// let accounts = Accounts::try_new(1).unwrap();
/// let account = accounts.open().unwrap();
/// // A frame was allocated, put on the account by `charge`, and freed:
/// // `accounts.take_freed(cpu, account)` is 1 then, once.
/// accounts.close(account);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Account(u8);

/// The accounts of a frame source.
///
/// # Misuse
/// A wrong order of calls gives wrong counts, and loses no frame.
#[derive(Debug)]
pub struct Accounts {
    /// A bit for each account that is open.
    open: AtomicU64,
    /// Frames freed by each CPU and not yet taken.
    freed: PerCpu<Freed>,
}

/// The frames of each account.
pub(crate) type Freed = [AtomicUsize; MAX_ACCOUNTS];

fn none() -> Freed {
    [const { AtomicUsize::new(0) }; MAX_ACCOUNTS]
}

impl Accounts {
    /// No account is open. Allocates half a KiB for each CPU.
    ///
    /// # Errors
    /// There is not enough memory.
    pub fn try_new(cpus: usize) -> Result<Self, TryReserveError> {
        PerCpu::try_new(cpus, |_| none()).map(Accounts::with)
    }

    /// As [`try_new`](Self::try_new), with memory from `storage`.
    pub(crate) fn in_storage(storage: &Storage, cpus: usize) -> Result<Self, NoMemory> {
        PerCpu::in_storage(storage, cpus, |_| none()).map(Accounts::with)
    }

    fn with(freed: PerCpu<Freed>) -> Self {
        Accounts { open: AtomicU64::new(0), freed }
    }

    /// Opens an account that no frame is on. `None` if [`MAX_ACCOUNTS`] are open.
    pub fn open(&self) -> Option<Account> {
        // Acquire: pairs with the Release of `close`.
        let mut open = self.open.load(Ordering::Acquire);
        loop {
            let free = (!open).trailing_zeros();
            let bit = 1u64.checked_shl(free)?;
            match self.open.compare_exchange(open, open | bit, Ordering::Acquire, Ordering::Acquire)
            {
                Ok(_) => return Some(Account(free as u8)),
                Err(now) => open = now,
            }
        }
    }

    /// Closes an account. The caller knows that no frame is on it any more, and that all freed ones
    /// were taken; otherwise the next owner of the account counts them.
    pub fn close(&self, account: Account) {
        // Release: the counts that were taken are gone for the next owner.
        self.open.fetch_and(!(1 << account.0), Ordering::Release);
    }

    /// Puts a block of frames on an account. Its frames count when it is freed.
    ///
    /// # Safety
    /// The caller has just allocated the block, and gives it [`Owner::User`]. Nothing else uses its
    /// word.
    pub unsafe fn charge(&self, block: &FrameInfo, account: Account) {
        // Relaxed: no other CPU knows the frame yet; the caller orders it with the frame.
        // SAFETY: the caller's promise.
        unsafe { block.word() }.store(u32::from(account.0) + 1, Ordering::Relaxed);
    }

    /// Takes the number of frames of an account that this CPU has freed since it was last taken.
    pub fn take_freed(&self, cpu: CpuId, account: Account) -> usize {
        let Some(freed) = self.freed.get(cpu).and_then(|all| all.get(usize::from(account.0)))
        else {
            return 0;
        };
        // Relaxed: only the number counts. The load leaves the line shared if there is nothing.
        if freed.load(Ordering::Relaxed) == 0 {
            return 0;
        }
        freed.swap(0, Ordering::Relaxed)
    }

    /// A block is freed by `cpu`; its last reference is gone.
    pub(crate) fn note_freed(&self, cpu: CpuId, block: &FrameInfo) {
        if block.owner() != Owner::User {
            return;
        }
        // SAFETY: the word of a program's frame is its account, or 0. Relaxed: the last reference
        // was dropped with Acquire.
        let word = unsafe { block.word() }.load(Ordering::Relaxed) as usize;
        let freed = self.freed.get(cpu).zip(word.checked_sub(1));
        if let Some(freed) = freed.and_then(|(all, account)| all.get(account)) {
            // Relaxed: as in `take_freed`.
            freed.fetch_add(1 << block.order(), Ordering::Relaxed);
        }
    }
}
