//! Entries of all types: turned into words and back, counted, and in trees.

use super::*;
use crate::{Error, MapleTree, Refused};
use core::fmt;
use core::num::{
    NonZeroI8, NonZeroI16, NonZeroI32, NonZeroI64, NonZeroU8, NonZeroU16, NonZeroU32, NonZeroU64,
};
use std::boxed::Box;
use std::sync::{Arc, Weak};

fn round_trip<E: Entry + Copy + PartialEq + fmt::Debug>(values: &[E])
where
    for<'g> E::Ref<'g>: PartialEq<E> + fmt::Debug,
{
    for &value in values {
        let raw = value.try_into_raw().unwrap();
        // SAFETY: the word is fresh; such entries may be turned back more than once.
        unsafe {
            assert_eq!(E::borrow(raw), value);
            let dup = E::try_dup(raw).unwrap();
            assert_eq!(E::from_raw(dup), value);
            assert_eq!(E::from_raw(raw), value);
        }
    }
}

#[test]
fn numbers_keep_their_extremes() {
    round_trip(&[false, true]);
    round_trip(&["", "text"]);
    round_trip::<&'static [u16]>(&[&[], &[1, 2]]);
    round_trip(&[0, 1, u8::MAX]);
    round_trip(&[0, 1, u16::MAX]);
    round_trip(&[0, 1, u32::MAX]);
    round_trip(&[0, 1, -1, i8::MIN, i8::MAX]);
    round_trip(&[0, 1, -1, i16::MIN, i16::MAX]);
    round_trip(&[0, 1, -1, i32::MIN, i32::MAX]);
    round_trip(&[NonZeroUsize::MIN, NonZeroUsize::MAX]);
    round_trip(&[NonZeroU32::MIN, NonZeroU32::MAX]);
    round_trip(&[NonZeroU64::MIN, NonZeroU64::MAX]);
    round_trip(&[NonZeroI64::MIN, NonZeroI64::MAX, NonZeroI64::new(-1).unwrap()]);
    round_trip(&[NonZeroI32::MIN, NonZeroI32::MAX, NonZeroI32::new(-1).unwrap()]);
    round_trip(&[NonZeroI16::MIN, NonZeroI16::MAX]);
    round_trip(&[NonZeroI8::MIN, NonZeroI8::MAX]);
    round_trip(&[NonZeroU8::MIN, NonZeroU8::MAX]);
    round_trip(&[NonZeroU16::MIN, NonZeroU16::MAX]);
    round_trip(&['\0', 'a', '\u{d7ff}', '\u{e000}', char::MAX]);
    round_trip(&[()]);
    round_trip(&[0.0, -0.0, 1.5, f32::MAX, f32::MIN_POSITIVE, f32::INFINITY]);
    static PLACE: u32 = 5;
    round_trip(&[&PLACE]);
}

#[test]
fn an_arc_is_counted_and_freed() {
    let arc = Arc::new(17u64);
    let raw = Entry::try_into_raw(arc.clone()).unwrap();
    // SAFETY: each word is turned back once.
    unsafe {
        let dup = <Arc<u64> as Entry>::try_dup(raw).unwrap();
        assert_eq!(Arc::strong_count(&arc), 3);
        let look = <Arc<u64> as Entry>::borrow(raw);
        assert_eq!(*look, 17);
        let own = look.to_arc();
        assert_eq!(Arc::strong_count(&arc), 4);
        drop(own);
        crate::entry::drop_raw::<Arc<u64>>(raw);
        crate::entry::drop_raw::<Arc<u64>>(dup);
    }
    assert_eq!(Arc::strong_count(&arc), 1);
}

#[test]
fn a_box_is_cloned_and_freed() {
    let raw = Entry::try_into_raw(Box::new([1u8, 2, 3])).unwrap();
    // SAFETY: each word is turned back once.
    unsafe {
        let dup = <Box<[u8; 3]> as Entry>::try_dup(raw).unwrap();
        assert_ne!(raw, dup);
        assert_eq!(*<Box<[u8; 3]> as Entry>::borrow(dup), [1, 2, 3]);
        crate::entry::drop_raw::<Box<[u8; 3]>>(raw);
        assert_eq!(<Box<[u8; 3]> as Entry>::from_raw(dup), Box::new([1, 2, 3]));
    }
}

const WIDE: [u64; 9] = [0, 1, 2, 1 << 30, 1 << 62, (1 << 63) - 1, 1 << 63, u64::MAX - 1, u64::MAX];

/// Turns values into words and back, once each, and counts boxes.
fn through_words<E: Entry + Copy + PartialEq + fmt::Debug>(values: &[E], in_word: usize)
where
    for<'g> E::Ref<'g>: PartialEq<E> + fmt::Debug,
{
    let mut found = 0;
    for &value in values {
        let raw = value.try_into_raw().unwrap();
        found += usize::from(!E::owns(raw));
        assert_ne!(Some(raw.addr()), E::SPARE);
        // SAFETY: each word is turned back as often as it was made.
        unsafe {
            assert_eq!(E::borrow(raw), value);
            let dup = E::try_dup(raw).unwrap();
            assert_eq!(dup, raw);
            assert_eq!(E::from_raw(dup), value);
            assert_eq!(E::borrow(raw), value);
            assert_eq!(E::from_raw(raw), value);
        }
    }
    assert_eq!(found, in_word);
}

#[test]
fn numbers_as_wide_as_a_word_keep_their_extremes() {
    if cfg!(target_pointer_width = "64") {
        through_words(&WIDE, 6);
        through_words(&WIDE.map(|n| n as usize), 6);
        through_words(&[0, -1, 1, i64::MAX >> 1, i64::MIN >> 1, i64::MAX, i64::MIN], 5);
        through_words(&[0, -1, 1, isize::MAX >> 1, isize::MIN >> 1, isize::MAX, isize::MIN], 5);
        through_words(&[0.0, -0.0, 1.0, -2.5, f64::INFINITY, f64::MAX, 5e-324], 5);
    } else {
        through_words(&WIDE, 4);
        through_words(&[0, 1, usize::MAX >> 1, usize::MAX], 3);
        through_words(&[0, -1, 1, isize::MAX >> 1, isize::MIN >> 1, isize::MAX, isize::MIN], 5);
    }
}

#[test]
fn options_have_a_word_for_none() {
    fn both<E: Entry>(some: E) {
        let none = None::<E>.try_into_raw().unwrap_or_else(|_| panic!("none"));
        let word = Some(some).try_into_raw().unwrap_or_else(|_| panic!("some"));
        assert_ne!(none, word);
        // SAFETY: each word is turned back once.
        unsafe {
            assert!(Option::<E>::borrow(none).is_none() && Option::<E>::borrow(word).is_some());
            assert!(Option::<E>::from_raw(none).is_none());
            assert!(Option::<E>::from_raw(word).is_some());
        }
    }
    WIDE.into_iter().for_each(both);
    both(u32::MAX);
    both(Arc::new(()));
    both(Arc::<str>::from("text"));
    both(Box::new(1u8));
    both(RefCounted::new(1u8).unwrap());
    static PLACE: u8 = 7;
    both::<&'static u8>(&PLACE);
}

/// Splits, shares and erases entries in trees with one owner and shared ones, and drops all.
fn in_trees<E: Entry>(make: impl Fn() -> E) {
    let mut tree = MapleTree::<E>::new();
    let mut writer = tree.get_mut();
    for i in 0..40 {
        writer.store_range(i * 10..=i * 10 + 7, make()).unwrap();
    }
    writer.store_range(13..=14, make()).unwrap();
    let copy = writer.duplicate().unwrap();
    writer.erase(33).unwrap().unwrap();
    writer.erase_range(100..=250).unwrap();
    writer.validate().unwrap();
    drop(writer);
    assert_eq!(copy.into_shared::<grace::Epoch>().lock().iter(0..=crate::Index::MAX).count(), 42);
    let tree = tree.into_shared::<grace::Epoch>();
    tree.erase_range(0..=300).unwrap();
    tree.store_range(5..=6, make()).unwrap();
    tree.validate().unwrap();
}

#[test]
fn shared_pointers_of_any_size_are_counted_and_freed() {
    let text: Arc<str> = "text".into();
    in_trees(|| Some(text.clone()));
    // Only this one is left. Sections of other tests may delay it.
    crate::patience::until("the trees drop their entries", || {
        <grace::Epoch as grace::Reclaim>::pin().flush();
        (Arc::strong_count(&text), Arc::weak_count(&text)) == (1, 0)
    });
    let word = text.clone().try_into_raw().unwrap();
    // SAFETY: the word is turned back once.
    unsafe {
        let found = <Arc<str> as Entry>::borrow(word);
        assert!(Arc::ptr_eq(&found.to_arc(), &text) && &*found == "text");
        drop(<Arc<str> as Entry>::from_raw(word));
    }
    assert_eq!(Arc::strong_count(&text), 1);
    let number = Arc::new(7u64);
    let word = Arc::downgrade(&number).try_into_raw().unwrap();
    // SAFETY: the word is turned back once.
    unsafe {
        let look = Weak::<u64>::borrow(word);
        assert_eq!(look.upgrade().as_deref(), Some(&7));
        assert_eq!(look.to_weak().strong_count(), 1);
        assert_eq!(Arc::weak_count(&number), 1);
        drop(<Weak<u64> as Entry>::from_raw(word));
    }
    assert_eq!(Arc::weak_count(&number), 0);
}

#[test]
fn wide_numbers_live_in_trees() {
    let next = core::cell::Cell::new(0);
    in_trees(|| WIDE[next.replace((next.get() + 1) % WIDE.len())]);
}

/// A value without `Clone` is never divided, and a refused write changes nothing.
#[test]
fn owned_values_stay_whole() {
    struct Single(u8);
    let mut tree = MapleTree::<Owned<Single>>::new();
    let mut writer = tree.get_mut();
    writer.store_range(0..=99, Owned::new(Single(1)).unwrap()).unwrap();
    writer.store_range(200..=299, Owned::new(Single(2)).unwrap()).unwrap();
    let refused = writer.store_range(40..=49, Owned::new(Single(3)).unwrap()).unwrap_err();
    assert_eq!((refused.error, refused.entry.0), (Error::Whole, 3));
    assert_eq!(writer.erase_range(220..=230), Err(Error::Whole));
    assert_eq!(writer.duplicate().err(), Some(Error::Whole));
    assert_eq!(writer.preallocate(10..=20), Err(Error::Whole));
    writer.validate().unwrap();
    // Ends may be cut off.
    writer.erase_range(90..=220).unwrap();
    let seen = writer.iter(0..=crate::Index::MAX).map(|(range, one)| (range, one.0));
    assert!(seen.eq([(0..=89, 1), (221..=299, 2)]));
}

/// Without memory for a word, the entry comes back.
#[test]
fn a_word_that_needs_memory_may_be_refused() {
    #[derive(Debug, PartialEq)]
    struct Wordless(u8);
    // SAFETY: no word is ever made.
    unsafe impl Entry for Wordless {
        type Ref<'g> = ();
        const NEEDS_DROP: bool = true;

        fn try_into_raw(self) -> Result<Raw, Self> {
            Err(self)
        }

        unsafe fn from_raw(_: Raw) -> Self {
            unreachable!()
        }

        unsafe fn borrow<'g>(_: Raw) -> Self::Ref<'g> {}

        unsafe fn try_dup(raw: Raw) -> Result<Raw, Error> {
            Ok(raw)
        }
    }
    let mut tree = MapleTree::<Wordless>::new();
    let Refused { error, entry } = tree.get_mut().store_range(0..=9, Wordless(5)).unwrap_err();
    assert_eq!((error, entry), (Error::OutOfMemory, Wordless(5)));
    let Refused { error, entry } = tree.get_mut().insert_range(0..=9, Wordless(6)).unwrap_err();
    assert_eq!((error, entry), (Error::OutOfMemory, Wordless(6)));
    assert!(tree.is_empty());
}

/// The conversions of `entry!` see the program's own names, and may call its type `Self`.
#[test]
fn conversions_may_have_any_names() {
    struct Kind(u8);
    fn to(kind: Kind) -> u8 {
        kind.0
    }
    fn from(number: u8) -> Kind {
        Kind(number)
    }
    crate::entry!(Kind as u8, to, from);
    struct Wide<const N: usize>(u16);
    crate::entry!([const N: usize] Wide<N> as u16, |wide| wide.0, |number| Self(number));

    let mut tree = MapleTree::<Kind>::new();
    tree.get_mut().store_range(0..=9, Kind(7)).unwrap();
    assert_eq!(tree.get_mut().load(5).unwrap().0, 7);
    let mut tree = MapleTree::<Wide<3>>::new();
    tree.get_mut().store_range(0..=9, Wide(7)).unwrap();
    assert_eq!(tree.get_mut().load(5).unwrap().0, 7);
}
