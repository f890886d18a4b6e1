//! The buffer between a program and a file, for calls that copy.

use super::Errno;
use alloc::vec::Vec;
use linux_raw_sys::errno::ENOMEM;

/// The most bytes of a piece.
pub(super) const PIECE: usize = 64 << 10;
/// Pieces up to this need no heap.
const SMALL: usize = 512;

/// A buffer of the kernel.
#[expect(clippy::large_enum_variant, reason = "it is on the stack for one call")]
pub(super) enum Buffer {
    Small([u8; SMALL]),
    Large(Vec<u8>),
}

impl Buffer {
    /// For a call on so many bytes.
    pub(super) fn new(bytes: u64) -> Result<Buffer, Errno> {
        if bytes <= SMALL as u64 {
            return Ok(Buffer::Small([0; SMALL]));
        }
        let len = bytes.min(PIECE as u64) as usize;
        let mut large = Vec::new();
        large.try_reserve_exact(len).map_err(|_| Errno(ENOMEM))?;
        large.resize(len, 0);
        Ok(Buffer::Large(large))
    }

    pub(super) fn bytes(&mut self) -> &mut [u8] {
        match self {
            Buffer::Small(bytes) => bytes,
            Buffer::Large(bytes) => bytes,
        }
    }

    /// At most so many bytes.
    pub(super) fn part(&mut self, most: u64) -> &mut [u8] {
        let bytes = self.bytes();
        let len = bytes.len().min(most as usize);
        &mut bytes[..len]
    }
}
