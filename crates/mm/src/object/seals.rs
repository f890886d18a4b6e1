//! The seals of shared memory, and how one against writes is decided while maps are made.
//!
//! # Why no map can write to sealed memory
//! A seal against writes fails while a map may write, or while a page stays pinned. To decide that,
//! it first sets a bit, *undecided*. Then it looks for such maps and pins. At last it replaces the
//! bit by the seal, if the bit is still there.
//!
//! A new map that may be written is in the list of maps before it looks at the word of the seals,
//! and the list has a lock. So either the seal finds the map in the list, or the map finds the bit.
//! A map that finds the bit takes it away, and the seal fails. A map that finds the seal is
//! refused.

use core::sync::atomic::{AtomicU32, Ordering};

use machine::{SharedAccess, Step};

use crate::ObjectError;

/// The operations that a [`Shmem`](crate::Shmem) no longer allows; bits as in the F_SEAL constants
/// of fcntl.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Seals(pub u32);

impl Seals {
    /// No more seals.
    pub const SEAL: Seals = Seals(1);
    /// It does not become smaller.
    pub const SHRINK: Seals = Seals(2);
    /// It does not become larger.
    pub const GROW: Seals = Seals(4);
    /// Its contents do not change.
    pub const WRITE: Seals = Seals(8);
    /// As WRITE, but writable maps that exist stay so.
    pub const FUTURE_WRITE: Seals = Seals(16);
    /// Its permissions to execute do not change. The host asks for it in chmod(2). A host whose
    /// object is executable adds the seals against changes with it, as Linux does.
    pub const EXEC: Seals = Seals(32);

    /// Whether it has one of these.
    pub fn intersects(self, others: Seals) -> bool {
        self.0 & others.0 != 0
    }

    /// Whether one forbids a new shared map that may be written.
    pub(super) fn forbid_writing(self) -> bool {
        self.intersects(Seals(Seals::WRITE.0 | Seals::FUTURE_WRITE.0))
    }
}

/// A seal against writes is being decided. A map that is made meanwhile takes this bit away, and
/// the seal fails.
const UNDECIDED: u32 = 1 << 31;

/// The seals of an object.
pub(super) struct SealWord(
    /// Their bits, and [`UNDECIDED`].
    AtomicU32,
);

impl SealWord {
    pub(super) fn new() -> Self {
        SealWord(AtomicU32::new(0))
    }

    /// The seals. No step of the machine: a space of another one may ask, to refuse it then.
    pub(super) fn get(&self) -> Seals {
        // Acquire: pairs with the Release of `add`.
        Seals(self.0.load(Ordering::Acquire) & !UNDECIDED)
    }

    /// Adds seals. Called with the object's lock held. `is_writable` says whether a map may write,
    /// or a page is pinned.
    ///
    /// # Errors
    /// [`ObjectError::Sealed`]; nothing has changed.
    pub(super) fn add(
        &self,
        machine: &impl Step,
        seals: Seals,
        is_writable: impl FnOnce() -> bool,
    ) -> Result<(), ObjectError> {
        machine.step(SharedAccess::Other);
        let old = self.get();
        if old.intersects(Seals::SEAL) {
            return Err(ObjectError::Sealed);
        }
        let new = old.0 | seals.0 & !UNDECIDED;
        let decides = seals.intersects(Seals::WRITE) && !old.intersects(Seals::WRITE);
        let undecided = if decides { old.0 | UNDECIDED } else { old.0 };
        machine.step(SharedAccess::Other);
        // Release: pairs with `admit_writes`. A map adds itself to the mappings before it looks:
        // either the visit finds it, or it finds this bit. A call that has panicked may have left
        // the bit.
        self.0.store(undecided, Ordering::Release);
        let may = !decides || !is_writable();
        machine.step(SharedAccess::Other);
        // Release: pairs with `get`. Relaxed: a failure decides nothing else. Only maps change the
        // word meanwhile.
        let (set, failed) = (Ordering::Release, Ordering::Relaxed);
        let sealed = may && self.0.compare_exchange(undecided, new, set, failed).is_ok();
        if !sealed {
            machine.step(SharedAccess::Other);
            // Relaxed: nothing else depends on the bit.
            self.0.fetch_and(!UNDECIDED, Ordering::Relaxed);
            return Err(ObjectError::Sealed);
        }
        Ok(())
    }

    /// Whether a map that may be written, and is in the list of maps, is allowed. A seal that is
    /// being decided fails.
    pub(super) fn admit_writes(&self) -> bool {
        // Acquire: pairs with the Release of `add`. Either the bit goes first, and the seal fails,
        // or the seal is seen.
        let undecided = |seals: u32| {
            let sealed = Seals(seals).forbid_writing();
            (seals & UNDECIDED != 0 && !sealed).then_some(seals & !UNDECIDED)
        };
        let _cancelled = self.0.fetch_update(Ordering::Relaxed, Ordering::Acquire, undecided);
        !self.get().forbid_writing()
    }
}
