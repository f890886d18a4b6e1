//! The end of threads and processes.
//!
//! The last thread of a process gives up its memory, and empties it if no other process uses it:
//! part by part, between which the CPU goes to other threads when the turn is over. The thread is
//! in no list then. The rest follows at once: files, children, and the parent hears of the end.

use super::memory::{self, Memory};
use super::pid::Exit;
use super::process::{self, FIRST};
use super::schedule::Next;
use super::signal::SIGCHLD;
use super::wait::Sleeper;
use super::{Own, Process, Thread, run_queue, signal};
use crate::file::ready::READABLE;
use crate::futex;
use crate::lock::lock;
use crate::machine::Kernel;
use crate::user::copy::User;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::mem;
use core::sync::atomic::Ordering;
use machine::Step;

/// Ends a thread: the one that this CPU runs, whose space is active. Returns whether it is over;
/// otherwise the thread [goes on](go_on) with that.
#[cold]
pub(crate) fn thread(thread: &Arc<Thread>, own: &mut Own) -> bool {
    let process = &thread.process;
    // First: a lock that it has waited for may be its own by now.
    own.resume.clear();
    {
        let space = Arc::clone(own.space());
        // SAFETY: this CPU runs the thread, and has its space active.
        let user = unsafe { User::new(&space) };
        futex::leave_robust(user, own.robust_list, thread.tid());
        futex::pi::leave(thread.tid());
        if own.clear_tid != 0 {
            // A bad address is the program's.
            let _ = user.write(own.clear_tid, &0_u32);
            futex::wake_word(user, own.clear_tid, 1);
        }
    }
    thread.tell(own, false);
    own.end();
    thread.set_ended();
    end_vfork(thread);
    let last = process.remove(thread);
    if !last {
        signal::leave(thread);
        process.alone.wake_all();
        return true;
    }
    own.empties = lock(&process.memory).as_mut().and_then(Memory::leave);
    match own.empties {
        Some(_) => false,
        None => {
            end(process);
            true
        }
    }
}

/// Goes on emptying memory, which a thread does before all else. Returns the step of the loop that
/// follows, as `step` does.
#[cold]
pub(crate) fn go_on(thread: &Arc<Thread>, own: &mut Own) -> Option<Next> {
    let space = own.empties.take_if(|space| memory::empty(space))?;
    drop(space);
    // A thread that replaces its program has the new memory.
    own.active().is_none().then(|| {
        end(&thread.process);
        Next::Gone
    })
}

/// Ends a process whose threads have ended.
fn end(process: &Arc<Process>) {
    let how = lock(&process.exiting).unwrap_or(Exit::Code(0));
    // Each is dropped without a lock: they give back a lot.
    let files = lock(&process.files).take();
    drop(files);
    let memory = lock(&process.memory).take();
    drop(memory);
    let image = lock(&process.program).image.take();
    drop(image);
    signal::end(process);
    give_up_children(process);
    tell_parent(process, how);
    process.handle.changed.wake(READABLE);
    if process.pid == FIRST {
        // The others end with the first.
        process.reap();
        process::for_each(|other| other.end(Exit::Signal(9)));
    }
    if process::is_over() {
        run_queue::wake_all();
    }
}

/// Marks a process as ended, and tells its parent. With the lock of the parent's children, under
/// which the parent looks for those that have ended: a parent that does not want to wait for them
/// sees none.
fn tell_parent(process: &Arc<Process>, how: Exit) {
    loop {
        let Some(parent) = lock(&process.parent).upgrade() else {
            *lock(&process.handle.ended) = Some(how);
            return process.reap();
        };
        let mut children = lock(&parent.children);
        let Some(at) = children.iter().position(|child| Arc::ptr_eq(child, process)) else {
            // Its parent is ending, and gives it to another one.
            drop(children);
            Kernel.relax();
            continue;
        };
        *lock(&process.handle.ended) = Some(how);
        let forgotten = signal::child_ended(&parent, process, how).then(|| children.remove(at));
        drop(children);
        if forgotten.is_some() {
            process.reap();
        }
        return parent.events.wake_all();
    }
}

/// Lets the thread go on that waits in vfork for this one, which uses its memory no more.
pub(crate) fn end_vfork(thread: &Thread) {
    let waits = lock(&thread.vfork).take();
    if let Some(waits) = waits {
        waits.wake();
    }
}

/// The children of a process that ends become those of the first process; those that have ended
/// already are forgotten, if there is none.
fn give_up_children(process: &Arc<Process>) {
    let children: Vec<Arc<Process>> = mem::take(&mut *lock(&process.children));
    let first = process::process(FIRST).filter(|first| !Arc::ptr_eq(first, process));
    for child in children {
        // Relaxed: the lock of the new parent's children orders it. A program that has not made the
        // child gets the usual signal, not one that may end it.
        child.exit_signal.store(SIGCHLD.into(), Ordering::Relaxed);
        *lock(&child.parent) = first.as_ref().map_or_else(Weak::new, Arc::downgrade);
        match &first {
            Some(first) => lock(&first.children).push(child),
            None if lock(&child.handle.ended).is_some() => child.reap(),
            None => {}
        }
    }
    if let Some(first) = first {
        first.events.wake_all();
    }
}
