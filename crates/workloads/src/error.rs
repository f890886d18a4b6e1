//! Errors of the experiments.

use core::fmt;
use machine::{Fault, FrameError, VirtAddr};

/// The reason why an experiment failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Error {
    /// The machine has too little memory, or its tables could not be changed.
    Tables(paging::Error),
    /// An area could not be made or freed.
    Areas(::vmap::Error),
    /// A page that was just mapped could not be accessed.
    Fault(Fault),
    /// A call of an address space failed.
    Space(mm::Error),
    /// A page could not be brought in.
    PageFault(mm::FaultError),
    /// A group of spaces could not be made.
    Group(mm::GroupError),
    /// A file could not be made.
    Object(mm::ObjectError),
    /// The tree of a baseline could not be changed.
    Tree(maple::Error),
    /// A baseline has no hole for so many pages.
    Full {
        /// The pages.
        pages: usize,
    },
    /// A baseline has no area that begins here.
    NoArea(VirtAddr),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Tables(error) => error.fmt(f),
            Error::Areas(error) => error.fmt(f),
            Error::Fault(fault) => fault.fmt(f),
            Error::Space(error) => error.fmt(f),
            Error::PageFault(error) => error.fmt(f),
            Error::Group(error) => error.fmt(f),
            Error::Object(error) => error.fmt(f),
            Error::Tree(error) => error.fmt(f),
            Error::Full { pages } => write!(f, "there is no hole for {pages} pages"),
            Error::NoArea(at) => write!(f, "no area begins at {at}"),
        }
    }
}

impl core::error::Error for Error {}

impl From<paging::Error> for Error {
    fn from(error: paging::Error) -> Error {
        Error::Tables(error)
    }
}

impl From<::vmap::Error> for Error {
    fn from(error: ::vmap::Error) -> Error {
        Error::Areas(error)
    }
}

impl From<FrameError> for Error {
    fn from(error: FrameError) -> Error {
        Error::Tables(error.into())
    }
}

impl From<Fault> for Error {
    fn from(fault: Fault) -> Error {
        Error::Fault(fault)
    }
}

impl From<mm::Error> for Error {
    fn from(error: mm::Error) -> Error {
        Error::Space(error)
    }
}

impl From<mm::FaultError> for Error {
    fn from(error: mm::FaultError) -> Error {
        Error::PageFault(error)
    }
}

impl From<mm::GroupError> for Error {
    fn from(error: mm::GroupError) -> Error {
        Error::Group(error)
    }
}

impl From<mm::ObjectError> for Error {
    fn from(error: mm::ObjectError) -> Error {
        Error::Object(error)
    }
}

impl From<maple::Error> for Error {
    fn from(error: maple::Error) -> Error {
        Error::Tree(error)
    }
}
