//! Words that stay plain memory, and whose accesses loom sees: for models of code that uses the
//! memory of frames as words.
//!
//! An atomic of loom is not a word of memory, so a page table cannot consist of them. A [`Placed`]
//! is the plain atomic word, of the same size. In a model, its address leads to an atomic of loom,
//! which is made at the first access, with the plain value as its first one. The access goes to
//! that atomic, and a store also to the plain word. So code that has a frame to itself may read and
//! write it as plain memory, before the first access by words and after the last.
//!
//! # Why it is right
//! - All threads of a model run on one host thread. So the map of the addresses is a thread-local,
//!   it costs loom no step, and tests on other threads have maps of their own.
//! - A plain word changes only together with its atomic, or while no atomic exists. When memory
//!   gets a new use, [`forget`] drops its atomics.
//! - A word with an atomic is not moved: it lies in memory that the model's machine owns.
//! - The CPU that prepares memory also makes its atomics, by its first accesses or by
//!   [`place`](Placed::place).
//! - While a panic unwinds, the model is over, and the plain words serve instead.
//!
//! Cost: a look into a hash map for each access.

use super::Word;
use core::cell::{Cell, RefCell};
use core::ops::Range;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::collections::HashMap;
use std::rc::Rc;

type Model = loom::sync::atomic::AtomicU64;

std::thread_local! {
    static WORDS: RefCell<HashMap<usize, Rc<Model>>> = RefCell::new(HashMap::new());
    /// Whether a model runs on this host thread.
    static RUNS: Cell<bool> = const { Cell::new(false) };
}

/// An execution of a model begins. The atomics of an earlier one are gone.
pub fn model_begins() {
    WORDS.with_borrow_mut(HashMap::clear);
    RUNS.set(true);
}

/// The execution ends: from here on, words are plain.
pub fn model_ends() {
    RUNS.set(false);
    WORDS.with_borrow_mut(HashMap::clear);
}

/// The memory at these addresses gets a new use: its contents as plain memory count.
pub fn forget(addresses: Range<usize>) {
    WORDS.with_borrow_mut(|words| words.retain(|at, _| !addresses.contains(at)));
}

/// Copies the words of a frame that models use, as loom sees them.
///
/// # Safety
/// Both are frames. The caller has `to` to itself.
pub unsafe fn copy(from: NonNull<Placed<AtomicU64>>, to: NonNull<Placed<AtomicU64>>) {
    for index in 0..crate::ENTRIES {
        // SAFETY: within the frames.
        let (from, to) = unsafe { (from.add(index).as_ref(), to.add(index).as_ref()) };
        // Relaxed: the words may be of different moments; the publication of the copy has Release.
        to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
    }
}

/// Clears the words of a frame that models use, as loom sees them.
///
/// # Safety
/// It is a frame, and the caller has it to itself.
pub unsafe fn clear(frame: NonNull<Placed<AtomicU64>>) {
    for index in 0..crate::ENTRIES {
        // SAFETY: within the frame. Relaxed: the store that publishes the frame has Release.
        unsafe { frame.add(index).as_ref() }.store(0, Ordering::Relaxed);
    }
}

/// The words of a frame get what was written to it as plain memory, as loom sees them.
///
/// # Safety
/// As for [`clear`].
pub unsafe fn fill(frame: NonNull<Placed<AtomicU64>>) {
    for index in 0..crate::ENTRIES {
        // SAFETY: within the frame.
        let word = unsafe { frame.add(index).as_ref() };
        // Relaxed: as in `clear`.
        word.store(word.0.get(), Ordering::Relaxed);
    }
}

/// A plain atomic word: of 32 or 64 bits.
pub trait Plain {
    /// Its value.
    fn get(&self) -> u64;
    /// Sets it.
    fn set(&self, value: u64);
}

/// A word in memory whose accesses loom sees; see the head of the source file.
#[derive(Debug)]
#[repr(transparent)]
pub struct Placed<P>(P);

impl<P: Plain> Placed<P> {
    /// Does `f` with the atomic, in a model; `plain` otherwise.
    fn access<R>(&self, f: impl FnOnce(&Model) -> R, plain: impl FnOnce(&P) -> R) -> R {
        if !RUNS.get() || std::thread::panicking() {
            return plain(&self.0);
        }
        // Loom may switch threads in `f`, so nothing is borrowed then.
        f(&self.atomic())
    }

    fn atomic(&self) -> Rc<Model> {
        let at = core::ptr::from_ref(self).addr();
        WORDS.with_borrow_mut(|words| {
            let new = || Rc::new(Model::new(self.0.get()));
            Rc::clone(words.entry(at).or_insert_with(new))
        })
    }

    /// Makes the word's atomic, if it has none: by the CPU that has prepared the memory, before
    /// others know it. Loom takes the making for a write that must happen before each access.
    pub fn place(&self) {
        if RUNS.get() {
            self.atomic();
        }
    }

    fn load_word(&self, order: Ordering) -> u64 {
        self.access(|word| word.load(order), P::get)
    }

    fn store_word(&self, value: u64, order: Ordering) {
        self.access(|word| word.store(value, order), |_| ());
        self.0.set(value);
    }

    fn update_word(
        &self,
        success: Ordering,
        failure: Ordering,
        mut change: impl FnMut(u64) -> Option<u64>,
    ) -> Result<u64, u64> {
        let old = self.access(
            |word| word.fetch_update(success, failure, &mut change),
            |plain| Ok(plain.get()),
        )?;
        // The change that loom has accepted; or, outside a model, the only one.
        let new = change(old).ok_or(old)?;
        self.0.set(new);
        Ok(old)
    }

    fn exchange_word(
        &self,
        old: u64,
        new: u64,
        success: Ordering,
        failure: Ordering,
    ) -> Result<u64, u64> {
        let done = self.access(
            |word| word.compare_exchange(old, new, success, failure),
            |plain| if plain.get() == old { Ok(old) } else { Err(plain.get()) },
        );
        if done.is_ok() {
            self.0.set(new);
        }
        done
    }
}

impl Plain for AtomicU64 {
    fn get(&self) -> u64 {
        // Relaxed: one host thread.
        self.load(Ordering::Relaxed)
    }

    fn set(&self, value: u64) {
        // Relaxed: as above.
        self.store(value, Ordering::Relaxed);
    }
}

impl Plain for AtomicU32 {
    fn get(&self) -> u64 {
        // Relaxed: as above.
        self.load(Ordering::Relaxed).into()
    }

    fn set(&self, value: u64) {
        // Relaxed: as above.
        self.store(value as u32, Ordering::Relaxed);
    }
}

impl Placed<AtomicU64> {
    /// A word with this value.
    pub const fn new(value: u64) -> Self {
        Placed(AtomicU64::new(value))
    }
}

impl Word for Placed<AtomicU64> {
    fn load(&self, order: Ordering) -> u64 {
        self.load_word(order)
    }

    fn store(&self, value: u64, order: Ordering) {
        self.store_word(value, order);
    }

    fn swap(&self, value: u64, order: Ordering) -> u64 {
        let old = self.access(|word| word.swap(value, order), P64::get);
        self.0.set(value);
        old
    }

    fn fetch_and(&self, value: u64, order: Ordering) -> u64 {
        let old = self.access(|word| word.fetch_and(value, order), P64::get);
        self.0.set(old & value);
        old
    }

    fn fetch_or(&self, value: u64, order: Ordering) -> u64 {
        let old = self.access(|word| word.fetch_or(value, order), P64::get);
        self.0.set(old | value);
        old
    }

    fn compare_exchange(
        &self,
        old: u64,
        new: u64,
        success: Ordering,
        failure: Ordering,
    ) -> Result<u64, u64> {
        self.exchange_word(old, new, success, failure)
    }

    fn fetch_update(
        &self,
        success: Ordering,
        failure: Ordering,
        change: impl FnMut(u64) -> Option<u64>,
    ) -> Result<u64, u64> {
        self.update_word(success, failure, change)
    }
}

type P64 = AtomicU64;

/// The methods of core's atomic that this project uses.
#[allow(missing_docs)]
impl Placed<AtomicU32> {
    pub const fn new(value: u32) -> Self {
        Placed(AtomicU32::new(value))
    }

    pub fn load(&self, order: Ordering) -> u32 {
        self.load_word(order) as u32
    }

    pub fn store(&self, value: u32, order: Ordering) {
        self.store_word(value.into(), order);
    }

    pub fn compare_exchange(
        &self,
        old: u32,
        new: u32,
        success: Ordering,
        failure: Ordering,
    ) -> Result<u32, u32> {
        let done = self.exchange_word(old.into(), new.into(), success, failure);
        done.map(|old| old as u32).map_err(|now| now as u32)
    }
}
