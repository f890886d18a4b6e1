//! One user at a time: a structure that usually has one user lets its writer change memory in
//! place, and defers nothing, until a second user comes.
//!
//! Readers concurrent with a writer have a price: the writer copies what it changes, and frees the
//! old copy after a grace period. Most address spaces have one thread and no such readers. A
//! [`Sole`] next to the structure knows whether one *place* alone uses it.
//!
//! # Places
//! A place is a CPU or a thread whose guards never interleave: a guard is taken while another one
//! of the same place exists only by the holder, or by an interrupt that ends before the holder goes
//! on ([`Reclaim::place`]). A call that walks the structure under its guard is an *access*. So two
//! accesses of one place never run at the same time, unless one of them is in an interrupt.
//!
//! # States
//! One word holds the state. `p` is a place.
//!
//! | state | meaning | a reader of `p` | a reader elsewhere | the writer at `p` |
//! |---|---|---|---|---|
//! | fresh | no access yet | → idle(`p`) | → idle(there) | → writing(`p`) |
//! | idle(`p`) | only `p` has access | reads | → shared, then reads | → writing(`p`) |
//! | writing(`p`) | the writer changes nodes in place | panics | waits | → idle(`p`) |
//! | shared | readers anywhere | reads | reads | after a pause → waiting(`p`) |
//! | waiting(`p`) | readers of before may still run | reads | → shared, then reads | after a grace period → writing(`p`) |
//!
//! The writer finds another place's state if its thread has moved: it makes it shared.
//!
//! # Why it is correct
//! *No access is concurrent with a write in place.* An access of `p` is not, because it is at the
//! same place. An access elsewhere comes after its own step to shared, or finds shared. Let a write
//! in place begin later.
//!
//! - Then the writer has stored waiting(`p`), and a grace period has passed since. An access whose
//!   guard is older has ended, and happens before the write ([`Reclaim::is_over`]).
//! - A guard that is younger sees waiting(`p`) or a later state: the store is like the unlinking of
//!   a piece that is then retired. It makes the state shared before its access, or finds it shared.
//!   The step from waiting(`p`) to writing(`p`) is a compare-and-swap of the same word, so it fails
//!   if a reader was faster.
//! - If the writer was faster, the reader waits until the state is idle(`p`), and sees the change:
//!   its compare-and-swap acquires what the writer has released.
//!
//! *An access in an interrupt* that has come upon the writer of its own place cannot wait for it.
//! It panics. A host that reads in such interrupts calls [`Sole::keep_shared`], or its engine has
//! no places.
//!
//! *Nothing is waited for without end.* A write in place calls the structure's allocator, and code
//! of its entries. These must not wait for another CPU, nor read another structure of this kind.
//! Frees that are due run after the write.
//!
//! # Cost
//! A reader: one acquire load, and one or two comparisons. It never writes if the structure is
//! shared, or is its own. The writer: one compare-and-swap and one store if it is alone, and one
//! load and a counter of its own if not.

use crate::Reclaim;
use crate::sync::{AtomicU32, AtomicU64, AtomicUsize, Ordering, constant, relax};
use core::fmt;
use core::marker::PhantomData;

const SHARED: usize = 0;
const FRESH: usize = 3;

/// The mask of a place's state: idle, `WRITING` or `WAITING`. The other bits of the word are the
/// place plus one.
const KIND: usize = 3;
const WRITING: usize = 1;
const WAITING: usize = 2;

const fn idle(place: usize) -> usize {
    (place + 1) << 2
}

/// The state of a structure that one place may use alone; see the [module](self). Read-mostly: keep
/// it in a cache line that is not written often.
///
/// # Misuse
/// It is the state of a number: no code here accesses memory by it. The structure that does has
/// unsafe code, which must call `read` and `write` as they say. A forgotten [`Alone`] makes readers
/// elsewhere wait without end, and a read at its own place panics.
pub struct Sole<R> {
    word: AtomicUsize,
    _engine: PhantomData<fn() -> R>,
}

/// When the writer tries to be alone again. The writer alone uses it, so it belongs next to what
/// the writer writes.
#[derive(Debug)]
pub struct Tries {
    /// Writes until the next try.
    left: AtomicU32,
    /// Writes between two tries. It doubles at each try that fails.
    pause: AtomicU32,
    /// The grace period that the writer waits for.
    period: AtomicU64,
}

/// The right to change the structure in place, until it is dropped.
#[must_use = "readers elsewhere wait until it is dropped"]
#[derive(Debug)]
pub struct Alone<'a> {
    word: &'a AtomicUsize,
    here: usize,
}

/// The fewest and the most writes between two tries.
const PAUSES: (u32, u32) = (16, 4096);
/// The pause of a structure that stays shared.
const NEVER: u32 = u32::MAX;

impl Tries {
    constant! {
        /// Nothing was tried.
        pub fn new() -> Self {
            Tries {
                left: AtomicU32::new(PAUSES.0),
                pause: AtomicU32::new(PAUSES.0),
                period: AtomicU64::new(0),
            }
        }
    }

    /// The next write is a try.
    #[cfg(any(test, loom))]
    #[doc(hidden)]
    pub fn at_once() -> Self {
        let tries = Tries::new();
        tries.left.store(0, Ordering::Relaxed);
        tries
    }

    /// Whether it is time for a try. Counts a write.
    fn is_due(&self) -> bool {
        // Relaxed, here and below: only the writer uses these, and its lock orders them.
        let left = self.left.load(Ordering::Relaxed);
        if left != NEVER {
            self.left.store(left.saturating_sub(1), Ordering::Relaxed);
        }
        left == 0
    }

    /// A try failed, or another user has come since.
    fn postpone(&self) {
        let pause = self.pause.load(Ordering::Relaxed);
        self.pause.store(pause.saturating_mul(2).min(PAUSES.1), Ordering::Relaxed);
        self.left.store(pause, Ordering::Relaxed);
    }

    /// A try succeeded.
    fn succeeded(&self) {
        self.pause.store(PAUSES.0, Ordering::Relaxed);
    }
}

impl Default for Tries {
    fn default() -> Self {
        Tries::new()
    }
}

impl<R: Reclaim> Sole<R> {
    constant! {
        /// The state of a structure that nothing has accessed yet.
        pub fn new() -> Self {
            Sole { word: AtomicUsize::new(FRESH), _engine: PhantomData }
        }
    }

    /// A reader calls this under its guard before each access. It may access the structure's nodes
    /// until it returns to its caller: not across other code of this place that may write.
    ///
    /// # Panics
    /// In an interrupt that has come upon a write in place, and in code that the write calls.
    #[inline(always)]
    pub fn read(&self, guard: &R::Guard) {
        if R::PLACES {
            // Acquire: pairs with the Release of `Alone` and of the writer's stores below, so that
            // the reader sees what was written in place.
            let word = self.word.load(Ordering::Acquire);
            // Idle or waiting at this place.
            if word != SHARED && word & !WAITING != idle(R::place(guard)) {
                self.enter(idle(R::place(guard)));
            }
        }
    }

    #[cold]
    fn enter(&self, here: usize) {
        loop {
            // Acquire: as in `read`.
            let word = self.word.load(Ordering::Acquire);
            let next = match word {
                SHARED => return,
                FRESH => here,
                _ if word & !KIND == here => {
                    assert!(
                        word & KIND != WRITING,
                        "an interrupt, or code of an entry, reads a structure that its CPU is \
                         changing: leave it out, or keep the structure shared (keep_shared)"
                    );
                    return;
                }
                _ if word & KIND == WRITING => {
                    relax();
                    continue;
                }
                _ => SHARED,
            };
            // Acquire: as in `read`. It also continues the release sequence of what it replaces,
            // for readers that find the new state.
            let step = self.word.compare_exchange(word, next, Ordering::Acquire, Ordering::Relaxed);
            if step.is_ok() {
                return;
            }
        }
    }

    /// The writer calls this under a guard and its lock before each write. If it returns `Some`,
    /// nothing else accesses the structure until the value is dropped, which must happen under the
    /// same guard. If `None`, readers may be concurrent with the write.
    ///
    /// `tries` belongs to this structure.
    #[inline(always)]
    pub fn write<'a>(&'a self, guard: &'a R::Guard, tries: &Tries) -> Option<Alone<'a>> {
        if !R::PLACES {
            return None;
        }
        let here = idle(R::place(guard));
        // Relaxed: the compare-and-swap below checks it.
        let word = self.word.load(Ordering::Relaxed);
        if word == here || word == FRESH || self.may_begin(word, here, guard, tries) {
            // Relaxed: earlier accesses elsewhere happen before, by `is_over`, and those at this
            // place, by the promise of places. Later ones acquire the end of the write.
            let step = self.word.compare_exchange(
                word,
                here | WRITING,
                Ordering::Relaxed,
                Ordering::Relaxed,
            );
            return step.ok().map(|_| Alone { word: &self.word, here });
        }
        None
    }

    /// Whether a grace period has ended since the structure was shared. Begins it if it is time.
    fn may_begin(&self, word: usize, here: usize, guard: &R::Guard, tries: &Tries) -> bool {
        if word == here | WAITING {
            // Relaxed: the writer's own.
            let over = R::is_over(tries.period.load(Ordering::Relaxed));
            if over {
                tries.succeeded();
            }
            return over;
        }
        assert!(word & KIND != WRITING, "a second write in place");
        if word != SHARED {
            tries.postpone();
            // Release: passes on what was written in place before. Pairs with the Acquire of
            // readers. A reader may have stored the same.
            self.word.store(SHARED, Ordering::Release);
        } else if tries.is_due() {
            // In case a reader comes before the grace period has ended.
            tries.postpone();
            // Release: as above. The fence of `period` orders it before the loads of later guards.
            self.word.store(here | WAITING, Ordering::Release);
            tries.period.store(R::period(guard), Ordering::Relaxed);
        }
        false
    }

    /// Keeps the structure shared from now on, so that it can be read in any interrupt. For the
    /// holder of the writer's lock; `tries` is this structure's.
    pub fn keep_shared(&self, tries: &Tries) {
        // Relaxed: as in `is_due`.
        tries.left.store(NEVER, Ordering::Relaxed);
        // Release: as in `may_begin`.
        self.word.store(SHARED, Ordering::Release);
    }

    /// Whether one place alone uses the structure. For tests and statistics: it may be over at
    /// once.
    pub fn is_alone(&self) -> bool {
        // Relaxed: a hint.
        let word = self.word.load(Ordering::Relaxed);
        word != SHARED && matches!(word & KIND, 0 | WRITING)
    }
}

impl<R: Reclaim> Default for Sole<R> {
    fn default() -> Self {
        Sole::new()
    }
}

impl<R: Reclaim> fmt::Debug for Sole<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sole").field("is_alone", &self.is_alone()).finish()
    }
}

impl Drop for Alone<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        // Release: the changes come before. Pairs with the Acquire of readers. In this state only
        // the writer stores.
        self.word.store(self.here, Ordering::Release);
    }
}
