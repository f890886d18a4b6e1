//! Errors of the experiments.

use core::fmt;
use machine::{Fault, FrameError, VirtAddr};

/// An error of each crate below is a variant, into which `?` converts it.
macro_rules! errors {
    ($($(#[$doc:meta])* $variant:ident($of:ty),)*) => {
        /// The reason why an experiment failed.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum Error {
            $($(#[$doc])* $variant($of),)*
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
                    $(Error::$variant(error) => error.fmt(f),)*
                    Error::Full { pages } => write!(f, "there is no hole for {pages} pages"),
                    Error::NoArea(at) => write!(f, "no area begins at {at}"),
                }
            }
        }

        $(impl From<$of> for Error {
            fn from(error: $of) -> Error {
                Error::$variant(error)
            }
        })*
    };
}

errors! {
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
}

impl core::error::Error for Error {}

impl From<FrameError> for Error {
    fn from(error: FrameError) -> Error {
        Error::Tables(error.into())
    }
}
