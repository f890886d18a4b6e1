//! The alternate stack of a thread's handlers (sigaltstack(2)).

use crate::errno::Errno;
use linux_raw_sys::errno::{EINVAL, ENOMEM, EPERM};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

const ONSTACK: u32 = 1;
const DISABLE: u32 = 2;
const AUTODISARM: u32 = 1 << 31;
/// The smallest one, in bytes.
const LEAST: u64 = 2048;

/// A `stack_t`.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub(crate) struct AltStack {
    start: u64,
    flags: u32,
    gap: u32,
    size: u64,
}

impl Default for AltStack {
    /// None.
    fn default() -> Self {
        AltStack { start: 0, flags: DISABLE, gap: 0, size: 0 }
    }
}

impl AltStack {
    /// Whether a stack pointer lies in it.
    pub(super) fn contains(&self, rsp: u64) -> bool {
        rsp > self.start && rsp - self.start <= self.size
    }

    /// Whether a thread with this stack pointer uses it.
    pub(super) fn is_used(&self, rsp: u64) -> bool {
        self.flags & AUTODISARM == 0 && self.contains(rsp)
    }

    /// Its end, if a handler may go there.
    pub(super) fn end(&self, rsp: u64) -> Option<u64> {
        (self.size != 0 && !self.is_used(rsp)).then(|| self.start.wrapping_add(self.size))
    }

    /// The stack as sigaltstack(2) returns it: the flags say whether `rsp` lies in it.
    pub(crate) fn told(&self, rsp: u64) -> AltStack {
        let state = match self {
            _ if self.size == 0 => DISABLE,
            _ if self.is_used(rsp) => ONSTACK,
            _ => 0,
        };
        AltStack { flags: state | self.flags & AUTODISARM, gap: 0, ..*self }
    }

    /// Replaces it.
    pub(crate) fn set(&mut self, new: AltStack, rsp: u64) -> Result<(), Errno> {
        if self.is_used(rsp) {
            return Err(Errno(EPERM));
        }
        let new = AltStack { gap: 0, ..new };
        match new.flags & !AUTODISARM {
            DISABLE => *self = AltStack { flags: new.flags, ..AltStack::default() },
            0 | ONSTACK if new == *self => {}
            0 | ONSTACK if new.size < LEAST => return Err(Errno(ENOMEM)),
            0 | ONSTACK => *self = new,
            _ => return Err(Errno(EINVAL)),
        }
        Ok(())
    }

    /// A handler starts: a stack with SS_AUTODISARM is none until the handler returns.
    pub(super) fn disarm(&mut self) {
        if self.flags & AUTODISARM != 0 {
            *self = AltStack::default();
        }
    }
}
