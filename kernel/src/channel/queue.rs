//! A queue of a virtio device, in the layout of the legacy interface (virtio 1.2, 2.7.2): the
//! descriptors, the ring of those that the device may use, and, on the next page, the ring of those
//! that it has used. Each buffer has one descriptor, with its number.
//!
//! # Accesses of both sides
//! A posted buffer belongs to the device until its number is in the used ring. The index of the
//! available ring is stored with Release after descriptor and contents; the device's store of the
//! used index pairs with our Acquire load, so its bytes are there. The device believes nothing of
//! ours, and we check what it says: a buffer's number and a length are cut to what exists.

use crate::layout::DIRECT;
use alloc::boxed::Box;
use alloc::vec;
#[cfg(target_arch = "x86_64")]
use core::ops::Range;
use core::sync::atomic::{AtomicU16, Ordering, fence};

/// The most descriptors of a queue: more would move the used ring to another page.
pub(super) const MOST: u16 = 128;
/// The words of both pages.
const WORDS: usize = 4096;
/// The first word of the second page.
const USED: usize = WORDS / 2;
/// The device writes to the buffer.
const WRITES: u16 = 2;
/// No interrupt is wanted when a buffer has been used.
const NO_INTERRUPT: u16 = 1;

#[repr(C, align(4096))]
struct Words([AtomicU16; WORDS]);

/// A queue with its buffers.
pub(super) struct Queue {
    words: Box<Words>,
    buffers: Box<[u8]>,
    /// The bytes of a buffer.
    bytes: usize,
    count: u16,
    /// The descriptors that the device has room for.
    size: u16,
    /// The buffers that were posted so far, and those that came back, modulo 2^16.
    posted: u16,
    seen: u16,
}

impl Queue {
    /// A queue with so many buffers, of so many bytes each.
    pub(super) fn new(count: u16, bytes: usize) -> Queue {
        Queue {
            words: Box::new(Words([const { AtomicU16::new(0) }; WORDS])),
            buffers: vec![0; usize::from(count) * bytes].into_boxed_slice(),
            bytes,
            count,
            size: MOST,
            posted: 0,
            seen: 0,
        }
    }

    /// Prepares it for a device with so many descriptors, and returns the number of its first page.
    /// None: there are too few, or too many.
    pub(super) fn prepare(&mut self, size: u16) -> Option<u32> {
        if !(self.count..=MOST).contains(&size) {
            return None;
        }
        self.size = size;
        self.set(8 * usize::from(size), NO_INTERRUPT);
        u32::try_from(physical(self.words.0.as_ptr().cast()) >> 12).ok()
    }

    /// A word that the device reads later: the store of the index orders it.
    fn set(&self, word: usize, value: u16) {
        self.words.0[word].store(value, Ordering::Relaxed);
    }

    /// Copies bytes to the start of a buffer that is not the device's. They must fit.
    pub(super) fn fill(&mut self, place: u16, parts: &[&[u8]]) {
        let mut at = usize::from(place) * self.bytes;
        for part in parts {
            self.buffers[at..at + part.len()].copy_from_slice(part);
            at += part.len();
        }
    }

    /// Gives the first bytes of a buffer to the device; `writes`: for it to write to. Returns the
    /// number that is over when it comes back. The device has to be notified.
    pub(super) fn post(&mut self, place: u16, len: usize, writes: bool) -> u16 {
        let start = self.buffers.as_mut_ptr().wrapping_add(usize::from(place) * self.bytes);
        let (at, len) = (physical(start), len.min(self.bytes));
        let descriptor = 8 * usize::from(place);
        for part in 0..4 {
            self.set(descriptor + part, (at >> (16 * part)) as u16);
        }
        self.set(descriptor + 4, len as u16);
        self.set(descriptor + 5, (len >> 16) as u16);
        self.set(descriptor + 6, if writes { WRITES } else { 0 });
        let ring = 8 * usize::from(self.size) + 2;
        self.set(ring + usize::from(self.posted % self.size), place);
        self.posted = self.posted.wrapping_add(1);
        // Release: the head of this file says what it pairs with.
        self.words.0[ring - 1].store(self.posted, Ordering::Release);
        // The store is visible before the device is notified: a device that sleeps does not look
        // again. The notification is an access to a device, which no weaker ordering covers.
        fence(Ordering::SeqCst);
        self.posted
    }

    /// The next buffer that the device has given back, and the bytes that it has written there.
    pub(super) fn take(&mut self) -> Option<(u16, usize)> {
        // Acquire: the head of this file says what it pairs with.
        if self.words.0[USED + 1].load(Ordering::Acquire) == self.seen {
            return None;
        }
        let entry = USED + 2 + 4 * usize::from(self.seen % self.size);
        self.seen = self.seen.wrapping_add(1);
        // Relaxed: the load of the index orders them.
        let word = |at: usize| usize::from(self.words.0[at].load(Ordering::Relaxed));
        let (place, len) = (word(entry), word(entry + 2) | word(entry + 3) << 16);
        let place = u16::try_from(place).ok().filter(|place| *place < self.count)?;
        Some((place, len.min(self.bytes)))
    }

    /// Whether the device has no buffer. Call [`take`](Self::take) first.
    pub(super) fn is_idle(&self) -> bool {
        self.posted == self.seen
    }

    /// Whether a buffer has come back that was posted by this number.
    pub(super) fn is_over(&self, ticket: u16) -> bool {
        self.seen.wrapping_sub(ticket) < 1 << 15
    }

    /// Bytes of a buffer that has come back.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn filled(&self, place: u16, bytes: Range<usize>) -> &[u8] {
        let start = usize::from(place) * self.bytes;
        &self.buffers[start..start + self.bytes][bytes]
    }

    /// Gives all buffers to the device, for it to write to.
    pub(super) fn post_all(&mut self) {
        for place in 0..self.count {
            self.post(place, self.bytes, true);
        }
    }
}

/// The physical address of memory of the heap, which the direct map has. The device gets it.
fn physical(at: *const u8) -> u64 {
    at.expose_provenance() as u64 - DIRECT
}
