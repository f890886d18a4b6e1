//! Grace periods of the program: an engine over its own RCU, such as liburcu.
//!
//! The library does not link liburcu, and so does not choose its flavour. The program's header has
//! functions that call it (`samara_range_urcu.h`), and a tree's options lead to them.

use crate::cancel::Uncancelled;
use crate::queue::{Block, run};
use core::ffi::{c_int, c_void};
use core::ptr::NonNull;

/// The grace periods of the program. `samara_range_urcu.h` has one for liburcu. It must not change
/// while a tree uses it.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(non_camel_case_types)]
pub struct samara_rcu {
    /// Calls `samara_rcu_done(head)` once, after all read sections that exist now have ended.
    /// `head` has 16 bytes for the use of this function, aligned to 8, and holds up to 31 retired
    /// pieces. Called with the lock of a tree held. Must not fail, and must not call
    /// `samara_rcu_done` before it returns.
    pub call: Option<unsafe extern "C" fn(head: *mut c_void)>,
    /// Waits until all read sections that exist now have ended.
    pub synchronize: Option<unsafe extern "C" fn()>,
    /// Waits until `samara_rcu_done` has returned for each `call` so far.
    pub barrier: Option<unsafe extern "C" fn()>,
    /// Whether the calling thread is in a read section: 0 or 1. May be NULL; then calls outside of
    /// a section are not noticed.
    pub ongoing: Option<unsafe extern "C" fn() -> c_int>,
}

/// A checked copy of [`samara_rcu`].
pub(crate) struct Rcu {
    call: unsafe extern "C" fn(head: *mut c_void),
    synchronize: unsafe extern "C" fn(),
    barrier: unsafe extern "C" fn(),
    ongoing: Option<unsafe extern "C" fn() -> c_int>,
}

impl Rcu {
    /// `None` if a function is missing.
    pub(crate) fn new(from: &samara_rcu) -> Option<Rcu> {
        Some(Rcu {
            call: from.call?,
            synchronize: from.synchronize?,
            barrier: from.barrier?,
            ongoing: from.ongoing,
        })
    }

    /// Runs a block's pieces after a grace period.
    ///
    /// # Safety
    /// The caller gives the block away; its pieces cannot be reached by new readers.
    pub(crate) unsafe fn call(&self, block: NonNull<Block>) {
        // SAFETY: the program's function, with a block that begins with the head.
        unsafe { (self.call)(block.as_ptr().cast()) }
    }

    pub(crate) fn synchronize(&self) {
        // SAFETY: the program's function.
        unsafe { (self.synchronize)() }
    }

    pub(crate) fn barrier(&self) {
        let _uncancelled = Uncancelled::begin();
        // SAFETY: the program's function.
        unsafe { (self.barrier)() }
    }

    /// Whether the calling thread is in a section; `None` if the program does not tell.
    pub(crate) fn ongoing(&self) -> Option<bool> {
        // SAFETY: the program's function.
        self.ongoing.map(|ongoing| unsafe { ongoing() } != 0)
    }
}

/// Frees the pieces in a head that was given to `samara_rcu.call`. Call it once for each head, when
/// the grace period is over. Only for the functions of a `samara_rcu`.
///
/// Runs release callbacks. Never waits. Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn samara_rcu_done(head: *mut c_void) {
    if let Some(block) = NonNull::new(head.cast::<Block>()) {
        // SAFETY: the caller gives back a block whose grace period is over.
        unsafe { run(block) }
    }
}
