//! `&'static` references to text and slices. They are two words, so they lie in a counted box.

use super::{Entry, Raw, fat};
use crate::Error;
use core::num::NonZeroUsize;

/// Implements [`Entry`]; loads return the reference itself.
macro_rules! statics {
    ($([$($of:tt)*] $target:ty;)*) => {$(
        /// A store allocates a box for the two words; duplicates share it.
        // SAFETY: the word is that of a counted box with the reference.
        unsafe impl<$($of)*> Entry for &'static $target {
            type Ref<'g> = &'static $target;
            const NEEDS_DROP: bool = true;
            const SHARES: bool = true;
            // A box is aligned to a word.
            const SPARE: Option<NonZeroUsize> = Some(NonZeroUsize::MIN);

            #[inline]
            fn try_into_raw(self) -> Result<Raw, Self> {
                fat::store(self)
            }

            #[inline]
            unsafe fn from_raw(raw: Raw) -> Self {
                // SAFETY: the caller's promise.
                unsafe { fat::take(raw) }
            }

            #[inline]
            unsafe fn borrow<'g>(raw: Raw) -> Self::Ref<'g> {
                // SAFETY: the caller's promise.
                *unsafe { fat::get::<Self>(raw) }
            }

            #[inline]
            unsafe fn try_dup(raw: Raw) -> Result<Raw, Error> {
                // SAFETY: the caller's promise.
                Ok(unsafe { fat::dup::<Self>(raw) })
            }
        }
    )*};
}

statics! {
    [] str;
    [T: Send + Sync + 'static] [T];
}
