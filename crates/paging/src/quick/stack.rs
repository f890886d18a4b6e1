//! The pages that one CPU keeps on one list: a stack of frame numbers.
//!
//! # Why a stack of numbers
//! In a list that goes through the pages, or through the states of their frames, the line of the
//! next page has to be there before this page can be had. Here taking a page touches one line, the
//! CPU's own: the uppermost pages lie beside their number. Below them are the others, in lines that
//! are looked at only when the uppermost have run out or are too many: once in six times or so.
//!
//! # Why it is right
//! Only its own CPU pushes and pops, with interrupts off. All that other CPUs do is to ask for the
//! pages ([`ask`](Stack::ask)): they set a word, which the CPU takes back if it has seen it, and
//! only then, before it gives what it has ([`answer`](Stack::answer)). Whoever asks later is heard
//! again. (`loom_tests`, with the CPU that takes back what it has not seen.)

#[cfg(all(test, loom))]
mod loom_tests;

use crate::sync::Word;
use core::array;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

// Relaxed, but where it says otherwise: the stack is one CPU's alone, and so are the frames on it.
// Whoever is shown one of them gets what was done to it by the way it is shown. To other CPUs the
// length is a hint, and to be asked is one for this CPU.

/// Room for `NEAR` pages beside their number, and for `FAR` below them.
#[repr(C)]
pub(crate) struct Stack<W, const NEAR: usize, const FAR: usize> {
    /// How many are near.
    len: W,
    /// Whether another CPU has asked for the pages. The only word that others write, and only when
    /// memory has given out.
    asked: W,
    near: [W; NEAR],
    /// How many are far.
    below: W,
    far: [W; FAR],
}

impl<W: Word + Default, const NEAR: usize, const FAR: usize> Default for Stack<W, NEAR, FAR> {
    fn default() -> Self {
        Stack {
            len: W::default(),
            asked: W::default(),
            near: array::from_fn(|_| W::default()),
            below: W::default(),
            far: array::from_fn(|_| W::default()),
        }
    }
}

impl<W: Word, const NEAR: usize, const FAR: usize> Stack<W, NEAR, FAR> {
    /// How many pages there are; out of date on other CPUs.
    #[inline]
    pub(crate) fn len(&self) -> u32 {
        // Acquire: pairs with the Release of `come_near`. Who sees that pages are not far any more
        // sees that they are near.
        let below = self.below.load(Acquire);
        self.len.load(Relaxed) + below
    }

    /// Whether another CPU has asked for the pages.
    #[inline(always)]
    pub(crate) fn is_asked(&self) -> bool {
        self.asked.load(Relaxed) != 0
    }

    /// On its own CPU, interrupts off: the page that was pushed last, if one is near. `between` is
    /// called between the look and the change. One compare: below 0 there is no place either.
    #[inline(always)]
    pub(crate) fn pop_near(&self, between: impl FnOnce()) -> Option<u32> {
        let below = self.len.load(Relaxed).wrapping_sub(1);
        let page = self.near.get(below as usize)?.load(Relaxed);
        between();
        self.len.store(below, Relaxed);
        Some(page)
    }

    /// As [`pop_near`](Self::pop_near), near or far.
    pub(crate) fn pop(&self, between: impl FnOnce()) -> Option<u32> {
        if self.len.load(Relaxed) == 0 {
            self.come_near();
        }
        self.pop_near(between)
    }

    /// On its own CPU, interrupts off: whether there was room for the page, and nobody has asked
    /// for what there is.
    #[inline(always)]
    pub(crate) fn push(&self, page: u32, between: impl FnOnce()) -> bool {
        if self.is_asked() {
            return false;
        }
        let mut len = self.len.load(Relaxed);
        if len as usize == NEAR {
            len = self.go_far();
        }
        let Some(place) = self.near.get(len as usize) else { return false };
        place.store(page, Relaxed);
        between();
        self.len.store(len + 1, Relaxed);
        true
    }

    /// None is near: the uppermost of those that are far come.
    #[cold]
    fn come_near(&self) {
        let below = self.below.load(Relaxed);
        let left = below.saturating_sub(NEAR as u32);
        for (near, far) in self.near.iter().zip(&self.far[left as usize..below as usize]) {
            near.store(far.load(Relaxed), Relaxed);
        }
        // For a moment they are counted twice: who asks for pages does not find none where there
        // are some. Release: as in `len`.
        self.len.store(below - left, Relaxed);
        self.below.store(left, Release);
    }

    /// How many go far at once.
    const HALF: usize = {
        assert!(NEAR >= 2 && NEAR.is_multiple_of(2) && FAR.is_multiple_of(NEAR / 2));
        NEAR / 2
    };

    /// All places near are taken: the lower half of what is there goes, if there is room. Returns
    /// how many are near now.
    #[cold]
    fn go_far(&self) -> u32 {
        let (below, half) = (self.below.load(Relaxed) as usize, Self::HALF);
        let Some(room) = self.far.get(below..below + half) else { return NEAR as u32 };
        for (far, near) in room.iter().zip(&self.near) {
            far.store(near.load(Relaxed), Relaxed);
        }
        for (to, from) in self.near.iter().zip(&self.near[half..]) {
            to.store(from.load(Relaxed), Relaxed);
        }
        self.below.store((below + half) as u32, Relaxed);
        self.len.store((NEAR - half) as u32, Relaxed);
        (NEAR - half) as u32
    }

    /// On another CPU: asks for the pages, if there are any. Returns whether there are.
    pub(crate) fn ask(&self) -> bool {
        // If a page comes behind the look, the next look finds it.
        let some = self.len() != 0;
        if some {
            self.asked.store(1, Relaxed);
        }
        some
    }

    /// On its own CPU: whether another one has asked. It is taken back; now the pages have to go.
    pub(crate) fn answer(&self) -> bool {
        let asked = self.is_asked();
        if asked {
            self.asked.store(0, Relaxed);
        }
        asked
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use alloc::vec::Vec;
    use core::sync::atomic::AtomicU32;
    use proptest::prelude::*;

    proptest! {
        /// It is a stack: what is far comes back in its order, and is refused only when there is no
        /// room.
        #[test]
        fn it_is_a_stack(pushes in prop::collection::vec(prop::bool::weighted(0.6), 0..200)) {
            let (stack, mut model) = (Stack::<AtomicU32, 4, 16>::default(), Vec::new());
            for (page, push) in pushes.into_iter().enumerate() {
                if push {
                    let room = model.len() < 20;
                    let kept = stack.push(page as u32, || ());
                    prop_assert!(kept == room, "{} pages", model.len());
                    if kept {
                        model.push(page as u32);
                    }
                } else {
                    prop_assert_eq!(stack.pop(|| ()), model.pop());
                }
                prop_assert_eq!(stack.len() as usize, model.len());
            }
        }
    }
}
