//! Keys: types that stand for an index of the tree.

use crate::Index;
use core::net::Ipv4Addr;
use core::ops::{Bound, RangeBounds, RangeInclusive};

/// A type whose values are in order, without gaps, and stand for indices.
///
/// It is implemented for integers of up to 64 bits and for `Ipv4Addr`. (The few 32-bit targets
/// without 64-bit atomics have no `u64` and `i64`: see [`Index`].) A newtype takes four lines; the
/// cost is that of the conversions, nothing for a newtype.
///
/// Keys have at most 64 bits. IPv6 networks up to /64 fit: their key is the upper half of an
/// address.
///
/// ```
/// use maple::{Index, Key, RangeMap};
///
/// #[derive(Clone, Copy, Debug, PartialEq)]
/// struct Page(u32);
/// impl Key for Page {
///     const MIN: Self = Page(0);
///     const MAX: Self = Page(u32::MAX);
///     fn to_index(self) -> Index {
///         self.0.to_index()
///     }
///     fn from_index(index: Index) -> Self {
///         Page(u32::from_index(index))
///     }
/// }
///
/// let mut map = RangeMap::<Page, u8>::new();
/// map.store(Page(3)..Page(8), 1)?;
/// assert_eq!(map.lookup(Page(5)), Some((Page(3)..=Page(7), 1)));
/// # Ok::<(), maple::Error>(())
/// ```
///
/// # Misuse
/// Conversions that are not each other's inverse give wrong ranges; one that panics does so before
/// a change. Memory safety does not depend on them.
pub trait Key: Copy {
    /// The lowest key.
    const MIN: Self;
    /// The highest key.
    const MAX: Self;

    /// The index of a key. A higher key has a higher index, and neighbours have neighbours.
    fn to_index(self) -> Index;

    /// The key of an index, which is that of a key between `MIN` and `MAX`. So a narrow key may cut
    /// the upper bits of the index off.
    fn from_index(index: Index) -> Self;
}

macro_rules! unsigned {
    ($($type:ty),*) => {$(
        impl Key for $type {
            const MIN: Self = <$type>::MIN;
            const MAX: Self = <$type>::MAX;

            #[inline]
            fn to_index(self) -> Index {
                self as Index
            }

            #[inline]
            fn from_index(index: Index) -> Self {
                index as $type
            }
        }
    )*};
}

/// Signed integers: the lowest has index 0.
macro_rules! signed {
    ($($type:ty as $unsigned:ty),*) => {$(
        impl Key for $type {
            const MIN: Self = <$type>::MIN;
            const MAX: Self = <$type>::MAX;

            #[inline]
            fn to_index(self) -> Index {
                (self as $unsigned ^ <$type>::MIN as $unsigned) as Index
            }

            #[inline]
            fn from_index(index: Index) -> Self {
                (index as $unsigned ^ <$type>::MIN as $unsigned) as $type
            }
        }
    )*};
}

unsigned!(u8, u16, u32, usize);
signed!(i8 as u8, i16 as u16, i32 as u32, isize as usize);
#[cfg(any(target_pointer_width = "64", target_has_atomic = "64"))]
unsigned!(u64);
#[cfg(any(target_pointer_width = "64", target_has_atomic = "64"))]
signed!(i64 as u64);

impl Key for Ipv4Addr {
    const MIN: Self = Ipv4Addr::new(0, 0, 0, 0);
    const MAX: Self = Ipv4Addr::new(255, 255, 255, 255);

    #[inline]
    fn to_index(self) -> Index {
        self.to_bits().to_index()
    }

    #[inline]
    fn from_index(index: Index) -> Self {
        Ipv4Addr::from_bits(u32::from_index(index))
    }
}

/// The indices of a range of keys. A range without keys is empty.
#[inline]
pub(super) fn indices<K: Key>(range: &impl RangeBounds<K>) -> RangeInclusive<Index> {
    #[allow(clippy::reversed_empty_ranges)]
    const EMPTY: RangeInclusive<Index> = 1..=0;
    let first = match range.start_bound() {
        Bound::Included(key) => Some(key.to_index()),
        Bound::Excluded(key) => key.to_index().checked_add(1),
        Bound::Unbounded => Some(K::MIN.to_index()),
    };
    let last = match range.end_bound() {
        Bound::Included(key) => Some(key.to_index()),
        Bound::Excluded(key) => key.to_index().checked_sub(1),
        Bound::Unbounded => Some(K::MAX.to_index()),
    };
    match (first, last) {
        (Some(first), Some(last)) => first..=last,
        _ => EMPTY,
    }
}

/// The keys of a range of indices.
#[inline]
pub(super) fn keys<K: Key>(range: &RangeInclusive<Index>) -> RangeInclusive<K> {
    K::from_index(*range.start())..=K::from_index(*range.end())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_in_order() {
        fn check<K: Key + PartialEq + core::fmt::Debug>(some: &[K]) {
            assert!(some.is_sorted_by_key(|key| key.to_index()));
            some.iter().for_each(|&key| assert_eq!(K::from_index(key.to_index()), key));
        }
        check(&[0u8, 1, 255]);
        check(&[i8::MIN, -1, 0, 1, i8::MAX]);
        check(&[i32::MIN, -1, 0, 1, i32::MAX]);
        check(&[isize::MIN, -1, 0, 1, isize::MAX]);
        #[cfg(any(target_pointer_width = "64", target_has_atomic = "64"))]
        {
            check(&[0, 1, 1 << 32, (1 << 32) + 1, u64::MAX]);
            check(&[i64::MIN, -1 << 32, -1, 0, 1, 1 << 32, i64::MAX]);
        }
        check(&[0, 1, usize::MAX]);
        check(&[Ipv4Addr::MIN, Ipv4Addr::LOCALHOST, Ipv4Addr::MAX]);
    }

    #[test]
    #[allow(clippy::reversed_empty_ranges)]
    fn every_form_of_a_range() {
        assert_eq!(indices::<u8>(&(..)), 0..=255);
        assert_eq!(indices(&(5u8..)), 5..=255);
        assert_eq!(indices(&(1u8..5)), 1..=4);
        assert_eq!(indices(&(1u8..=5)), 1..=5);
        assert_eq!(indices(&(..5u8)), 0..=4);
        assert_eq!(indices(&(..=5i8)), 0..=133);
        assert_eq!(indices(&(Bound::Excluded(1u8), Bound::Excluded(3))), 2..=2);
        assert!(indices(&(5u8..5)).is_empty() && indices(&(7u8..=5)).is_empty());
        assert!(indices(&(..0usize)).is_empty());
        assert!(indices(&(Bound::Excluded(usize::MAX), Bound::Unbounded)).is_empty());
    }
}
