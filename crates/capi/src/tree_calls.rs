//! Calls on a tree as a whole.

use crate::errno::{Errno, border, misuse, not_null};
use crate::queue::Piece;
use crate::tree::samara_tree;
use core::ffi::{c_char, c_int, c_void};
use core::ptr;

/// The size of a tree, from `samara_tree_stats`.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(non_camel_case_types)]
pub struct samara_stats {
    /// The number of levels; 0 for an empty tree.
    pub height: u64,
    /// The number of nodes, leaves included.
    pub nodes: u64,
    /// The number of leaves.
    pub leaves: u64,
    /// The number of ranges with an entry.
    pub entries: u64,
    /// The number of ranges without one.
    pub holes: u64,
    /// The bytes of the nodes, including nodes that are shared with duplicates.
    pub bytes: u64,
    /// The number of retired pieces that wait for readers: nodes, batches of about twenty nodes,
    /// and entries to be released. Pieces that were given to the program's RCU are not counted.
    pub waiting: u64,
    /// The number of retired pieces that found no memory and are never freed. Always 0, unless the
    /// library has a bug.
    pub leaked: u64,
}

/// Makes a tree with the same ranges, entries and options, and stores it in `*out`.
///
/// The trees share their nodes until one of them is written: the first write copies a node for each
/// level. `retain` is called for each range. Both trees then are independent.
///
/// Errors: -EINVAL, -ENOMEM, -EDEADLK; then `*out` is NULL. Waits for the lock of the tree, unless
/// this thread holds it. Constant time; with a retain callback, the number of ranges.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn samara_tree_duplicate(
    tree: *mut samara_tree,
    out: *mut *mut samara_tree,
) -> c_int {
    const CALL: &str = "samara_tree_duplicate";
    border(|| {
        not_null(out.is_null(), CALL, "out is NULL")?;
        // SAFETY: the caller passes a place for the result.
        unsafe { out.write(ptr::null_mut()) };
        // SAFETY: the caller passes NULL or a tree.
        let tree = unsafe { samara_tree::from(tree, CALL) }?;
        let copy = tree.write(CALL, |writer, _| {
            let copy = samara_tree::make(tree.options(), || Ok(writer.duplicate_with_token()?))?;
            if tree.fixed.retain.is_some() {
                for (_, entry) in writer.iter(0..=usize::MAX) {
                    tree.retain(entry);
                }
            }
            Ok(copy)
        })?;
        // SAFETY: as above.
        unsafe { out.write(copy.as_ptr()) };
        Ok(())
    })
}

/// Whether the tree has no entry: 1 or 0; -EINVAL for NULL. Constant time. Any thread, at any time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn samara_tree_is_empty(tree: *const samara_tree) -> c_int {
    // SAFETY: the caller passes NULL or a tree.
    match unsafe { samara_tree::from(tree, "samara_tree_is_empty") } {
        // SAFETY: this reads the root's word alone.
        Ok(tree) => unsafe { &*tree.map.get() }.is_empty().into(),
        Err(Errno(errno)) => -errno,
    }
}

/// Stores the length of the longest hole in `*length`; UINT64_MAX also for an empty tree, whose
/// hole is one longer. With a concurrent writer it is a hint.
///
/// Errors: -EINVAL, -EPERM as `samara_tree_lookup`. Constant time: it reads one node.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn samara_tree_largest_gap(
    tree: *const samara_tree,
    length: *mut u64,
) -> c_int {
    const CALL: &str = "samara_tree_largest_gap";
    border(|| {
        // SAFETY: the caller passes NULL or a tree.
        let tree = unsafe { samara_tree::from(tree, CALL) }?;
        not_null(length.is_null(), CALL, "length is NULL")?;
        let (map, guard) = tree.reading(CALL)?;
        // SAFETY: the caller passes a place for the length.
        unsafe { length.write(map.largest_gap(guard) as u64) };
        Ok(())
    })
}

/// Stores the size of the tree in `*out`. `size` is `sizeof(struct samara_stats)`: a library with
/// more members fills those that the caller knows.
///
/// Errors: -EINVAL, -EDEADLK. Waits for the lock, unless this thread holds it. Time: the number of
/// nodes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn samara_tree_stats(
    tree: *mut samara_tree,
    out: *mut samara_stats,
    size: usize,
) -> c_int {
    const CALL: &str = "samara_tree_stats";
    border(|| {
        // SAFETY: the caller passes NULL or a tree.
        let tree = unsafe { samara_tree::from(tree, CALL) }?;
        not_null(out.is_null(), CALL, "out is NULL")?;
        if size != size_of::<samara_stats>() {
            return Err(misuse(libc::EINVAL, CALL, "size is not sizeof(struct samara_stats)"));
        }
        tree.write(CALL, |writer, queue| {
            let stats = writer.stats();
            // SAFETY: this thread writes the tree.
            let queue = unsafe { &*queue };
            let stats = samara_stats {
                height: stats.height as u64,
                nodes: stats.nodes as u64,
                leaves: stats.leaves as u64,
                entries: stats.entries as u64,
                holes: stats.holes as u64,
                bytes: stats.bytes as u64,
                waiting: queue.waiting() as u64,
                leaked: queue.leaked as u64,
            };
            // SAFETY: the caller passes a place for the statistics.
            unsafe { out.write(stats) };
            Ok(())
        })
    })
}

/// Checks every structural invariant of the tree; for tests.
///
/// Errors: -EUCLEAN if one is broken, which is a bug of the library or stray writes of the program;
/// a debug build prints which one; -EINVAL, -EDEADLK. Waits for the lock, unless this thread holds
/// it. Time: the number of nodes and ranges.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn samara_tree_validate(tree: *mut samara_tree) -> c_int {
    const CALL: &str = "samara_tree_validate";
    border(|| {
        // SAFETY: the caller passes NULL or a tree.
        let tree = unsafe { samara_tree::from(tree, CALL) }?;
        tree.write(CALL, |writer, _| {
            writer
                .validate()
                .map_err(|_| misuse(libc::EUCLEAN, CALL, "an invariant of the tree is broken"))
        })
    })
}

/// Allocates the memory that the next `writes` stores, inserts, erases and set_ends need, wherever
/// they are: these do not fail with -ENOMEM. With callbacks, that holds for a write that removes at
/// most 31 ranges.
///
/// The caller holds the lock; memory that is left over is freed at `samara_tree_unlock`. In an
/// exclusive tree it stays for later writes. With `writes` of 0, it is freed now.
///
/// Errors: -EPERM if the thread does not hold the lock; -EINVAL, -EDEADLK; -ENOMEM, also at once if
/// it would be more than the machine's memory, and then nothing is preallocated. Cost: up to ten
/// nodes for each level and write, and as much memory for the pieces that the write retires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn samara_tree_preallocate(tree: *mut samara_tree, writes: usize) -> c_int {
    const CALL: &str = "samara_tree_preallocate";
    border(|| {
        // SAFETY: the caller passes NULL or a tree.
        let tree = unsafe { samara_tree::from(tree, CALL) }?;
        if !tree.is_exclusive() && !crate::thread::Local::with(|local| tree.is_owner(local)) {
            return Err(misuse(libc::EPERM, CALL, "this thread does not hold the lock"));
        }
        tree.preallocate(CALL, writes)
    })
}

/// Calls `free(ctx, ptr)` once no reader can see `ptr` any more: after the read sections that exist
/// now. For entries that `samara_tree_erase` has returned, and for memory that belongs to them.
///
/// A later call that writes to this tree calls it, or `samara_tree_barrier`, or
/// `samara_tree_destroy`; in an exclusive tree, this call. `free` follows the rules of `release`.
///
/// Errors: -EINVAL if the tree or `free` is NULL; -ENOMEM, -EDEADLK; then nothing is called. Waits
/// for the lock, unless this thread holds it. Constant time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn samara_tree_defer(
    tree: *mut samara_tree,
    free: Option<unsafe extern "C" fn(ctx: *mut c_void, ptr: *mut c_void)>,
    ctx: *mut c_void,
    ptr: *mut c_void,
) -> c_int {
    const CALL: &str = "samara_tree_defer";
    border(|| {
        // SAFETY: the caller passes NULL or a tree.
        let tree = unsafe { samara_tree::from(tree, CALL) }?;
        not_null(free.is_none(), CALL, "free is NULL")?;
        let Some(free) = free else { return Ok(()) };
        tree.write(CALL, |_, queue| {
            // SAFETY: this thread writes the tree.
            let queue = unsafe { &mut *queue };
            // An exclusive tree without callbacks has no reserve.
            queue.reserve(1)?;
            queue.push(Piece::Call(free, ctx, ptr));
            Ok(())
        })
    })
}

/// Waits until everything that the tree has retired before this call is freed and released.
///
/// Errors: -EINVAL; -EDEADLK inside a read section, in a callback, or while the thread holds the
/// lock. Waits for the lock, and for read sections. Runs release callbacks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn samara_tree_barrier(tree: *mut samara_tree) -> c_int {
    const CALL: &str = "samara_tree_barrier";
    // SAFETY: the caller passes NULL or a tree.
    border(|| unsafe { samara_tree::from(tree, CALL) }?.barrier(CALL))
}

/// The version of the library, such as "0.1.0".
#[unsafe(no_mangle)]
pub extern "C" fn samara_version() -> *const c_char {
    const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
    VERSION.as_ptr().cast()
}
