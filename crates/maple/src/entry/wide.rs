//! Entries that are numbers as wide as a word, or wider.
//!
//! A word has as many values as they have, and one of them is the hole. So half of the values, the
//! common ones, are stored in the word, with its lowest bit set. The other half lie in a counted
//! box of their own: a store of such a value allocates, and may be refused for lack of memory.
//!
//! | type | in the word |
//! | --- | --- |
//! | `u64`, `usize` | values below 2^63 |
//! | `i64`, `isize` | values from -2^62 to 2^62 - 1 |
//! | `f64` | values whose last bit is zero: whole numbers, halves, quarters and so on |
//!
//! With 32-bit pointers the bounds are 2^31 and 2^30, and `u32`, `i32` and `f32` are here, too; of
//! floats only some are in the word.

use super::{Entry, Raw, fat, without_provenance};
use crate::Error;
use core::num::NonZeroUsize;

/// The bit that says that the word is the number, not a pointer to its box.
const INLINE: usize = 1;

/// No number and no box has this word.
const SPARE: NonZeroUsize = match NonZeroUsize::new(2) {
    Some(word) => word,
    None => NonZeroUsize::MIN,
};

#[inline]
fn store(value: u64) -> Result<Raw, ()> {
    let inline = usize::try_from(value).ok().filter(|&value| value <= usize::MAX >> 1);
    match inline.and_then(|value| NonZeroUsize::new(value << 1 | INLINE)) {
        Some(word) => Ok(without_provenance(word)),
        None => fat::store(value).map_err(drop),
    }
}

#[inline]
fn is_inline(raw: Raw) -> bool {
    raw.addr().get() & INLINE != 0
}

/// # Safety
/// As for [`Entry::borrow`].
#[inline]
unsafe fn load(raw: Raw) -> u64 {
    if is_inline(raw) {
        raw.addr().get() as u64 >> 1
    } else {
        // SAFETY: the caller's promise; the word is that of a box.
        *unsafe { fat::get(raw) }
    }
}

/// # Safety
/// As for [`Entry::from_raw`].
#[inline]
unsafe fn take(raw: Raw) -> u64 {
    // SAFETY: the caller's promise; the word is a number, or that of a box.
    if is_inline(raw) { unsafe { load(raw) } } else { unsafe { fat::take(raw) } }
}

/// Implements [`Entry`]: `$to` turns a value into a number, common ones into small ones.
macro_rules! wide {
    ($($type:ty: $to:expr, $from:expr;)*) => {$(
        // SAFETY: the word is a number without provenance that maps back to the value, or that of
        // a counted box that holds the number.
        unsafe impl Entry for $type {
            type Ref<'g> = $type;
            const NEEDS_DROP: bool = true;
            const SHARES: bool = true;
            const SPARE: Option<NonZeroUsize> = Some(SPARE);

            #[inline]
            fn try_into_raw(self) -> Result<Raw, Self> {
                let to: fn($type) -> u64 = $to;
                store(to(self)).map_err(|()| self)
            }

            #[inline]
            unsafe fn from_raw(raw: Raw) -> Self {
                let from: fn(u64) -> $type = $from;
                // SAFETY: the caller's promise.
                from(unsafe { take(raw) })
            }

            #[inline]
            unsafe fn borrow<'g>(raw: Raw) -> Self::Ref<'g> {
                let from: fn(u64) -> $type = $from;
                // SAFETY: the caller's promise.
                from(unsafe { load(raw) })
            }

            #[inline]
            unsafe fn try_dup(raw: Raw) -> Result<Raw, Error> {
                if is_inline(raw) {
                    return Ok(raw);
                }
                // SAFETY: the caller's promise; the word is that of a box.
                Ok(unsafe { fat::dup::<u64>(raw) })
            }

            #[inline]
            fn owns(raw: Raw) -> bool {
                !is_inline(raw)
            }
        }
    )*};
}

/// Small numbers, positive or negative, become small ones.
#[inline]
fn zigzag(value: i64) -> u64 {
    (value << 1 ^ value >> 63) as u64
}

#[inline]
fn zagzig(number: u64) -> i64 {
    (number >> 1) as i64 ^ -((number & 1) as i64)
}

wide! {
    u64: |v| v, |n| n;
    usize: |v| v as u64, |n| n as usize;
    i64: zigzag, zagzig;
    isize: |v| zigzag(v as i64), |n| zagzig(n) as isize;
    f64: |v| v.to_bits().rotate_right(1), |n| f64::from_bits(n.rotate_left(1));
}

// With 64-bit pointers, `numbers` has these.
#[cfg(target_pointer_width = "32")]
wide! {
    u32: |v| v.into(), |n| n as u32;
    i32: |v| zigzag(v.into()), |n| zagzig(n) as i32;
    f32: |v| v.to_bits().rotate_right(1).into(), |n| f32::from_bits((n as u32).rotate_left(1));
    core::num::NonZeroU64: |v| v.get(), |n| core::num::NonZeroU64::MIN.saturating_add(n - 1);
    core::num::NonZeroI64: |v| zigzag(v.get()), |n| {
        core::num::NonZeroI64::new(zagzig(n)).unwrap_or(core::num::NonZeroI64::MIN)
    };
}
