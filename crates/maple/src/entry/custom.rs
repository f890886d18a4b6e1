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
/// The type must be `Send`, `Sync` and `'static`. The cost is that of the conversions. They are
/// called once for each store and, with `as`, for each load; they should return what they were
/// given, and must not panic.
#[macro_export]
macro_rules! entry {
    ($type:ty as $word:ty, $to:expr, $from:expr $(,)?) => {
        // SAFETY: the words are those of another entry, and are used only by its functions. The
        // conversions are safe code.
        unsafe impl $crate::Entry for $type {
            type Ref<'g> = $type;
            $crate::__entry!($type, $word, $to, $from);

            unsafe fn borrow<'g>(raw: $crate::Raw) -> Self::Ref<'g> {
                let from: fn($word) -> $type = $from;
                // SAFETY: the caller's promise.
                from(unsafe { <$word as $crate::Entry>::borrow(raw) })
            }
        }
    };
    ($type:ty => $word:ty, $to:expr, $from:expr $(,)?) => {
        // SAFETY: as above.
        unsafe impl $crate::Entry for $type {
            type Ref<'g> = <$word as $crate::Entry>::Ref<'g>;
            $crate::__entry!($type, $word, $to, $from);

            unsafe fn borrow<'g>(raw: $crate::Raw) -> Self::Ref<'g> {
                // SAFETY: the caller's promise.
                unsafe { <$word as $crate::Entry>::borrow(raw) }
            }
        }
    };
}

/// What both forms of `entry!` have in common.
#[doc(hidden)]
#[macro_export]
macro_rules! __entry {
    ($type:ty, $word:ty, $to:expr, $from:expr) => {
        const NEEDS_DROP: bool = <$word as $crate::Entry>::NEEDS_DROP;
        const SHARES: bool = <$word as $crate::Entry>::SHARES;
        const SPARE: Option<::core::num::NonZeroUsize> = <$word as $crate::Entry>::SPARE;

        fn try_into_raw(self) -> Result<$crate::Raw, Self> {
            let to: fn($type) -> $word = $to;
            let from: fn($word) -> $type = $from;
            <$word as $crate::Entry>::try_into_raw(to(self)).map_err(from)
        }

        unsafe fn from_raw(raw: $crate::Raw) -> Self {
            let from: fn($word) -> $type = $from;
            // SAFETY: the caller's promise.
            from(unsafe { <$word as $crate::Entry>::from_raw(raw) })
        }

        unsafe fn try_dup(raw: $crate::Raw) -> Result<$crate::Raw, $crate::Error> {
            // SAFETY: the caller's promise.
            unsafe { <$word as $crate::Entry>::try_dup(raw) }
        }

        fn owns(raw: $crate::Raw) -> bool {
            <$word as $crate::Entry>::owns(raw)
        }
    };
}
