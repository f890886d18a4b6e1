//! pidfd_open(2), pidfd_send_signal(2), pidfd_getfd(2), process_madvise(2).

use super::{Call, Outcome, check_flags};
use crate::call::signal::{number, read_info};
use crate::call::{Stop, fail};
use crate::errno::Errno;
use crate::file::inode::InodeKind;
use crate::file::open::{Mode, Open};
use crate::file::pidfd::PidFd;
use crate::task::pid::Pid;
use crate::task::process;
use crate::task::signal::{self, Info, SI_USER};
use alloc::sync::Arc;
use linux_raw_sys::errno::{EBADF, EINVAL, ENOENT, ESRCH};
use linux_raw_sys::general::{O_CLOEXEC, O_NONBLOCK};
use mm::Advice;

/// pidfd_open(2), of processes.
pub(in crate::call) fn pidfd_open(call: &mut Call<'_>) -> Outcome {
    let [pid, flags, ..] = call.args;
    check_flags(flags, O_NONBLOCK)?;
    if pid as i32 <= 0 {
        return fail(EINVAL);
    }
    let of_thread = || process::thread(pid as u32).map_or(ESRCH, |_| ENOENT);
    let process = process::process(pid as u32).ok_or_else(|| Errno(of_thread()))?;
    let kind = InodeKind::Process(PidFd::new(Arc::clone(&process.handle))?);
    Ok(call.descriptor(kind, Mode::READ_WRITE, flags as u32 | O_CLOEXEC)?.into())
}

impl Call<'_> {
    /// Calls `with` with the number of a descriptor.
    fn with_pidfd<T>(
        &self,
        fd: u64,
        with: impl FnOnce(&Arc<Pid>) -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        match &self.open(fd)?.node.kind {
            InodeKind::Process(pidfd) => with(&pidfd.pid),
            _ => Err(Errno(EBADF)),
        }
    }

    /// The number of a descriptor, whose process may have ended, and whether a wait for it blocks.
    pub(in crate::call) fn waited(&self, fd: u64) -> Result<(Arc<Pid>, bool), Errno> {
        let open: Arc<Open> = self.open(fd)?;
        match &open.node.kind {
            InodeKind::Process(pidfd) => Ok((Arc::clone(&pidfd.pid), !open.is_nonblocking())),
            _ => Err(Errno(EBADF)),
        }
    }
}

/// pidfd_send_signal(2), to a process.
pub(in crate::call) fn pidfd_send_signal(call: &mut Call<'_>) -> Outcome {
    /// PIDFD_SIGNAL_THREAD_GROUP, which is the default, too.
    const PROCESS: u32 = 2;
    let [fd, of, info, flags, ..] = call.args;
    check_flags(flags, PROCESS)?;
    let own = call.process();
    call.with_pidfd(fd, |pid| {
        let info = match info {
            0 => None,
            at => {
                if call.user().read::<u32>(at)? != of as u32 {
                    return Err(Errno(EINVAL));
                }
                Some(read_info(call, at, of, own.pid, pid.number as i32)?)
            }
        };
        let process = process::of(pid)?;
        match number(of)? {
            None => Ok(()),
            Some(number) => {
                let info = info.unwrap_or_else(|| Info::sent(number, SI_USER, own.pid));
                signal::send(&process, info)
            }
        }
    })?;
    Ok(0)
}

/// pidfd_getfd(2).
pub(in crate::call) fn pidfd_getfd(call: &mut Call<'_>) -> Outcome {
    let [fd, target, flags, ..] = call.args;
    check_flags(flags, 0)?;
    let open = call
        .with_pidfd(fd, |pid| process::of(pid)?.files().ok_or(Errno(ESRCH))?.get(target as u32))?;
    Ok(call.files()?.insert(open, true, 0)?.into())
}

/// process_madvise(2), with the advice that takes nothing away, for this process, too.
pub(in crate::call) fn process_madvise(call: &mut Call<'_>) -> Outcome {
    /// The most ranges.
    const MOST: u64 = 1024;
    let [fd, ranges, count, advice, flags, _] = call.args;
    check_flags(flags, 0)?;
    if count > MOST {
        return fail(EINVAL);
    }
    // All are read before the first is done.
    let mut list = alloc::vec::Vec::new();
    list.try_reserve_exact(count as usize).map_err(|_| Errno(linux_raw_sys::errno::ENOMEM))?;
    for place in 0..count {
        list.push(call.user().read::<[u64; 2]>(ranges.wrapping_add(16 * place))?);
    }
    let space = call.with_pidfd(fd, |pid| process::of(pid)?.space().ok_or(Errno(ESRCH)))?;
    let advice = Advice::from_number(advice as u32);
    let Some(advice) = advice.filter(|advice| advice.is_gentle()) else { return fail(EINVAL) };
    let mut done = 0;
    for [at, len] in list {
        match space.madvise_announced(at as usize, len as usize, advice) {
            Ok(()) => done += len,
            Err(error) if done == 0 => return Err(Stop::from(error)),
            Err(_) => break,
        }
    }
    Ok(done)
}
