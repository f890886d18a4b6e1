//! The pages that one CPU keeps on one list: a stack of frame numbers.
//!
//! # Why a stack of numbers
//! In a list linked through the pages, or through the states of their frames, the next page's cache
//! line must arrive before this page can be taken. Here taking a page touches one line, the CPU's
//! own: the uppermost pages (near) lie next to their number. The other pages (far) lie below them,
//! in lines that are touched only when the near part runs empty or full: about once in six times.
//!
//! # Why it is right
//! Only its own CPU pushes and pops, with interrupts disabled. Other CPUs only request the pages
//! ([`request`](Stack::request)), by setting a word. The CPU clears the word only if it has seen it
//! set, and before it gives its pages back ([`take_request`](Stack::take_request)). So a later
//! request is seen again. (Model: `loom_tests`, with a mutant that clears a request that it has not
//! seen.)

#[cfg(all(test, loom))]
mod loom_tests;

use crate::sync::Word;
use core::array;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

// Relaxed, except where stated: the stack belongs to one CPU, and so do the frames on it. Another
// CPU that is given one of these frames synchronizes through the means by which it is given. For
// other CPUs the length is a hint; for this CPU the request is one.

/// A stack with room for `NEAR` pages next to their number, and for `FAR` below them.
#[repr(C)]
pub(crate) struct Stack<W, const NEAR: usize, const FAR: usize> {
    /// The number of near pages.
    len: W,
    /// Whether another CPU has requested the pages. The only word that other CPUs write, and only
    /// when memory has run out.
    requested: W,
    near: [W; NEAR],
    /// The number of far pages.
    below: W,
    far: [W; FAR],
}

impl<W: Word + Default, const NEAR: usize, const FAR: usize> Default for Stack<W, NEAR, FAR> {
    fn default() -> Self {
        Stack {
            len: W::default(),
            requested: W::default(),
            near: array::from_fn(|_| W::default()),
            below: W::default(),
            far: array::from_fn(|_| W::default()),
        }
    }
}

impl<W: Word, const NEAR: usize, const FAR: usize> Stack<W, NEAR, FAR> {
    /// The number of pages; possibly out of date on other CPUs.
    #[inline]
    pub(crate) fn len(&self) -> u32 {
        // Acquire: pairs with the Release of `come_near`. A CPU that sees that pages are no longer
        // far also sees that they are near.
        let below = self.below.load(Acquire);
        self.len.load(Relaxed) + below
    }

    /// Whether another CPU has requested the pages.
    #[inline(always)]
    pub(crate) fn is_requested(&self) -> bool {
        self.requested.load(Relaxed) != 0
    }

    /// On its own CPU, with interrupts disabled: pops the page that was pushed last, if it is near.
    /// `between` is called between the load and the change. One compare is enough: a length of 0
    /// wraps to an index that is out of range, too.
    #[inline(always)]
    pub(crate) fn pop_near(&self, between: impl FnOnce()) -> Option<u32> {
        let below = self.len.load(Relaxed).wrapping_sub(1);
        let page = self.near.get(below as usize)?.load(Relaxed);
        between();
        self.len.store(below, Relaxed);
        Some(page)
    }

    /// As [`pop_near`](Self::pop_near), but also takes far pages.
    pub(crate) fn pop(&self, between: impl FnOnce()) -> Option<u32> {
        if self.len.load(Relaxed) == 0 {
            self.come_near();
        }
        self.pop_near(between)
    }

    /// On its own CPU, with interrupts disabled: pushes a page. Returns `false` if there is no room
    /// or another CPU has requested the pages.
    #[inline(always)]
    pub(crate) fn push(&self, page: u32, between: impl FnOnce()) -> bool {
        if self.is_requested() {
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

    /// Refills the empty near part with the uppermost far pages.
    #[cold]
    fn come_near(&self) {
        let below = self.below.load(Relaxed);
        let left = below.saturating_sub(NEAR as u32);
        for (near, far) in self.near.iter().zip(&self.far[left as usize..below as usize]) {
            near.store(far.load(Relaxed), Relaxed);
        }
        // For a moment these pages are counted twice, so a CPU that requests pages does not see an
        // empty list where there are some. Release: pairs with the Acquire of `len`.
        self.len.store(below - left, Relaxed);
        self.below.store(left, Release);
    }

    /// The number of pages that move to the far part at once.
    const HALF: usize = {
        assert!(NEAR >= 2 && NEAR.is_multiple_of(2) && FAR.is_multiple_of(NEAR / 2));
        NEAR / 2
    };

    /// The near part is full: moves its lower half to the far part, if there is room. Returns the
    /// number of near pages afterwards.
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

    /// On another CPU: requests the pages, if there are any. Returns whether there are.
    pub(crate) fn request(&self) -> bool {
        // A page pushed after this look is found by the next one.
        let some = self.len() != 0;
        if some {
            self.requested.store(1, Relaxed);
        }
        some
    }

    /// On its own CPU: takes back a request, if there is one. Returns whether there was; the pages
    /// must go then.
    pub(crate) fn take_request(&self) -> bool {
        let requested = self.is_requested();
        if requested {
            self.requested.store(0, Relaxed);
        }
        requested
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use alloc::vec::Vec;
    use core::sync::atomic::AtomicU32;
    use proptest::prelude::*;

    proptest! {
        /// It is a stack: far pages come back in order, and a push fails only when there is no
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
