//! The buffer between a program and a file, for calls that copy.
//!
//! Each CPU keeps one large buffer for the next call. So a call of many bytes neither clears memory
//! nor asks the heap, whatever its length: a program may offer 64 KiB and get five bytes. No byte
//! of an earlier call leaves the kernel, because callers pass on only what they have put in.

use crate::errno::Errno;
use crate::lock::lock;
use crate::machine::Kernel;
use alloc::boxed::Box;
use alloc::vec::Vec;
use linux_raw_sys::errno::ENOMEM;
use machine::Cpus;
use spin::Once;
use spin::mutex::SpinMutex;

/// The most bytes of a piece.
pub(super) const PIECE: usize = 64 << 10;
/// Pieces up to this need no heap.
const SMALL: usize = 512;

/// The large buffers that CPUs keep.
static SPARE: Once<Box<[SpinMutex<Vec<u8>>]>> = Once::new();

/// That of this CPU. A thread that moves meanwhile uses another's, under its lock.
fn spare() -> &'static SpinMutex<Vec<u8>> {
    let all = || (0..Kernel.count()).map(|_| SpinMutex::default()).collect();
    &SPARE.call_once(all)[Kernel.current().index()]
}

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
        let mut large = core::mem::take(&mut *lock(spare()));
        if large.is_empty() {
            large.try_reserve_exact(PIECE).map_err(|_| Errno(ENOMEM))?;
            large.resize(PIECE, 0);
        }
        Ok(Buffer::Large(large))
    }

    /// At most so many bytes.
    pub(super) fn part(&mut self, most: u64) -> &mut [u8] {
        let bytes = match self {
            Buffer::Small(bytes) => &mut bytes[..],
            Buffer::Large(bytes) => bytes,
        };
        let len = bytes.len().min(most as usize);
        &mut bytes[..len]
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if let Buffer::Large(bytes) = self {
            // The buffer that was there, if any, is freed after the lock is.
            let _before = core::mem::replace(&mut *lock(spare()), core::mem::take(bytes));
        }
    }
}
