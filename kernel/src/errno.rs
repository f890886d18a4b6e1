//! Error numbers of Linux, which calls, files and tasks return.

/// An error number of Linux.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Errno(pub(crate) u32);

impl From<mm::Error> for Errno {
    fn from(error: mm::Error) -> Self {
        Errno(error.errno() as u32)
    }
}
