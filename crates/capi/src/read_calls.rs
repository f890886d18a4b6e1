//! Calls that read a tree.

use crate::errno::{Errno, border, not_null};
use crate::tree::samara_tree;
use crate::write_calls::ends;
use core::ffi::{c_int, c_void};
use core::ops::RangeInclusive;
use core::ptr::{self, NonNull};

/// A range of a tree.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(non_camel_case_types)]
pub struct samara_range {
    /// The first index.
    pub first: u64,
    /// The last index.
    pub last: u64,
    /// The entry; NULL for a hole.
    pub entry: *mut c_void,
}

impl From<(RangeInclusive<usize>, NonNull<()>)> for samara_range {
    fn from((range, entry): (RangeInclusive<usize>, NonNull<()>)) -> samara_range {
        (range, Some(entry)).into()
    }
}

impl From<(RangeInclusive<usize>, Option<NonNull<()>>)> for samara_range {
    fn from((range, entry): (RangeInclusive<usize>, Option<NonNull<()>>)) -> samara_range {
        let (first, last) = (*range.start() as u64, *range.end() as u64);
        let entry = entry.map_or(ptr::null_mut(), |entry| entry.as_ptr().cast());
        samara_range { first, last, entry }
    }
}

/// Returns the entry at `index`, or NULL if there is none.
///
/// The caller is in a read section, or holds the tree's lock over several calls, or the tree is
/// exclusive. The entry stays valid until the section ends or the lock is released.
///
/// Misuse returns NULL; a debug build prints the cause. Never waits, allocates, or writes memory
/// that other threads use. Cost: O(log n); a node of three cache lines for each level.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn samara_tree_load(tree: *const samara_tree, index: u64) -> *mut c_void {
    const CALL: &str = "samara_tree_load";
    // SAFETY: the caller passes NULL or a tree.
    let found = unsafe { samara_tree::from(tree, CALL) }
        .and_then(|tree| tree.reading(CALL))
        .map(|(map, guard)| map.load(guard, index as usize));
    match found {
        Ok(Some(entry)) => entry.as_ptr().cast(),
        _ => ptr::null_mut(),
    }
}

/// Stores the range that holds `index` in `*out`, with its entry.
///
/// Errors: -ENOENT if `index` has no entry; -EINVAL if a pointer is NULL; -EPERM if the caller is
/// neither in a read section nor holds the lock, and the tree is not exclusive. Otherwise as
/// `samara_tree_load`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn samara_tree_lookup(
    tree: *const samara_tree,
    index: u64,
    out: *mut samara_range,
) -> c_int {
    const CALL: &str = "samara_tree_lookup";
    border(|| {
        // SAFETY: the caller passes NULL or a tree.
        let tree = unsafe { samara_tree::from(tree, CALL) }?;
        not_null(out.is_null(), CALL, "out is NULL")?;
        let (map, guard) = tree.reading(CALL)?;
        let found = map.lookup(guard, index as usize).ok_or(Errno::NO_ENTRY)?;
        // SAFETY: the caller passes a place for a range.
        unsafe { out.write(found.into()) };
        Ok(())
    })
}

/// Stores the lowest range that overlaps `first` to `last` in `*out`, as a whole. To go through a
/// tree, a cursor or `samara_tree_for_each` is faster.
///
/// Errors: -ENOENT if there is none; -EINVAL also if `first` > `last`; otherwise as
/// `samara_tree_lookup`. Cost: O(log n).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn samara_tree_find(
    tree: *const samara_tree,
    first: u64,
    last: u64,
    out: *mut samara_range,
) -> c_int {
    const CALL: &str = "samara_tree_find";
    border(|| {
        // SAFETY: the caller passes NULL or a tree.
        let tree = unsafe { samara_tree::from(tree, CALL) }?;
        not_null(out.is_null(), CALL, "out is NULL")?;
        let (first, last) = ends(first, last, CALL)?;
        let (map, guard) = tree.reading(CALL)?;
        let found = map.find(guard, first..=last).ok_or(Errno::NO_ENTRY)?;
        // SAFETY: the caller passes a place for a range.
        unsafe { out.write(found.into()) };
        Ok(())
    })
}

/// Stores the highest range that overlaps `first` to `last` in `*out`, as a whole. Errors and cost:
/// as `samara_tree_find`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn samara_tree_find_rev(
    tree: *const samara_tree,
    first: u64,
    last: u64,
    out: *mut samara_range,
) -> c_int {
    const CALL: &str = "samara_tree_find_rev";
    border(|| {
        // SAFETY: the caller passes NULL or a tree.
        let tree = unsafe { samara_tree::from(tree, CALL) }?;
        not_null(out.is_null(), CALL, "out is NULL")?;
        let (first, last) = ends(first, last, CALL)?;
        let (map, guard) = tree.reading(CALL)?;
        let found = map.find_rev(guard, first..=last).ok_or(Errno::NO_ENTRY)?;
        // SAFETY: the caller passes a place for a range.
        unsafe { out.write(found.into()) };
        Ok(())
    })
}

/// Calls `visit` for each range that overlaps `first` to `last`, in order, until it returns
/// something else than 0, and returns that; 0 at the end.
///
/// With a concurrent writer this is no snapshot: for each index, `visit` sees what the tree held at
/// some moment during the call. In a read section, `visit` may write to the tree. Under the lock,
/// and in an exclusive tree, it may not; then the call ends with -EBUSY. It must not destroy the
/// tree, end the read section or release the lock.
///
/// Errors: -EINVAL, -EPERM as `samara_tree_find`. Cost: O(log n), and a few instructions for each
/// range.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn samara_tree_for_each(
    tree: *const samara_tree,
    first: u64,
    last: u64,
    visit: Option<unsafe extern "C" fn(ctx: *mut c_void, range: *const samara_range) -> c_int>,
    ctx: *mut c_void,
) -> c_int {
    const CALL: &str = "samara_tree_for_each";
    let mut answer = 0;
    let result = border(|| {
        // SAFETY: the caller passes NULL or a tree.
        let tree = unsafe { samara_tree::from(tree, CALL) }?;
        not_null(visit.is_none(), CALL, "visit is NULL")?;
        let Some(visit) = visit else { return Ok(()) };
        let (first, last) = ends(first, last, CALL)?;
        let (map, guard) = tree.reading(CALL)?;
        let alone = tree.reads_as_writer();
        let version = alone.then(|| tree.writer.version.get());
        for found in map.iter(guard, first..=last) {
            // SAFETY: the program's function.
            answer = unsafe { visit(ctx, &found.into()) };
            if answer != 0 {
                break;
            }
            if alone && version != Some(tree.writer.version.get()) {
                let cause = "visit has written to a tree that it reads as its writer";
                return Err(crate::errno::misuse(libc::EBUSY, CALL, cause));
            }
        }
        Ok(())
    });
    if result == 0 { answer } else { result }
}
