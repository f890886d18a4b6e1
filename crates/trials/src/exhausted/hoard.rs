//! All free frames, in a chain that needs no other memory: each frame holds the number of the one
//! taken before it.

use crate::checked::{peek, poke};
use crate::worker::{Context, Outcome, fail};
use alloc::format;
use machine::{Frame, FrameError, Machine, NodePolicy};

/// The words of a frame: the number of the one before, plus 1; and its own number, complemented.
const BEFORE: usize = 0;
const OWN: usize = 511;

pub(super) struct Hoard<'m, M> {
    machine: &'m M,
    last: Option<Frame>,
    len: usize,
}

impl<'m, M: Machine> Hoard<'m, M> {
    pub(super) fn new(machine: &'m M) -> Self {
        Hoard { machine, last: None, len: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Takes frames until there are none.
    pub(super) fn fill(&mut self) -> Outcome {
        loop {
            let frame = match self.machine.alloc(0, NodePolicy::Local) {
                Ok(frame) => frame,
                Err(FrameError::OutOfFrames { order: 0 }) => return Ok(()),
                Err(error) => {
                    return fail(format!("could not take all frames: {error}"));
                }
            };
            let before = self.last.map_or(0, |last| last.number() + 1);
            poke(self.machine, frame, BEFORE, before)?;
            poke(self.machine, frame, OWN, !frame.number())?;
            (self.last, self.len) = (Some(frame), self.len + 1);
        }
    }

    /// Gives so many frames back, or all. Checks that nothing else has written to them.
    pub(super) fn give(&mut self, most: usize) -> Outcome {
        for _ in 0..most {
            let Some(frame) = self.last else { return Ok(()) };
            let before = peek(self.machine, frame, BEFORE)?;
            let own = peek(self.machine, frame, OWN)?;
            if own != !frame.number() {
                // The rest of the chain is lost.
                self.last = None;
                return fail(format!(
                    "frame {frame} is taken, and other code wrote {own:#x} to it"
                ));
            }
            (self.last, self.len) = (before.checked_sub(1).and_then(Frame::new), self.len - 1);
            // SAFETY: it is ours, and no translation leads to it.
            unsafe { self.machine.free(frame) }.of("could not give a frame back")?;
        }
        Ok(())
    }
}
