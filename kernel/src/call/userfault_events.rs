//! Calls that change registered memory, and tell the monitors of userfaultfd.

use super::{Call, Outcome, Stop};
use crate::file::userfault_events::Events;
use crate::task::Space;
use alloc::sync::Arc;

impl Call<'_> {
    /// Makes a change once, and waits until the monitors have read of it. Returns the outcome of
    /// the change.
    pub(super) fn change(&mut self, change: impl FnOnce(&mut Self) -> Outcome) -> Outcome {
        let done = match self.own.resume.changed {
            Some(done) => done,
            None => change(self),
        };
        self.tell_monitors(None).inspect_err(|_| self.own.resume.changed = Some(done))?;
        done
    }

    /// Waits until the monitors have read the events of this call; `child` is the space that a fork
    /// has made.
    pub(super) fn tell_monitors(&mut self, child: Option<&Arc<Space>>) -> Result<(), Stop> {
        if self.own.resume.events.is_none() {
            let Some(events) = Events::take(child) else { return Ok(()) };
            self.own.resume.events = Some(events);
        }
        while let Some(told) = self.own.resume.events.as_mut().and_then(Events::next) {
            match self.wait_killable(&told.waiting, |_| told.is_done().then_some(())) {
                Ok(()) => {}
                // There is no memory to wait: the monitor does not hear of the rest.
                Err(Stop::Errno(_)) => self.own.resume.events = None,
                Err(stop) => return Err(stop),
            }
        }
        self.own.resume.events = None;
        Ok(())
    }
}
