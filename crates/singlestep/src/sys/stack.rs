//! The lower end of the calling thread's stack.

use std::{io, mem::MaybeUninit, ptr};

use crate::Error;

/// The lowest address to which the calling thread's stack may grow. It is the same in the child,
/// which is a copy of this thread.
pub(super) fn low() -> Result<u64, Error> {
    let refused = |errno| Error::System {
        doing: "getting the stack of this thread",
        cause: io::Error::from_raw_os_error(errno),
    };
    let mut attributes = MaybeUninit::<libc::pthread_attr_t>::uninit();
    // SAFETY: fills the attributes, which have the right type.
    let errno = unsafe { libc::pthread_getattr_np(libc::pthread_self(), attributes.as_mut_ptr()) };
    if errno != 0 {
        return Err(refused(errno));
    }
    let (mut low, mut size) = (ptr::null_mut(), 0);
    // SAFETY: the attributes were filled above, and both results are ours.
    let errno =
        unsafe { libc::pthread_attr_getstack(attributes.as_ptr(), &raw mut low, &raw mut size) };
    // SAFETY: filled above, and not used any more.
    unsafe { libc::pthread_attr_destroy(attributes.as_mut_ptr()) };
    if errno == 0 { Ok(low as u64) } else { Err(refused(errno)) }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_stack_begins_below_this_frame() {
        let here = 0u8;
        let address = (&raw const here) as u64;
        let low = super::low().unwrap();
        assert!(low < address && address - low < 1 << 40, "{low:#x} {address:#x}");
    }
}
