//! Calls that wait for the end of children.

use super::{Call, Outcome, Stop, fail, time};
use crate::errno::Errno;
use crate::lock::lock;
use crate::task::Process;
use crate::task::pid::{Exit, Pid};
use crate::task::signal::SIGCHLD;
use alloc::sync::Arc;
use core::sync::atomic::Ordering;
use linux_raw_sys::errno::{EAGAIN, ECHILD, EINVAL, ESRCH};

/// The children for which a call waits.
struct Wanted {
    of: Children,
    /// Those with SIGCHLD as exit signal, and the others: clones.
    usual: bool,
    clones: bool,
}

enum Children {
    Any,
    One(u32),
    Process(Arc<Pid>),
    Group(u32),
}

impl Wanted {
    fn new(of: Children, options: u64) -> Wanted {
        const WCLONE: u64 = 1 << 31;
        const WALL: u64 = 1 << 30;
        let (all, clones) = (options & WALL != 0, options & WCLONE != 0);
        Wanted { of, usual: all || !clones, clones: all || clones }
    }

    fn has(&self, child: &Process) -> bool {
        // Relaxed, both: only the numbers.
        let usual = child.exit_signal.load(Ordering::Relaxed) == u32::from(SIGCHLD);
        let kind = if usual { self.usual } else { self.clones };
        kind && match self.of {
            Children::Any => true,
            Children::One(pid) => child.pid == pid,
            Children::Process(ref pid) => Arc::ptr_eq(pid, &child.handle),
            Children::Group(group) => child.group.load(Ordering::Relaxed) == group,
        }
    }
}

const NOHANG: u64 = 1;

/// Waits for a child that has ended. `reap`: it is forgotten afterwards.
fn wait_for(
    call: &mut Call<'_>,
    which: &Wanted,
    hang: bool,
    reap: bool,
) -> Result<Option<(Arc<Process>, Exit)>, Stop> {
    let process = call.process();
    let found = |_: &mut Call<'_>| {
        let mut any = false;
        let mut children = lock(&process.children);
        for at in 0..children.len() {
            if !which.has(&children[at]) {
                continue;
            }
            any = true;
            let ended = *lock(&children[at].handle.ended);
            if let Some(how) = ended {
                let child = if reap { children.remove(at) } else { Arc::clone(&children[at]) };
                return Some(Ok(Some((child, how))));
            }
        }
        match (any, hang) {
            (false, _) => Some(Err(Errno(ECHILD))),
            (true, false) => Some(Ok(None)),
            (true, true) => None,
        }
    };
    let found = call.wait(&process.events, found)??;
    if let Some((child, _)) = &found
        && reap
    {
        child.reap();
        process.used_by_children.add(child.used.get());
        process.used_by_children.add(child.used_by_children.get());
    }
    Ok(found)
}

/// wait4(2).
pub(super) fn wait4(call: &mut Call<'_>) -> Outcome {
    let [pid, status, options, usage, ..] = call.args;
    // NOHANG, UNTRACED, CONTINUED, __WALL, __WCLONE, __WNOTHREAD
    if options & !(NOHANG | 2 | 8 | 0xe000_0000) != 0 {
        return fail(EINVAL);
    }
    let which = match pid as i32 {
        -1 => Children::Any,
        i32::MIN => return fail(ESRCH),
        0 => Children::Group(call.process().group.load(Ordering::Relaxed)),
        pid @ 1.. => Children::One(pid as u32),
        group => Children::Group(group.unsigned_abs()),
    };
    let which = Wanted::new(which, options);
    let Some((child, how)) = wait_for(call, &which, options & NOHANG == 0, true)? else {
        return Ok(0);
    };
    if status != 0 {
        call.user().write(status, &how.status())?;
    }
    if usage != 0 {
        call.user().write(usage, &time::rusage(child.used.get()))?;
    }
    Ok(child.pid.into())
}

/// waitid(2).
pub(super) fn waitid(call: &mut Call<'_>) -> Outcome {
    const EXITED: u64 = 4;
    const NOWAIT: u64 = 0x100_0000;
    let [kind, id, info, options, usage, _] = call.args;
    if options & !(NOHANG | 2 | EXITED | 8 | NOWAIT | 0xe000_0000) != 0
        || options & (2 | EXITED | 8) == 0
    {
        return fail(EINVAL);
    }
    let mut blocks = true;
    let which = match kind {
        0 => Children::Any,
        1 if (id as i32) > 0 => Children::One(id as u32),
        2 if id == 0 => Children::Group(call.process().group.load(Ordering::Relaxed)),
        2 if (id as i32) > 0 => Children::Group(id as u32),
        3 if (id as i32) >= 0 => {
            let (process, waits) = call.waited(id)?;
            blocks = waits;
            Children::Process(process)
        }
        _ => return fail(EINVAL),
    };
    let which = Wanted::new(which, options);
    let hang = blocks && options & NOHANG == 0;
    let found = wait_for(call, &which, hang, options & NOWAIT == 0)?;
    if found.is_none() && !blocks && options & NOHANG == 0 {
        return fail(EAGAIN);
    }
    let mut words = [0_u32; 32];
    if let Some((child, how)) = &found {
        let (code, status) = match how {
            Exit::Code(code) => (1, u32::from(*code)),
            Exit::Signal(number) => (2, u32::from(*number)),
        };
        // si_signo, si_errno, si_code; then si_pid, si_uid, si_status.
        words[..7].copy_from_slice(&[17, 0, code, 0, child.pid, 0, status]);
        if usage != 0 {
            call.user().write(usage, &time::rusage(child.used.get()))?;
        }
    }
    if info != 0 {
        call.user().write(info, &words)?;
    }
    Ok(0)
}
