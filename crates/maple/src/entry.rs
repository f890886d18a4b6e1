//! What a tree can hold: anything that fits in one word.
//!
//! A slot is one pointer-sized word; null is a hole. The word is a pointer type, not an integer, so
//! that a pointer's provenance survives the stay in the tree. The implementations for the usual
//! types are in [`impls`].

mod impls;
mod ref_counted;

pub use impls::ArcRef;
pub use ref_counted::{RefCounted, RefCountedRef};

use crate::AllocError;
use core::ptr::NonNull;

/// One entry as the tree stores it: a word that is never null.
pub type Raw = NonNull<()>;

/// A value that a tree can hold: it turns into one non-null word and back.
///
/// Entries are `Send + 'static` because one that is removed beside readers is dropped after a grace
/// period, by any thread, perhaps when the tree is gone. They are `Sync` because two threads can
/// look at one entry even if they do not share the tree: one holds what
/// [`load`](crate::MapleTree::load) returned, the other the [`Erased`](crate::Erased) of the same
/// entry.
///
/// # Safety
///
/// - `from_raw(into_raw(e))` is `e` again. The tree calls `from_raw` at most once for each word
///   that came from `into_raw` or `try_dup`.
/// - Between the two, `borrow` is sound from any thread, on several at once, any number of times;
///   and a `Ref` gives no more than a `&Self` does: what can be sent or shared of it is sound to
///   send or share because `Self` is `Sync`.
/// - `try_dup` returns a word of its own, or an error and changes nothing. It runs on one thread
///   while others may `borrow` the source. It may unwind if the source is unharmed.
/// - If `SHARES` is true, `try_dup` succeeds and returns the same word.
/// - If `NEEDS_DROP` is false, forgetting the word is as good as dropping the entry, and the word
///   may be copied freely: `from_raw` may then be called more than once, while others `borrow` it.
///
/// Neither dropping nor duplicating an entry may take a tree's lock; see
/// [the crate](crate#what-an-entrys-code-may-do).
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
/// A value that must not be shared between threads is no entry, whatever it is wrapped in:
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
pub unsafe trait Entry: Sized + Send + Sync + 'static {
    /// What a lookup returns, good for as long as the reader's guard.
    type Ref<'g>: 'g;

    /// Whether an entry that leaves the tree must be dropped.
    const NEEDS_DROP: bool;

    /// Whether a duplicate is as good as the original: a shared pointer, or a plain value. Then a
    /// duplicate of a tree shares its nodes, and entries with them, until one of the two is written
    /// to.
    const SHARES: bool = false;

    /// The entry as a word.
    fn into_raw(self) -> Raw;

    /// The entry back from its word.
    ///
    /// # Safety
    /// The word came from `into_raw` or `try_dup` of this type and has not been turned back before.
    unsafe fn from_raw(raw: Raw) -> Self;

    /// A look at the entry behind the word.
    ///
    /// # Safety
    /// The entry is not turned back with [`from_raw`](Entry::from_raw) while `'g` lasts.
    unsafe fn borrow<'g>(raw: Raw) -> Self::Ref<'g>;

    /// A second entry equal to the first: for the other half when a range is split in two, and for
    /// duplicating a tree.
    ///
    /// # Errors
    /// When there is no memory for it.
    ///
    /// # Safety
    /// The word holds an entry, as for [`borrow`](Entry::borrow).
    unsafe fn try_dup(raw: Raw) -> Result<Raw, AllocError>;
}

/// Drops the entry behind a word: the form that [`grace::Reclaim::retire`] takes.
///
/// # Safety
/// As for [`Entry::from_raw`].
pub(crate) unsafe fn drop_raw<E: Entry>(raw: Raw) {
    // SAFETY: the caller's promise.
    drop(unsafe { E::from_raw(raw) });
}
