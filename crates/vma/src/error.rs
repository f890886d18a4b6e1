//! Why a call on an address space was refused: one cause each, with the errno that Linux gives for
//! it.

use core::fmt;

macro_rules! causes {
    ($($(#[$doc:meta])* $variant:ident $errno:literal $text:literal;)*) => {
        /// The cause of a refusal. Nothing changed unless the call says that it stops half-way.
        ///
        /// ```
        /// use vma::Error;
        /// assert_eq!(Error::Occupied.errno(), 17);
        /// assert!(Error::Unaligned.to_string().contains("page size"));
        /// ```
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
        #[non_exhaustive]
        pub enum Error {
            $($(#[$doc])* $variant,)*
        }

        impl Error {
            /// The errno that Linux returns for it (positive).
            pub fn errno(self) -> i32 {
                match self { $(Error::$variant => $errno),* }
            }
        }

        impl fmt::Display for Error {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self { $(Error::$variant => $text),* })
            }
        }
    };
}

causes! {
    /// Memory for the bookkeeping ran out.
    OutOfMemory 12 "no memory for the bookkeeping of the address space";
    /// The call would pass `Profile::max_map_count`.
    TooManyMaps 12 "the address space has as many VMAs as the limit allows; unmap something or raise the limit";
    /// No free range of that size.
    NoSpace 12 "no free range of that size in the address space";
    /// The range has a hole.
    Unmapped 12 "part of the range is not mapped";
    /// The range wraps or ends above the address space.
    BadRange 22 "the range is empty, wraps, or ends above the address space";
    /// An address or offset that is not a multiple of the page size.
    Unaligned 22 "an address or offset is not a multiple of the page size";
    /// Flags that are unknown or contradict each other.
    BadFlags 22 "the flags are unknown or contradict each other";
    /// The operation does not exist for that kind of VMA.
    WrongKind 22 "a VMA in the range is of a kind that the call does not work on";
    /// The length overflows when rounded up to pages.
    TooLong 12 "the length is larger than the address space";
    /// The file offset overflows.
    OffsetOverflow 75 "offset plus length overflows";
    /// mremap of something that is not one VMA.
    NotOneVma 14 "the old range is not inside one VMA that can be moved or resized";
    /// The permission asked for exceeds what the map or its file may have.
    Access 13 "the permission exceeds what the map or its file may have";
    /// The VMA is sealed.
    Sealed 1 "the VMA is sealed against changes";
    /// The file's mount forbids execution.
    NoExec 1 "the file lies on a mount that forbids execution";
    /// UFFDIO_REGISTER where another userfaultfd is registered.
    Watched 16 "another userfaultfd watches part of the range";
    /// UFFDIO_REGISTER of what can never be written to.
    NeverWritable 1 "part of the range can never be written to";
    /// MAP_FIXED_NOREPLACE over something mapped.
    Occupied 17 "the range is in use and MAP_FIXED_NOREPLACE was asked for";
}

impl core::error::Error for Error {}

impl From<maple::AllocError> for Error {
    fn from(_: maple::AllocError) -> Self {
        Error::OutOfMemory
    }
}

/// The tree refuses nothing but for want of memory: ranges are checked before, and the token is the
/// tree's own.
impl From<maple::Error> for Error {
    fn from(error: maple::Error) -> Self {
        debug_assert_eq!(error, maple::Error::OutOfMemory, "a range that no VMA can have");
        Error::OutOfMemory
    }
}

impl<E> From<maple::Refused<E>> for Error {
    fn from(refused: maple::Refused<E>) -> Self {
        refused.error.into()
    }
}
