//! The answers of calls, as the program on Linux prints them.

use mm::Error;

pub(crate) fn said(result: Result<(), Error>) -> String {
    match result.map_err(|error| error.errno()) {
        Ok(()) => "ok",
        Err(1) => "EPERM",
        Err(2) => "ENOENT",
        Err(11) => "EAGAIN",
        Err(13) => "EACCES",
        Err(16) => "EBUSY",
        Err(12) => "ENOMEM",
        Err(14) => "EFAULT",
        Err(17) => "EEXIST",
        Err(22) => "EINVAL",
        Err(133) => "EHWPOISON",
        Err(_) => "an errno that no step gives",
    }
    .into()
}
