//! What is done wrong on purpose, to see that loom notices it. Nothing is, but in models: elsewhere
//! the questions here are constants.

use crate::sync::Ordering;

/// One thing that is left out, where its name is asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Mutant {
    /// Who asks sets his bits without a release.
    SetRelaxed,
    /// Who answers takes the bits without an acquire.
    TakeRelaxed,
    /// Who answers counts down without a release.
    CountRelaxed,
    /// Who asks sees the count without an acquire.
    SeeRelaxed,
    /// The bits are taken by a load and a store.
    TakenInTwo,
    /// Who waits for answers does not answer.
    WaitsDeaf,
    /// A CPU enters a set of CPUs without the fence.
    InsertUnfenced,
    /// A CPU leaves a set of CPUs without a release.
    RemoveRelaxed,
    /// A set of CPUs is read without the fence.
    LoadUnfenced,
    /// A set of CPUs is read without an acquire.
    LoadRelaxed,
}

/// Whether this is what is done wrong.
#[inline(always)]
pub(crate) fn is(mutant: Mutant) -> bool {
    #[cfg(all(test, loom))]
    return chosen::is(mutant);
    #[cfg(not(all(test, loom)))]
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

#[cfg(all(test, loom))]
pub(crate) use chosen::caught;

#[cfg(all(test, loom))]
mod chosen {
    use super::Mutant;
    use core::cell::Cell;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::string::String;

    std::thread_local! {
        /// All threads of a model are one thread of the host.
        static CHOSEN: Cell<Option<Mutant>> = const { Cell::new(None) };
    }

    pub(super) fn is(mutant: Mutant) -> bool {
        CHOSEN.get() == Some(mutant)
    }

    /// Runs `f` with this done wrong.
    fn with<T>(mutant: Mutant, f: impl FnOnce() -> T) -> T {
        struct Restore(Option<Mutant>);
        impl Drop for Restore {
            fn drop(&mut self) {
                CHOSEN.set(self.0);
            }
        }
        let _restore = Restore(CHOSEN.replace(Some(mutant)));
        f()
    }

    /// The mutant fails, and with this report: not by a mistake in the model.
    pub(crate) fn caught(mutant: Mutant, run: fn(), how: &str) {
        let panic = catch_unwind(AssertUnwindSafe(|| with(mutant, run)));
        let panic = panic.expect_err("the mutant lives");
        let report = panic.downcast_ref::<String>().map(String::as_str);
        let report = report.or(panic.downcast_ref::<&str>().copied()).unwrap_or_default();
        assert!(report.contains(how), "{mutant:?}: stopped by something else: {report}");
    }
}
