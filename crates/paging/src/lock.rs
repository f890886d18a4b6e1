//! The lock of one page table: a bit of the word that goes with its frame.
//!
//! The word also counts the table's entries that are not absent, so that who takes the last one
//! away knows it, and says whether the table is *dead*: unlinked, never to be used again. Whoever
//! changes an entry of a table that is linked has the lock. Who reads one, software or hardware,
//! has not.
//!
//! # Order
//! A table's lock is taken before that of a table below it; never two of a level. While one is held
//! nothing is allocated and nothing is flushed; only entries are changed. Not for interrupt
//! handlers: one would wait for ever for what it has interrupted.
//!
//! Cost: one locked instruction and one store, on the line of the frame's state.

use crate::cursor::Error;
use crate::sync::Word;
use core::sync::atomic::{AtomicU32, Ordering};
use machine::{Access, Entry, Frame, Machine, Step, VirtAddr};

const LOCKED: u32 = 1 << 31;
const DEAD: u32 = 1 << 30;

/// An entry of a table, as the machine has it or as a model has it.
pub(crate) trait Link {
    fn load(&self) -> u64;
    fn store(&self, value: u64);
}

impl<M: Step + ?Sized> Link for Entry<'_, M> {
    #[inline(always)]
    fn load(&self) -> u64 {
        self.load()
    }

    #[inline(always)]
    fn store(&self, value: u64) {
        self.store(value)
    }
}

#[cfg(loom)]
impl<W: machine::word::Word> Link for machine::word::EntryWord<W> {
    fn load(&self) -> u64 {
        self.load()
    }

    fn store(&self, value: u64) {
        self.store(value)
    }
}

/// The lock of a table that is alive.
pub(crate) struct Locked<'m, W: Word> {
    word: &'m W,
    /// Entries that are not absent; written back at the end.
    pub(crate) count: u32,
    dead: bool,
}

impl<'m, W: Word> Locked<'m, W> {
    /// Takes the lock; `None` if the table is dead. `relax` waits one turn.
    pub(crate) fn take(word: &'m W, mut relax: impl FnMut()) -> Option<Self> {
        // Relaxed: only the exchange decides.
        let mut seen = word.load(Ordering::Relaxed);
        loop {
            if seen & DEAD != 0 {
                return None;
            }
            if seen & LOCKED != 0 {
                relax();
                seen = word.load(Ordering::Relaxed);
                continue;
            }
            // Acquire: pairs with the Release of `drop`: entries are as the last holder left them.
            // Relaxed on failure: it is tried again.
            match word.compare_exchange(seen, seen | LOCKED, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return Some(Locked { word, count: seen, dead: false }),
                Err(now) => seen = now,
            }
        }
    }

    /// Links a table below, by an entry of this one, if `may` agrees with what is there. Returns
    /// whether it did.
    ///
    /// # Errors
    /// That of `may`; nothing has changed then.
    pub(crate) fn link<E>(
        &mut self,
        entry: &impl Link,
        value: u64,
        may: impl FnOnce(u64) -> Result<bool, E>,
    ) -> Result<bool, E> {
        if !may(entry.load())? {
            return Ok(false);
        }
        entry.store(value);
        self.count += 1;
        Ok(true)
    }

    /// Unlinks the table below that an entry of this one leads to, if that is empty. `below` locks
    /// it, by what the entry says; `None` if there is none. Returns what `below` calls the table.
    pub(crate) fn unlink<'l, T>(
        mut self,
        entry: &impl Link,
        below: impl FnOnce(u64) -> Option<(T, Locked<'l, W>)>,
    ) -> Option<T>
    where
        W: 'l,
    {
        // With the lock: what was read before may have changed.
        let (table, lower) = below(entry.load())?;
        if lower.count != 0 {
            return None;
        }
        entry.store(0);
        self.count -= 1;
        lower.kill();
        Some(table)
    }

    /// The table has been unlinked: whoever waits for the lock, or comes too late, is told so.
    fn kill(mut self) {
        self.dead = true;
    }
}

impl<W: Word> Drop for Locked<'_, W> {
    fn drop(&mut self) {
        let dead = if self.dead { DEAD } else { 0 };
        // Release: pairs with the Acquire of `take`.
        self.word.store(self.count | dead, Ordering::Release);
    }
}

/// Locks the table in `frame`; `None` if it is dead.
///
/// # Errors
/// [`Error::Malformed`]: an entry for `at` led there, and it is no frame of the machine's source.
pub(crate) fn lock<M: Machine>(
    machine: &M,
    frame: Frame,
    at: VirtAddr,
) -> Result<Option<Locked<'_, AtomicU32>>, Error> {
    let info = machine.info(frame).ok_or(Error::Malformed(at))?;
    machine.step(Access::Shared);
    // SAFETY: the word of a table is the lock and the count of its entries, and is used as such
    // here and by who has the table to himself; that the frame is a table our caller has from a
    // table's entry.
    let word = unsafe { info.word() };
    Ok(Locked::take(word, || machine.relax()))
}
