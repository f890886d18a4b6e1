//! Why a call or a fault failed.

use core::fmt;

use machine::{FrameError, VirtAddr};

use crate::{Access, CollapseError, ObjectError, UserFaultError};

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

        impl core::fmt::Display for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                f.write_str(match self { $($name::$variant => $text),* })
            }
        }

        impl core::error::Error for $name {}

        impl From<$name> for crate::Error {
            fn from(reason: $name) -> Self {
                crate::Error::$kind(reason)
            }
        }
    };
}
pub(crate) use reasons;

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
