//! Entries of types of one's own, without unsafe code.

/// Makes a type of your own an entry, by conversion to another entry and back.
///
/// With `as`, the type is a value: loads return it. The other type must be one whose loads return
/// itself, such as a number.
///
/// ```
/// use maple::MapleTree;
///
/// #[derive(Clone, Copy, Debug, PartialEq)]
/// enum Kind {
///     Ram,
///     Device(u16),
/// }
/// maple::entry!(
///     Kind as u32,
///     |kind| match kind {
///         Kind::Ram => 0,
///         Kind::Device(number) => 1 + u32::from(number),
///     },
///     |number| match number {
///         0 => Kind::Ram,
///         _ => Kind::Device((number - 1) as u16),
///     }
/// );
///
/// let mut tree = MapleTree::<Kind>::new();
/// tree.get_mut().store_range(0x1000..=0x1fff, Kind::Device(7))?;
/// assert_eq!(tree.get_mut().load(0x1234), Some(Kind::Device(7)));
/// # Ok::<(), maple::Error>(())
/// ```
///
/// With `=>`, the type wraps an entry, and loads return what loads of that entry return.
///
/// ```
/// use maple::MapleTree;
/// use std::sync::Arc;
///
/// struct Region {
///     name: String,
/// }
/// struct Shared(Arc<Region>);
/// maple::entry!(Shared => Arc<Region>, |shared| shared.0, |arc| Shared(arc));
///
/// let mut tree = MapleTree::<Shared>::new();
/// tree.get_mut().store_range(0..=9, Shared(Arc::new(Region { name: "rom".into() })))?;
/// assert_eq!(tree.get_mut().load(5).unwrap().name, "rom");
/// # Ok::<(), maple::Error>(())
/// ```
///
/// Parameters of the type stand in brackets before it.
///
/// ```
/// use std::sync::Arc;
///
/// struct Shared<T>(Arc<T>);
/// maple::entry!([T: Send + Sync + 'static] Shared<T> => Arc<T>, |it| it.0, |arc| Shared(arc));
///
/// let mut tree = maple::MapleTree::<Shared<u8>>::new();
/// tree.get_mut().store_range(0..=9, Shared(Arc::new(7)))?;
/// assert_eq!(*tree.get_mut().load(5).unwrap(), 7);
/// # Ok::<(), maple::Error>(())
/// ```
///
/// The type must be `Send`, `Sync` and `'static`. The cost is that of the conversions. They are
/// called once for each store and, with `as`, for each load; they should return what they were
/// given, and must not panic. They are safe code:
///
/// ```compile_fail,E0133
/// struct Word(std::num::NonZeroU32);
/// maple::entry!(
///     Word => std::num::NonZeroU32,
///     |word| word.0,
///     |number| Word(std::num::NonZeroU32::new_unchecked(number.get()))
/// );
/// ```
#[macro_export]
macro_rules! entry {
    ([$($of:tt)*] $type:ty as $word:ty, $to:expr, $from:expr $(,)?) => {
        $crate::__entry!(
            [$($of)*], $type, $word, $to, $from,
            $type, <$type as __MapleConversion<$word>>::__of_word
        );
    };
    ([$($of:tt)*] $type:ty => $word:ty, $to:expr, $from:expr $(,)?) => {
        $crate::__entry!(
            [$($of)*], $type, $word, $to, $from,
            <$word as $crate::Entry>::Ref<'g>, ::core::convert::identity
        );
    };
    ($type:ty as $word:ty, $to:expr, $from:expr $(,)?) => {
        $crate::entry!([] $type as $word, $to, $from);
    };
    ($type:ty => $word:ty, $to:expr, $from:expr $(,)?) => {
        $crate::entry!([] $type => $word, $to, $from);
    };
}

/// The common part of all forms of `entry!`. `$found` makes the result of loads.
#[doc(hidden)]
#[macro_export]
macro_rules! __entry {
    (
        [$($of:tt)*], $type:ty, $word:ty, $to:expr, $from:expr, $ref:ty, $found:expr
    ) => {
        const _: () = {
            // The conversions are the program's, so they stand in no unsafe function. They see the
            // names of these items, which must not be those of the program's own.
            trait __MapleConversion<W>: Sized {
                fn __to_word(self) -> W;
                fn __of_word(word: W) -> Self;
            }

            impl<$($of)*> __MapleConversion<$word> for $type {
                fn __to_word(self) -> $word {
                    let to: fn($type) -> $word = $to;
                    to(self)
                }

                fn __of_word(word: $word) -> Self {
                    let from: fn($word) -> $type = $from;
                    from(word)
                }
            }

            // SAFETY: the words are those of another entry, and are used only by its functions. The
            // conversions are safe code.
            unsafe impl<$($of)*> $crate::Entry for $type {
                type Ref<'g> = $ref;
                const NEEDS_DROP: bool = <$word as $crate::Entry>::NEEDS_DROP;
                const SHARES: bool = <$word as $crate::Entry>::SHARES;
                const SPARE: Option<::core::num::NonZeroUsize> = <$word as $crate::Entry>::SPARE;

                fn try_into_raw(self) -> Result<$crate::Raw, Self> {
                    let word = __MapleConversion::<$word>::__to_word(self);
                    <$word as $crate::Entry>::try_into_raw(word).map_err(Self::__of_word)
                }

                unsafe fn from_raw(raw: $crate::Raw) -> Self {
                    // SAFETY: the caller's promise.
                    Self::__of_word(unsafe { <$word as $crate::Entry>::from_raw(raw) })
                }

                unsafe fn borrow<'g>(raw: $crate::Raw) -> Self::Ref<'g> {
                    // SAFETY: the caller's promise.
                    $found(unsafe { <$word as $crate::Entry>::borrow(raw) })
                }

                unsafe fn try_dup(raw: $crate::Raw) -> Result<$crate::Raw, $crate::Error> {
                    // SAFETY: the caller's promise.
                    unsafe { <$word as $crate::Entry>::try_dup(raw) }
                }

                fn owns(raw: $crate::Raw) -> bool {
                    <$word as $crate::Entry>::owns(raw)
                }
            }
        };
    };
}
