//! Control messages: files (SCM_RIGHTS) and credentials (SCM_CREDENTIALS).

use super::Call;
use crate::errno::Errno;
use crate::file::open::Open;
use crate::file::socket::Extra;
use crate::file::socket::message::Credentials;
use crate::task::process;
use alloc::sync::Arc;
use linux_raw_sys::errno::{EINVAL, ENOMEM, ESRCH};

const SOL_SOCKET: u32 = 1;
const RIGHTS: u32 = 1;
const CREDENTIALS: u32 = 2;
/// The bytes of `struct cmsghdr`.
const HEADER: u64 = 16;
/// The most files of a message.
const MOST: usize = 253;

/// Reads the files and credentials that a program sends with a message.
pub(super) fn read(call: &Call<'_>, at: u64, len: u64, extra: &mut Extra) -> Result<(), Errno> {
    let mut place = 0;
    while place + HEADER <= len {
        let here = at.checked_add(place).ok_or(super::BAD)?;
        let [size, what]: [u64; 2] = call.user().read(here)?;
        if size < HEADER || size > len - place {
            return Err(Errno(EINVAL));
        }
        let data = here + HEADER;
        match (what as u32, (what >> 32) as u32) {
            (SOL_SOCKET, RIGHTS) => {
                for index in 0..(size - HEADER) / 4 {
                    if extra.files.len() == MOST {
                        return Err(Errno(EINVAL));
                    }
                    let fd: u32 = call.user().read(data + 4 * index)?;
                    extra.files.try_reserve(1).map_err(|_| Errno(ENOMEM))?;
                    extra.files.push(call.any_open(fd.into())?);
                }
            }
            (SOL_SOCKET, CREDENTIALS) => {
                if size != HEADER + 12 {
                    return Err(Errno(EINVAL));
                }
                let [pid, user, group]: [u32; 3] = call.user().read(data)?;
                if process::process(pid).is_none() {
                    return Err(Errno(ESRCH));
                }
                extra.of = Credentials { pid, user, group };
            }
            (SOL_SOCKET, _) => return Err(Errno(EINVAL)),
            _ => {}
        }
        place += size.next_multiple_of(8);
    }
    Ok(())
}

/// Gives a program the files and credentials of a message. `room` is the address and its bytes.
/// Returns how many were used, and whether something did not fit.
pub(super) fn write(
    call: &Call<'_>,
    room: (u64, u64),
    credentials: Option<Credentials>,
    files: &[Arc<Open>],
    close_on_exec: bool,
) -> Result<(u64, bool), Errno> {
    let user = call.user();
    let (at, len) = room;
    let (mut used, mut cut) = (0, false);
    let header = |bytes: u64, kind: u32| [HEADER + bytes, u64::from(kind) << 32 | 1];
    if let Some(Credentials { pid, user: id, group }) = credentials {
        const BYTES: u64 = 12;
        if len < HEADER + BYTES {
            cut = true;
        } else {
            user.write(at, &header(BYTES, CREDENTIALS))?;
            user.write(at + HEADER, &[pid, id, group])?;
            used = (HEADER + BYTES).next_multiple_of(8).min(len);
        }
    }
    if files.is_empty() {
        return Ok((used, cut));
    }
    let fits = (len - used).saturating_sub(HEADER) / 4;
    let mut given = 0;
    let table = call.files()?;
    for open in files.iter().take(fits as usize) {
        let Ok(fd) = table.insert(Arc::clone(open), close_on_exec, 0) else { break };
        if let Err(error) = user.write(at + used + HEADER + 4 * given, &fd) {
            // It is there, unless another thread has closed it.
            let _ = table.close(fd);
            if given == 0 {
                return Err(error);
            }
            break;
        }
        given += 1;
    }
    cut |= given < files.len() as u64;
    if given > 0 {
        user.write(at + used, &header(4 * given, RIGHTS))?;
        used += (HEADER + 4 * given).next_multiple_of(8).min(len - used);
    }
    Ok((used, cut))
}
