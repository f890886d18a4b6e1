//! What is done wrong on purpose, to see that the machine in software, or loom, notices it. Nothing
//! is, but in this crate's unit tests: elsewhere the questions here are constants.

use crate::sync::Ordering;

/// One thing that is left out or done in the wrong order, where its name is asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Mutant {
    /// A broadcast that asks nobody.
    NoBroadcast,
    /// A broadcast that begins its period when all have answered.
    BeginsAfterBroadcast,
    /// A CPU announces, then flushes.
    EndsBeforeFlush,
    /// A CPU that comes back does not flush.
    BackWithoutFlush,
    /// Every period is over at once: for runs of blocks, and for areas in the tree.
    PeriodCutShort,
    /// The period that an area waits for is numbered before its entries are cleared.
    NumberedBeforeCleared,
    /// A run is given back before its entries are cleared.
    GivenBeforeCleared,
    /// A call that fails prunes page tables that others are about to use.
    PrunesBusy,
    /// An area is live before it is mapped.
    LiveBeforeMapped,
    /// Who unmaps an area looks at its state, and changes it later.
    ClaimInTwo,
    /// Who unmaps a run does not look whether somebody else has.
    GivenTwice,
    /// A page is read without a pin.
    ReadWithoutPin,
    /// What was freed in interrupts is taken over by a look and a store, with interrupts on.
    DoomedInTwo,
    /// The word of what was given back is taken by a load and a store.
    SwapInTwo,
    /// Giving back does not release.
    GiveRelaxed,
    /// Looking for what was given back does not acquire.
    GatherRelaxed,
    /// A state is set without a release.
    SetRelaxed,
    /// A state is looked at without an acquire.
    StateRelaxed,
    /// An area is claimed without an acquire.
    ClaimRelaxed,
    /// A record is written before its count has gone up for all to see.
    PrepareUnfenced,
    /// Who looks at a record does not look at its count again.
    LookedAtOnce,
}

/// Whether this is what is done wrong.
#[inline(always)]
pub(crate) fn is(mutant: Mutant) -> bool {
    #[cfg(test)]
    return chosen::is(mutant);
    #[cfg(not(test))]
    {
        let _ = mutant;
        false
    }
}

/// The right order; relaxed if that is what is done wrong.
#[inline(always)]
pub(crate) fn order(right: Ordering, mutant: Mutant) -> Ordering {
    if is(mutant) { Ordering::Relaxed } else { right }
}

#[cfg(test)]
pub(crate) use chosen::with;

#[cfg(test)]
mod chosen {
    use super::Mutant;
    use core::cell::Cell;

    std::thread_local! {
        /// All CPUs of a machine, and all threads of a model, are one thread of the host.
        static CHOSEN: Cell<Option<Mutant>> = const { Cell::new(None) };
    }

    pub(super) fn is(mutant: Mutant) -> bool {
        CHOSEN.get() == Some(mutant)
    }

    /// Runs `f` with this done wrong, if anything.
    pub(crate) fn with<T>(mutant: Option<Mutant>, f: impl FnOnce() -> T) -> T {
        struct Restore(Option<Mutant>);
        impl Drop for Restore {
            fn drop(&mut self) {
                CHOSEN.set(self.0);
            }
        }
        let _restore = Restore(CHOSEN.replace(mutant));
        f()
    }
}
