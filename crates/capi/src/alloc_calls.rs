//! Calls that look for free space, and store there.

use crate::errno::{Errno, border, misuse, not_null};
use crate::tree::samara_tree;
use crate::write_calls::{ends, entry_of};
use core::ffi::{c_int, c_void};
use core::ops::RangeInclusive;
use maple::Error;

/// A checked request for free space.
struct Wanted {
    bounds: RangeInclusive<usize>,
    size: usize,
    align: usize,
}

fn wanted(min: u64, max: u64, size: u64, align: u64, call: &str) -> Result<Wanted, Errno> {
    let (min, max) = ends(min, max, call)?;
    if size == 0 {
        return Err(misuse(libc::EINVAL, call, "the size is 0"));
    }
    if !align.is_power_of_two() {
        return Err(misuse(libc::EINVAL, call, "the alignment is no power of two"));
    }
    Ok(Wanted { bounds: min..=max, size: size as usize, align: align as usize })
}

#[derive(Clone, Copy)]
enum End {
    Lowest,
    Highest,
}

/// # Safety
/// `tree` is NULL or a tree, `first` NULL or a place for an index.
#[allow(clippy::too_many_arguments)]
unsafe fn allocate(
    tree: *mut samara_tree,
    [min, max, size, align]: [u64; 4],
    entry: *mut c_void,
    first: *mut u64,
    end: End,
    call: &str,
) -> c_int {
    border(|| {
        // SAFETY: the caller's promise.
        let tree = unsafe { samara_tree::from(tree, call) }?;
        not_null(first.is_null(), call, "first is NULL")?;
        let entry = entry_of(entry, call)?;
        let Wanted { bounds, size, align } = wanted(min, max, size, align, call)?;
        let found = tree.write(call, |writer, _| {
            let result = match end {
                End::Lowest => writer.alloc_range(bounds, size, align, entry),
                End::Highest => writer.alloc_rrange(bounds, size, align, entry),
            };
            Ok(result.map_err(Error::from)?)
        })?;
        // SAFETY: the caller's promise.
        unsafe { first.write(found as u64) };
        Ok(())
    })
}

/// # Safety
/// `tree` is NULL or a tree, `first` NULL or a place for an index.
unsafe fn find(
    tree: *const samara_tree,
    [min, max, size, align]: [u64; 4],
    first: *mut u64,
    end: End,
    call: &str,
) -> c_int {
    border(|| {
        // SAFETY: the caller's promise.
        let tree = unsafe { samara_tree::from(tree, call) }?;
        not_null(first.is_null(), call, "first is NULL")?;
        let Wanted { bounds, size, align } = wanted(min, max, size, align, call)?;
        let (map, guard) = tree.reading(call)?;
        let found = match end {
            End::Lowest => map.empty_area(guard, bounds, size, align),
            End::Highest => map.empty_area_rev(guard, bounds, size, align),
        }?;
        // SAFETY: the caller's promise.
        unsafe { first.write(found as u64) };
        Ok(())
    })
}

/// Finds the lowest `size` free indices from `min` to `max` that begin at a multiple of `align` (a
/// power of two; 1 for any), stores `entry` over them, and the first of them in `*first`.
///
/// If several holes in a row are long enough but fail by alignment, the place may be a higher one,
/// in a hole so long that it cannot fail. The caller's reference to `entry` goes to the tree; after
/// an error it is still the caller's.
///
/// Readers may see the entry before this call returns. An entry that contains its own place is
/// complete for them only in this order: under `samara_tree_lock`, `samara_tree_find_free`, then
/// the place is written into the entry, then `samara_tree_store`.
///
/// Errors: -ENOSPC; -EINVAL if a pointer is NULL, `min` > `max`, the size is 0 or the alignment is
/// no power of two; -ENOMEM, -EDEADLK as `samara_tree_store`. Cost: O(log n).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn samara_tree_alloc(
    tree: *mut samara_tree,
    min: u64,
    max: u64,
    size: u64,
    align: u64,
    entry: *mut c_void,
    first: *mut u64,
) -> c_int {
    let wanted = [min, max, size, align];
    // SAFETY: the caller's promise.
    unsafe { allocate(tree, wanted, entry, first, End::Lowest, "samara_tree_alloc") }
}

/// As `samara_tree_alloc`, but at the highest place.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn samara_tree_alloc_rev(
    tree: *mut samara_tree,
    min: u64,
    max: u64,
    size: u64,
    align: u64,
    entry: *mut c_void,
    first: *mut u64,
) -> c_int {
    let wanted = [min, max, size, align];
    // SAFETY: the caller's promise.
    unsafe { allocate(tree, wanted, entry, first, End::Highest, "samara_tree_alloc_rev") }
}

/// Searches from `next` on, and then from the beginning of the bounds. Returns the place, and the
/// `next` after it.
fn cyclic(
    wanted: &Wanted,
    next: u64,
    search: impl Fn(RangeInclusive<usize>, usize, usize) -> Result<usize, Error>,
) -> Result<(usize, u64), Error> {
    let Wanted { bounds, size, align } = wanted;
    let next = next as usize;
    let from = match bounds.contains(&next) {
        true => search(next..=*bounds.end(), *size, *align),
        false => Err(Error::NoSpace),
    };
    let place = match from {
        Err(Error::NoSpace) => search(bounds.clone(), *size, *align)?,
        place => place?,
    };
    let last = place + (size - 1);
    let following = if last < *bounds.end() { last + 1 } else { *bounds.start() };
    Ok((place, following as u64))
}

/// As `samara_tree_alloc`, but at the lowest place at or after `*next`; if there is none, at the
/// lowest place from `min` on. So an index that was freed is not used again soon. `*next` becomes
/// the index behind the place, or `min` if that is UINT64_MAX or behind `max`.
///
/// `*next` belongs to the caller and is read and written under the tree's lock. Errors: as
/// `samara_tree_alloc`; `*next` then keeps its value.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn samara_tree_alloc_cyclic(
    tree: *mut samara_tree,
    min: u64,
    max: u64,
    size: u64,
    align: u64,
    entry: *mut c_void,
    next: *mut u64,
    first: *mut u64,
) -> c_int {
    const CALL: &str = "samara_tree_alloc_cyclic";
    border(|| {
        // SAFETY: the caller passes NULL or a tree.
        let tree = unsafe { samara_tree::from(tree, CALL) }?;
        not_null(first.is_null() || next.is_null(), CALL, "first or next is NULL")?;
        let entry = entry_of(entry, CALL)?;
        let wanted = wanted(min, max, size, align, CALL)?;
        let found = tree.write(CALL, |writer, _| {
            // SAFETY: the caller passes a valid index.
            let from = unsafe { next.read() };
            let search = |bounds, size, align| writer.empty_area(bounds, size, align);
            let (place, following) = cyclic(&wanted, from, search)?;
            let last = place + (wanted.size - 1);
            writer.insert_range(place..=last, entry).map_err(Error::from)?;
            // SAFETY: as above.
            unsafe { next.write(following) };
            Ok(place)
        })?;
        // SAFETY: the caller passes a place for the index.
        unsafe { first.write(found as u64) };
        Ok(())
    })
}

/// Finds the lowest `size` free indices from `min` to `max` that begin at a multiple of `align`, as
/// `samara_tree_alloc` does, and stores nothing. Under the lock they stay free; concurrently with a
/// writer, they were free at some moment during the call.
///
/// Errors: -ENOSPC; -EINVAL as `samara_tree_alloc`; -EPERM outside of a read section and of the
/// lock. Never waits or allocates. Cost: O(log n).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn samara_tree_find_free(
    tree: *const samara_tree,
    min: u64,
    max: u64,
    size: u64,
    align: u64,
    first: *mut u64,
) -> c_int {
    let wanted = [min, max, size, align];
    // SAFETY: the caller's promise.
    unsafe { find(tree, wanted, first, End::Lowest, "samara_tree_find_free") }
}

/// As `samara_tree_find_free`, but the highest place.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn samara_tree_find_free_rev(
    tree: *const samara_tree,
    min: u64,
    max: u64,
    size: u64,
    align: u64,
    first: *mut u64,
) -> c_int {
    let wanted = [min, max, size, align];
    // SAFETY: the caller's promise.
    unsafe { find(tree, wanted, first, End::Highest, "samara_tree_find_free_rev") }
}

/// As `samara_tree_find_free`, but the place that `samara_tree_alloc_cyclic` would take. `*next`
/// becomes the index behind it, as there: the next search skips the place, even if it stays free.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn samara_tree_find_free_cyclic(
    tree: *const samara_tree,
    min: u64,
    max: u64,
    size: u64,
    align: u64,
    next: *mut u64,
    first: *mut u64,
) -> c_int {
    const CALL: &str = "samara_tree_find_free_cyclic";
    border(|| {
        // SAFETY: the caller passes NULL or a tree.
        let tree = unsafe { samara_tree::from(tree, CALL) }?;
        not_null(first.is_null() || next.is_null(), CALL, "first or next is NULL")?;
        let wanted = wanted(min, max, size, align, CALL)?;
        let (map, guard) = tree.reading(CALL)?;
        let search = |bounds, size, align| map.empty_area(guard, bounds, size, align);
        // SAFETY: the caller passes a valid index, and a place for another one.
        unsafe {
            let (place, following) = cyclic(&wanted, next.read(), search)?;
            next.write(following);
            first.write(place as u64);
        }
        Ok(())
    })
}
