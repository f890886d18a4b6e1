//! The protocol of a lock-free pin: pin the frame that an entry leads to, then read the entry
//! again. The [module](super) says why it is right. All lock-free pins use this function, and loom
//! runs it.

use super::pins::{pin_one, unpin, why_not};
use super::take::PinOutcome;
use machine::{Frame, Machine, after_update};

/// The outcome of [`hold`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Held {
    /// Pinned, and the entry led to the frame when it was.
    Yes,
    /// Nothing could be pinned: the frame is free.
    Free,
    /// It was pinned, but the entry no longer led there: the pin was given back.
    Changed,
}

/// Pins the target of an entry: `pin` takes the pin, `look` reads the entry again and returns
/// whether it still leads there, `give_back` undoes the pin. `pins` is passed to two of them so
/// that both can change it.
#[inline(always)]
pub(super) fn hold<P>(
    pins: &mut P,
    pin: impl FnOnce(&mut P) -> bool,
    look: impl FnOnce() -> bool,
    give_back: impl FnOnce(&mut P),
) -> Held {
    if !pin(pins) {
        return Held::Free;
    }
    // Pairs with the fence of a caller that takes rights from an entry and then looks for pins.
    // Either it sees this pin, or the second look sees its entry.
    after_update();
    if !look() {
        give_back(pins);
        return Held::Changed;
    }
    Held::Yes
}

/// As [`hold`], for one frame, with a pin of its own.
///
/// # Errors
/// The reason why it is not pinned.
#[inline(always)]
pub(super) fn hold_one<M: Machine>(
    mut machine: &M,
    frame: Frame,
    look: impl FnOnce() -> bool,
) -> Result<Frame, PinOutcome> {
    // SAFETY: just pinned, and never used.
    let undo = |machine: &mut &M| unsafe { unpin(*machine, &[frame]) };
    match hold(&mut machine, |machine| pin_one(*machine, frame), look, undo) {
        Held::Yes => Ok(frame),
        Held::Free => Err(why_not(machine, frame)),
        Held::Changed => Err(PinOutcome::Not),
    }
}
