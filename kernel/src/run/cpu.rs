//! The loop of a CPU: chooses a thread, runs its program, and acts on the reason for which it came
//! back.

use crate::call::dispatch;
use crate::cpu::area;
use crate::file::userfaultfd;
use crate::grace::{Grace, quiet};
use crate::input;
use crate::smp::tlb_grace;
use crate::space::tables;
use crate::stats;
use crate::task::schedule::Next;
use crate::task::{Own, Space, Thread, exit, process, run_queue, signal, timer};
use crate::trap::{self, Registers};
use crate::user::{self, enter};
use alloc::sync::Arc;
use core::sync::atomic::Ordering;
use machine::VirtAddr;
use mm::{Access, FaultError};
use x86_64::registers::control::Cr2;

/// Runs programs on this CPU until there is no process any more.
pub(crate) fn run() {
    let mut active: Option<Arc<Space>> = None;
    while !process::is_over() {
        timer::expire();
        input::pump();
        match run_queue::next() {
            Some(thread) => turn(thread, &mut active),
            None => {
                switch(&mut active, None);
                idle();
            }
        }
        quiet();
    }
    switch(&mut active, None);
}

/// Makes this the active address space; `None` for that of the kernel alone.
fn switch(active: &mut Option<Arc<Space>>, next: Option<&Arc<Space>>) {
    let same = match (&*active, next) {
        (Some(before), Some(next)) => Arc::ptr_eq(before, next),
        (None, None) => true,
        _ => false,
    };
    if same {
        return;
    }
    match next {
        // SAFETY: the kernel's half is in all tables. `active` keeps the space until others are
        // active.
        Some(next) => unsafe { next.activate() },
        // SAFETY: as above.
        None => unsafe { tables().activate() },
    }
    let before = core::mem::replace(active, next.cloned());
    if let Some(before) = before {
        // SAFETY: other tables are active now.
        unsafe { before.idle() };
    }
}

/// Sleeps until an interrupt comes, unless there is something to do.
fn idle() {
    run_queue::set_idle(true);
    Grace::idle_enter();
    // SAFETY: until `idle_exit`, this CPU uses the kernel's image, stacks and heap, which are never
    // unmapped, and no area of `vmap` but the APIC's.
    unsafe { tlb_grace().idle_enter() };
    area::irq_enter();
    if run_queue::has_any() || process::is_over() {
        // SAFETY: matches `irq_enter`.
        unsafe { area::irq_leave() };
    } else {
        // SAFETY: this is the only section.
        unsafe { area::sleep() };
    }
    tlb_grace().idle_exit();
    run_queue::set_idle(false);
}

/// Runs one thread for a turn.
fn turn(thread: Arc<Thread>, active: &mut Option<Arc<Space>>) {
    // SAFETY: this CPU has taken the thread from a queue.
    let own = unsafe { thread.own() };
    own.clock.start(thread.schedule.left());
    own.xstate.load();
    user::set_bases(own.fs, own.gs);
    area::here().process.set(thread.process.pid);
    let mut ticks = ticks_here();
    let next = loop {
        switch(active, own.active());
        // `step` changes it when the program runs.
        own.registers.vector = 0;
        if let Some(next) = step(&thread, own) {
            break next;
        }
        let was_in_program = (32..enter::CALL).contains(&own.registers.vector);
        // A tick that came during a call counts, too: a program may spend all its time in calls.
        let now = ticks_here();
        if now != ticks {
            ticks = now;
            thread.tell(own, !was_in_program);
            // A thread that runs alone has no end of its turn. The objects that it has retired are
            // due by now.
            quiet();
            input::pump();
            if own.is_turn_over() {
                break Next::Ready;
            }
        }
    };
    if !matches!(next, Next::Gone) {
        own.xstate.save();
    }
    thread.tell(own, false);
    // A thread that gives the CPU up has used its turn; one that waits has not.
    thread.schedule.set_left(if let Next::Park = next { own.clock.left() } else { 0 });
    match next {
        Next::Ready => run_queue::put_back(thread),
        Next::Park if !thread.park() => run_queue::put_back(thread),
        Next::Park | Next::Gone => {}
    }
}

/// The timer interrupts of this CPU so far. Cost: a load of its own line.
fn ticks_here() -> u64 {
    // Relaxed: only this CPU writes it.
    area::here().stats.ticks.load(Ordering::Relaxed)
}

/// Runs the program once, and acts on the reason for which it came back. Returns what the thread
/// does next, unless it goes on.
fn step(thread: &Arc<Thread>, own: &mut Own) -> Option<Next> {
    if own.empties.is_some() {
        return exit::go_on(thread, own);
    }
    if let Some(monitor) = own.monitor.take() {
        // The monitor has woken it, or a signal.
        monitor.upgrade().inspect(|monitor| monitor.forget(thread));
    }
    if thread.has_attention() && !signal::attend(thread, own) {
        return exit::thread(thread, own).then_some(Next::Gone);
    }
    if own.resume.again {
        // The call that has waited is made again.
        own.registers.rip += 2;
        let next = dispatch::make(thread, own);
        if !own.resume.again && signal::is_pending(thread) {
            // It did not wait any more when the signal came.
            thread.call_attention();
        }
        return next;
    }
    if !own.registers.can_go_on() {
        // The address that the program jumped to is not canonical.
        signal::force(thread, own, signal::SIGSEGV, signal::SI_KERNEL, 0);
        return None;
    }
    own.registers.sanitize();
    let sysret = own.registers.suit_sysret();
    area::irq_enter();
    if thread.has_attention() {
        // SAFETY: matches `irq_enter`.
        unsafe { area::irq_leave() };
        return None;
    }
    // SAFETY: one section is open; the registers are sanitized and in their place.
    unsafe { enter::enter(&raw mut own.registers, sysret) };
    let vector = own.registers.vector;
    let address = (vector == 14).then(Cr2::read_raw);
    if (32..enter::CALL).contains(&vector) {
        trap::interrupt(vector as u8);
    }
    // SAFETY: matches `irq_enter` above.
    unsafe { area::irq_leave() };
    match vector {
        enter::CALL => dispatch::make(thread, own),
        ..32 => fault(thread, own, address),
        // The loop of the turn looks at the ticks.
        _ => None,
    }
}

/// Acts on a fault of the program: brings the page in, or sends the signal.
fn fault(thread: &Arc<Thread>, own: &mut Own, address: Option<u64>) -> Option<Next> {
    let Registers { vector, code, .. } = own.registers;
    let Some(address) = address else {
        signal::force_for_vector(thread, own, vector);
        return None;
    };
    let access = match code {
        code if code & 16 != 0 => Access::Execute,
        code if code & 2 != 0 => Access::Write,
        _ => Access::Read,
    };
    stats::fault(access);
    own.clock.fault();
    if address >= user::HOLE {
        // The kernel's half, or no address.
        signal::force(thread, own, signal::SIGSEGV, signal::SEGV_MAPERR, address);
        return None;
    }
    match own.space().handle_fault(VirtAddr::new(address), access) {
        Ok(_) => None,
        Err(FaultError::UserFault(at)) => wait_for_monitor(thread, own, at, access),
        Err(error) => {
            signal::force_for_fault(thread, own, error, address);
            None
        }
    }
}

/// Lets the thread wait until a monitor has resolved its fault (userfaultfd).
fn wait_for_monitor(
    thread: &Arc<Thread>,
    own: &mut Own,
    at: VirtAddr,
    access: Access,
) -> Option<Next> {
    let fail = || {
        signal::force(thread, own, signal::SIGBUS, signal::BUS_ADRERR, at.get());
        None
    };
    let Some((fault, monitor)) = userfaultfd::refused() else { return fail() };
    // If it has ended, its memory is an ordinary one.
    let strong = monitor.upgrade()?;
    if strong.sends_sigbus() {
        return fail();
    }
    thread.begin_wait();
    if strong.add((thread.clone(), thread.tid()), &fault).is_err() {
        thread.end_wait();
        return fail();
    }
    // It may have been resolved meanwhile.
    if !matches!(own.space().handle_fault(at, access), Err(FaultError::UserFault(_))) {
        thread.end_wait();
        strong.forget(thread);
        return None;
    }
    own.monitor = Some(monitor);
    if signal::is_pending(thread) {
        thread.end_wait();
        thread.call_attention();
        return None;
    }
    Some(Next::Park)
}
