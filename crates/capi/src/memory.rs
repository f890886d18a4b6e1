//! The source of memory: the node pool and `malloc`, or callbacks of the program.
//!
//! The source is one for the process, because a node is freed after a grace period, possibly after
//! its tree is gone. It is fixed by the first allocation, so that each block goes back to where it
//! came from.

use crate::errno::{Errno, border, misuse, not_null};
use crate::thread_key::Key;
use core::alloc::Layout;
use core::cell::UnsafeCell;
use core::ffi::{c_int, c_void};
use core::mem::MaybeUninit;
use core::ptr::{self, NonNull};
use maple::{AllocError, NodeAlloc};
use std::sync::atomic::{AtomicU8, Ordering};

/// The source of the library's memory. Both functions may be called by any thread that calls the
/// library, also at once, and with the lock of a tree held. They must not call the library, and
/// must not throw or `longjmp`.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(non_camel_case_types)]
pub struct samara_allocator {
    /// Passed to both functions.
    pub ctx: *mut c_void,
    /// Returns `size` bytes, aligned to `align` (a power of two, at most 128), or NULL. `size` is
    /// not 0.
    pub alloc:
        Option<unsafe extern "C" fn(ctx: *mut c_void, size: usize, align: usize) -> *mut c_void>,
    /// Takes back memory that `alloc` returned for this size and alignment. `ptr` is not NULL.
    pub free:
        Option<unsafe extern "C" fn(ctx: *mut c_void, ptr: *mut c_void, size: usize, align: usize)>,
}

/// Not chosen yet.
const OPEN: u8 = 0;
/// A call chooses.
const CHOOSING: u8 = 1;
/// Nodes from the pool, the rest from `malloc`.
const POOL: u8 = 2;
/// Everything from `malloc`.
const MALLOC: u8 = 3;
/// Everything from the program's callbacks.
const CALLBACKS: u8 = 4;

static SOURCE: AtomicU8 = AtomicU8::new(OPEN);

struct Chosen(UnsafeCell<MaybeUninit<samara_allocator>>);

// SAFETY: written once, before `SOURCE` becomes `CALLBACKS`, and read only after that. The program
// promises that any thread may use the callbacks and their context.
unsafe impl Sync for Chosen {}

static CHOSEN: Chosen = Chosen(UnsafeCell::new(MaybeUninit::uninit()));

/// The source, which is fixed from now on.
#[inline(always)]
fn source() -> u8 {
    // Acquire: pairs with the Release of `samara_set_allocator`, so the callbacks are visible.
    match SOURCE.load(Ordering::Acquire) {
        fixed @ POOL.. => fixed,
        _ => fix(),
    }
}

#[cold]
fn fix() -> u8 {
    loop {
        // Acquire: as in `source`.
        match SOURCE.compare_exchange(OPEN, CHOOSING, Ordering::Acquire, Ordering::Acquire) {
            Ok(_) => {
                // Refused only if Rust code of the program has set its own, which is as good.
                maple::Pool::watch_threads(watch);
                // Release: threads that use the pool see that.
                SOURCE.store(POOL, Ordering::Release);
                return POOL;
            }
            Err(CHOOSING) => core::hint::spin_loop(),
            Err(fixed) => return fixed,
        }
    }
}

/// Makes the pool learn of the end of the calling thread.
fn watch() -> bool {
    static KEY: Key = Key::new(leave_pool);
    KEY.set(ptr::from_ref(&KEY).cast())
}

/// Runs when a thread that has used the pool ends.
unsafe extern "C" fn leave_pool(_: *mut c_void) {
    maple::Pool::thread_ended();
}

/// The program's callbacks.
///
/// # Safety
/// The source is `CALLBACKS`.
unsafe fn chosen() -> samara_allocator {
    // SAFETY: the caller's promise; nothing writes it again.
    unsafe { (*CHOSEN.0.get()).assume_init() }
}

/// A block of that layout, whose size is not 0.
fn allocate(layout: Layout) -> Option<NonNull<u8>> {
    let block = match source() {
        // SAFETY: the source is `CALLBACKS`, so both functions are set.
        CALLBACKS => unsafe {
            let chosen = chosen();
            (chosen.alloc?)(chosen.ctx, layout.size(), layout.align())
        },
        _ => {
            let mut block = ptr::null_mut();
            let align = layout.align().max(size_of::<usize>());
            // SAFETY: the alignment is a power of two and a multiple of a pointer's size.
            let failed = unsafe { libc::posix_memalign(&mut block, align, layout.size()) };
            if failed == 0 { block } else { ptr::null_mut() }
        }
    };
    NonNull::new(block.cast())
}

/// # Safety
/// The block came from `allocate` with this layout, and has no user any more.
unsafe fn deallocate(block: NonNull<u8>, layout: Layout) {
    let ptr = block.as_ptr().cast();
    match source() {
        // SAFETY: the source is `CALLBACKS`; the caller's promise.
        CALLBACKS => unsafe {
            let chosen = chosen();
            if let Some(free) = chosen.free {
                free(chosen.ctx, ptr, layout.size(), layout.align());
            }
        },
        // SAFETY: the caller's promise.
        _ => unsafe { libc::free(ptr) },
    }
}

/// The source of nodes.
pub(crate) struct Memory;

// SAFETY: each source makes the promises, for every thread; and it does not change.
unsafe impl NodeAlloc for Memory {
    #[inline]
    fn allocate(layout: Layout) -> Result<NonNull<u8>, AllocError> {
        if source() == POOL {
            return <maple::Pool as NodeAlloc>::allocate(layout);
        }
        allocate(layout).ok_or(AllocError)
    }

    #[inline]
    unsafe fn deallocate(ptr: NonNull<u8>, layout: Layout) {
        if source() == POOL {
            // SAFETY: the caller's promise.
            return unsafe { <maple::Pool as NodeAlloc>::deallocate(ptr, layout) };
        }
        // SAFETY: the caller's promise.
        unsafe { deallocate(ptr, layout) }
    }
}

/// Memory for a `T`, not initialized.
pub(crate) fn object<T>() -> Result<NonNull<T>, Errno> {
    allocate(Layout::new::<T>()).map(NonNull::cast).ok_or(Errno::NO_MEMORY)
}

/// Frees the memory of an object. Does not drop the object.
///
/// # Safety
/// It came from `object`, and has no user any more.
pub(crate) unsafe fn free_object<T>(object: NonNull<T>) {
    // SAFETY: the caller's promise.
    unsafe { deallocate(object.cast(), Layout::new::<T>()) }
}

/// Chooses where the library gets memory, for the whole process and for good.
///
/// By default, nodes come from a pool with a cache for each thread, and everything else from
/// `malloc`. With an allocator, everything comes from its functions. With NULL, everything comes
/// from `malloc`: tools such as valgrind and AddressSanitizer then see each node.
///
/// Call it before everything else. The allocator is copied.
///
/// Errors: -EINVAL if one of the functions is NULL; -EBUSY if the library has allocated memory
/// already. Does not wait or allocate. Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn samara_set_allocator(allocator: *const samara_allocator) -> c_int {
    const CALL: &str = "samara_set_allocator";
    border(|| {
        // SAFETY: the caller passes NULL or an allocator.
        let new = unsafe { allocator.as_ref() };
        if let Some(new) = new {
            let missing = new.alloc.is_none() || new.free.is_none();
            not_null(missing, CALL, "the allocator lacks a function")?;
        }
        // Acquire, Relaxed: nothing is read because of it.
        SOURCE
            .compare_exchange(OPEN, CHOOSING, Ordering::Acquire, Ordering::Relaxed)
            .map_err(|_| misuse(libc::EBUSY, CALL, "the library has allocated memory already"))?;
        let source = match new {
            Some(new) => {
                // SAFETY: only the thread that has set `CHOOSING` writes it, and none reads it.
                unsafe { (*CHOSEN.0.get()).write(*new) };
                CALLBACKS
            }
            None => MALLOC,
        };
        // Release: publishes the callbacks; pairs with the Acquire of `source`.
        SOURCE.store(source, Ordering::Release);
        Ok(())
    })
}
