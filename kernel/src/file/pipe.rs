//! Pipes: a buffer of bytes between open descriptions.
//!
//! A write of at most [`PIPE_BUF`] bytes goes in whole or not at all. The bytes are copied from and
//! to programs without the pipe's lock: a reader takes bytes out first, and puts back those that it
//! could not deliver.

use super::budget::Charge;
use super::ready::{Changed, READABLE, WRITABLE};
use crate::errno::Errno;
use crate::lock::lock;
use alloc::collections::VecDeque;
use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, Ordering};
use linux_raw_sys::errno::{EBUSY, ENOMEM, EPIPE};
use spin::mutex::SpinMutex;

/// The most bytes that are written as one piece.
pub(crate) const PIPE_BUF: usize = 4096;
/// The bytes of a new pipe.
const CAPACITY: usize = 64 << 10;
/// The most bytes of a pipe.
pub(crate) const MOST: usize = 1 << 20;

struct Contents {
    bytes: VecDeque<u8>,
    capacity: usize,
    /// Open descriptions that read, and those that write.
    readers: u32,
    writers: u32,
    /// Those that ever were: that read, and that write.
    openings: [u64; 2],
    _charge: Charge,
}

/// A pipe.
pub(crate) struct Pipe {
    contents: SpinMutex<Contents>,
    /// A program has read it or looked at it while it was empty.
    wanted: AtomicBool,
    /// Readers, writers, and polls wait here.
    pub(crate) changed: Changed,
}

/// The state of a pipe, for polls, opens and FIONREAD.
#[derive(Clone, Copy)]
pub(crate) struct Ready {
    /// Bytes in the buffer.
    pub(crate) bytes: usize,
    /// Bytes for which the buffer has room.
    pub(crate) room: usize,
    pub(crate) readers: bool,
    pub(crate) writers: bool,
}

impl Pipe {
    /// # Errors
    /// ENFILE's cause: no memory, as ENOMEM.
    pub(crate) fn new() -> Result<Arc<Pipe>, Errno> {
        let charge = Charge::new(CAPACITY).map_err(|_| Errno(ENOMEM))?;
        let contents = Contents {
            bytes: VecDeque::new(),
            capacity: CAPACITY,
            readers: 0,
            writers: 0,
            openings: [0; 2],
            _charge: charge,
        };
        let (contents, wanted) = (SpinMutex::new(contents), AtomicBool::new(false));
        Ok(Arc::new(Pipe { contents, wanted, changed: Changed::new() }))
    }

    /// An open description of it begins, which reads, or writes, or both. Returns the openings of
    /// the other end so far, if that is not there. It looks in the step in which it begins: the
    /// other end may wait for this one, and be gone a moment later.
    pub(crate) fn open(&self, reads: bool, writes: bool) -> Option<u64> {
        let mut contents = lock(&self.contents);
        let there = if writes { contents.readers } else { contents.writers };
        let is_alone = reads != writes && there == 0;
        let before = is_alone.then_some(contents.openings[usize::from(!writes)]);
        contents.readers += u32::from(reads);
        contents.writers += u32::from(writes);
        contents.openings[0] += u64::from(reads);
        contents.openings[1] += u64::from(writes);
        drop(contents);
        self.changed.wake_all();
        before
    }

    /// An open description of it ends.
    pub(crate) fn close(&self, reads: bool, writes: bool) {
        let mut contents = lock(&self.contents);
        contents.readers -= u32::from(reads);
        contents.writers -= u32::from(writes);
        let all = contents.readers + contents.writers;
        // One with a name may be opened again, and is empty then.
        let left = if all == 0 { core::mem::take(&mut contents.bytes) } else { VecDeque::new() };
        drop(contents);
        drop(left);
        self.changed.wake_all();
    }

    /// Whether a program has ever wanted bytes of it that were not there. A load.
    pub(crate) fn is_wanted(&self) -> bool {
        // Relaxed: only the flag.
        self.wanted.load(Ordering::Relaxed)
    }

    /// Notes that a program wants bytes.
    fn want(&self, contents: &Contents) {
        if contents.bytes.is_empty() && contents.writers > 0 && !self.is_wanted() {
            // Relaxed: only the flag.
            self.wanted.store(true, Ordering::Relaxed);
        }
    }

    /// For an end that reads, or that `writes`: the openings of the other end so far.
    pub(crate) fn openings(&self, writes: bool) -> u64 {
        lock(&self.contents).openings[usize::from(!writes)]
    }

    pub(crate) fn ready(&self) -> Ready {
        let contents = lock(&self.contents);
        self.want(&contents);
        Ready {
            bytes: contents.bytes.len(),
            room: contents.capacity.saturating_sub(contents.bytes.len()),
            readers: contents.readers > 0,
            writers: contents.writers > 0,
        }
    }

    /// Takes bytes out. None: it is empty, and there is a writer.
    pub(crate) fn take(&self, into: &mut [u8]) -> Option<usize> {
        let mut contents = lock(&self.contents);
        self.want(&contents);
        if contents.bytes.is_empty() && contents.writers > 0 {
            return None;
        }
        let count = contents.bytes.len().min(into.len());
        for (into, byte) in into.iter_mut().zip(contents.bytes.drain(..count)) {
            *into = byte;
        }
        // Epolls hear of room that is new for them.
        let full = contents.capacity < contents.bytes.len() + count + PIPE_BUF;
        drop(contents);
        if count > 0 {
            self.changed.wake(if full { WRITABLE } else { 0 });
        }
        Some(count)
    }

    /// Puts bytes back that could not be delivered.
    pub(crate) fn put_back(&self, bytes: &[u8]) {
        let mut contents = lock(&self.contents);
        if contents.bytes.try_reserve(bytes.len()).is_ok() {
            bytes.iter().rev().for_each(|byte| contents.bytes.push_front(*byte));
        }
        drop(contents);
        self.changed.wake_all();
    }

    /// Puts bytes in: as many as there is room for, or, if `whole`, all or none. Returns how many.
    ///
    /// # Errors
    /// EPIPE: there is no reader. ENOMEM.
    pub(crate) fn put(&self, bytes: &[u8], whole: bool) -> Result<usize, Errno> {
        let mut contents = lock(&self.contents);
        if contents.readers == 0 {
            return Err(Errno(EPIPE));
        }
        let room = contents.capacity.saturating_sub(contents.bytes.len());
        let count = if whole && room < bytes.len() { 0 } else { room.min(bytes.len()) };
        contents.bytes.try_reserve(count).map_err(|_| Errno(ENOMEM))?;
        contents.bytes.extend(&bytes[..count]);
        drop(contents);
        if count > 0 {
            self.changed.wake(READABLE);
        }
        Ok(count)
    }

    pub(crate) fn capacity(&self) -> usize {
        lock(&self.contents).capacity
    }

    /// Sets the capacity to at least this, and returns it (F_SETPIPE_SZ).
    ///
    /// # Errors
    /// EBUSY: more bytes are in it. ENOMEM. Nothing has changed.
    pub(crate) fn set_capacity(&self, bytes: usize) -> Result<usize, Errno> {
        let capacity = bytes.clamp(PIPE_BUF, MOST).next_power_of_two();
        let charge = Charge::new(capacity).map_err(|_| Errno(ENOMEM))?;
        let mut contents = lock(&self.contents);
        if contents.bytes.len() > capacity {
            return Err(Errno(EBUSY));
        }
        contents.capacity = capacity;
        contents._charge = charge;
        drop(contents);
        self.changed.wake_all();
        Ok(capacity)
    }
}
