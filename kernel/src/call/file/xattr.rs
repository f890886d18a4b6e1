//! Extended attributes: the files of this kernel have none, and get none.
//!
//! So a name that could be set is not there (ENODATA), the list is empty, and setting one is not
//! supported. All arguments are checked first.

use super::{Call, HERE, Outcome};
use crate::call::fail;
use crate::errno::Errno;
use linux_raw_sys::errno::{E2BIG, EINVAL, ENODATA, EOPNOTSUPP, ERANGE};
use linux_raw_sys::general::AT_SYMLINK_NOFOLLOW;

/// The longest name and the largest value.
const NAME: usize = 255;
const VALUE: u64 = 65536;

/// The way in which a call names its file.
#[derive(Clone, Copy)]
pub(in crate::call) enum By {
    Path,
    /// A link at its end is the file.
    Link,
    Descriptor,
}

/// Looks the file up.
fn check_file(call: &Call<'_>, by: By) -> Result<(), Errno> {
    let of = call.args[0];
    match by {
        By::Descriptor => call.open(of).map(drop),
        By::Path => call.find(HERE, of, 0).map(drop),
        By::Link => call.find(HERE, of, AT_SYMLINK_NOFOLLOW.into()).map(drop),
    }
}

/// Checks a name. Returns whether an attribute of that kind could be there.
fn is_possible(call: &Call<'_>) -> Result<bool, Errno> {
    let name = call.user().text(call.args[1], NAME + 1, ERANGE)?;
    if name.is_empty() {
        return Err(Errno(ERANGE));
    }
    let kinds: [&[u8]; 3] = [b"user.", b"trusted.", b"security."];
    Ok(kinds.iter().any(|kind| name.starts_with(kind)) || name.starts_with(b"system.posix_acl_"))
}

/// getxattr(2), and removexattr(2), which also finds nothing.
pub(in crate::call) fn get(call: &mut Call<'_>, by: By) -> Outcome {
    let possible = is_possible(call)?;
    check_file(call, by)?;
    fail(if possible { ENODATA } else { EOPNOTSUPP })
}

/// setxattr(2).
pub(in crate::call) fn set(call: &mut Call<'_>, by: By) -> Outcome {
    let [_, _, value, size, flags, _] = call.args;
    // XATTR_CREATE and XATTR_REPLACE.
    if flags as u32 & !3 != 0 {
        return fail(EINVAL);
    }
    is_possible(call)?;
    if size > VALUE {
        return fail(E2BIG);
    }
    for at in (0..size).step_by(4096).chain(size.checked_sub(1)) {
        call.user().read::<u8>(value.wrapping_add(at))?;
    }
    check_file(call, by)?;
    fail(EOPNOTSUPP)
}

/// listxattr(2).
pub(in crate::call) fn list(call: &mut Call<'_>, by: By) -> Outcome {
    check_file(call, by)?;
    Ok(0)
}
