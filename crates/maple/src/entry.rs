//! Entries: values that fit in one word.
//!
//! A slot is one pointer-sized word; null is a hole. The word is a pointer and not an integer, so
//! that an entry that is a pointer keeps its provenance.
//!
//! | module | entries |
//! | --- | --- |
//! | `numbers` | integers, `bool`, `char`, `f32`, `()`: in the word |
//! | `wide` | `u64`, `usize`, `i64`, `isize`, `f64`: most in the word, others in a box |
//! | `shared` | `Arc` and `Weak`, of types of any size |
//! | `boxes` | `&'static`, `Box`, [`Owned`], [`Address`] |
//! | `ref_counted` | [`RefCounted`], an `Arc` whose allocation may fail |
//! | `statics` | `&'static str` and slices |
//! | `option` | `Option` of most others |
//! | `custom` | `entry!`, for types of one's own |

mod boxes;
mod custom;
mod fat;
mod numbers;
mod option;
mod ref_counted;
mod shared;
mod statics;
#[cfg(test)]
mod tests;
mod wide;

pub use boxes::{Address, Owned};
pub use ref_counted::{RefCounted, RefCountedRef};
pub use shared::{ArcRef, WeakRef};

use crate::Error;
use core::num::NonZeroUsize;
use core::ptr::{self, NonNull};

/// An entry as the tree stores it: a word that is never null.
pub type Raw = NonNull<()>;

/// A word that is no pointer.
const fn without_provenance(word: NonZeroUsize) -> Raw {
    // SAFETY: it is not null.
    unsafe { NonNull::new_unchecked(ptr::without_provenance_mut(word.get())) }
}

/// A value that a tree can hold: it turns into one non-null word and back.
///
/// Most programs use the types that implement it: integers and other plain values, `Arc`, `Weak`,
/// `Box<T: Clone>`, [`Owned`], `&'static T`, also of text and slices, [`RefCounted`], [`Address`],
/// and `Option`s of most of them. [`entry!`](crate::entry!) makes a type of your own an entry
/// without unsafe code.
///
/// Entries are `Send + 'static` because a removed entry may be dropped after a grace period, by any
/// thread, and after the tree. They are `Sync` because two threads can hold references to one entry
/// even if they do not share the tree: one holds the result of [`load`](crate::MapleTree::load),
/// the other the [`Erased`](crate::Erased) of the same entry.
///
/// # Safety
///
/// - If `try_into_raw(e)` is `Ok(raw)`, then `from_raw(raw)` is `e` again. The tree calls
///   `from_raw` at most once for each word from `try_into_raw` or `try_dup`.
/// - Between the two calls, `borrow` is sound on any thread, on several at once, and any number of
///   times. A `Ref` gives no more access than a `&Self`: every part of it that can be sent or
///   shared is sound to send or share because `Self` is `Sync`.
/// - `try_dup` returns a word for a new entry, or an error and changes nothing. It runs on one
///   thread while others may `borrow` the source. It may unwind if the source is unharmed.
/// - If `SHARES` is true, `try_dup` succeeds and returns the same word.
/// - If `NEEDS_DROP` is false, or `owns` is for a word, forgetting the word is equivalent to
///   dropping the entry, and the word may be copied freely: `from_raw` may be called more than
///   once, also while others `borrow` it.
/// - `SPARE`, if there is one, is no word of any entry.
///
/// Neither `drop` nor `try_dup` of an entry may take a tree's lock; see [the
/// crate](crate#rules-for-the-code-of-entries).
///
/// ```
/// use maple::MapleTree;
/// use std::sync::Arc;
/// let mut tree = MapleTree::<Arc<String>>::new();
/// let text = Arc::new(String::from("shared"));
/// tree.get_mut().store_range(0..=9, text.clone()).unwrap();
/// assert_eq!(tree.get_mut().load(5).unwrap().as_str(), "shared");
/// ```
///
/// A value that must not be shared between threads cannot be an entry, not even inside a pointer:
///
/// ```compile_fail,E0277
/// use std::cell::Cell;
/// let tree = maple::MapleTree::<Box<Cell<u64>>, grace::Epoch>::new();
/// ```
///
/// ```compile_fail,E0277
/// use std::{cell::Cell, sync::Arc};
/// let tree = maple::MapleTree::<Arc<Cell<u64>>, grace::Epoch>::new();
/// ```
///
/// ```compile_fail,E0277
/// use maple::RefCounted;
/// use std::cell::Cell;
/// let tree = maple::MapleTree::<RefCounted<Cell<u64>>, grace::Epoch>::new();
/// ```
///
/// ```compile_fail,E0277
/// use std::cell::Cell;
/// let tree = maple::MapleTree::<&'static Cell<u64>, grace::Epoch>::new();
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be an entry of a tree",
    label = "not an entry",
    note = "use `Arc<T>`, `Box<T>` (of a `T: Clone`), `maple::Owned<T>` (without `Clone`), \
            `&'static T`, or a number",
    note = "text is `Arc<str>` or `&'static str`",
    note = "`maple::entry!` makes a type of your own an entry",
    note = "what an entry points to must be `Send`, `Sync` and `'static`"
)]
pub unsafe trait Entry: Sized + Send + Sync + 'static {
    /// The result of a lookup; valid as long as the reader's guard.
    type Ref<'g>: 'g;

    /// Whether an entry that leaves the tree must be dropped.
    const NEEDS_DROP: bool;

    /// Whether a duplicate is interchangeable with the original, as for a shared pointer or a plain
    /// value. If so, a duplicate of a tree shares its nodes and entries with the original until one
    /// of the two trees is written.
    const SHARES: bool = false;

    /// A word that no entry has, for `None` in an `Option`. Without one, `Option`s are no entries.
    const SPARE: Option<NonZeroUsize> = None;

    /// The entry as a word. Few types allocate here: see the type.
    ///
    /// # Errors
    /// The entry, if there is no memory for its word.
    fn try_into_raw(self) -> Result<Raw, Self>;

    /// The entry back from its word.
    ///
    /// # Safety
    /// The word came from `try_into_raw` or `try_dup` of this type and has not been turned back
    /// before.
    unsafe fn from_raw(raw: Raw) -> Self;

    /// A reference to the entry in the word.
    ///
    /// # Safety
    /// The entry is not turned back with [`from_raw`](Entry::from_raw) during `'g`.
    unsafe fn borrow<'g>(raw: Raw) -> Self::Ref<'g>;

    /// A second entry equal to the first. The tree needs one when a write splits a range in two,
    /// and for a duplicate of the tree.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], or [`Error::Whole`] if the type has no duplicates.
    ///
    /// # Safety
    /// The word holds an entry, as for [`borrow`](Entry::borrow).
    unsafe fn try_dup(raw: Raw) -> Result<Raw, Error>;

    /// Whether the entry in a word must be dropped; only asked if `NEEDS_DROP` is true.
    #[inline]
    fn owns(_raw: Raw) -> bool {
        Self::NEEDS_DROP
    }
}

/// An entry whose value the only owner of a tree can change in place: `Box` and [`Owned`].
///
/// # Safety
/// The word of an entry is a pointer to a `Value` that belongs to this entry alone, and
/// [`Entry::SHARES`] is false.
pub unsafe trait EntryMut: Entry {
    /// The type of the value.
    type Value;
}

/// Drops the entry in a word. It has the signature that [`grace::Reclaim::retire`] takes.
///
/// # Safety
/// As for [`Entry::from_raw`].
pub(crate) unsafe fn drop_raw<E: Entry>(raw: Raw) {
    // SAFETY: the caller's promise.
    drop(unsafe { E::from_raw(raw) });
}
