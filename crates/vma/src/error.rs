//! Why a call on an address space failed: one variant per cause, each with the errno of Linux.

use core::fmt;

macro_rules! causes {
    ($($(#[$doc:meta])* $variant:ident $errno:literal $text:literal;)*) => {
        /// Why a call failed. Nothing has changed, unless the call documents a partial result.
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
            /// The errno that Linux returns for this error, as a positive number.
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
    /// No memory for the tree or for a VMA.
    OutOfMemory 12 "no memory for the bookkeeping of the address space; free some and try again";
    /// The call would exceed `Profile::max_map_count`.
    TooManyMaps 12 "the address space has reached its limit of VMAs; unmap something or raise the limit";
    /// The call would exceed [`Limits::address_space`](crate::Limits) or `data`.
    SizeLimit 12 "the call would exceed the limit of the address space (RLIMIT_AS) or of its data (RLIMIT_DATA); unmap something or raise the limit";
    /// The call would lock more than [`Limits::locked`](crate::Limits).
    LockLimit 12 "more memory would be locked than RLIMIT_MEMLOCK allows; unlock some or raise the limit";
    /// A new map would be locked beyond [`Limits::locked`](crate::Limits).
    LockLimitAgain 11 "more memory would be locked than RLIMIT_MEMLOCK allows; unlock some or raise the limit";
    /// [`Limits::locked`](crate::Limits) is 0.
    MayNotLock 1 "the process may not lock memory; raise RLIMIT_MEMLOCK";
    /// The host does not promise so much memory ([`Host::admit`](crate::Host::admit)).
    Overcommit 12 "so much memory is not promised to programs; free some, or allow overcommitment";
    /// There is no free range of that size.
    NoSpace 12 "no free range of that size in the address space";
    /// The range has a hole.
    Unmapped 12 "part of the range is not mapped";
    /// The range wraps or ends above the address space.
    BadRange 22 "the range is empty, wraps, or ends above the address space";
    /// An address or offset is not a multiple of the page size.
    Unaligned 22 "an address or offset is not a multiple of the page size";
    /// The flags are unknown or contradict each other.
    BadFlags 22 "the flags are unknown or contradict each other";
    /// The call does not work on that kind of VMA.
    WrongKind 22 "the call does not work on the kind of VMA that is in the range";
    /// The host cannot map the file in this way, or not in this address space.
    NotHere 22 "the file cannot be mapped privately, or belongs to another machine";
    /// The length overflows when rounded up to pages.
    TooLong 12 "the length is larger than the address space";
    /// The file offset overflows.
    OffsetOverflow 75 "offset plus length overflows";
    /// The old range of mremap is not within one VMA.
    NotOneVma 14 "the old range is not inside one VMA that can be moved or resized";
    /// The requested permission exceeds that of the map or its file.
    Access 13 "the requested permission exceeds that of the map or its file, or PR_SET_MDWE denies it";
    /// PR_SET_MDWE with other bits than those that are set.
    DenyExecSet 1 "the process already denies itself executable memory (PR_SET_MDWE), and cannot undo that";
    /// The VMA is sealed.
    Sealed 1 "the VMA is sealed against changes";
    /// The file's mount forbids execution.
    NoExec 1 "the file lies on a mount that forbids execution";
    /// UFFDIO_REGISTER over a range of another userfaultfd.
    Watched 16 "part of the range is registered with another userfaultfd";
    /// UFFDIO_REGISTER over a VMA that can never become writable.
    NeverWritable 1 "part of the range can never become writable";
    /// pkey_alloc without a free key.
    NoKey 28 "no protection key is free, or there are none here; free one with pkey_free";
    /// A protection key that pkey_alloc has not returned, or that was freed.
    KeyNotAllocated 22 "the protection key is not allocated; pkey_alloc returns one that is";
    /// MAP_FIXED_NOREPLACE over a range that is mapped.
    Occupied 17 "the range is in use, and MAP_FIXED_NOREPLACE does not replace it";
}

impl core::error::Error for Error {}

impl From<maple::AllocError> for Error {
    fn from(_: maple::AllocError) -> Self {
        Error::OutOfMemory
    }
}

/// The tree fails only for lack of memory: ranges are checked before, and the token belongs to this
/// tree.
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
