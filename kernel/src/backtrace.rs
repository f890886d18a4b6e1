//! Backtraces: a walk along the frame pointers, which all code of the kernel keeps.

use crate::section;
use crate::trap::probe;
use core::fmt;

/// The most frames of a backtrace.
const DEPTH: usize = 32;

/// Return addresses, innermost first.
pub(crate) struct Backtrace {
    first: Option<u64>,
    frame: u64,
}

impl Backtrace {
    /// From an instruction and its frame pointer.
    pub(crate) fn from(instruction: u64, frame: u64) -> Self {
        Backtrace { first: Some(instruction), frame }
    }

    /// From here.
    #[inline(always)]
    pub(crate) fn here() -> Self {
        Backtrace { first: None, frame: section::frame_pointer() }
    }
}

/// A word of the stack, if it can be read.
fn word(at: u64) -> Option<u64> {
    // SAFETY: a stack; a bad address faults, and the fault is returned.
    let outcome = unsafe { probe::load(at) };
    outcome.fault().is_none().then_some(outcome.value)
}

impl fmt::Display for Backtrace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "backtrace:")?;
        if let Some(first) = self.first {
            write!(f, " {first:#x}")?;
        }
        let mut frame = self.frame;
        for _ in 0..DEPTH {
            if frame == 0 || !frame.is_multiple_of(8) {
                break;
            }
            let (Some(caller), Some(back)) = (word(frame), word(frame + 8)) else { break };
            if back == 0 {
                break;
            }
            write!(f, " {back:#x}")?;
            frame = caller;
        }
        Ok(())
    }
}
