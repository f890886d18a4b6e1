//! The outcome of a call.

use crate::errno::Errno;

/// The reason for which a call does not return a number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stop {
    /// It failed.
    Errno(Errno),
    /// The thread waits, and makes the call again.
    Wait,
    /// A signal ended the waiting. The call is made again after the handler, or returns EINTR, as
    /// the handler was installed.
    Interrupted,
    /// No result goes into the registers: the call has set them, or the program does not go on.
    Registers,
    /// It returns 0, and other threads come first.
    Yield,
    /// Other threads come first, then it is made again.
    Turn,
    /// The thread has ended.
    End,
}

impl From<Errno> for Stop {
    fn from(errno: Errno) -> Self {
        Stop::Errno(errno)
    }
}

impl From<mm::Error> for Stop {
    fn from(error: mm::Error) -> Self {
        Stop::Errno(error.into())
    }
}

/// The number that a call returns, or the reason for which it returns none.
pub(crate) type Outcome = Result<u64, Stop>;

/// Fails with an error number.
pub(crate) fn fail<T>(errno: u32) -> Result<T, Stop> {
    Err(Stop::Errno(Errno(errno)))
}
