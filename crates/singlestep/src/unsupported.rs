//! The implementation for unsupported platforms: every count returns an error.

use crate::{Counts, Error, operation::Plan};

/// Returns [`Error::Unsupported`].
pub(crate) fn count<T, S, O>(plan: Plan<'_, T>, _setup: S, _op: O) -> Result<Counts, Error>
where
    S: FnOnce() -> T,
    O: FnMut(&mut T),
{
    let Plan { prepare: _, regions: _, warm_up: _, runs: _, time_limit: _ } = plan;
    Err(Error::Unsupported)
}
