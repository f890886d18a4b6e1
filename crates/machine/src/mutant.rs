//! Errors that are built in for the loom models, which must catch them. Outside the models no error
//! is chosen, and the questions here are constants.

use crate::sync::Ordering;

/// One error. The code that can have it asks for it by name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Mutant {
    /// A caller sets its bits without a release.
    SetRelaxed,
    /// A CPU takes its bits without an acquire.
    TakeRelaxed,
    /// A CPU decrements a caller's counter without a release.
    CountRelaxed,
    /// A caller reads its counter without an acquire.
    SeeRelaxed,
    /// The bits are taken by a load and a store.
    TakenInTwo,
    /// A caller that waits for answers does not poll.
    WaitsDeaf,
    /// A caller waits for a CPU that has gone offline.
    AwaitsOffline,
    /// A CPU enters a set of CPUs without the fence.
    InsertUnfenced,
    /// A CPU leaves a set of CPUs without a release.
    RemoveRelaxed,
    /// A set of CPUs is read without the fence.
    LoadUnfenced,
    /// A set of CPUs is read without an acquire.
    LoadRelaxed,
    /// A CPU becomes idle without a release.
    IdleRelaxed,
    /// The marks of idle CPUs are taken without an acquire.
    TakeIdleRelaxed,
    /// The targets of a flush are those from before the marks were taken.
    TargetsFromLoad,
}

/// Whether this error is chosen.
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

/// Returns `right`, or Relaxed if this error is chosen.
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
        /// All threads of a model run on one host thread.
        static CHOSEN: Cell<Option<Mutant>> = const { Cell::new(None) };
    }

    pub(super) fn is(mutant: Mutant) -> bool {
        CHOSEN.get() == Some(mutant)
    }

    /// Runs `f` with this error.
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

    /// Asserts that the mutant fails with this report, and not by an error in the model.
    pub(crate) fn caught(mutant: Mutant, run: fn(), how: &str) {
        let panic = catch_unwind(AssertUnwindSafe(|| with(mutant, run)));
        let panic = panic.expect_err("the mutant lives");
        let report = panic.downcast_ref::<String>().map(String::as_str);
        let report = report.or(panic.downcast_ref::<&str>().copied()).unwrap_or_default();
        assert!(report.contains(how), "{mutant:?}: stopped by something else: {report}");
    }
}
