//! Calls that change a tree.

use crate::entry::Word;
use crate::errno::{Errno, border, misuse};
use crate::memory::{free_object, object};
use crate::queue::Piece;
use crate::read_calls::samara_range;
use crate::tree::samara_tree;
use crate::{Map, Writer};
use core::ffi::{c_int, c_void};
use core::ptr::NonNull;
use maple::{Error, WriteToken};

/// The entry, if it is not NULL.
pub(crate) fn entry_of(entry: *mut c_void, call: &str) -> Result<Word, Errno> {
    match NonNull::new(entry) {
        Some(entry) => Ok(Word(entry.cast())),
        None => Err(misuse(libc::EINVAL, call, "the entry is NULL, which means a hole")),
    }
}

/// The ends of a range, if it is not empty.
pub(crate) fn ends(first: u64, last: u64, call: &str) -> Result<(usize, usize), Errno> {
    if first > last {
        return Err(misuse(libc::EINVAL, call, "the range ends before it begins"));
    }
    Ok((first as usize, last as usize))
}

/// Stores `entry` over all indices from `first` to `last`. Ranges inside are removed. A range that
/// extends beyond one end keeps the rest; one that extends beyond both is split in two, which calls
/// `retain`.
///
/// The caller's reference to `entry` goes to the tree. After an error it is still the caller's.
///
/// Errors: -EINVAL if the tree or the entry is NULL or `first` > `last`; -ENOMEM; -EDEADLK in a
/// callback. Then the tree is as it was. Readers see the range as it was or as it is, never
/// between. Waits for the lock, unless this thread holds it. Cost: O(log n), plus the number of
/// nodes that are covered; with callbacks, plus the number of ranges that are covered.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn samara_tree_store(
    tree: *mut samara_tree,
    first: u64,
    last: u64,
    entry: *mut c_void,
) -> c_int {
    const CALL: &str = "samara_tree_store";
    border(|| {
        // SAFETY: the caller passes NULL or a tree.
        let tree = unsafe { samara_tree::from(tree, CALL) }?;
        let (first, last) = ends(first, last, CALL)?;
        let entry = entry_of(entry, CALL)?;
        tree.write(CALL, |writer, queue| {
            tree.replace(writer, queue, first, last, |writer| {
                Ok(writer.store_range(first..=last, entry).map_err(Error::from)?)
            })
        })
    })
}

/// Stores `entry` over all indices from `first` to `last` if none of them has an entry. The
/// caller's reference goes to the tree; after an error it is still the caller's.
///
/// Errors: -EEXIST, and then the lowest range in the way is in `*occupied`, if that is not NULL;
/// otherwise as `samara_tree_store`. The entry in `*occupied` may be used only inside a read
/// section that began before, or under the lock. Cost: O(log n).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn samara_tree_insert(
    tree: *mut samara_tree,
    first: u64,
    last: u64,
    entry: *mut c_void,
    occupied: *mut samara_range,
) -> c_int {
    const CALL: &str = "samara_tree_insert";
    border(|| {
        // SAFETY: the caller passes NULL or a tree.
        let tree = unsafe { samara_tree::from(tree, CALL) }?;
        let (first, last) = ends(first, last, CALL)?;
        let entry = entry_of(entry, CALL)?;
        tree.write(CALL, |writer, _| {
            let result = writer.insert_range(first..=last, entry).map_err(Error::from);
            // SAFETY: the caller passes NULL or a place for a range.
            unsafe { tell_occupied(writer, &result, occupied) };
            Ok(result?)
        })
    })
}

/// # Safety
/// `occupied` is NULL or a place for a range.
unsafe fn tell_occupied<T>(
    writer: &Writer<'_>,
    result: &Result<T, Error>,
    occupied: *mut samara_range,
) {
    if let Err(Error::Occupied { start, .. }) = *result
        && !occupied.is_null()
        && let Some(found) = writer.lookup(start)
    {
        // SAFETY: the caller's promise.
        unsafe { occupied.write(found.into()) }
    }
}

/// Removes the range that holds `index`.
///
/// If `removed` is not NULL, it gets the range, and the tree's reference to the entry goes to the
/// caller. Readers may still use the entry: hand it to `samara_tree_defer`, or wait with
/// `samara_tree_barrier`. If `removed` is NULL, the tree releases the entry after the read sections
/// that can see it.
///
/// Errors: -ENOENT if `index` has no entry; -EINVAL, -ENOMEM, -EDEADLK as `samara_tree_store`.
/// Cost: O(log n).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn samara_tree_erase(
    tree: *mut samara_tree,
    index: u64,
    removed: *mut samara_range,
) -> c_int {
    const CALL: &str = "samara_tree_erase";
    border(|| {
        // SAFETY: the caller passes NULL or a tree.
        let tree = unsafe { samara_tree::from(tree, CALL) }?;
        tree.write(CALL, |writer, queue| {
            let (range, erased) = writer.erase(index as usize)?.ok_or(Errno::NO_ENTRY)?;
            let entry = erased.get();
            if !removed.is_null() {
                // SAFETY: the caller passes a place for a range.
                unsafe { removed.write((range, entry).into()) };
            } else if let Some(piece) = tree.release_of(entry) {
                // SAFETY: this thread writes the tree. `write` has reserved room for one.
                unsafe { &mut *queue }.push(piece);
            }
            Ok(())
        })
    })
}

/// Makes all indices from `first` to `last` a hole. Ranges inside are removed and released; a range
/// that extends beyond one end keeps the rest; one that extends beyond both is split in two, which
/// calls `retain`.
///
/// Errors and cost: as `samara_tree_store`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn samara_tree_erase_range(
    tree: *mut samara_tree,
    first: u64,
    last: u64,
) -> c_int {
    const CALL: &str = "samara_tree_erase_range";
    border(|| {
        // SAFETY: the caller passes NULL or a tree.
        let tree = unsafe { samara_tree::from(tree, CALL) }?;
        let (first, last) = ends(first, last, CALL)?;
        tree.write(CALL, |writer, queue| {
            tree.replace(writer, queue, first, last, |writer| Ok(writer.erase_range(first..=last)?))
        })
    })
}

/// Moves the last index of the range that holds `index` to `last`, so that the range grows into the
/// hole behind it, or shrinks. `*changed`, if not NULL, gets the new range.
///
/// Errors: -ENOENT if `index` has no entry; -EEXIST if another range is in the way, and then that
/// range is in `*changed`; -EINVAL also if the range begins after `last`; -ENOMEM, -EDEADLK as
/// `samara_tree_store`. Cost: O(log n).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn samara_tree_set_end(
    tree: *mut samara_tree,
    index: u64,
    last: u64,
    changed: *mut samara_range,
) -> c_int {
    const CALL: &str = "samara_tree_set_end";
    border(|| {
        // SAFETY: the caller passes NULL or a tree.
        let tree = unsafe { samara_tree::from(tree, CALL) }?;
        tree.write(CALL, |writer, _| {
            let result = writer.set_end(index as usize, last as usize);
            // SAFETY: the caller passes NULL or a place for a range.
            unsafe { tell_occupied(writer, &result, changed) };
            if matches!(result, Err(Error::EmptyRange)) {
                return Err(misuse(libc::EINVAL, CALL, "the range begins after last"));
            }
            let range = result?.ok_or(Errno::NO_ENTRY)?;
            if !changed.is_null()
                && let Some(found) = writer.lookup(*range.start())
            {
                // SAFETY: as above.
                unsafe { changed.write(found.into()) }
            }
            Ok(())
        })
    })
}

/// The ranges of a tree that was cleared, with the function that releases their entries.
struct Cleared {
    map: Map,
    _token: WriteToken,
    release: crate::queue::Callback,
    ctx: *mut c_void,
}

/// # Safety
/// An object of type `Cleared`, whose grace period is over.
unsafe fn free_cleared(object: NonNull<()>) {
    let object = object.cast::<Cleared>();
    // SAFETY: the caller's promise. It was written when it was made.
    let mut cleared = unsafe { object.read() };
    for (_, entry) in cleared.map.get_mut().iter(0..=usize::MAX) {
        // SAFETY: the program's function, with an entry that it stored.
        crate::queue::in_callback(|| unsafe {
            (cleared.release)(cleared.ctx, entry.as_ptr().cast())
        });
    }
    // SAFETY: it was read.
    unsafe { free_object(object) }
}

/// Removes and releases all ranges. Readers see all of them or none.
///
/// Errors: -EINVAL, -EDEADLK; -ENOMEM only if the tree has a release callback. Waits for the lock,
/// unless this thread holds it. Constant time; the frees take as long as there are nodes, and
/// entries with a callback.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn samara_tree_clear(tree: *mut samara_tree) -> c_int {
    const CALL: &str = "samara_tree_clear";
    border(|| {
        // SAFETY: the caller passes NULL or a tree.
        let tree = unsafe { samara_tree::from(tree, CALL) }?;
        tree.write(CALL, |writer, queue| {
            if let Some(release) = tree.fixed.release
                && !writer.is_empty()
            {
                // A duplicate shares the nodes, and keeps them until the entries are released.
                let object = object::<Cleared>()?;
                let (map, _token) = match writer.duplicate_with_token() {
                    Ok(pair) => pair,
                    Err(error) => {
                        // SAFETY: nothing was written.
                        unsafe { free_object(object) };
                        return Err(error.into());
                    }
                };
                // SAFETY: a fresh block of that layout.
                unsafe { object.write(Cleared { map, _token, release, ctx: tree.fixed.ctx }) };
                // SAFETY: this thread writes the tree. `write` has reserved room for one.
                unsafe { &mut *queue }.push(Piece::Memory(object.cast(), free_cleared));
            }
            writer.clear();
            Ok(())
        })
    })
}
