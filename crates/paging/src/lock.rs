//! The lock of one page table: a bit of the word that belongs to its frame.
//!
//! The word also holds the count of the table's entries that are not absent, so the CPU that clears
//! the last entry learns that the table is empty. A third part counts the forks that share the
//! table: up to 2^20, or 2^18 or 2^16 of a larger granule, since more bits count its entries. A
//! fourth part says whether the table is *dead*: unlinked, and of no use until it has been freed.
//! A writer that changes an entry of a linked table holds the lock. Readers, software or hardware,
//! do not take it.
//!
//! # Lock order
//! - A table's lock is taken before the lock of a table below it; never two locks of one level.
//! - While a lock is held, nothing is allocated; only entries change. Nothing is flushed, except
//!   for break-before-make (`cursor::breaks`), and where a group is parted (`cursor::group`): CPUs
//!   that wait for the lock answer flushes.
//! - Interrupt handlers do not take it: a handler would spin forever on a lock held by the code
//!   that it interrupted.
//!
//! Cost: one locked instruction and one store, on the cache line of the frame's state.

use crate::error::Error;
use crate::format::{Format, Geometry};
use core::marker::PhantomData;
use core::sync::atomic::Ordering;
use machine::{Entry, Frame, FrameWord, Machine, SharedAccess, Step, VirtAddr};

pub(crate) const LOCKED: u32 = 1 << 31;
const DEAD: u32 = 1 << 30;

/// The position of the number of shares. The bits below count entries, up to all of a table.
const fn shares<F: Format>() -> u32 {
    F::INDEX_BITS + 1
}

/// The most shares that fit below the flags.
pub(crate) const fn max_shares<F: Format>() -> u32 {
    (1 << (30 - shares::<F>())) - 1
}

/// The lock of a live table, held.
pub(crate) struct Locked<'m, F: Format> {
    word: &'m FrameWord,
    format: PhantomData<F>,
    pub(crate) table: Frame,
    /// The count of entries that are not absent; written back on unlock.
    pub(crate) count: u32,
    /// The number of entries that lead to the table besides the first one (`cursor::share`);
    /// written back on unlock.
    pub(crate) shares: u32,
    dead: bool,
}

impl<'m, F: Format> Locked<'m, F> {
    /// Takes the lock; `None` if the table is dead. `relax` is called for each turn of waiting.
    fn take(table: Frame, word: &'m FrameWord, mut relax: impl FnMut()) -> Option<Self> {
        // Relaxed: only the exchange decides.
        let mut seen = word.load(Ordering::Relaxed);
        loop {
            if seen & DEAD != 0 {
                // Acquire: pairs with the Release of `drop`, so the caller, which walks again, does
                // not find the old way here again. The word is final until the table is freed.
                word.load(Ordering::Acquire);
                return None;
            }
            if seen & LOCKED != 0 {
                relax();
                seen = word.load(Ordering::Relaxed);
                continue;
            }
            // Acquire: pairs with the Release of `drop`: the entries are as the last holder left
            // them. Relaxed on failure: the loop tries again.
            match word.compare_exchange(seen, seen | LOCKED, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => {
                    let (count, shares) =
                        (count_of::<F>(seen), seen >> shares::<F>() & max_shares::<F>());
                    let format = PhantomData;
                    return Some(Locked { word, format, table, count, shares, dead: false });
                }
                Err(now) => seen = now,
            }
        }
    }

    /// Unlinks the lower table that an entry of this one leads to, if it is empty. `below` finds
    /// and locks it by the entry's value, or returns `None`. Returns the name that `below` gave the
    /// table.
    pub(crate) fn unlink<'l, M: Step + ?Sized, T>(
        mut self,
        entry: &Entry<'_, M>,
        below: impl FnOnce(u64) -> Option<(T, Locked<'l, F>)>,
    ) -> Option<T> {
        // Read again under the lock: an earlier value may have changed.
        let (table, lower) = below(entry.load())?;
        if lower.count != 0 || lower.shares != 0 {
            return None;
        }
        entry.store(0);
        self.count -= 1;
        lower.kill();
        Some(table)
    }

    /// Marks the table dead, for CPUs that wait for the lock or come later.
    pub(crate) fn kill(mut self) {
        self.dead = true;
    }
}

impl<F: Format> Drop for Locked<'_, F> {
    fn drop(&mut self) {
        let dead = if self.dead { DEAD } else { 0 };
        // Release: pairs with the Acquire of `take`.
        self.word.store(self.count | self.shares << shares::<F>() | dead, Ordering::Release);
    }
}

/// Locks the table in `frame`; `None` if it is dead.
///
/// # Errors
/// [`Error::Malformed`]: an entry for `at` led to `frame`, which is not a frame of the machine's
/// source.
pub(crate) fn lock<M: Machine, F: Format>(
    machine: &M,
    frame: Frame,
    at: VirtAddr,
) -> Result<Option<Locked<'_, F>>, Error> {
    let info = machine.info(frame).ok_or(Error::Malformed(at))?;
    machine.step(SharedAccess::Other);
    // SAFETY: the word of a table is its lock and its entry count. It is used as such here and by
    // code that has the table to itself. The caller has `frame` from an entry of a table, so it is
    // a table.
    let word = unsafe { info.word() };
    Ok(Locked::take(frame, word, || machine.relax()))
}

/// The count of entries in the word of a table that no other CPU uses.
pub(crate) fn count_of<F: Format>(word: u32) -> u32 {
    word & ((1 << shares::<F>()) - 1)
}
