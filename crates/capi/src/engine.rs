//! The engine that the range tree is built with: it puts the nodes that a write retires into the
//! queue of the tree that the thread writes.

use crate::queue::{Piece, Queue};
use crate::thread::Local;
use core::ptr::NonNull;
use grace::{Concurrent, Reclaim};

pub(crate) struct Engine;

/// Evidence that reads are safe; it does not make them so. A guard is made only where the program
/// is in a read section ([`reading`](crate::tree::samara_tree::reading)), or by a writer, which
/// reads its own tree.
pub(crate) struct Guard(());

impl Guard {
    /// # Safety
    /// As long as the guard is used, the calling thread is in a read section of the tree that it
    /// reads, or is the tree's writer.
    #[inline(always)]
    pub(crate) unsafe fn new() -> &'static Guard {
        &Guard(())
    }
}

// SAFETY: a piece is freed by `Queue`, once, and after `retire`.
unsafe impl Reclaim for Engine {
    type Guard = Guard;

    /// Only the writer of a tree calls this, to retire something.
    #[inline(always)]
    fn pin() -> Guard {
        Guard(())
    }

    #[inline]
    unsafe fn retire(_: &Guard, ptr: NonNull<()>, free: unsafe fn(NonNull<()>)) {
        Local::with(|local| {
            // SAFETY: null, or the queue of the tree that this thread writes, which no other code
            // uses at the moment.
            match unsafe { local.queue.get().as_mut() } {
                Some(queue) => queue.push(Piece::Memory(ptr, free)),
                None => debug_assert!(false, "retired outside of a write"),
            }
        });
    }

    /// The tree has retired much memory.
    fn flush(_: &Guard) {
        Local::with(|local| {
            // SAFETY: as above.
            if let Some(queue) = unsafe { local.queue.get().as_mut() } {
                queue.hurry();
            }
        });
    }
}

// SAFETY: a queue frees a piece when the sections that existed at `retire` have ended
// (`section.rs`), or when the program's RCU says so. Guards of readers are used only inside of such
// sections. Pieces that a writer retires while it reads its own tree are freed after it has
// stopped: a cursor or a visit under the lock checks whether the tree has changed.
unsafe impl Concurrent for Engine {}

/// Names the queue of the tree that this thread writes, until it is dropped.
pub(crate) struct Retiring<'a>(&'a Local);

impl<'a> Retiring<'a> {
    /// # Safety
    /// The queue is the caller's, and stays so until this is dropped.
    pub(crate) unsafe fn into(local: &'a Local, queue: *mut Queue) -> Retiring<'a> {
        local.queue.set(queue);
        Retiring(local)
    }
}

impl Drop for Retiring<'_> {
    fn drop(&mut self) {
        self.0.queue.set(core::ptr::null_mut());
    }
}
