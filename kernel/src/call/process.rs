//! Calls on processes and threads: clone, execve, wait, exit.

use super::{Call, Outcome, Stop, fail};
use crate::clock;
use crate::errno::Errno;
use crate::file::sysfs;
use crate::file::userfault_events::Events;
use crate::load;
use crate::lock::lock;
use crate::task::memory::Memory;
use crate::task::pid::Exit;
use crate::task::process;
use crate::task::program::{Loaded, Program};
use crate::task::thread::Forked;
use crate::task::wait::Sleeper;
use crate::task::{Own, Process, Space, Thread, exit, oom, signal};
use crate::time::SECOND;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;
use linux_raw_sys::errno::{E2BIG, EACCES, EAGAIN, EINVAL, ENOMEM, EPERM, ESRCH};
use mm::HugePages;
use paging::Tag;
use zerocopy::IntoBytes;

const VM: u64 = 0x100;
const FS: u64 = 0x200;
const FILES: u64 = 0x400;
const SIGHAND: u64 = 0x800;
const VFORK: u64 = 0x4000;
const PARENT: u64 = 0x8000;
const THREAD: u64 = 0x1_0000;
const SYSVSEM: u64 = 0x4_0000;
const SETTLS: u64 = 0x8_0000;
const PARENT_SETTID: u64 = 0x10_0000;
const CHILD_CLEARTID: u64 = 0x20_0000;
const DETACHED: u64 = 0x40_0000;
const CHILD_SETTID: u64 = 0x100_0000;
/// CLONE_CLEAR_SIGHAND, of clone3 alone.
const CLEAR_SIGHAND: u64 = 1 << 32;

const KNOWN: u64 = VM
    | FS
    | FILES
    | SIGHAND
    | VFORK
    | PARENT
    | THREAD
    | SYSVSEM
    | SETTLS
    | PARENT_SETTID
    | CHILD_CLEARTID
    | DETACHED
    | CHILD_SETTID
    | CLEAR_SIGHAND;

/// The arguments of a clone.
struct New {
    flags: u64,
    exit_signal: u32,
    /// Its stack pointer; 0 for that of its parent.
    stack: u64,
    parent_tid: u64,
    child_tid: u64,
    tls: u64,
}

/// clone(2).
pub(super) fn clone(call: &mut Call<'_>) -> Outcome {
    let [flags, stack, parent_tid, child_tid, tls, _] = call.args;
    let (exit_signal, flags) = ((flags & 0xff) as u32, flags & 0xffff_ff00);
    make(call, New { flags, exit_signal, stack, parent_tid, child_tid, tls })
}

/// fork(2).
pub(super) fn fork(call: &mut Call<'_>) -> Outcome {
    let (stack, parent_tid, child_tid, tls) = (0, 0, 0, 0);
    make(call, New { flags: 0, exit_signal: 17, stack, parent_tid, child_tid, tls })
}

/// vfork(2).
pub(super) fn vfork(call: &mut Call<'_>) -> Outcome {
    let (stack, parent_tid, child_tid, tls) = (0, 0, 0, 0);
    make(call, New { flags: VM | VFORK, exit_signal: 17, stack, parent_tid, child_tid, tls })
}

/// clone3(2), of the first two sizes of its arguments.
pub(super) fn clone3(call: &mut Call<'_>) -> Outcome {
    let [at, size, ..] = call.args;
    if size < 64 {
        return fail(EINVAL);
    }
    if size > 4096 {
        return fail(E2BIG);
    }
    let mut words = [0_u64; 11];
    let known = (size as usize).min(size_of_val(&words));
    call.user().read_bytes(at, &mut words.as_mut_bytes()[..known])?;
    for offset in known as u64..size {
        if call.user().read::<u8>(at.wrapping_add(offset))? != 0 {
            return fail(E2BIG);
        }
    }
    let [flags, pidfd, child_tid, parent_tid, exit_signal, stack, stack_size, tls, tids, count, _] =
        words;
    if tids != 0 || count != 0 || pidfd != 0 && flags & 0x1000 != 0 {
        return fail(EINVAL);
    }
    if flags & 0xff != 0 || exit_signal > 64 || (stack == 0) != (stack_size == 0) {
        return fail(EINVAL);
    }
    let Some(stack) = stack.checked_add(stack_size) else { return fail(EINVAL) };
    if flags & (THREAD | PARENT) != 0 && exit_signal != 0 {
        return fail(EINVAL);
    }
    let exit_signal = exit_signal as u32;
    make(call, New { flags, exit_signal, stack, parent_tid, child_tid, tls })
}

/// Makes a thread or a process.
fn make(call: &mut Call<'_>, new: New) -> Outcome {
    if let Some(child) = call.own.resume.child.clone() {
        return wait_for_vfork(call, &child);
    }
    let has = |flag| new.flags & flag != 0;
    if new.flags & !KNOWN != 0
        || has(SIGHAND) && !has(VM)
        || has(THREAD) && !has(SIGHAND)
        || has(SIGHAND) && has(CLEAR_SIGHAND)
        || new.exit_signal > 64
    {
        return fail(EINVAL);
    }
    if has(SETTLS) && new.tls >= crate::user::END {
        return fail(EPERM);
    }
    // Everything that needs memory, before anything can be seen.
    let forked = if has(THREAD) { None } else { Some(for_process(call, &new)?) };
    let space = forked.as_ref().map_or(call.space(), |forked| &forked.space);
    call.own.xstate.save();
    let mut own = call.own.try_clone(Arc::clone(space)).ok_or(Errno(ENOMEM))?;
    own.registers.rax = 0;
    if new.stack != 0 {
        own.registers.rsp = new.stack;
    }
    if has(SETTLS) {
        own.fs = new.tls;
    }
    if has(CHILD_CLEARTID) {
        own.clear_tid = new.child_tid;
    }
    if has(VM) && !has(VFORK) {
        own.stack = Default::default();
    }
    let thread = match forked {
        Some(forked) => new_process(call, &new, own, forked)?,
        None => Thread::new(process::number(), Arc::clone(call.process()), own),
    };
    signal::inherit(call.thread, &thread);
    call.thread.schedule.inherit(&thread.schedule);
    *lock(thread.name()) = *lock(call.thread.name());
    *lock(&thread.affinity) = *lock(&call.thread.affinity);
    let (user, tid) = (call.user(), thread.tid());
    if has(PARENT_SETTID) {
        // As in Linux, a bad address is not told.
        let _ = user.write(new.parent_tid, &tid);
    }
    if has(CHILD_SETTID) {
        let _ = match has(VM) {
            true => user.write(new.child_tid, &tid).ok(),
            false => {
                // SAFETY: this CPU has the thread, which is in no queue.
                unsafe { thread.own() }.space().write(new.child_tid as usize, tid.as_bytes()).ok()
            }
        };
    }
    if !thread.process.add(&thread) {
        // The process is ending. A new one, which was killed before it had a thread, has nothing
        // that would take it out of the table later.
        if !has(THREAD) {
            thread.process.reap();
        }
        return fail(EAGAIN);
    }
    if has(VFORK) {
        *lock(&thread.vfork) = Some(Arc::clone(call.thread));
    }
    Arc::clone(&thread).wake();
    if has(VFORK) {
        call.own.resume.child = Some(Arc::clone(&thread));
        return wait_for_vfork(call, &thread);
    }
    Ok(tid.into())
}

/// The memory and the files for a new process. Monitors of userfaultfd have read of a fork of the
/// memory.
fn for_process(call: &mut Call<'_>, new: &New) -> Result<Forked, Stop> {
    let forked = match call.own.resume.forked.take() {
        Some(forked) => forked,
        None => {
            let files = call.process().files().ok_or(Errno(EAGAIN))?;
            let files = if new.flags & FILES != 0 { files } else { files.copy()? };
            if new.flags & VM != 0 {
                return Ok(Forked { space: Arc::clone(call.space()), files });
            }
            match fork_memory(call) {
                Ok(space) => Forked { space: Arc::new(space), files },
                Err(Errno(ENOMEM)) if oom::is_passing() => return wait_for_memory(call),
                Err(error) => return Err(error.into()),
            }
        }
    };
    let told = call.tell_monitors(Some(&forked.space));
    told.inspect_err(|_| call.own.resume.forked = Some(forked.clone()))?;
    Ok(forked)
}

fn fork_memory(call: &Call<'_>) -> Result<Space, Errno> {
    if oom::is_near() {
        return Err(Errno(ENOMEM));
    }
    let space = call.space().fork(Tag::Assigned);
    // Drops the events of a fork that failed, and the monitors for its child.
    Ok(space.inspect_err(|_| drop(Events::take(None)))?)
}

/// Makes the call again a millisecond later: processes that are ending give their memory back.
fn wait_for_memory<T>(call: &mut Call<'_>) -> Result<T, Stop> {
    call.thread.begin_wait();
    if call.is_ending() {
        call.thread.end_wait();
        return Err(Stop::Interrupted);
    }
    call.own.resume.wake_at(clock::now() + SECOND / 1000, call.thread);
    call.thread.wait_deeply();
    Err(Stop::Wait)
}

fn new_process(call: &Call<'_>, new: &New, own: Own, forked: Forked) -> Result<Arc<Thread>, Errno> {
    let of = call.process();
    let Forked { space, files } = forked;
    let memory = match new.flags & VM != 0 {
        true => lock(&of.memory).as_ref().map(Memory::share).ok_or(Errno(EAGAIN))?,
        false => Memory::new(space),
    };
    let as_sibling = new.flags & PARENT != 0;
    // Relaxed: only the number.
    let inherited = of.exit_signal.load(Ordering::Relaxed);
    let exit_signal = if as_sibling { inherited } else { new.exit_signal };
    let child =
        Process::new(Some(of), as_sibling, exit_signal, memory, files).ok_or(Errno(EAGAIN))?;
    // A setting may have changed since the memory was made.
    child.space().iter().for_each(sysfs::apply);
    *lock(&child.place) = lock(&of.place).clone();
    *lock(&child.program) = lock(&of.program).clone();
    match new.flags & SIGHAND != 0 {
        true => signal::share(of, &child),
        false => signal::copy(of, &child, new.flags & CLEAR_SIGHAND != 0),
    }
    Ok(Thread::new(child.pid, child, own))
}

/// Waits until the child has ended or replaces its program. Only the end of this thread
/// interrupts it.
fn wait_for_vfork(call: &mut Call<'_>, child: &Thread) -> Outcome {
    call.thread.begin_wait();
    let over = lock(&child.vfork).is_none();
    if over || call.is_ending() {
        call.thread.end_wait();
        return if over { Ok(child.tid().into()) } else { Err(Stop::Interrupted) };
    }
    call.thread.wait_deeply();
    Err(Stop::Wait)
}

/// exit(2).
pub(super) fn exit(call: &mut Call<'_>) -> Outcome {
    let code = call.args[0] as u8;
    let process = call.process();
    if lock(&process.threads).len() == 1 {
        lock(&process.exiting).get_or_insert(Exit::Code(code));
    }
    let is_over = exit::thread(call.thread, call.own);
    Err(if is_over { Stop::End } else { Stop::Registers })
}

/// exit_group(2).
pub(super) fn exit_group(call: &mut Call<'_>) -> Outcome {
    call.thread.end_process(Exit::Code(call.args[0] as u8));
    Err(Stop::Registers)
}

/// Loads the program that an execve names.
fn load_program(call: &Call<'_>) -> Result<(Loaded, Program), Stop> {
    /// The most bytes of arguments and environment together.
    const MOST: usize = 2 << 20;
    let [path, arguments, environment, ..] = call.args;
    let user = call.user();
    let process = call.process();
    let path = user.path(path)?;
    let arguments = user.texts(arguments, MOST)?;
    let environment = user.texts(environment, MOST)?;
    let place = lock(&process.place).clone();
    let identity = lock(&process.identity).clone();
    let identity = [identity.user[0], identity.user[1], identity.group[0], identity.group[1]];
    let from = load::From { place: &place, pid: process.pid, identity };
    let (loaded, program) = load::load(&from, &path, arguments, &environment)?;
    loaded.space.set_limits(mm::Limits { may_lock: true, ..call.space().limits() });
    let denies = call.space().with_vmas(|calls| Ok(calls.inherited_deny_exec()))?;
    loaded.space.with_vmas(|calls| calls.set_deny_exec(denies))?;
    sysfs::forbid(&loaded.space, call.space().huge_pages() == HugePages::Disabled);
    Ok((loaded, program))
}

/// execve(2).
pub(super) fn execve(call: &mut Call<'_>) -> Outcome {
    let process = call.process();
    // Loaded once: another thread may change the arguments until it ends, and a failure then would
    // return to a program that has lost its threads.
    let (loaded, program) = match call.own.resume.program.take() {
        Some(prepared) => prepared,
        None => load_program(call)?,
    };
    // The other threads end. If another one does the same, it is this one's end.
    if let Err(stop) = end_others(call) {
        if stop == Stop::Wait {
            call.own.resume.program = Some((loaded, program));
        }
        return Err(stop);
    }
    let own = &mut *call.own;
    own.set_space(Arc::clone(&loaded.space));
    let old = lock(&process.memory).replace(Memory::new(Arc::clone(&loaded.space)));
    // It is emptied before the new program begins.
    own.empties = old.and_then(|mut old| old.leave());
    sysfs::apply(&loaded.space);
    exit::end_vfork(call.thread);
    process.make_first(call.thread);
    *lock(&process.name) = loaded.name;
    let before = core::mem::replace(&mut *lock(&process.program), program);
    drop(before);
    if let Some(files) = process.files() {
        // A table that is shared becomes the process's own.
        let files = match Arc::strong_count(&files) {
            0..=2 => Ok(files),
            _ => files.copy(),
        };
        // The old program is gone, so nothing is left to return an error to.
        let Ok(files) = files else {
            call.thread.end_process(Exit::Signal(signal::SIGKILL));
            return Err(Stop::Registers);
        };
        files.exec();
        *lock(&process.files) = Some(files);
    }
    signal::exec(call.thread);
    lock(&process.identity).exec();
    *lock(&process.replacing) = None;
    start(own, loaded.entry, loaded.stack);
    own.xstate.load();
    crate::user::set_bases(0, 0);
    Err(Stop::Registers)
}

/// Ends all other threads of the process, and waits for their end. If another thread does that
/// already, this one ends.
fn end_others(call: &mut Call<'_>) -> Result<(), Stop> {
    let process = call.process();
    if *lock(&process.replacing).get_or_insert(call.thread.tid()) != call.thread.tid() {
        signal::end_thread(call.thread);
        return Err(Stop::Registers);
    }
    let alone = |call: &mut Call<'_>| {
        let threads = lock(&process.threads).clone();
        let others = threads.iter().filter(|other| !Arc::ptr_eq(other, call.thread));
        let mut any = false;
        for other in others {
            any = true;
            signal::end_thread(other);
        }
        (!any).then_some(())
    };
    call.wait_killable(&process.alone, alone)
}

/// Sets the registers with which a program starts.
pub(crate) fn start(own: &mut Own, entry: u64, stack: u64) {
    own.registers = Default::default();
    own.registers.rip = entry;
    own.registers.rsp = stack;
    own.registers.sanitize();
    own.xstate.reset();
    (own.fs, own.gs) = (0, 0);
    (own.clear_tid, own.robust_list) = (0, 0);
    own.stack = Default::default();
    own.resume.clear();
}

pub(super) fn getpid(call: &mut Call<'_>) -> Outcome {
    Ok(call.process().pid.into())
}

pub(super) fn gettid(call: &mut Call<'_>) -> Outcome {
    Ok(call.thread.tid().into())
}

pub(super) fn getppid(call: &mut Call<'_>) -> Outcome {
    Ok(lock(&call.process().parent).upgrade().map_or(0, |parent| parent.pid.into()))
}

fn find(call: &Call<'_>, pid: u64) -> Result<Arc<Process>, Errno> {
    match pid as i32 {
        0 => Ok(Arc::clone(call.process())),
        pid @ 1.. => process::process(pid as u32).ok_or(Errno(ESRCH)),
        _ => Err(Errno(EINVAL)),
    }
}

/// getpgid(2).
pub(super) fn getpgid(call: &mut Call<'_>) -> Outcome {
    let of = find(call, call.args[0]).map_err(|_| Errno(ESRCH))?;
    Ok(of.group.load(Ordering::Relaxed).into())
}

/// getpgrp(2).
pub(super) fn getpgrp(call: &mut Call<'_>) -> Outcome {
    Ok(call.process().group.load(Ordering::Relaxed).into())
}

/// setpgid(2).
pub(super) fn setpgid(call: &mut Call<'_>) -> Outcome {
    let [pid, group, ..] = call.args;
    if (group as i32) < 0 {
        return fail(EINVAL);
    }
    let of = find(call, pid)?;
    let group = if group == 0 { of.pid } else { group as u32 };
    of.group.store(group, Ordering::Relaxed);
    Ok(0)
}

/// getsid(2).
pub(super) fn getsid(call: &mut Call<'_>) -> Outcome {
    let of = find(call, call.args[0]).map_err(|_| Errno(ESRCH))?;
    Ok(of.session.load(Ordering::Relaxed).into())
}

/// setsid(2).
pub(super) fn setsid(call: &mut Call<'_>) -> Outcome {
    let process = call.process();
    if process.group.load(Ordering::Relaxed) == process.pid {
        return fail(EPERM);
    }
    process.group.store(process.pid, Ordering::Relaxed);
    process.session.store(process.pid, Ordering::Relaxed);
    Ok(process.pid.into())
}

/// set_tid_address(2).
pub(super) fn set_tid_address(call: &mut Call<'_>) -> Outcome {
    call.own.clear_tid = call.args[0];
    Ok(call.thread.tid().into())
}

/// Makes the first process.
pub(crate) fn first(
    path: &[u8],
    arguments: Vec<Vec<u8>>,
    environment: &[Vec<u8>],
    files: Arc<crate::file::Files>,
) -> Result<Arc<Process>, Errno> {
    let from = load::From { place: &Default::default(), pid: 0, identity: [0; 4] };
    let (loaded, program) = load::load(&from, path, arguments, environment)?;
    let mut own = Own::try_new(Arc::clone(&loaded.space)).ok_or(Errno(ENOMEM))?;
    let process =
        Process::new(None, false, 0, Memory::new(loaded.space), files).ok_or(Errno(EACCES))?;
    // As in `new_process`.
    process.space().iter().for_each(sysfs::apply);
    start(&mut own, loaded.entry, loaded.stack);
    *lock(&process.program) = program;
    *lock(&process.name) = loaded.name;
    let thread = Thread::new(process.pid, Arc::clone(&process), own);
    if !process.add(&thread) {
        return Err(Errno(EACCES));
    }
    thread.wake();
    Ok(process)
}
