//! The memory of a stopped thread, read in chunks.
//!
//! A stack is read from its top down to its first frame, so nearly every read is in the chunk that
//! was read last.

use crate::live::sys::{self, Tid};

/// The first chunk: enough for most stacks.
const FIRST: usize = 16 << 10;
/// A further chunk.
const MORE: usize = 64 << 10;

/// The chunk of a thread's memory that was read last.
#[derive(Default)]
pub(super) struct Memory {
    tid: Tid,
    start: u64,
    bytes: Vec<u8>,
    chunk: usize,
}

impl Memory {
    /// Reads another thread from here on, or the same one after it has run.
    pub(super) fn forget(&mut self, tid: Tid) {
        self.tid = tid;
        self.bytes.clear();
        self.chunk = FIRST;
    }

    /// The word at an address; `None` if it cannot be read.
    pub(super) fn word(&mut self, address: u64) -> Option<u64> {
        self.cached(address).or_else(|| {
            self.read(address);
            self.cached(address)
        })
    }

    fn cached(&self, address: u64) -> Option<u64> {
        let at = usize::try_from(address.checked_sub(self.start)?).ok()?;
        let word = self.bytes.get(at..at.checked_add(8)?)?;
        Some(u64::from_ne_bytes(word.try_into().ok()?))
    }

    fn read(&mut self, address: u64) {
        // A frame's first words may lie a little below the one that is read first.
        const BELOW: u64 = 128;
        self.start = address.saturating_sub(BELOW);
        self.bytes.resize(self.chunk, 0);
        let got = sys::read_pages(self.tid, self.start as usize, &mut self.bytes);
        self.bytes.truncate(got);
        self.chunk = MORE;
        if self.cached(address).is_none() {
            // The page below is not mapped.
            self.start = address;
            self.bytes.resize(FIRST, 0);
            let got = sys::read_pages(self.tid, address as usize, &mut self.bytes);
            self.bytes.truncate(got);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of this process: both sides of the end of a map, and an address that is not mapped.
    #[test]
    fn memory_ends_where_the_map_does() {
        let words: Vec<u64> = (0..40_000).collect();
        let address = words.as_ptr() as u64;
        let mut memory = Memory::default();
        memory.forget(std::process::id() as Tid);
        for i in [0, 1, 20_000, 39_999, 3] {
            assert_eq!(memory.word(address + 8 * i), Some(i));
        }
        assert_eq!(memory.word(8), None);
        assert_eq!(memory.word(u64::MAX - 3), None);
        assert_eq!(memory.word(address + 8), Some(1), "a failure spoils nothing");
    }
}
