//! Calls that tell about the machine and the program, and the futex call.

use super::{Call, Outcome, Stop, fail, time};
use crate::errno::Errno;
use crate::file::proc::RELEASE;
use crate::file::sysfs;
use crate::futex::{self, Key};
use crate::lock::lock;
use crate::machine::Kernel;
use crate::task::{process, signal};
use crate::time::real_time;
use crate::{clock, random, user};
use alloc::sync::Arc;
use linux_raw_sys::errno::{EFAULT, EINVAL, ENOSYS, EPERM, ESRCH, ETIMEDOUT};
use machine::{CpuId, CpuSet, Cpus};
use mm::HugePages;
use zerocopy::IntoBytes;

/// arch_prctl(2).
pub(super) fn arch_prctl(call: &mut Call<'_>) -> Outcome {
    let [what, address, ..] = call.args;
    match what {
        0x1001 | 0x1002 if address >= user::END => fail(EPERM),
        0x1001 => {
            call.own.gs = address;
            user::set_bases(call.own.fs, call.own.gs);
            Ok(0)
        }
        0x1002 => {
            call.own.fs = address;
            user::set_bases(call.own.fs, call.own.gs);
            Ok(0)
        }
        0x1003 => write_word(call, address, call.own.fs),
        0x1004 => write_word(call, address, call.own.gs),
        _ => fail(EINVAL),
    }
}

fn write_word(call: &Call<'_>, at: u64, word: u64) -> Outcome {
    call.user().write(at, &word)?;
    Ok(0)
}

/// uname(2).
pub(super) fn uname(call: &mut Call<'_>) -> Outcome {
    let mut names = [[0_u8; 65]; 6];
    let texts: [&[u8]; 6] =
        [b"Linux", b"samara", RELEASE.as_bytes(), b"#1 SMP", b"x86_64", b"(none)"];
    for (name, text) in names.iter_mut().zip(texts) {
        name[..text.len()].copy_from_slice(text);
    }
    call.user().write_bytes(call.args[0], names.as_bytes())?;
    Ok(0)
}

/// getrandom(2).
pub(super) fn getrandom(call: &mut Call<'_>) -> Outcome {
    let [into, len, flags, ..] = call.args;
    if flags & !7 != 0 || flags & 6 == 6 {
        return fail(EINVAL);
    }
    let len = len.min(0x7fff_f000);
    let mut done = 0;
    while done < len {
        let mut part = [0_u64; 32];
        part.fill_with(random::word);
        let bytes = &part.as_bytes()[..(len - done).min(256) as usize];
        let copied = call.user().write_some(into.wrapping_add(done), bytes) as u64;
        done += copied;
        // As in Linux, a signal ends it early, looked for at each page.
        if copied < bytes.len() as u64 || done % 4096 == 0 && signal::is_pending(call.thread) {
            break;
        }
    }
    if done == 0 && len > 0 { fail(EFAULT) } else { Ok(done) }
}

/// getcpu(2).
pub(super) fn getcpu(call: &mut Call<'_>) -> Outcome {
    let [cpu, node, ..] = call.args;
    for (at, value) in [(cpu, Kernel.current().index() as u32), (node, 0)] {
        if at != 0 {
            call.user().write(at, &value)?;
        }
    }
    Ok(0)
}

/// The bytes of a set of CPUs, as the kernel of a machine with few CPUs has them.
const SET: usize = 8;

/// sched_getaffinity(2).
pub(super) fn sched_getaffinity(call: &mut Call<'_>) -> Outcome {
    let [tid, len, into, ..] = call.args;
    let len = len as u32;
    if len < SET as u32 || !len.is_multiple_of(8) {
        return fail(EINVAL);
    }
    let thread = find(call, tid)?;
    let mut mask = 0_u64;
    lock(&thread.affinity).iter().for_each(|cpu| mask |= 1_u64.unbounded_shl(cpu.index() as u32));
    call.user().write(into, &mask)?;
    Ok(SET as u64)
}

/// sched_setaffinity(2).
pub(super) fn sched_setaffinity(call: &mut Call<'_>) -> Outcome {
    let [tid, len, from, ..] = call.args;
    let thread = find(call, tid)?;
    let mut mask = 0_u64;
    let bytes = &mut mask.as_mut_bytes()[..(len as u32).min(SET as u32) as usize];
    call.user().read_bytes(from, bytes)?;
    let mut cpus = CpuSet::EMPTY;
    let wanted = (0..SET * 8).filter(|index| mask >> index & 1 != 0).filter_map(CpuId::new);
    wanted.for_each(|cpu| cpus.insert(cpu));
    let cpus = cpus.intersection(&Kernel.online());
    if cpus.is_empty() {
        return fail(EINVAL);
    }
    *lock(&thread.affinity) = cpus;
    if !cpus.contains(Kernel.current()) && Arc::ptr_eq(&thread, call.thread) {
        return Err(Stop::Yield);
    }
    Ok(0)
}

fn find(call: &Call<'_>, tid: u64) -> Result<Arc<crate::task::Thread>, Errno> {
    match tid {
        0 => Ok(Arc::clone(call.thread)),
        tid => process::thread(tid as u32).ok_or(Errno(ESRCH)),
    }
}

/// prlimit64(2): there are no limits but those of stacks and descriptors, which are not changed,
/// and of addresses (RLIMIT_AS) and locked memory, whose hard limits are not changed.
pub(super) fn prlimit64(call: &mut Call<'_>) -> Outcome {
    let [pid, which, new, old, ..] = call.args;
    if pid != 0 && process::process(pid as u32).is_none() {
        return fail(ESRCH);
    }
    let new = if new != 0 { Some(call.user().read::<[u64; 2]>(new)?) } else { None };
    let before = limits(call, which)?;
    let own = pid == 0 || pid as u32 == call.process().pid;
    if let Some(new) = new.filter(|_| own) {
        set_limits(call, which, new)?;
    }
    if old != 0 {
        call.user().write(old, &before)?;
    }
    Ok(0)
}

/// getrlimit(2).
pub(super) fn getrlimit(call: &mut Call<'_>) -> Outcome {
    let limits = limits(call, call.args[0])?;
    call.user().write(call.args[1], &limits)?;
    Ok(0)
}

/// setrlimit(2).
pub(super) fn setrlimit(call: &mut Call<'_>) -> Outcome {
    limits(call, call.args[0])?;
    let new = call.user().read::<[u64; 2]>(call.args[1])?;
    set_limits(call, call.args[0], new)?;
    Ok(0)
}

/// RLIMIT_MEMLOCK: the most bytes that are locked, without CAP_IPC_LOCK.
const LOCKED: u64 = 8;
/// RLIMIT_AS: the most bytes of addresses.
const ADDRESSES: u64 = 9;

fn set_limits(call: &Call<'_>, which: u64, [most, hard]: [u64; 2]) -> Result<(), Errno> {
    if most > hard {
        return Err(Errno(EINVAL));
    }
    let limits = call.space().limits();
    let limits = match which {
        ADDRESSES => mm::Limits { address_space: most as usize, ..limits },
        LOCKED => mm::Limits { locked: most as usize, ..limits },
        _ => return Ok(()),
    };
    call.space().set_limits(limits);
    Ok(())
}

fn limits(call: &Call<'_>, which: u64) -> Result<[u64; 2], Errno> {
    match which {
        ADDRESSES => Ok([call.space().limits().address_space as u64, u64::MAX]),
        LOCKED => Ok([call.space().limits().locked as u64, u64::MAX]),
        3 => Ok([crate::task::memory::STACK as u64, u64::MAX]),
        7 => Ok([1024, 4096]),
        0..16 => Ok([u64::MAX; 2]),
        _ => Err(Errno(EINVAL)),
    }
}

/// prctl(2): the name of a thread, its huge pages, memory that must not become executable, and
/// settings for which libraries ask.
pub(super) fn prctl(call: &mut Call<'_>) -> Outcome {
    let [what, at, rest @ .., _] = call.args;
    match what {
        // PR_SET_NAME
        15 => {
            let name = call.user().name(at)?;
            *lock(call.thread.name()) = name;
            Ok(0)
        }
        // PR_GET_NAME
        16 => {
            let name = *lock(call.thread.name());
            call.user().write(at, &name)?;
            Ok(0)
        }
        // PR_GET_DUMPABLE, PR_SET_DUMPABLE, PR_SET_NO_NEW_PRIVS
        3 => Ok(1),
        4 | 38 => Ok(0),
        // PR_SET_THP_DISABLE, PR_GET_THP_DISABLE
        41 if rest == [0; 3] => {
            sysfs::forbid(call.space(), at != 0);
            Ok(0)
        }
        42 if at == 0 && rest == [0; 3] => {
            Ok((call.space().huge_pages() == HugePages::Disabled).into())
        }
        // PR_SET_MDWE, PR_GET_MDWE
        65 if rest == [0; 3] => {
            call.space().with_vmas(|calls| calls.set_deny_exec(at as usize))?;
            Ok(0)
        }
        66 if at == 0 && rest == [0; 3] => {
            Ok(call.space().with_vmas(|calls| Ok(calls.deny_exec()))? as u64)
        }
        _ => fail(EINVAL),
    }
}

const PRIVATE: u64 = 128;
const REALTIME: u64 = 256;

/// futex(2).
pub(super) fn futex(call: &mut Call<'_>) -> Outcome {
    let [at, op, value, time, second, third] = call.args;
    let (user, value) = (call.user(), value as u32);
    let private = op & PRIVATE != 0;
    let key = |at| Key::of_readable(user, at, private);
    let all = u32::MAX;
    match op & !(PRIVATE | REALTIME) {
        // WAIT, WAIT_BITSET
        0 => wait(call, value, all, Time::Relative),
        9 => wait(call, value, third as u32, Time::absolute(op)),
        // WAKE, WAKE_BITSET
        1 => Ok(futex::wake(key(at)?, value as usize, all) as u64),
        10 if third as u32 == 0 => fail(EINVAL),
        10 => Ok(futex::wake(key(at)?, value as usize, third as u32) as u64),
        // REQUEUE, CMP_REQUEUE
        op @ (3 | 4) => {
            if (value as i32) < 0 || (time as i32) < 0 {
                return fail(EINVAL);
            }
            let expected = (op == 4).then_some(third as u32);
            if op == 4 {
                user.read::<u32>(at)?;
            }
            let count = futex::requeue(
                user,
                (key(at)?, at),
                key(second)?,
                value as usize,
                time as u32 as usize,
                expected,
            )?;
            Ok(count as u64)
        }
        // WAKE_OP
        5 => {
            let (first, other) = (key(at)?, key(second)?);
            let fits = operate(call, second, third as u32)?;
            let mut woken = futex::wake(first, value as usize, all);
            if fits {
                woken += futex::wake(other, time as u32 as usize, all);
            }
            Ok(woken as u64)
        }
        // LOCK_PI, UNLOCK_PI, TRYLOCK_PI, LOCK_PI2
        6..=8 if op & REALTIME != 0 => fail(ENOSYS),
        6 => call.lock(private, true),
        7 => call.unlock(private),
        8 => call.try_lock(private),
        13 => call.lock(private, op & REALTIME != 0),
        _ => fail(ENOSYS),
    }
}

/// Changes a word as FUTEX_WAKE_OP says, and compares its old value.
fn operate(call: &Call<'_>, at: u64, operation: u32) -> Result<bool, Errno> {
    let signed = |bits: u32| ((bits << 20) as i32) >> 20;
    let (kind, comparison) = (operation >> 28 & 7, operation >> 24 & 15);
    let mut argument = signed(operation >> 12 & 0xfff);
    if operation >> 31 != 0 {
        argument = 1 << (argument & 31);
    }
    let with = signed(operation & 0xfff);
    if kind > 4 || comparison > 5 {
        return Err(Errno(ENOSYS));
    }
    loop {
        let old = call.user().read::<u32>(at)? as i32;
        let new = match kind {
            0 => argument,
            1 => old.wrapping_add(argument),
            2 => old | argument,
            3 => old & !argument,
            _ => old ^ argument,
        };
        if call.user().compare_exchange(at, old as u32, new as u32)? {
            return Ok(match comparison {
                0 => old == with,
                1 => old != with,
                2 => old < with,
                3 => old <= with,
                4 => old > with,
                _ => old >= with,
            });
        }
    }
}

/// The form of a timeout: relative, or an absolute time of one of two clocks.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Time {
    Relative,
    Monotonic,
    Real,
}

impl Time {
    fn absolute(op: u64) -> Time {
        if op & REALTIME != 0 { Time::Real } else { Time::Monotonic }
    }
}

fn wait(call: &mut Call<'_>, value: u32, bits: u32, kind: Time) -> Outcome {
    let [at, op, _, time, ..] = call.args;
    if bits == 0 {
        return fail(EINVAL);
    }
    let waiter = match call.own.resume.futex.clone() {
        Some(waiter) => waiter,
        None => {
            if time != 0 && call.own.resume.deadline.is_none() {
                let nanos = time::timespec(call, time)?;
                call.own.resume.deadline = Some(match kind {
                    Time::Relative => clock::now().saturating_add(nanos),
                    Time::Monotonic => nanos,
                    Time::Real => nanos.saturating_sub(real_time() - clock::now()),
                });
            }
            let key = Key::of(call.space(), at, op & PRIVATE != 0)?;
            let waiter = futex::begin(call.thread.clone(), call.user(), key, at, value, bits)?;
            call.own.resume.futex = Some(Arc::clone(&waiter));
            waiter
        }
    };
    call.thread.begin_wait();
    if waiter.is_woken() {
        call.thread.end_wait();
        return Ok(0);
    }
    let stop = match call.own.resume.deadline {
        Some(deadline) if clock::now() >= deadline => {
            call.thread.end_wait();
            Stop::Errno(Errno(ETIMEDOUT))
        }
        Some(deadline) => {
            call.own.resume.wake_at(deadline, call.thread);
            call.rest()
        }
        None => call.rest(),
    };
    if stop != Stop::Wait {
        call.own.resume.futex = None;
        if futex::give_up(&waiter) {
            // It was woken after all.
            return Ok(0);
        }
    }
    Err(stop)
}

/// membarrier(2): each CPU that runs the program has come through a full barrier.
pub(super) fn membarrier(call: &mut Call<'_>) -> Outcome {
    if call.args[1] as u32 != 0 {
        return fail(EINVAL);
    }
    match call.args[0] {
        // QUERY: GLOBAL, PRIVATE_EXPEDITED and its registration
        0 => Ok(1 | 8 | 16),
        1 | 8 => {
            let _section = machine::Irqs::irqs_off(&Kernel);
            let everyone = Kernel.online();
            machine::Tlb::flush_on(&Kernel, &everyone, machine::Flush::Space(machine::Asid(0)));
            Ok(0)
        }
        16 => Ok(0),
        _ => fail(EINVAL),
    }
}

/// set_robust_list(2).
pub(super) fn set_robust_list(call: &mut Call<'_>) -> Outcome {
    if call.args[1] != 24 {
        return fail(EINVAL);
    }
    call.own.robust_list = call.args[0];
    Ok(0)
}

/// get_robust_list(2), of the thread itself.
pub(super) fn get_robust_list(call: &mut Call<'_>) -> Outcome {
    let [tid, head, len, ..] = call.args;
    if !Arc::ptr_eq(&find(call, tid)?, call.thread) {
        return fail(EPERM);
    }
    call.user().write(len, &24_u64)?;
    write_word(call, head, call.own.robust_list)
}
