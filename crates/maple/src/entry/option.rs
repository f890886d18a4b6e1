//! Entries that may be absent although their range is taken: `Option`.

use super::{Entry, Raw, without_provenance};
use crate::Error;

/// The word of `None`. It fails to compile for entries without a spare word.
const fn none<E: Entry>() -> Raw {
    without_provenance(E::SPARE.expect("this type has no spare word for `None`"))
}

/// `None` is an entry, not a hole: its range is taken. A [`load`](crate::MapleTree::load) returns
/// `Some(None)` for it.
///
/// It does not compile for an `E` whose entries use every word, such as `NonZeroUsize`, `Weak`, or
/// another `Option`.
///
/// ```
/// use maple::MapleTree;
/// use std::sync::Arc;
/// let mut tree = MapleTree::<Option<Arc<str>>>::new();
/// tree.get_mut().store_range(0..=9, Some("mapped".into()))?;
/// tree.get_mut().store_range(10..=19, None)?;
/// assert_eq!(tree.get_mut().load(5).flatten().as_deref(), Some("mapped"));
/// assert!(tree.get_mut().load(15).unwrap().is_none());
/// assert!(tree.get_mut().load(25).is_none());
/// # Ok::<(), maple::Error>(())
/// ```
///
/// ```compile_fail
/// let mut tree = maple::MapleTree::<Option<std::num::NonZeroUsize>>::new();
/// let _ = tree.get_mut().store_range(0..=9, None);
/// ```
// SAFETY: the words are those of `E`, and one that `E` never has.
unsafe impl<E: Entry> Entry for Option<E> {
    type Ref<'g> = Option<E::Ref<'g>>;
    const NEEDS_DROP: bool = E::NEEDS_DROP;
    const SHARES: bool = E::SHARES;

    #[inline]
    fn try_into_raw(self) -> Result<Raw, Self> {
        self.map_or(const { Ok(none::<E>()) }, |entry| entry.try_into_raw().map_err(Some))
    }

    #[inline]
    unsafe fn from_raw(raw: Raw) -> Self {
        // SAFETY: the caller's promise; any other word is one of `E`.
        (raw != const { none::<E>() }).then(|| unsafe { E::from_raw(raw) })
    }

    #[inline]
    unsafe fn borrow<'g>(raw: Raw) -> Self::Ref<'g> {
        // SAFETY: as above.
        (raw != const { none::<E>() }).then(|| unsafe { E::borrow(raw) })
    }

    #[inline]
    unsafe fn try_dup(raw: Raw) -> Result<Raw, Error> {
        // SAFETY: as above.
        if raw == const { none::<E>() } { Ok(raw) } else { unsafe { E::try_dup(raw) } }
    }

    #[inline]
    fn owns(raw: Raw) -> bool {
        raw != const { none::<E>() } && E::owns(raw)
    }
}
