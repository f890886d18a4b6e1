//! The entries: pointers of the program.

use core::ptr::NonNull;
use maple::{Entry, Error, Raw};

/// A pointer of the program. The library keeps it and gives it back, and never reads through it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Word(pub(crate) NonNull<()>);

// SAFETY: the library only copies the pointer. Its target is the program's.
unsafe impl Send for Word {}
// SAFETY: as above.
unsafe impl Sync for Word {}

// SAFETY: the word is the pointer itself. A duplicate is the same word; there is nothing to drop,
// because references of the program are counted outside of the tree (`refcount.rs`).
unsafe impl Entry for Word {
    type Ref<'g> = NonNull<()>;
    const NEEDS_DROP: bool = false;
    const SHARES: bool = true;

    #[inline]
    fn try_into_raw(self) -> Result<Raw, Self> {
        Ok(self.0)
    }

    #[inline]
    unsafe fn from_raw(raw: Raw) -> Self {
        Word(raw)
    }

    #[inline]
    unsafe fn borrow<'g>(raw: Raw) -> Self::Ref<'g> {
        raw
    }

    #[inline]
    unsafe fn try_dup(raw: Raw) -> Result<Raw, Error> {
        Ok(raw)
    }
}
