//! Why an experiment with areas could not be made.

use core::fmt;
use machine::{Fault, FrameError, VirtAddr};

/// Why an experiment could not be made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Error {
    /// The machine has too little memory, or its tables could not be changed.
    Tables(paging::Error),
    /// Areas could not be made, or not be taken apart.
    Areas(::vmap::Error),
    /// What was just mapped could not be used.
    Fault(Fault),
    /// No hole for so many pages is left, the old way.
    Full {
        /// The pages.
        pages: usize,
    },
    /// No area begins here, the old way.
    NoArea(VirtAddr),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Tables(error) => error.fmt(f),
            Error::Areas(error) => error.fmt(f),
            Error::Fault(fault) => fault.fmt(f),
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
