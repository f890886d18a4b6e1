//! The events of the followed threads, in a fair order.
//!
//! The kernel reports the event of the youngest tracee first. While young ones stop again and
//! again, it would never report the others, such as a parent whose fork must be known before its
//! child may run. So all events that are there are taken, and handled in the order in which they
//! came. That ends, because each thread stays stopped until its event was handled.
//!
//! A thread leaves its stop only if it is killed, and then has another event. So an event that has
//! waited is dropped if its thread has a newer one.
//!
//! Cost: one or two more calls for each event if there is a second thread. And up to 30 µs of
//! processor time before the tracer sleeps.

use std::{
    collections::VecDeque,
    io, thread,
    time::{Duration, Instant},
};

use super::sys::{
    Tid,
    ptrace::{self, Status},
};

/// The time for which the tracer looks for the next event without sleeping. Most calls take some
/// microseconds, and so does the program between two of them. To wake the tracer on a halted
/// processor takes more, on a virtual machine 10 to 50.
const SPIN: Duration = Duration::from_micros(30);

/// The events that were taken and not handled yet.
#[derive(Debug, Default)]
pub(super) struct Events(VecDeque<(Tid, Status)>);

impl Events {
    /// Waits for the next event of any thread. `alone`: no other thread can have one. The result is
    /// that of [`ptrace::wait`].
    pub(super) fn next(&mut self, alone: bool) -> io::Result<Option<(Tid, Status)>> {
        while let Some((tid, status)) = self.0.pop_front() {
            let ended = matches!(status, Status::Exited(_) | Status::Signaled(_));
            if ended || !ptrace::has_event(tid) {
                return Ok(Some((tid, status)));
            }
        }
        let first = match self.spin() {
            Some(event) => event,
            None => match ptrace::wait()? {
                Some(event) => event,
                None => return Ok(None),
            },
        };
        if !alone {
            self.0.extend(std::iter::from_fn(ptrace::poll_any));
        }
        Ok(Some(first))
    }

    fn spin(&self) -> Option<(Tid, Status)> {
        let begun = Instant::now();
        while begun.elapsed() < SPIN {
            if let Some(event) = ptrace::poll_any() {
                return Some(event);
            }
            // The program may need this processor.
            thread::yield_now();
        }
        None
    }

    /// The event of one thread, if it has one. An error: it is no longer traced.
    pub(super) fn poll(&mut self, tid: Tid) -> io::Result<Option<Status>> {
        let newer = ptrace::poll(tid);
        let waits = self.0.iter().position(|&(other, _)| other == tid);
        let older = waits.and_then(|at| self.0.remove(at)).map(|(_, status)| status);
        match (older, newer) {
            (Some(older), Ok(None) | Err(_)) => Ok(Some(older)),
            (_, newer) => newer,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
