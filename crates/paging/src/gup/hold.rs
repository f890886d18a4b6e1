//! The protocol of a pin without a lock, for which the [module](super) says why it is right: pin
//! what an entry was read to lead to, then read the entry again. Whoever pins without a lock does
//! it here, and loom runs it.

use super::pins::{pin_one, unpin, why_not};
use super::take::Taken;
use machine::{Frame, Machine};

/// What came of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Held {
    /// It is pinned, and was what the entry led to when it was.
    Yes,
    /// Nothing could be pinned: it is free.
    Free,
    /// It was pinned, but the entry did not lead there any more: it is given back.
    Changed,
}

/// Holds what an entry was read to lead to: `pin` takes a pin of it, `look` reads the entry again
/// and says whether it still does, `give_back` undoes the pin. All that `pins` is for is that two
/// of them can change it.
#[inline(always)]
pub(crate) fn hold<P>(
    pins: &mut P,
    pin: impl FnOnce(&mut P) -> bool,
    look: impl FnOnce() -> bool,
    give_back: impl FnOnce(&mut P),
) -> Held {
    if !pin(pins) {
        return Held::Free;
    }
    let same = look();
    #[cfg(test)]
    let same = same || super::tests::SECOND_LOOK_LEFT_OUT.get();
    if !same {
        give_back(pins);
        return Held::Changed;
    }
    Held::Yes
}

/// As [`hold`], of one frame, with a pin of its own.
///
/// # Errors
/// Why it is not pinned.
#[inline(always)]
pub(super) fn hold_one<M: Machine>(
    mut machine: &M,
    frame: Frame,
    look: impl FnOnce() -> bool,
) -> Result<Frame, Taken> {
    // SAFETY: just pinned, and never used.
    let undo = |machine: &mut &M| unsafe { unpin(*machine, &[frame]) };
    match hold(&mut machine, |machine| pin_one(*machine, frame), look, undo) {
        Held::Yes => Ok(frame),
        Held::Free => Err(why_not(machine, frame)),
        Held::Changed => Err(Taken::Not),
    }
}
