//! The right to write: the tree's lock, and the frame of each call that writes.

use crate::engine::Retiring;
use crate::errno::{Errno, border, misuse};
use crate::queue::{BLOCK_SIZE, List, Periods, Queue, blocks_for};
use crate::thread::Local;
use crate::tree::{SAMARA_TREE_CALLER_LOCK, SAMARA_TREE_EXCLUSIVE, samara_tree};
use crate::{Session, Writer};
use core::cell::UnsafeCell;
use core::ffi::c_int;
use core::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// A mutex of the C library, which tells apart its holder, other threads and no holder. It lives in
/// the tree, so it does not move.
pub(crate) struct Lock(UnsafeCell<libc::pthread_mutex_t>);

// SAFETY: a mutex is made for several threads.
unsafe impl Sync for Lock {}

impl Lock {
    pub(crate) fn new() -> Lock {
        Lock(UnsafeCell::new(libc::PTHREAD_MUTEX_INITIALIZER))
    }

    /// Makes it a mutex that checks for errors. On failure it stays a plain one.
    pub(crate) fn init(&self) {
        let mut attributes = MaybeUninit::uninit();
        // SAFETY: the attributes live to the end; the mutex has its final place and no user yet.
        unsafe {
            if libc::pthread_mutexattr_init(attributes.as_mut_ptr()) == 0 {
                let attributes = attributes.assume_init_mut();
                libc::pthread_mutexattr_settype(attributes, libc::PTHREAD_MUTEX_ERRORCHECK);
                libc::pthread_mutex_init(self.0.get(), attributes);
                libc::pthread_mutexattr_destroy(attributes);
            }
        }
    }

    fn take(&self) -> Result<(), Errno> {
        // SAFETY: the mutex is initialized and in its place.
        errno(unsafe { libc::pthread_mutex_lock(self.0.get()) })
    }

    fn try_take(&self) -> Result<(), Errno> {
        // SAFETY: as above.
        errno(unsafe { libc::pthread_mutex_trylock(self.0.get()) })
    }

    fn release(&self) -> Result<(), Errno> {
        // SAFETY: as above; the mutex itself checks that this thread holds it.
        errno(unsafe { libc::pthread_mutex_unlock(self.0.get()) })
    }

    /// Refuses if it is held.
    pub(crate) fn is_free(&self, tree: &samara_tree, call: &str) -> Result<(), Errno> {
        // Relaxed: a diagnosis.
        let free = tree.owner.load(Ordering::Relaxed) == 0 && self.try_take().is_ok();
        if !free {
            return Err(misuse(libc::EBUSY, call, "the lock of the tree is held"));
        }
        self.release()
    }

    /// # Safety
    /// No code uses the lock any more.
    pub(crate) unsafe fn destroy(&self) {
        // SAFETY: the caller's promise.
        unsafe { libc::pthread_mutex_destroy(self.0.get()) };
    }
}

fn errno(errno: c_int) -> Result<(), Errno> {
    if errno == 0 { Ok(()) } else { Err(Errno(errno)) }
}

/// The right to write during one call; given up at the end, also by a panic.
struct Held<'a> {
    /// The tree's lock, if the call has taken it.
    lock: Option<&'a Lock>,
    /// In debug builds of trees that the program serialises: set while a call writes.
    busy: Option<&'a AtomicBool>,
}

impl Drop for Held<'_> {
    #[inline]
    fn drop(&mut self) {
        if let Some(lock) = self.lock {
            let _ = lock.release();
        }
        if let Some(busy) = self.busy {
            // Relaxed: a diagnosis.
            busy.store(false, Ordering::Relaxed);
        }
    }
}

/// Blocks that are due, and the count of calls that run such blocks.
struct Due<'a>(List, Option<&'a AtomicUsize>);

impl Due<'_> {
    #[inline]
    fn run(self) {
        if let Some(running) = self.1 {
            // SAFETY: the grace periods of the blocks are over.
            unsafe { self.0.run() };
            // Release: pairs with the Acquire of a barrier.
            running.fetch_sub(1, Ordering::Release);
        }
    }
}

/// The number of pieces that a write may retire at most if there is no memory for batches, in a
/// tree of this height. Per level it replaces six nodes, and drops the children of two.
fn most_pieces(height: usize) -> usize {
    16 + 40 * height.saturating_sub(1)
}

/// Refuses at once a size that is more than all memory.
fn check_memory(bytes: Option<usize>) -> Result<(), Errno> {
    // SAFETY: it only asks. -1 stands for no limit.
    let [pages, size] = [libc::_SC_PHYS_PAGES, libc::_SC_PAGESIZE]
        .map(|name| usize::try_from(unsafe { libc::sysconf(name) }).unwrap_or(usize::MAX));
    match bytes {
        Some(bytes) if bytes <= pages.saturating_mul(size) => Ok(()),
        _ => Err(Errno::NO_MEMORY),
    }
}

impl samara_tree {
    /// Whether this thread holds the lock over several calls.
    #[inline(always)]
    pub(crate) fn is_owner(&self, local: &Local) -> bool {
        // Relaxed: only this thread stores its own id.
        self.owner.load(Ordering::Relaxed) == local.id()
    }

    /// Whether the calls take the tree's own lock.
    #[inline(always)]
    fn has_lock(&self) -> bool {
        self.fixed.flags & (SAMARA_TREE_CALLER_LOCK | SAMARA_TREE_EXCLUSIVE) == 0
    }

    /// Takes the right to write for one call. Waits for the tree's lock, unless this thread holds
    /// it. If the program serialises writers, refuses a second one, as far as that can be seen.
    #[inline(always)]
    fn enter(&self, local: &Local, call: &str) -> Result<Held<'_>, Errno> {
        let mut held = Held { lock: None, busy: None };
        if self.has_lock() {
            if !self.is_owner(local) {
                self.lock.take()?;
                held.lock = Some(&self.lock);
            }
            return Ok(held);
        }
        // Relaxed: a diagnosis. The program's lock orders the calls.
        let owner = self.owner.load(Ordering::Relaxed);
        if owner != 0 && owner != local.id() {
            return Err(misuse(libc::EBUSY, call, "another thread has begun to write"));
        }
        if cfg!(debug_assertions) {
            let busy = &self.writer.busy;
            // Relaxed: as above.
            if busy.swap(true, Ordering::Relaxed) {
                return Err(misuse(libc::EBUSY, call, "another thread writes at the same time"));
            }
            held.busy = Some(busy);
        }
        Ok(held)
    }

    /// Refuses a call from within a callback of the program.
    #[inline(always)]
    pub(crate) fn refuse_callback(&self, call: &str) -> Result<(), Errno> {
        Local::with(|local| self.refuse_callback_of(local, call))
    }

    #[inline(always)]
    fn refuse_callback_of(&self, local: &Local, call: &str) -> Result<(), Errno> {
        if local.callbacks.get() != 0 || !local.queue.get().is_null() {
            return Err(misuse(libc::EDEADLK, call, "inside a callback of the library"));
        }
        Ok(())
    }

    /// The frame of all calls that write: takes the lock unless this thread holds it, reserves
    /// memory, and frees the blocks that are due after it has released the lock.
    ///
    /// The function gets the writer, and the queue for pieces of its own, for which it has reserved
    /// room for one.
    #[inline]
    pub(crate) fn write<T>(
        &self,
        call: &str,
        f: impl FnOnce(&mut Writer<'static>, *mut Queue) -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        Local::with(|local| {
            self.refuse_callback_of(local, call)?;
            let held = self.enter(local, call)?;
            let queue = self.writer.queue.get();
            let (result, due);
            {
                // SAFETY: this thread is the writer, and the queue has no other user.
                let _retiring = unsafe { Retiring::into(local, queue) };
                // SAFETY: as above.
                result = unsafe { self.prepare(queue).and_then(|writer| f(&mut *writer, queue)) };
                self.writer.version.set(self.writer.version.get() + 1);
                // SAFETY: as above.
                due = self.take_due(unsafe { &mut *queue }, self.is_exclusive());
            }
            drop(held);
            due.run();
            result
        })
    }

    /// The writer of the tree, with memory reserved for the pieces that it may retire.
    ///
    /// The writer stays when the lock is released, because making one for each call takes as long
    /// as a small write. Only the holder of the lock uses it.
    ///
    /// # Safety
    /// This thread is the writer, and has no other reference to the queue or the writer.
    #[inline]
    unsafe fn prepare(&self, queue: *mut Queue) -> Result<*mut Writer<'static>, Errno> {
        let exclusive = self.is_exclusive();
        if !exclusive || self.has_callbacks() {
            // SAFETY: the writer may read the map concurrently with readers, and the caller is the
            // writer.
            let height = unsafe { &*self.map.get() }.height();
            let pieces = if exclusive { 0 } else { most_pieces(height) };
            // SAFETY: the caller's promise.
            unsafe { &mut *queue }.reserve(pieces + 1)?;
        }
        // SAFETY: the caller's promise.
        match unsafe { &mut *self.writer.session.get() } {
            Some(session) => Ok(&raw mut session.0),
            // SAFETY: the caller's promise.
            none => unsafe { self.begin_session(none) },
        }
    }

    /// # Safety
    /// This thread is the writer. The session is ended before the tree is.
    #[cold]
    unsafe fn begin_session(
        &self,
        place: &mut Option<Session>,
    ) -> Result<*mut Writer<'static>, Errno> {
        let writer = if self.is_exclusive() {
            // SAFETY: the program promises that no other call uses the tree. The writer keeps no
            // mutable reference, so later calls may read.
            unsafe { (*self.map.get()).get_mut() }
        } else {
            // SAFETY: this thread alone has the token. The map is only changed through the writer,
            // which allows concurrent readers.
            unsafe { (*self.map.get()).writer(&mut *self.writer.token.get())? }
        };
        Ok(&raw mut place.insert(Session(writer)).0)
    }

    /// Drops the writer, which retires the nodes that it has collected. Seals all of the queue if
    /// `force`.
    ///
    /// # Safety
    /// This thread is the writer, and has no other reference to the queue or the writer.
    unsafe fn end_session(&self, local: &Local, force: bool) -> Due<'_> {
        let queue = self.writer.queue.get();
        // SAFETY: the caller's promise.
        let _retiring = unsafe { Retiring::into(local, queue) };
        // SAFETY: as above.
        drop(unsafe { &mut *self.writer.session.get() }.take());
        // SAFETY: as above.
        self.take_due(unsafe { &mut *queue }, force)
    }

    /// Waits until everything retired so far has been freed.
    pub(crate) fn barrier(&self, call: &str) -> Result<(), Errno> {
        self.refuse_callback(call)?;
        if Local::with(|local| self.is_owner(local)) {
            return Err(misuse(libc::EDEADLK, call, "this thread holds the lock"));
        }
        self.end_all(call)?.run();
        self.wait(call)?;
        if let Periods::Program(rcu) = self.periods() {
            rcu.barrier();
        }
        // Blocks sealed above are due now.
        self.end_all(call)?.run();
        // Other threads may still run the blocks that they took. Acquire: pairs with the Release of
        // `Due`.
        while self.writer.running.load(Ordering::Acquire) != 0 {
            std::thread::yield_now();
        }
        Ok(())
    }

    /// Frees the preallocated memory: the nodes with the writer, the blocks of the queue when it
    /// seals some.
    ///
    /// # Safety
    /// This thread is the writer, and has no reference to the queue or the writer.
    unsafe fn give_back(&self) -> Due<'_> {
        // SAFETY: the caller's promise.
        unsafe {
            let _ = (*self.writer.queue.get()).preallocate(0);
            Local::with(|local| self.end_session(local, false))
        }
    }

    /// Allocates the memory that the next `writes` calls need, or frees the rest if they are none.
    pub(crate) fn preallocate(&self, call: &str, writes: usize) -> Result<(), Errno> {
        // A write that runs a callback uses the writer, which is dropped below.
        self.refuse_callback(call)?;
        self.writer.preallocated.set(true);
        let result = self.write(call, |writer, queue| {
            let exclusive = self.is_exclusive();
            if exclusive && !self.has_callbacks() {
                check_memory(writer.bytes_for_writes(writes))?;
                return Ok(writer.preallocate_writes(writes)?);
            }
            let blocks = |height| {
                let pieces = if exclusive { 0 } else { most_pieces(height) };
                blocks_for(pieces + 1)
            };
            let blocks = writer.heights_of_writes(writes).try_fold(0_usize, |sum, next| {
                sum.checked_add(blocks(next.0).checked_mul(next.1)?)
            });
            let bytes = blocks.and_then(|blocks| blocks.checked_mul(BLOCK_SIZE));
            let nodes = writer.bytes_for_writes(writes);
            check_memory(bytes.and_then(|bytes| bytes.checked_add(nodes?)))?;
            writer.preallocate_writes(writes)?;
            // SAFETY: this thread is the writer, which uses the queue during its calls only.
            unsafe { &mut *queue }.preallocate(blocks.unwrap_or(0))
        });
        if writes == 0 || result.is_err() {
            Local::with(|local| {
                let held = self.enter(local, call)?;
                // SAFETY: as above, outside of any call that writes.
                let due = unsafe { self.give_back() };
                drop(held);
                due.run();
                Ok::<_, Errno>(())
            })?;
        }
        result
    }

    /// Drops the writer of a tree that is being destroyed.
    ///
    /// # Safety
    /// No other code uses the tree.
    pub(crate) unsafe fn end_session_for_good(&self) {
        Local::with(|local| {
            // SAFETY: the caller's promise.
            unsafe {
                let _retiring = Retiring::into(local, self.writer.queue.get());
                drop((*self.writer.session.get()).take());
            }
        });
    }

    /// Seals everything, under the lock, and returns the blocks that are due.
    fn end_all(&self, call: &str) -> Result<Due<'_>, Errno> {
        Local::with(|local| {
            let _held = self.enter(local, call)?;
            // SAFETY: this thread is the writer, outside of any call that writes.
            Ok(unsafe { self.end_session(local, true) })
        })
    }

    /// Ends a write, under the lock; see [`Queue::end_write`].
    #[inline]
    fn take_due(&self, queue: &mut Queue, force: bool) -> Due<'_> {
        if queue.is_quiet() {
            return Due(List::new(), None);
        }
        let due = queue.end_write(self.periods(), force);
        if due.is_empty() {
            return Due(due, None);
        }
        // Relaxed: the lock orders it before the look of a later barrier.
        self.writer.running.fetch_add(1, Ordering::Relaxed);
        Due(due, Some(&self.writer.running))
    }

    fn begin(&self, call: &str, wait: bool) -> Result<(), Errno> {
        self.refuse_callback(call)?;
        if self.is_exclusive() {
            return Err(misuse(libc::EINVAL, call, "an exclusive tree has no lock"));
        }
        if Local::with(|local| self.is_owner(local)) {
            return Err(misuse(libc::EDEADLK, call, "this thread holds the lock already"));
        }
        if self.has_lock() {
            if wait { self.lock.take()? } else { self.lock.try_take()? }
        } else if self.owner.load(Ordering::Relaxed) != 0 {
            // Relaxed, above: the program's lock orders it.
            return Err(misuse(libc::EBUSY, call, "another thread has begun to write"));
        }
        self.writer.sessions.set(self.writer.sessions.get() + 1);
        // Relaxed: only this thread compares it with its own id.
        Local::with(|local| self.owner.store(local.make_id(), Ordering::Relaxed));
        Ok(())
    }

    fn end(&self, call: &str) -> Result<(), Errno> {
        self.refuse_callback(call)?;
        if !Local::with(|local| self.is_owner(local)) {
            return Err(misuse(libc::EPERM, call, "this thread does not hold the lock"));
        }
        let mut due = Due(List::new(), None);
        if self.writer.preallocated.replace(false) {
            // SAFETY: this thread is the writer, outside of any call that writes.
            due = unsafe { self.give_back() };
        }
        // Relaxed: as in `begin`.
        self.owner.store(0, Ordering::Relaxed);
        if self.has_lock() {
            self.lock.release()?;
        }
        due.run();
        Ok(())
    }
}

/// Takes the tree's lock, for several calls that write. The thread may also read until it unlocks,
/// and sees exactly what it has written. With `SAMARA_TREE_CALLER_LOCK` it takes no lock: the
/// program holds its own until `samara_tree_unlock`.
///
/// A single call that writes takes the lock by itself. Under the lock it is faster, above all for
/// writes near each other.
///
/// A thread must unlock before it ends. Otherwise the lock stays held for good, as a mutex does:
/// calls that need it wait forever, or return -EBUSY if they do not wait. The tree cannot be
/// destroyed, but its readers are not disturbed.
///
/// Errors: -EINVAL, also for an exclusive tree; -EDEADLK if the thread holds the lock already or in
/// a callback. Waits for the lock.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn samara_tree_lock(tree: *mut samara_tree) -> c_int {
    const CALL: &str = "samara_tree_lock";
    // SAFETY: the caller passes NULL or a tree.
    border(|| unsafe { samara_tree::from(tree, CALL) }?.begin(CALL, true))
}

/// As `samara_tree_lock`, but does not wait: -EBUSY if another thread holds the lock.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn samara_tree_trylock(tree: *mut samara_tree) -> c_int {
    const CALL: &str = "samara_tree_trylock";
    // SAFETY: the caller passes NULL or a tree.
    border(|| unsafe { samara_tree::from(tree, CALL) }?.begin(CALL, false))
}

/// Releases the tree's lock. Entries that are found under the lock, outside of a read section, must
/// not be used afterwards.
///
/// Errors: -EINVAL; -EPERM if the thread does not hold the lock. May run release callbacks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn samara_tree_unlock(tree: *mut samara_tree) -> c_int {
    const CALL: &str = "samara_tree_unlock";
    // SAFETY: the caller passes NULL or a tree.
    border(|| unsafe { samara_tree::from(tree, CALL) }?.end(CALL))
}
