//! Devices.

use crate::channel::{self, MessageKind};
use crate::errno::Errno;
use crate::random;
use linux_raw_sys::errno::{EINVAL, ENOSPC};

/// A device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Device {
    Null,
    Zero,
    Full,
    Random,
    /// Standard output. It has no input.
    Console,
    /// Standard error.
    Errors,
    /// userfaultfd.
    Monitors,
}

impl Device {
    /// Major and minor number, as in `st_rdev`.
    pub(crate) fn number(self) -> u64 {
        let (major, minor) = match self {
            Device::Null => (1, 3),
            Device::Zero => (1, 5),
            Device::Full => (1, 7),
            Device::Random => (1, 9),
            Device::Console | Device::Errors => (5, 1),
            Device::Monitors => (10, 126),
        };
        major << 8 | minor
    }

    /// # Errors
    /// EINVAL.
    pub(super) fn read(self, into: &mut [u8]) -> Result<usize, Errno> {
        match self {
            Device::Null | Device::Console | Device::Errors => return Ok(0),
            Device::Zero | Device::Full => into.fill(0),
            Device::Random => {
                for part in into.chunks_mut(8) {
                    part.copy_from_slice(&random::word().to_le_bytes()[..part.len()]);
                }
            }
            Device::Monitors => return Err(Errno(EINVAL)),
        }
        Ok(into.len())
    }

    /// # Errors
    /// ENOSPC, EINVAL.
    pub(super) fn write(self, from: &[u8]) -> Result<usize, Errno> {
        match self {
            Device::Null | Device::Zero | Device::Random => {}
            Device::Full => return Err(Errno(ENOSPC)),
            Device::Console => channel::write(MessageKind::Output, from),
            Device::Errors => channel::write(MessageKind::Errors, from),
            Device::Monitors => return Err(Errno(EINVAL)),
        }
        Ok(from.len())
    }
}
