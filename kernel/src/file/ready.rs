//! What a poll finds of an open description, and where it waits.

use super::node::Kind;
use super::open::Open;
use super::pipe::PIPE_BUF;
use crate::task::WaitQueue;
use linux_raw_sys::general::{POLLERR, POLLHUP, POLLIN, POLLOUT, POLLRDNORM, POLLWRNORM};

impl Open {
    /// Where a poll waits for a change, if there can be one.
    pub(crate) fn changed(&self) -> Option<&WaitQueue> {
        match &self.node.kind {
            Kind::Monitor(monitor) => Some(&monitor.changed),
            _ => self.pipe_of().map(|pipe| &pipe.changed),
        }
    }

    /// What poll finds.
    pub(crate) fn ready(&self) -> u32 {
        if let Kind::Monitor(monitor) = &self.node.kind {
            return match monitor.is_ready() && self.is_nonblocking() {
                true if monitor.has_message() => POLLIN | POLLRDNORM,
                true => 0,
                false => POLLERR,
            };
        }
        let Some(pipe) = self.pipe_of() else {
            return POLLIN | POLLOUT | POLLRDNORM | POLLWRNORM;
        };
        let ready = pipe.ready();
        let mut events = 0;
        if self.mode.read {
            events |= if ready.bytes > 0 { POLLIN | POLLRDNORM } else { 0 };
            events |= if ready.writers { 0 } else { POLLHUP };
        }
        if self.mode.write {
            events |= if ready.room >= PIPE_BUF { POLLOUT | POLLWRNORM } else { 0 };
            events |= if ready.readers { 0 } else { POLLERR };
        }
        events
    }
}
