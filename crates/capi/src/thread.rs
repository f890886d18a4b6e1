//! The library's state of a thread, and the calls that begin and end read sections.

use crate::errno::{Errno, border, misuse};
use crate::memory::object;
use crate::queue::Queue;
use crate::section::{Domain, Record};
use crate::thread_key::Key;
use core::cell::Cell;
use core::ffi::{c_int, c_void};
use core::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The state of a thread. It has no destructor, so that an access is a plain one, and that it can
/// be used while the thread ends.
pub(crate) struct Local {
    record: Cell<*const Record>,
    /// The queue of the tree that this thread writes, for the pieces that it retires; null outside
    /// of a write.
    pub(crate) queue: Cell<*mut Queue>,
    /// The number of callbacks of the program that run.
    pub(crate) callbacks: Cell<u32>,
    /// The number of the thread; [`NO_ID`] until it has one.
    id: Cell<usize>,
}

/// The id of a thread that needs none yet. No lock has an owner with this id.
const NO_ID: usize = usize::MAX;

thread_local! {
    static LOCAL: Local = const {
        Local {
            record: Cell::new(ptr::null()),
            queue: Cell::new(ptr::null_mut()),
            callbacks: Cell::new(0),
            id: Cell::new(NO_ID),
        }
    };
}

/// The sections of all trees without a domain of the program.
pub(crate) static DOMAIN: Domain = Domain::new();

impl Local {
    #[inline(always)]
    pub(crate) fn with<T>(f: impl FnOnce(&Local) -> T) -> T {
        LOCAL.with(f)
    }

    /// The number of this thread if it has held the lock of a tree, or else one that no thread
    /// has; not 0.
    #[inline(always)]
    pub(crate) fn id(&self) -> usize {
        self.id.get()
    }

    /// A number for this thread, which no thread has had before. A thread that ended with the lock
    /// of a tree leaves its number there, so an address would not do: it may be that of a later
    /// thread.
    pub(crate) fn make_id(&self) -> usize {
        static NEXT: AtomicUsize = AtomicUsize::new(1);
        if self.id.get() == NO_ID {
            // Relaxed: only the number counts.
            self.id.set(NEXT.fetch_add(1, Ordering::Relaxed));
        }
        self.id.get()
    }

    /// The thread's record, if it has one.
    #[inline(always)]
    pub(crate) fn record(&self) -> Option<&'static Record> {
        // SAFETY: null or a record, which is never freed.
        unsafe { self.record.get().as_ref() }
    }

    /// The number of the section that the thread is in; `None` if it is in none.
    #[inline(always)]
    pub(crate) fn section(&self) -> Option<u64> {
        let record = self.record()?;
        (record.depth() != 0).then(|| record.number())
    }

    /// The address of the thread's record, and the number of the section that the thread is in.
    /// Sections of a record count on when another thread takes it over, so no other section has
    /// both.
    #[inline(always)]
    pub(crate) fn section_of_record(&self) -> Option<(usize, u64)> {
        Some((self.record.get().addr(), self.section()?))
    }

    /// The thread's record. Takes one if it has none.
    #[inline(always)]
    fn registered(&self) -> Result<&'static Record, Errno> {
        match self.record() {
            Some(record) => Ok(record),
            None => self.register(),
        }
    }

    #[cold]
    fn register(&self) -> Result<&'static Record, Errno> {
        static KEY: Key = Key::new(end);
        let record: &'static Record = match DOMAIN.reuse() {
            Some(record) => record,
            None => {
                let block = object::<Record>()?;
                // SAFETY: a fresh block of that layout. It is never freed, so it is `'static`.
                unsafe {
                    block.write(Record::new());
                    DOMAIN.add(block.as_ref());
                    block.as_ref()
                }
            }
        };
        if !KEY.set(ptr::from_ref(record).cast()) {
            record.give_up();
            return Err(Errno::NO_MEMORY);
        }
        self.record.set(record);
        Ok(record)
    }
}

/// Runs when a thread that has a record ends.
unsafe extern "C" fn end(record: *mut c_void) {
    // SAFETY: the value of the key is the thread's record, which is never freed.
    let record = unsafe { &*record.cast::<Record>().cast_const() };
    Local::with(|local| local.record.set(ptr::null()));
    if record.give_up() {
        misuse(libc::EPERM, "a thread", "it ended inside a read section, which ends now");
    }
}

/// Begins a read section of the calling thread. Sections nest.
///
/// Entries that are found inside a section stay valid until it ends: the tree does not release them
/// earlier, and memory given to `samara_tree_defer` is not freed earlier. One section serves all
/// trees, except those with `rcu` in their options: there the program's own `rcu_read_lock` counts.
///
/// A section should be short. Memory that writers remove waits for the oldest section. The sections
/// of a thread end with the thread, after the destructors of its thread-specific data that run
/// earlier; a debug build prints that they were open.
///
/// Errors: -ENOMEM, only until a call of the thread has succeeded (or `samara_thread_register`);
/// also if the process has no further key for thread-specific data. A later call tries again.
/// -EOVERFLOW after 2^32 - 1 nested sections. Cost: one atomic exchange in a cache line of the
/// thread's own; a nested section costs an increment. Never waits, and runs no callback but the
/// allocator's. Any thread; not for signal handlers.
#[unsafe(no_mangle)]
pub extern "C" fn samara_read_lock() -> c_int {
    Local::with(|local| match local.registered() {
        Ok(record) if record.enter(&DOMAIN) => 0,
        Ok(_) => -misuse(libc::EOVERFLOW, "samara_read_lock", "too many nested sections").0,
        Err(Errno(errno)) => -errno,
    })
}

/// Ends the read section that the calling thread began last.
///
/// Errors: -EPERM if the thread is in none. Cost: a decrement, and at the outermost section a
/// store. Never waits, allocates or runs a callback.
#[unsafe(no_mangle)]
pub extern "C" fn samara_read_unlock() -> c_int {
    Local::with(|local| match local.record() {
        Some(record) if record.leave() => 0,
        _ => -misuse(libc::EPERM, "samara_read_unlock", "this thread is in no read section").0,
    })
}

/// Registers the calling thread, so that its `samara_read_lock` cannot fail. Without this call, the
/// first `samara_read_lock` does it. The registration ends with the thread.
///
/// Errors: -ENOMEM. Cost: the number of threads that have read at the same time so far.
#[unsafe(no_mangle)]
pub extern "C" fn samara_thread_register() -> c_int {
    border(|| Local::with(|local| local.registered().map(|_| ())))
}
