//! Entries that are numbers smaller than a word: each is a word without provenance.
//!
//! `wide` has the numbers that take a whole word.

use super::{Entry, Raw, without_provenance};
use crate::Error;
use core::num::{
    NonZeroI8, NonZeroI16, NonZeroI32, NonZeroU8, NonZeroU16, NonZeroU32, NonZeroUsize,
};

/// Implements [`Entry`] for numbers: `$to` turns one into a non-zero word, `$from` turns it back.
macro_rules! number {
    ($spare:expr; $($type:ty: $to:expr, $from:expr;)*) => {$(
        // SAFETY: the word is a number without provenance that maps back to the value; there is
        // nothing to drop.
        unsafe impl Entry for $type {
            type Ref<'g> = $type;
            const NEEDS_DROP: bool = false;
            const SHARES: bool = true;
            const SPARE: Option<NonZeroUsize> = $spare;

            #[inline]
            fn try_into_raw(self) -> Result<Raw, Self> {
                let to: fn($type) -> NonZeroUsize = $to;
                Ok(without_provenance(to(self)))
            }

            #[inline]
            unsafe fn from_raw(raw: Raw) -> Self {
                let from: fn(NonZeroUsize) -> $type = $from;
                from(raw.addr())
            }

            #[inline]
            unsafe fn borrow<'g>(raw: Raw) -> Self::Ref<'g> {
                let from: fn(NonZeroUsize) -> $type = $from;
                from(raw.addr())
            }

            #[inline]
            unsafe fn try_dup(raw: Raw) -> Result<Raw, Error> {
                Ok(raw)
            }
        }
    )*};
}

/// Zero is the word of a hole, so small integers are stored plus one.
#[inline]
fn up(value: usize) -> NonZeroUsize {
    NonZeroUsize::MIN.saturating_add(value)
}

#[inline]
fn down(word: NonZeroUsize) -> usize {
    word.get() - 1
}

// No number below needs the largest word.
number! { Some(NonZeroUsize::MAX);
    (): |()| up(0), |_| ();
    bool: |v| up(v.into()), |w| down(w) != 0;
    u8: |v| up(v.into()), |w| down(w) as u8;
    u16: |v| up(v.into()), |w| down(w) as u16;
    i8: |v| up((v as u8).into()), |w| down(w) as i8;
    i16: |v| up((v as u16).into()), |w| down(w) as i16;
    // Each word comes from a `char`.
    char: |v| up(v as usize), |w| char::from_u32(down(w) as u32).unwrap_or_default();
}

// With 32-bit pointers, `wide` has these: their values and the hole do not fit in one word.
#[cfg(target_pointer_width = "64")]
number! { Some(NonZeroUsize::MAX);
    u32: |v| up(v as usize), |w| down(w) as u32;
    i32: |v| up(v as u32 as usize), |w| down(w) as i32;
    f32: |v| up(v.to_bits() as usize), |w| f32::from_bits(down(w) as u32);
}

/// Integers that are never zero are their own words.
macro_rules! non_zero {
    ($($type:ty, $bits:ty;)*) => { number! { None;
        $($type: |v| word(v.get() as $bits as usize), |w| {
            <$type>::new(w.get() as _).unwrap_or(<$type>::MAX)
        };)*
    } };
}

#[inline]
fn word(value: usize) -> NonZeroUsize {
    NonZeroUsize::new(value).unwrap_or(NonZeroUsize::MAX)
}

non_zero! {
    NonZeroU8, u8;
    NonZeroU16, u16;
    NonZeroU32, u32;
    NonZeroUsize, usize;
    NonZeroI8, u8;
    NonZeroI16, u16;
    NonZeroI32, u32;
}

#[cfg(target_pointer_width = "64")]
non_zero! {
    core::num::NonZeroU64, u64;
    core::num::NonZeroI64, u64;
}
