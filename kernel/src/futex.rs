//! Futexes: threads that wait until a word of their memory changes.
//!
//! A futex is a word, known by a [`Key`]: the address in a space, or the page of an object. The
//! waiters of all words are in buckets, each with a lock. A thread that waits compares the word
//! with the lock held. A thread that changes the word calls `wake` afterwards, which takes the
//! lock: so it finds the waiter, or the waiter found the new word.
//!
//! A waiter is woken at most once, and counted by the waker. What ended its wait otherwise (a time,
//! a signal) takes it out of its bucket first. The word is read without a fault while the lock is
//! held; if its page is not there, the lock is given up, and the page is brought in.

use crate::call::Errno;
use crate::machine::Kernel;
use crate::task::{Space, Thread, lock};
use crate::user::END;
use crate::user::copy::User;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use linux_raw_sys::errno::{EAGAIN, EFAULT, EINVAL, ENOMEM};
use machine::{Translated, VirtAddr};
use spin::mutex::SpinMutex;

const BUCKETS: usize = 256;

/// The word that threads wait for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Key {
    /// An address of a space.
    Private { space: usize, at: u64 },
    /// A byte of an object, which the waiter's map keeps.
    Shared { object: usize, at: u64 },
}

impl Key {
    /// The key of an address. `private`: the program says that no other space has the word.
    pub(crate) fn of(space: &Arc<Space>, at: u64, private: bool) -> Result<Key, Errno> {
        if !at.is_multiple_of(4) {
            return Err(Errno(EINVAL));
        }
        // As in Linux, the end itself is an address.
        if at > END {
            return Err(Errno(EFAULT));
        }
        if !private && let Some((object, at)) = space.shared_place(at as usize) {
            return Ok(Key::Shared { object, at });
        }
        Ok(Key::Private { space: Arc::as_ptr(space).addr(), at })
    }

    /// As [`of`](Self::of), of a word that can be read. Linux looks at the page of a word that
    /// other spaces may have.
    pub(crate) fn of_readable(user: User<'_>, at: u64, private: bool) -> Result<Key, Errno> {
        let key = Key::of(user.space(), at, private)?;
        if !private {
            user.read::<u32>(at)?;
        }
        Ok(key)
    }

    fn bucket(self) -> usize {
        let (Key::Private { space: of, at } | Key::Shared { object: of, at }) = self;
        let mixed = (of as u64 ^ at << 7 ^ at).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (mixed >> 32) as usize % BUCKETS
    }
}

/// A thread that waits.
pub(crate) struct Waiter {
    thread: Arc<Thread>,
    bits: u32,
    woken: AtomicBool,
    /// The bucket that has it. A requeue changes it, with both locks held.
    bucket: AtomicUsize,
}

type Bucket = SpinMutex<Vec<(Key, Arc<Waiter>)>>;

static TABLE: [Bucket; BUCKETS] = [const { SpinMutex::new(Vec::new()) }; BUCKETS];

/// What a waiter finds.
pub(crate) enum Found {
    /// It was woken.
    Woken,
    /// It waits.
    Waits,
}

/// Adds the thread as a waiter of the word, if the word is `expected`.
pub(crate) fn begin(
    thread: &Arc<Thread>,
    user: User<'_>,
    key: Key,
    at: u64,
    expected: u32,
    bits: u32,
) -> Result<Arc<Waiter>, Errno> {
    let bucket = key.bucket();
    let waiter = Arc::new(Waiter {
        thread: Arc::clone(thread),
        bits,
        woken: AtomicBool::new(false),
        bucket: AtomicUsize::new(bucket),
    });
    loop {
        {
            let mut waiters = lock(&TABLE[bucket]);
            if let Some(word) = peek(at) {
                if word != expected {
                    return Err(Errno(EAGAIN));
                }
                waiters.try_reserve(1).map_err(|_| Errno(ENOMEM))?;
                waiters.push((key, Arc::clone(&waiter)));
                return Ok(waiter);
            }
        }
        // Brings the page in.
        user.read::<u32>(at)?;
    }
}

/// The word, if its page is there.
fn peek(at: u64) -> Option<u32> {
    // SAFETY: a program's memory, in the lower half: `Key::of` has checked it.
    let word = unsafe { Kernel.load(VirtAddr::new(at & !7)) }.ok()?;
    Some((word >> (8 * (at & 4))) as u32)
}

impl Waiter {
    /// Whether it was woken. If not, it goes on waiting.
    pub(crate) fn look(&self) -> Found {
        // SeqCst: pairs with the swap of `begin_wait`, which comes before.
        if self.woken.load(Ordering::SeqCst) { Found::Woken } else { Found::Waits }
    }

    /// Ends the wait from the waiter's side. Returns whether it was woken before.
    pub(crate) fn give_up(self: &Arc<Self>) -> bool {
        loop {
            // Relaxed: checked with the lock held.
            let bucket = self.bucket.load(Ordering::Relaxed);
            let mut waiters = lock(&TABLE[bucket]);
            if self.bucket.load(Ordering::Relaxed) != bucket {
                continue;
            }
            waiters.retain(|(_, other)| !Arc::ptr_eq(other, self));
            return self.woken.load(Ordering::SeqCst);
        }
    }

    fn wake(&self) {
        // SeqCst: see `look`.
        self.woken.store(true, Ordering::SeqCst);
        self.thread.wake();
    }
}

/// Takes up to `most` waiters of the word with one of the bits out of a bucket.
fn take(
    waiters: &mut Vec<(Key, Arc<Waiter>)>,
    key: Key,
    most: usize,
    bits: u32,
) -> Vec<Arc<Waiter>> {
    let mut taken = Vec::new();
    waiters.retain(|(of, waiter)| {
        let wanted = *of == key && waiter.bits & bits != 0 && taken.len() < most;
        if wanted {
            taken.push(Arc::clone(waiter));
        }
        !wanted
    });
    taken
}

/// Wakes up to `most` waiters of the word that wait for one of the bits.
pub(crate) fn wake(key: Key, most: usize, bits: u32) -> usize {
    let taken = take(&mut lock(&TABLE[key.bucket()]), key, most, bits);
    taken.iter().for_each(|waiter| waiter.wake());
    taken.len()
}

/// Wakes waiters of a word, private and shared: at the end of a thread.
pub(crate) fn wake_word(user: User<'_>, at: u64, most: usize) {
    for private in [true, false] {
        if let Ok(key) = Key::of(user.space(), at, private) {
            wake(key, most, u32::MAX);
        }
    }
}

/// Wakes up to `most` waiters of a word, and makes up to `others` more wait for another. With
/// `expected`, only if the word has that value. Returns how many both are.
pub(crate) fn requeue(
    user: User<'_>,
    (from, at): (Key, u64),
    to: Key,
    most: usize,
    others: usize,
    expected: Option<u32>,
) -> Result<usize, Errno> {
    let (first, second) = (from.bucket(), to.bucket());
    loop {
        {
            // In the order of the buckets.
            let (low, high) = (first.min(second), first.max(second));
            let mut low_bucket = lock(&TABLE[low]);
            let mut high_bucket = (low != high).then(|| lock(&TABLE[high]));
            let fits = match expected {
                None => true,
                Some(expected) => match peek(at) {
                    Some(word) if word != expected => return Err(Errno(EAGAIN)),
                    found => found.is_some(),
                },
            };
            if fits {
                let source = match &mut high_bucket {
                    Some(high_bucket) if first == high => high_bucket,
                    _ => &mut low_bucket,
                };
                let woken = take(source, from, most, u32::MAX);
                let moved = take(source, from, others, u32::MAX);
                let target = match &mut high_bucket {
                    Some(high_bucket) if second == high => high_bucket,
                    _ => &mut low_bucket,
                };
                for waiter in &moved {
                    // Relaxed: with both locks held.
                    waiter.bucket.store(second, Ordering::Relaxed);
                    target.push((to, Arc::clone(waiter)));
                }
                drop((low_bucket, high_bucket));
                woken.iter().for_each(|waiter| waiter.wake());
                return Ok(woken.len() + moved.len());
            }
        }
        user.read::<u32>(at)?;
    }
}

/// The longest robust list that is followed.
const ROBUST: usize = 2048;
const OWNER_DIED: u32 = 0x4000_0000;
const HAS_WAITERS: u32 = 0x8000_0000;
const OWNER: u32 = 0x3fff_ffff;

/// Marks the futexes that a thread holds at its end, and wakes a waiter of each
/// (set_robust_list(2)). The list is the program's: each address is checked, and its length
/// bounded.
pub(crate) fn leave_robust(user: User<'_>, head: u64, tid: u32) {
    if head == 0 {
        return;
    }
    let Ok([first, offset, pending]) = user.read::<[u64; 3]>(head) else { return };
    let word_of = |entry: u64| (entry & !1).wrapping_add(offset);
    let mut entry = first;
    for _ in 0..ROBUST {
        if entry & !1 == head {
            break;
        }
        // The next one first: the owner's mark frees the entry for others.
        let next = user.read::<u64>(entry & !1);
        if entry != pending {
            leave_one(user, word_of(entry), tid);
        }
        match next {
            Ok(next) => entry = next,
            Err(_) => break,
        }
    }
    if pending != 0 {
        leave_one(user, word_of(pending), tid);
    }
}

fn leave_one(user: User<'_>, at: u64, tid: u32) {
    if !at.is_multiple_of(4) {
        return;
    }
    loop {
        let Ok(word) = user.read::<u32>(at) else { return };
        if word & OWNER != tid {
            return;
        }
        match user.compare_exchange(at, word, word & HAS_WAITERS | OWNER_DIED) {
            Ok(true) if word & HAS_WAITERS != 0 => return wake_word(user, at, 1),
            Ok(true) | Err(_) => return,
            Ok(false) => {}
        }
    }
}
