//! Futexes: threads that wait until a word of their memory changes.
//!
//! A futex is a word, known by a [`Key`]: the address in a space, or the page of an object. The
//! waiters of all words are in buckets (`queue`, which says why no wake-up is lost). The word is
//! read without a fault while a bucket's lock is held; if its page is not there, the lock is given
//! up, and the page is brought in.
//!
//! `pi` has the locks that pass on priorities.

pub(crate) mod pi;
mod queue;

pub(crate) use queue::Waiter;

use crate::errno::Errno;
use crate::machine::Kernel;
use crate::task::memory::Space;
use crate::task::wait::Sleeper;
use crate::user::END;
use crate::user::copy::User;
use alloc::sync::Arc;
use alloc::vec::Vec;
use linux_raw_sys::errno::{EAGAIN, EFAULT, EINVAL, ENOMEM};
use machine::{Translated, VirtAddr};
use queue::{Bucket, Place};

/// The atomics and the lock of `queue`; its models have loom's.
mod sync {
    pub(super) use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
    pub(super) use spin::mutex::SpinMutex as Mutex;
}

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

    fn place(self) -> Place<Key> {
        let (Key::Private { space: of, at } | Key::Shared { object: of, at }) = self;
        let mixed = (of as u64 ^ at << 7 ^ at).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        Place { key: self, bucket: (mixed >> 32) as usize % BUCKETS }
    }
}

static TABLE: [Bucket<Key>; BUCKETS] = [const { sync::Mutex::new(Vec::new()) }; BUCKETS];

/// Adds the thread as a waiter of the word, if the word is `expected`.
///
/// # Errors
/// EAGAIN: it is not. ENOMEM. EFAULT.
pub(crate) fn begin(
    thread: Arc<dyn Sleeper>,
    user: User<'_>,
    key: Key,
    at: u64,
    expected: u32,
    bits: u32,
) -> Result<Arc<Waiter>, Errno> {
    let waiter = Waiter::new(thread, bits);
    loop {
        let fits = || peek(at).map(|word| word == expected);
        match queue::add(&TABLE, key.place(), &waiter, fits).map_err(|_| Errno(ENOMEM))? {
            Some(true) => return Ok(waiter),
            Some(false) => return Err(Errno(EAGAIN)),
            // Brings the page in.
            None => user.read::<u32>(at)?,
        };
    }
}

/// The word, if its page is there.
fn peek(at: u64) -> Option<u32> {
    // SAFETY: a program's memory, in the lower half: `Key::of` has checked it.
    let word = unsafe { Kernel.load(VirtAddr::new(at & !7)) }.ok()?;
    Some((word >> (8 * (at & 4))) as u32)
}

/// Ends a wait from the waiter's side. Returns whether it was woken before.
pub(crate) fn give_up(waiter: &Arc<Waiter>) -> bool {
    waiter.give_up(&TABLE)
}

/// Wakes up to `most` waiters of the word that wait for one of the bits.
pub(crate) fn wake(key: Key, most: usize, bits: u32) -> usize {
    queue::wake(&TABLE, key.place(), most, bits)
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
    loop {
        let fits = || match expected {
            None => Some(true),
            Some(expected) => peek(at).map(|word| word == expected),
        };
        match queue::requeue(&TABLE, from.place(), to.place(), (most, others), fits) {
            Ok(count) => return Ok(count),
            Err(Some(_)) => return Err(Errno(EAGAIN)),
            // Brings the page in.
            Err(None) => user.read::<u32>(at)?,
        };
    }
}

/// The longest robust list that is followed.
const ROBUST: usize = 2048;
const OWNER_DIED: u32 = 0x4000_0000;
const HAS_WAITERS: u32 = 0x8000_0000;
pub(crate) const OWNER: u32 = 0x3fff_ffff;

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
