//! Errors, and the type of a refused store.

use crate::Index;
use core::fmt;

/// The reason why an operation was refused. The tree is exactly as it was before the call (I7).
///
/// ```
/// use maple::{Error, MapleTree};
/// let mut tree = MapleTree::<u32>::new();
/// let mut writer = tree.get_mut();
/// writer.insert_range(10..=19, 1).unwrap();
/// let refused = writer.insert_range(15..=30, 2).unwrap_err();
/// assert_eq!(refused.error, Error::Occupied { start: 10, end: 19 });
/// assert_eq!(refused.entry, 2);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Error {
    /// The allocator had no memory, or the tree would need more levels than it can have.
    OutOfMemory,
    /// The range is empty: it ends before it starts.
    EmptyRange,
    /// The size is zero.
    ZeroSize,
    /// The alignment is not a power of two.
    BadAlign,
    /// There is no free range of that size and alignment inside the bounds.
    NoSpace,
    /// An entry is in the way. If there are several, this is the range of the lowest.
    Occupied {
        /// Its first index.
        start: Index,
        /// Its last index.
        end: Index,
    },
    /// The write would divide an entry that has no duplicates, such as an
    /// [`Owned`](crate::Owned).
    Whole,
    /// The token belongs to another tree.
    WrongToken,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::OutOfMemory => f.write_str("out of memory"),
            Error::EmptyRange => f.write_str("the range is empty: it ends before it starts"),
            Error::ZeroSize => f.write_str("the size is zero; ask for at least one index"),
            Error::BadAlign => f.write_str("the alignment is not a power of two"),
            Error::NoSpace => {
                f.write_str("no free range of that size and alignment inside the bounds")
            }
            Error::Occupied { start, end } => write!(f, "occupied by {start:#x}..={end:#x}"),
            Error::Whole => f.write_str(
                "an entry without duplicates would be divided; cut off its ends, or store an \
                 entry that can be duplicated",
            ),
            Error::WrongToken => {
                f.write_str("the token belongs to another tree; use the one made with this tree")
            }
        }
    }
}

impl core::error::Error for Error {}

impl From<crate::AllocError> for Error {
    fn from(_: crate::AllocError) -> Self {
        Error::OutOfMemory
    }
}

/// A refused store: the reason, and the entry returned to the caller.
///
/// ```
/// use maple::{Error, MapleTree};
/// let mut tree = MapleTree::<Box<String>>::new();
/// let name = Box::new(String::from("heap"));
/// let mut writer = tree.get_mut();
/// writer.store_range(1..=4, name.clone()).unwrap();
/// let refused = writer.insert_range(3..=9, name).unwrap_err();
/// assert_eq!(refused.error, Error::Occupied { start: 1, end: 4 });
/// assert_eq!(*refused.entry, "heap");
/// ```
pub struct Refused<E> {
    /// The reason.
    pub error: Error,
    /// The entry that was not stored.
    pub entry: E,
}

impl<E> fmt::Debug for Refused<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Refused").field("error", &self.error).finish_non_exhaustive()
    }
}

impl<E> fmt::Display for Refused<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl<E> core::error::Error for Refused<E> {}

impl<E> From<Refused<E>> for Error {
    fn from(refused: Refused<E>) -> Self {
        refused.error
    }
}
