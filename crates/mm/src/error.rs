//! Why a call or a fault failed.

use core::fmt;

use machine::{FrameError, VirtAddr};

use crate::Access;

/// The reasons of a kind of failure, each with its errno and its text.
macro_rules! reasons {
    ($(#[$of:meta])* $name:ident, Error::$kind:ident {
        $($(#[$doc:meta])* $variant:ident $errno:literal $text:expr;)*
    }) => {
        $(#[$of])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        #[non_exhaustive]
        pub enum $name {
            $($(#[$doc])* $variant,)*
        }

        impl $name {
            pub(crate) fn errno(self) -> i32 {
                match self { $($name::$variant => $errno),* }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self { $($name::$variant => $text),* })
            }
        }

        impl core::error::Error for $name {}

        impl From<$name> for Error {
            fn from(reason: $name) -> Self {
                Error::$kind(reason)
            }
        }
    };
}

reasons! {
    /// Why pages were not made huge.
    CollapseError, Error::Collapse {
        /// The memory cannot have huge pages, or one of them would have no page at all, or a guard
        /// page: EINVAL.
        NoPages 22 "the memory cannot have huge pages, or a part has no page or a guard page";
        /// A page is pinned: EAGAIN.
        Pinned 11 "a page is pinned: try again when it is not";
        /// A monitor of a userfaultfd has write-protected a page: EINVAL.
        WriteProtected 22 "a page is write-protected: resolve it first";
        /// A page is absent, or the zero page, in memory that a monitor watches: EBUSY.
        Watched 16 "a page is absent, and is its monitor's: bring it in first";
        /// There is no block of 2 MiB: ENOMEM.
        OutOfMemory 12 "there is no free block of 2 MiB";
        /// The group of the space has reached its limit of frames: EBUSY.
        GroupLimit 16 GROUP_LIMIT;
    }
}

reasons! {
    /// Why a call of the monitor failed.
    UserFaultError, Error::UserFault {
        /// The memory is not registered, or not for this: ENOENT.
        NotRegistered 2 "the memory is not registered for such faults";
        /// The page is present: EEXIST.
        Present 17 "the page is present already";
        /// The object has no such page, or ends before it: EFAULT.
        Absent 14 "the object has no such page";
        /// There is no page to move: ENOENT.
        Hole 2 "there is no page to move; allow holes, or bring it in";
        /// The page to move is pinned, or is not the program's alone: EBUSY.
        Busy 16 "the page is pinned, or another process shares it";
        /// The monitor has not read yet of a change of the memory: EAGAIN.
        Changing 11 "the memory has changed; read the event first";
    }
}

/// Why an object has no page for a fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ObjectError {
    /// The page is not in memory. [`Object::bring_in`](crate::Object::bring_in) brings it.
    Absent,
    /// The page lies beyond the end of the object: SIGBUS.
    BeyondEnd,
    /// There is no memory for the page.
    OutOfMemory(FrameError),
    /// The group that the object counts for has reached its limit of frames.
    GroupLimit,
    /// The page could not be read: SIGBUS.
    Failed,
    /// The object does not have the operation.
    NotSupported,
    /// The host promises no more memory ([`Commitment`](crate::Commitment)).
    Overcommit,
    /// A seal of the object forbids it.
    Sealed,
    /// The object is for address spaces of another [`Paging`](paging::Paging).
    Foreign,
    /// There is no heap for the object, or for what it keeps of a page.
    HeapExhausted,
}

impl fmt::Display for ObjectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ObjectError::Absent => f.write_str("the page is not in memory"),
            ObjectError::BeyondEnd => f.write_str("the page lies beyond the end of the object"),
            ObjectError::OutOfMemory(error) => write!(f, "no memory for a page: {error}"),
            ObjectError::GroupLimit => f.write_str(GROUP_LIMIT),
            ObjectError::Failed => f.write_str("the page could not be read"),
            ObjectError::NotSupported => f.write_str("the object does not have the operation"),
            ObjectError::Overcommit => f.write_str("the host promises no more memory"),
            ObjectError::Sealed => f.write_str("a seal of the object forbids it"),
            ObjectError::Foreign => f.write_str(
                "the object belongs to another machine; make it with the `Paging` of the space",
            ),
            ObjectError::HeapExhausted => f.write_str("no heap for an object; free some"),
        }
    }
}

impl core::error::Error for ObjectError {}

/// Why a page fault could not be handled. Nothing has changed.
///
/// ```
/// use machine::VirtAddr;
/// let error = mm::FaultError::Unmapped(VirtAddr::new(0x1000));
/// assert_eq!(error.to_string(), "no memory is mapped at 0x1000");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum FaultError {
    /// Nothing is mapped there: SIGSEGV with SEGV_MAPERR.
    Unmapped(VirtAddr),
    /// The VMA forbids the access: SIGSEGV with SEGV_ACCERR.
    Denied(VirtAddr, Access),
    /// A guard page: SIGSEGV with SEGV_MAPERR.
    Guard(VirtAddr),
    /// The object behind the VMA has no such page: SIGBUS with BUS_ADRERR.
    Object(VirtAddr, ObjectError),
    /// There is no memory for the page or for a page table, also after reclaim.
    OutOfMemory(FrameError),
    /// The contents of the page are lost (UFFDIO_POISON): SIGBUS with BUS_MCEERR_AR.
    Poisoned(VirtAddr),
    /// The host has not resolved a fault of a userfaultfd.
    UserFault(VirtAddr),
    /// The group of the space has reached its limit of frames, and the host has made no room.
    GroupLimit,
    /// The page tables are corrupt.
    Tables(paging::Error),
}

impl fmt::Display for FaultError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FaultError::Unmapped(at) => write!(f, "no memory is mapped at {:#x}", at.get()),
            FaultError::Denied(at, access) => {
                write!(f, "the memory at {:#x} does not allow to {access}", at.get())
            }
            FaultError::Guard(at) => write!(f, "a guard page at {:#x}", at.get()),
            FaultError::Object(at, error) => write!(f, "at {:#x}: {error}", at.get()),
            FaultError::OutOfMemory(error) => {
                write!(f, "no memory for a page: {error}; unmap something and touch it again")
            }
            FaultError::Poisoned(at) => {
                write!(f, "the contents of the page at {:#x} are lost", at.get())
            }
            FaultError::UserFault(at) => {
                write!(f, "no monitor has resolved the fault at {:#x}", at.get())
            }
            FaultError::GroupLimit => f.write_str(GROUP_LIMIT),
            FaultError::Tables(error) => write!(f, "the page tables are corrupt: {error}"),
        }
    }
}

impl core::error::Error for FaultError {}

/// The message of a group that has reached its limit.
pub(crate) const GROUP_LIMIT: &str =
    "the group of this space has reached its limit of frames: raise it, or free pages of the group";

/// Why a call failed.
///
/// ```
/// assert_eq!(mm::Error::NotSupported("MAP_HUGETLB").errno(), 22);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Error {
    /// The rules of VMAs refuse it.
    Vma(vma::Error),
    /// There is no memory for a table, or the page tables are corrupt.
    Tables(paging::Error),
    /// A page that the call was to bring in could not be brought in.
    Fault(FaultError),
    /// The memory is locked, but a page of it could not be brought in.
    NotBroughtIn(FaultError),
    /// An object refused it.
    Object(ObjectError),
    /// A call of a userfaultfd's monitor is refused.
    UserFault(UserFaultError),
    /// MADV_COLLAPSE has left pages small.
    Collapse(CollapseError),
    /// A scan has found a VMA whose pages it cannot write-protect: EPERM.
    NotAsync,
    /// MS_INVALIDATE of memory that is locked.
    Locked,
    /// This crate does not have it yet.
    NotSupported(&'static str),
}

impl Error {
    /// The errno that Linux returns for this error, as a positive number.
    pub fn errno(&self) -> i32 {
        match self {
            Error::Vma(error) => error.errno(),
            Error::Fault(
                FaultError::Unmapped(_) | FaultError::OutOfMemory(_) | FaultError::GroupLimit,
            ) => 12,
            Error::Tables(paging::Error::Frames(_)) => 12,
            Error::NotBroughtIn(FaultError::OutOfMemory(_) | FaultError::GroupLimit) => 11,
            Error::NotBroughtIn(_) => 12,
            // EHWPOISON, as MADV_POPULATE has it.
            Error::Fault(FaultError::Poisoned(_)) => 133,
            Error::Tables(_) | Error::Fault(_) => 14,
            Error::Locked => 16,
            Error::NotAsync => 1,
            Error::Collapse(refused) => refused.errno(),
            Error::UserFault(refused) => refused.errno(),
            Error::Object(ObjectError::Sealed) => 1,
            Error::Object(ObjectError::Failed) => 5,
            Error::Object(ObjectError::Absent) => 11,
            Error::Object(
                ObjectError::OutOfMemory(_)
                | ObjectError::HeapExhausted
                | ObjectError::GroupLimit
                | ObjectError::Overcommit,
            ) => 12,
            Error::Object(ObjectError::BeyondEnd) => 27,
            Error::Object(ObjectError::NotSupported) => 95,
            Error::Object(ObjectError::Foreign) => 22,
            Error::NotSupported(_) => 22,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Vma(error) => error.fmt(f),
            Error::Tables(error) => error.fmt(f),
            Error::Fault(error) => error.fmt(f),
            Error::NotBroughtIn(error) => {
                write!(f, "the memory is locked, but a page could not be brought in: {error}")
            }
            Error::Object(error) => error.fmt(f),
            Error::Collapse(refused) => refused.fmt(f),
            Error::UserFault(refused) => refused.fmt(f),
            Error::NotAsync => f.write_str(
                "the memory is not registered for write-protection without upcalls; register it",
            ),
            Error::Locked => f.write_str("the memory is locked; unlock it with munlock first"),
            Error::NotSupported(what) => write!(f, "{what} is not supported yet"),
        }
    }
}

impl core::error::Error for Error {}

impl From<vma::Error> for Error {
    fn from(error: vma::Error) -> Self {
        Error::Vma(error)
    }
}

impl From<paging::Error> for Error {
    fn from(error: paging::Error) -> Self {
        Error::Tables(error)
    }
}

impl From<FaultError> for Error {
    fn from(error: FaultError) -> Self {
        Error::Fault(error)
    }
}

impl From<ObjectError> for Error {
    fn from(error: ObjectError) -> Self {
        Error::Object(error)
    }
}

/// Lack of memory for a table of this space's own.
pub(crate) fn no_memory(error: paging::Error) -> vma::Error {
    debug_assert!(matches!(error, paging::Error::Frames(_)), "{error}");
    vma::Error::OutOfMemory
}
