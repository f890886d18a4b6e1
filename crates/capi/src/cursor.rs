//! Cursors: positions in a tree, in memory of the caller.
//!
//! A cursor keeps the path to its range, so that a step is short. The path is valid as long as no
//! node on it is freed: until the read section ends, or, for the tree's writer, until it writes. A
//! cursor checks that with numbers of sections, sessions and writes. Otherwise it continues from
//! the indices alone.

use crate::engine::Guard;
use crate::entry::Word;
use crate::errno::{Errno, border, misuse, not_null};
use crate::read_calls::samara_range;
use crate::thread::Local;
use crate::tree::samara_tree;
use crate::write_calls::entry_of;
use crate::{Map, Writer};
use core::ffi::{c_int, c_void};
use core::mem::MaybeUninit;
use core::ops::RangeInclusive;
use core::ptr::NonNull;
use maple::cursor::State as At;
use maple::{Error, Paused, ReadCursor};

/// A position in a tree, for the stack or wherever the caller wants it. `samara_cursor_init` sets
/// it up; it holds no memory, so nothing needs to be undone. It must not be copied while it is
/// used. Opaque.
#[repr(C)]
#[allow(non_camel_case_types)]
pub struct samara_cursor {
    /// Private.
    pub opaque: [u64; 144],
}

/// The protection of the nodes on the path.
#[derive(Clone, Copy, PartialEq, Eq)]
enum PathKeeper {
    /// The read section of the record at this address with this number.
    Section(usize, u64),
    /// The program's RCU.
    Program,
    /// The lock, held for the time with this number; and no write since.
    Session(u64),
    /// The tree is exclusive; and no write since.
    Exclusive,
}

/// The contents of a [`samara_cursor`].
struct CursorState {
    /// [`MAGIC`]: the cursor is set up.
    magic: u64,
    tree: *const samara_tree,
    kind: PathKeeper,
    /// The number of the tree's changes when the path was made. Only for its writer.
    version: u64,
    /// The entry that the last move has found.
    entry: Option<NonNull<()>>,
    /// The position without a path, while the cursor is paused.
    paused: Option<Paused>,
    /// The position with a path, unless it is paused. Needs no drop.
    at: MaybeUninit<ReadCursor<'static, Word>>,
}

const MAGIC: u64 = 0x7361_6d61_7261_2d63;

const _: () = {
    assert!(size_of::<CursorState>() <= size_of::<samara_cursor>());
    assert!(align_of::<CursorState>() <= align_of::<samara_cursor>());
    assert!(!core::mem::needs_drop::<CursorState>());
};

impl CursorState {
    /// # Safety
    /// NULL, or a cursor that only this call uses, of a tree that exists.
    unsafe fn from<'a>(
        cursor: *mut samara_cursor,
        call: &str,
    ) -> Result<&'a mut CursorState, Errno> {
        not_null(cursor.is_null(), call, "the cursor is NULL")?;
        let state = cursor.cast::<CursorState>();
        // SAFETY: the caller's promise. The magic number is first checked alone: other bytes may
        // be no valid `CursorState`.
        if unsafe { (&raw const (*state).magic).read() } != MAGIC {
            return Err(misuse(libc::EINVAL, call, "the cursor was not set up"));
        }
        // SAFETY: `init` has written the whole state.
        Ok(unsafe { &mut *state })
    }

    /// # Safety
    /// The tree exists.
    unsafe fn tree(&self) -> &'static samara_tree {
        // SAFETY: the caller's promise.
        unsafe { &*self.tree }
    }

    /// The present protection of this thread's reads.
    fn kind_now(tree: &samara_tree, call: &str) -> Result<PathKeeper, Errno> {
        tree.reading(call)?;
        Ok(if tree.is_exclusive() {
            PathKeeper::Exclusive
        } else if tree.reads_as_writer() {
            PathKeeper::Session(tree.writer.sessions.get())
        } else if tree.options().rcu.is_null() {
            let section = Local::with(Local::section_of_record);
            section.map_or(PathKeeper::Section(0, 0), |(record, number)| {
                PathKeeper::Section(record, number)
            })
        } else {
            PathKeeper::Program
        })
    }

    /// The position, with a path that is valid.
    ///
    /// # Safety
    /// The tree exists.
    #[inline(always)]
    unsafe fn ready(&mut self, call: &str) -> Result<&mut ReadCursor<'static, Word>, Errno> {
        if let PathKeeper::Section(record, number) = self.kind
            && self.paused.is_none()
            && Local::with(Local::section_of_record) == Some((record, number))
        {
            // The usual case: the section goes on.
            // SAFETY: it is not paused, so it was written.
            return Ok(unsafe { self.at.assume_init_mut() });
        }
        // SAFETY: the caller's promise.
        unsafe { self.make_ready(call) }
    }

    /// As [`CursorState::ready`], in every case.
    ///
    /// # Safety
    /// The tree exists.
    unsafe fn make_ready(&mut self, call: &str) -> Result<&mut ReadCursor<'static, Word>, Errno> {
        // SAFETY: the caller's promise.
        let tree = unsafe { self.tree() };
        let mut now = Self::kind_now(tree, call)?;
        if let PathKeeper::Session(number) = self.kind
            && Local::with(|local| tree.is_owner(local))
            && tree.writer.sessions.get() == number
        {
            // A read section has begun since: the lock still protects the path.
            now = self.kind;
        }
        if now != self.kind && self.paused.is_none() {
            let cause = "its read section or lock has ended; pause a cursor that is used longer";
            return Err(misuse(libc::EPERM, call, cause));
        }
        self.kind = now;
        if matches!(now, PathKeeper::Exclusive | PathKeeper::Session(_)) {
            let version = tree.writer.version.get();
            if version != self.version {
                self.pause();
                self.version = version;
            }
        }
        if let Some(place) = self.paused.take() {
            let (map, guard) = Self::map(tree);
            self.at.write(map.resume(guard, place));
        }
        // SAFETY: it is not paused, so it was written.
        Ok(unsafe { self.at.assume_init_mut() })
    }

    /// The map, for a cursor.
    fn map(tree: &'static samara_tree) -> (&'static Map, &'static Guard) {
        // SAFETY: `kind_now` has found that this thread may read. `ready` checks before each use
        // whether it still may, and whether the path is still valid.
        unsafe { (&*tree.map.get(), Guard::new()) }
    }

    /// Forgets the path, and keeps the position.
    fn pause(&mut self) {
        if self.paused.is_none() {
            // SAFETY: it is not paused, so it was written. The copy is the only one that is used.
            let at = unsafe { self.at.assume_init_read() };
            self.paused = Some(at.pause());
        }
    }
}

/// Sets a cursor up at `index`. The first move finds the range at the index, or the next one in its
/// direction.
///
/// The caller is in a read section, or holds the tree's lock, or the tree is exclusive. The cursor
/// may be used until the section ends or the lock is released; after `samara_cursor_pause`, in
/// another section or under the lock. The tree must not be destroyed meanwhile.
///
/// In a read section, it moves on while writers change the tree, and meets each index at most once.
/// Under the lock it shows the tree as it is, and continues after writes of its own thread.
///
/// Errors: -EINVAL if a pointer is NULL; -EPERM. Constant time. No memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn samara_cursor_init(
    cursor: *mut samara_cursor,
    tree: *const samara_tree,
    index: u64,
) -> c_int {
    const CALL: &str = "samara_cursor_init";
    border(|| {
        not_null(cursor.is_null(), CALL, "the cursor is NULL")?;
        let state = cursor.cast::<CursorState>();
        // SAFETY: the caller passes a place for a cursor. It counts as set up at the end only.
        unsafe { (&raw mut (*state).magic).write(0) };
        // SAFETY: the caller passes NULL or a tree.
        let this: &'static samara_tree = unsafe { samara_tree::from(tree, CALL) }?;
        let kind = CursorState::kind_now(this, CALL)?;
        let version = match kind {
            PathKeeper::Exclusive | PathKeeper::Session(_) => this.writer.version.get(),
            _ => 0,
        };
        let (map, guard) = CursorState::map(this);
        // SAFETY: as above; the size and alignment fit. The position is written in its place.
        unsafe {
            (&raw mut (*state).tree).write(tree);
            (&raw mut (*state).kind).write(kind);
            (&raw mut (*state).version).write(version);
            (&raw mut (*state).entry).write(None);
            (&raw mut (*state).paused).write(None);
            (*state).at.write(map.cursor(guard, index as usize));
            (&raw mut (*state).magic).write(MAGIC);
        }
        Ok(())
    })
}

/// Performs a move, and writes the range that it has found.
///
/// # Safety
/// The obligations of a call of C: valid pointers or NULL.
#[inline(always)]
unsafe fn step<R>(
    cursor: *mut samara_cursor,
    out: *mut samara_range,
    call: &str,
    go: impl FnOnce(&mut ReadCursor<'static, Word>) -> Option<R>,
) -> c_int
where
    samara_range: From<R>,
{
    border(|| {
        // SAFETY: the caller's promise.
        let state = unsafe { CursorState::from(cursor, call) }?;
        not_null(out.is_null(), call, "out is NULL")?;
        // SAFETY: the tree exists as long as its cursors are used.
        let found = go(unsafe { state.ready(call) }?).map(samara_range::from);
        state.entry = found.and_then(|range| NonNull::new(range.entry.cast()));
        // SAFETY: the caller passes a place for a range.
        unsafe { out.write(found.ok_or(Errno::NO_ENTRY)?) };
        Ok(())
    })
}

/// Moves to the next range that begins at or before `limit`, and stores it in `*out`. After
/// `samara_cursor_init` or `samara_cursor_set`, that may be the range at the index.
///
/// Errors: -ENOENT if there is none: then the cursor is behind `limit`, and
/// `samara_cursor_prev` turns back from there; -EINVAL if a pointer is NULL or the cursor was not
/// set up; -EPERM if its section or lock has ended. Never waits or allocates. Cost: a few
/// instructions in a leaf; the first move O(log n).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn samara_cursor_next(
    cursor: *mut samara_cursor,
    limit: u64,
    out: *mut samara_range,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { step(cursor, out, "samara_cursor_next", |at| at.find(limit as usize)) }
}

/// Moves to the previous range that ends at or after `limit`, and stores it in `*out`. Otherwise as
/// `samara_cursor_next`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn samara_cursor_prev(
    cursor: *mut samara_cursor,
    limit: u64,
    out: *mut samara_range,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { step(cursor, out, "samara_cursor_prev", |at| at.find_rev(limit as usize)) }
}

/// As `samara_cursor_next`, but finds holes, too. Their entry is NULL. With a concurrent writer, a
/// hole may appear in parts.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn samara_cursor_next_or_hole(
    cursor: *mut samara_cursor,
    limit: u64,
    out: *mut samara_range,
) -> c_int {
    const CALL: &str = "samara_cursor_next_or_hole";
    // SAFETY: the caller's promise.
    unsafe { step(cursor, out, CALL, |at| at.next_range(limit as usize)) }
}

/// As `samara_cursor_prev`, but finds holes, too. Their entry is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn samara_cursor_prev_or_hole(
    cursor: *mut samara_cursor,
    limit: u64,
    out: *mut samara_range,
) -> c_int {
    const CALL: &str = "samara_cursor_prev_or_hole";
    // SAFETY: the caller's promise.
    unsafe { step(cursor, out, CALL, |at| at.prev_range(limit as usize)) }
}

/// Moves a cursor to `index`, as `samara_cursor_init` does.
///
/// Errors: -EINVAL if the cursor is NULL or was not set up; -EPERM. Constant time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn samara_cursor_set(cursor: *mut samara_cursor, index: u64) -> c_int {
    const CALL: &str = "samara_cursor_set";
    border(|| {
        // SAFETY: the caller passes NULL or a cursor.
        let state = unsafe { CursorState::from(cursor, CALL) }?;
        state.entry = None;
        // SAFETY: the tree exists as long as its cursors are used.
        unsafe { state.ready(CALL) }?.set(index as usize);
        Ok(())
    })
}

/// Prepares a cursor for use after the read section has ended or the lock was released. The next
/// move continues behind the present range, in the tree as it is then.
///
/// Call it before the section ends. Errors: -EINVAL, -EPERM as `samara_cursor_set`. Constant time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn samara_cursor_pause(cursor: *mut samara_cursor) -> c_int {
    const CALL: &str = "samara_cursor_pause";
    border(|| {
        // SAFETY: the caller passes NULL or a cursor.
        let state = unsafe { CursorState::from(cursor, CALL) }?;
        if state.paused.is_none() {
            // SAFETY: the tree exists as long as its cursors are used.
            unsafe { state.ready(CALL) }?;
            state.pause();
        }
        Ok(())
    })
}

/// The frame of writes by a cursor: checks under the lock that the tree still has the range that
/// the cursor has found. Afterwards the cursor is paused, and has found the entry that the function
/// returns; for a hole, it is on all of it.
///
/// # Safety
/// NULL, or a cursor that only this call uses.
unsafe fn change(
    cursor: *mut samara_cursor,
    call: &str,
    f: impl FnOnce(
        &samara_tree,
        &mut Writer<'_>,
        *mut crate::queue::Queue,
        RangeInclusive<usize>,
        Option<NonNull<()>>,
    ) -> Result<Option<NonNull<()>>, Errno>,
) -> c_int {
    border(|| {
        // SAFETY: the caller's promise.
        let state = unsafe { CursorState::from(cursor, call) }?;
        // SAFETY: the tree exists as long as its cursors are used.
        let at = unsafe { state.ready(call) }?;
        if !matches!(at.state(), At::Active | At::Paused) {
            return Err(misuse(libc::EINVAL, call, "the cursor is on no range"));
        }
        let (range, entry) = (at.range(), state.entry);
        // SAFETY: as above.
        let tree = unsafe { state.tree() };
        tree.write(call, |writer, queue| {
            let (first, last) = (*range.start(), *range.end());
            let same = match entry {
                Some(entry) => writer.lookup(first) == Some((range.clone(), entry)),
                None => writer.find(first..=last).is_none(),
            };
            if !same {
                return Err(Errno(libc::ESTALE));
            }
            // The write may free nodes on the path.
            state.pause();
            state.entry = f(tree, writer, queue, range, entry)?;
            if state.entry.is_none() {
                let mut at = writer.cursor(first);
                at.walk();
                state.paused = Some(at.pause());
            }
            Ok(())
        })
    })
}

/// Removes the range that the cursor is on. The cursor is then on the whole hole that this leaves,
/// with the free indices on both sides. The next move continues behind it (or before it), and
/// `samara_cursor_store` would fill all of it. `removed` is as for `samara_tree_erase`; NULL
/// releases the entry.
///
/// Errors: -ENOENT if it is a hole; -ESTALE if a writer has changed it since; -EINVAL if the cursor
/// is on no range; -EPERM, -ENOMEM, -EDEADLK as for moves and `samara_tree_erase`. Waits for the
/// lock, unless this thread holds it. Cost: O(log n).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn samara_cursor_erase(
    cursor: *mut samara_cursor,
    removed: *mut samara_range,
) -> c_int {
    // SAFETY: the caller passes NULL or a cursor.
    unsafe {
        change(cursor, "samara_cursor_erase", |tree, writer, queue, range, entry| {
            let entry = entry.ok_or(Errno::NO_ENTRY)?;
            writer.erase(*range.start())?;
            if !removed.is_null() {
                // The caller passes a place for a range.
                removed.write((range, entry).into());
            } else if let Some(piece) = tree.release_of(entry) {
                // This thread writes the tree. `write` has reserved room for one.
                (*queue).push(piece);
            }
            Ok(None)
        })
    }
}

/// Stores `entry` over the range or hole that the cursor is on, and releases the entry that was
/// there. The cursor stays there, and may store or erase again. The next move continues
/// behind it (or before it). The caller's reference goes to the tree; after an error it is still
/// the caller's.
///
/// Errors: -ESTALE if another call has changed the range since; -EINVAL also if the entry is NULL;
/// otherwise as `samara_cursor_erase`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn samara_cursor_store(
    cursor: *mut samara_cursor,
    entry: *mut c_void,
) -> c_int {
    const CALL: &str = "samara_cursor_store";
    let new = match entry_of(entry, CALL) {
        Ok(new) => new,
        Err(Errno(errno)) => return -errno,
    };
    // SAFETY: the caller passes NULL or a cursor.
    unsafe {
        change(cursor, CALL, |tree, writer, queue, range, _| {
            tree.replace(writer, queue, *range.start(), *range.end(), |writer| {
                Ok(writer.store_range(range, new).map_err(Error::from)?)
            })?;
            Ok(Some(new.0))
        })
    }
}
