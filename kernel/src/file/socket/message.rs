//! Messages of sockets, and files in flight.
//!
//! # Why files in flight leak in no cycle
//! A message keeps the files that it passes, so sockets could keep each other: each lies in an
//! inbox of which a descriptor lies in the next one. Linux looks for such cycles. Here they cannot
//! be made: a socket that holds sockets is not passed itself. A send that breaks that fails with
//! ETOOMANYREFS, where Linux sends. A connection that was not accepted counts as passed, because
//! the queue of the listening socket holds it. One lock orders the counts of all sockets.

use super::{Name, Socket};
use crate::errno::Errno;
use crate::file::budget::Charge;
use crate::file::open::Open;
use crate::lock::lock;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, Ordering};
use linux_raw_sys::errno::{ENOBUFS, ENOMEM, ETOOMANYREFS};
use spin::mutex::SpinMutex;

/// The bytes for which a message of a stream has room at least: later writes go there, too.
const LEAST: usize = 4096;
/// The heap that a message uses besides its bytes, about. It also counts as room of the inbox.
pub(super) const OVERHEAD: usize = 256;

static FLIGHT: SpinMutex<()> = SpinMutex::new(());

/// The process that has sent a message, or to which a socket is connected.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Credentials {
    pub(crate) pid: u32,
    pub(crate) user: u32,
    pub(crate) group: u32,
}

impl Credentials {
    /// Those of a process: all are root.
    pub(crate) fn of(pid: u32) -> Credentials {
        Credentials { pid, user: 0, group: 0 }
    }
}

/// The files that a message passes. Its socket holds them until they are taken.
pub(crate) struct Passed {
    files: Vec<Arc<Open>>,
    /// The count of the socket that holds them.
    holds: Arc<AtomicU32>,
}

impl Passed {
    /// Passes files to a socket.
    ///
    /// # Errors
    /// ETOOMANYREFS, as above; the files are as before.
    pub(super) fn new(files: &mut Vec<Arc<Open>>, to: &Socket) -> Result<Passed, Errno> {
        let sockets = || files.iter().filter_map(|open| open.socket());
        if sockets().next().is_some() {
            let _flight = lock(&FLIGHT);
            // Relaxed, for all of these: the lock orders them.
            let holds = |one: &Socket| one.holds.load(Ordering::Relaxed) > 0;
            let is_own = |one: &Arc<Socket>| core::ptr::eq(Arc::as_ptr(one), to);
            if to.in_flight.load(Ordering::Relaxed) > 0
                || sockets().any(|one| holds(one) || is_own(one))
            {
                return Err(Errno(ETOOMANYREFS));
            }
            for one in sockets() {
                one.in_flight.fetch_add(1, Ordering::Relaxed);
                to.holds.fetch_add(1, Ordering::Relaxed);
            }
        }
        Ok(Passed { files: core::mem::take(files), holds: Arc::clone(&to.holds) })
    }

    fn land(&mut self) -> Vec<Arc<Open>> {
        let files = core::mem::take(&mut self.files);
        let _flight = lock(&FLIGHT);
        for one in files.iter().filter_map(|open| open.socket()) {
            one.in_flight.fetch_sub(1, Ordering::Relaxed);
            self.holds.fetch_sub(1, Ordering::Relaxed);
        }
        files
    }

    /// The files: they are not in flight any more.
    pub(crate) fn take(mut self) -> Vec<Arc<Open>> {
        self.land()
    }

    /// The files, for a look at the message.
    pub(super) fn look(&self) -> Vec<Arc<Open>> {
        self.files.clone()
    }
}

impl Drop for Passed {
    fn drop(&mut self) {
        drop(self.land());
    }
}

/// A connection is accepted: no queue holds it.
pub(super) fn lands(socket: &Socket) {
    let _flight = lock(&FLIGHT);
    socket.in_flight.fetch_sub(1, Ordering::Relaxed);
}

/// A message in an inbox.
pub(crate) struct Message {
    bytes: Vec<u8>,
    /// The bytes that were read.
    read: usize,
    pub(crate) passed: Option<Passed>,
    pub(crate) from: Option<Name>,
    pub(crate) of: Credentials,
    _charge: Charge,
}

impl Message {
    /// # Errors
    /// ENOBUFS: the budget is used up. ENOMEM.
    pub(super) fn new(
        bytes: &[u8],
        of: Credentials,
        from: Option<Name>,
        joins: bool,
    ) -> Result<Message, Errno> {
        let room = if joins { bytes.len().max(LEAST) } else { bytes.len() };
        let charge = Charge::new(room + OVERHEAD).map_err(|_| Errno(ENOBUFS))?;
        let mut copy = Vec::new();
        copy.try_reserve_exact(room).map_err(|_| Errno(ENOMEM))?;
        copy.extend_from_slice(bytes);
        Ok(Message { bytes: copy, read: 0, passed: None, from, of, _charge: charge })
    }

    /// Adds as many bytes of a later write as there is room for, if it may be one message with it:
    /// files are passed at a message's end at the latest.
    pub(super) fn join(&mut self, bytes: &[u8], of: Credentials) -> usize {
        if self.passed.is_some() || self.of != of {
            return 0;
        }
        let count = bytes.len().min(self.bytes.capacity() - self.bytes.len());
        self.bytes.extend_from_slice(&bytes[..count]);
        count
    }

    /// The bytes that were not read.
    pub(crate) fn left(&self) -> usize {
        self.bytes.len() - self.read
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes[self.read..]
    }

    pub(super) fn skip(&mut self, count: usize) {
        self.read += count;
    }

    /// A copy for a look at it.
    ///
    /// # Errors
    /// As for `new`.
    pub(super) fn look(&self) -> Result<(Message, Vec<Arc<Open>>), Errno> {
        let copy = Message::new(self.bytes(), self.of, self.from.clone(), false)?;
        Ok((copy, self.passed.as_ref().map(Passed::look).unwrap_or_default()))
    }
}
