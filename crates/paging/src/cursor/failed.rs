//! The error of a call that may have left a flush pending.

use crate::error::Error;
use crate::format::Format;
use crate::pending::PendingFlush;
use core::fmt;
use grace::Concurrent;
use machine::Machine;

/// A failed operation. The tables translate as before (I7), but a flush may be pending for mappings
/// that existed in between; dropping this performs it.
#[must_use = "stale translations remain until its pending flush is done"]
pub struct Failed<'p, M: Machine, F: Format, G: Concurrent> {
    /// The cause.
    pub error: Error,
    /// The flush that is pending nevertheless.
    pub pending: PendingFlush<'p, M, F, G>,
}

impl<M: Machine, F: Format, G: Concurrent> fmt::Debug for Failed<'_, M, F, G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Failed")
            .field("error", &self.error)
            .field("pending", &self.pending)
            .finish()
    }
}

impl<M: Machine, F: Format, G: Concurrent> fmt::Display for Failed<'_, M, F, G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl<M: Machine, F: Format, G: Concurrent> core::error::Error for Failed<'_, M, F, G> {}

/// The cause alone, so that `?` works in a function that returns [`Error`]. It performs the pending
/// flush.
impl<M: Machine, F: Format, G: Concurrent> From<Failed<'_, M, F, G>> for Error {
    fn from(failed: Failed<'_, M, F, G>) -> Error {
        failed.error
    }
}
