//! The protocol of a pin without a lock, for which the [module](super) says why it is right: pin what an entry was read to lead to,
//! then read the entry again. Whoever pins without a lock does it here, and loom runs it.

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

/// Holds what an entry was read to lead to, `first`: `pin` takes a pin of it, `look` reads the entry again, `give_back` undoes the
/// pin. All that `pins` is for is that two of them can change it.
#[inline(always)]
pub(crate) fn hold<P, T: PartialEq>(
    pins: &mut P,
    first: T,
    pin: impl FnOnce(&mut P) -> bool,
    look: impl FnOnce() -> Option<T>,
    give_back: impl FnOnce(&mut P),
) -> Held {
    if !pin(pins) {
        return Held::Free;
    }
    let same = look() == Some(first);
    #[cfg(test)]
    let same = same || super::tests::SECOND_LOOK_LEFT_OUT.get();
    if !same {
        give_back(pins);
        return Held::Changed;
    }
    Held::Yes
}
