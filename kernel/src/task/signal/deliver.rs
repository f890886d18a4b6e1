//! The delivery of signals, on the way to the program.
//!
//! # Calls that a signal interrupts
//! Such a call stands at its instruction, as if it had not been made, and keeps its record
//! ([`Resume`](crate::task::thread::Resume)). If a handler runs, the call returns EINTR, or is made
//! anew after the handler, as Linux decides for this call and handler. If none does, the call goes
//! on with its record: the signal was ignored after all, or another thread took it.

use super::action::{Effect, RESTART};
use super::{Action, Info, SIGSEGV, bit, fault, frame, is_ending};
use crate::lock::lock;
use crate::println;
use crate::task::pid::Exit;
use crate::task::{Own, Thread};
use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, Ordering};
use linux_raw_sys::errno::EINTR;
use linux_raw_sys::general::{
    __NR_epoll_pwait, __NR_epoll_pwait2, __NR_epoll_wait, __NR_pause, __NR_poll, __NR_ppoll,
    __NR_pselect6, __NR_rt_sigsuspend, __NR_rt_sigtimedwait, __NR_select,
};

/// Calls that a handler ends whatever its flags. So it does with those that have a deadline.
const NEVER_RESTARTED: [u32; 10] = [
    __NR_pause,
    __NR_rt_sigsuspend,
    __NR_rt_sigtimedwait,
    __NR_poll,
    __NR_ppoll,
    __NR_select,
    __NR_pselect6,
    __NR_epoll_wait,
    __NR_epoll_pwait,
    __NR_epoll_pwait2,
];

/// A signal has interrupted a call, whose instruction is the next one.
pub(crate) fn interrupted(thread: &Arc<Thread>, own: &mut Own) {
    own.resume.interrupted = true;
    thread.call_attention();
}

/// Answers a call for the thread's attention: delivers all signals that it does not block. Returns
/// false if it is to end.
pub(crate) fn attend(thread: &Arc<Thread>, own: &mut Own) -> bool {
    thread.take_attention();
    if own.resume.again && !own.resume.interrupted {
        // The call is made first, and says whether it is interrupted.
        return !is_ending(thread);
    }
    while !is_ending(thread) {
        let Some((info, effect)) = next(thread) else {
            if own.resume.interrupted {
                own.resume.interrupted = false;
                own.resume.again = true;
            }
            return true;
        };
        match effect {
            Effect::Nothing => {}
            Effect::Stop => complain(),
            Effect::End => thread.end_process(Exit::Signal(info.number())),
            Effect::Handler(action) => handle(thread, own, info, &action),
        }
    }
    false
}

/// Takes the next signal that the thread does not block.
fn next(thread: &Thread) -> Option<(Info, Effect)> {
    let mut shared = lock(&thread.process.signals);
    let mut own = lock(&thread.signals);
    let wanted = !own.mask;
    loop {
        let taken = own.pending.take(wanted).or_else(|| shared.pending.take(wanted));
        let mut info = taken?;
        if thread.process.timers.deliver(&mut info) {
            let effect = lock(&shared.actions).effect(info.number());
            return Some((info, effect));
        }
    }
}

/// Makes the thread run a handler.
fn handle(thread: &Arc<Thread>, own: &mut Own, info: Info, action: &Action) {
    let number = info.number();
    let kept = own.resume.mask.take();
    if own.resume.interrupted {
        let call = own.registers.rax as u32;
        let may = action.flags & RESTART != 0 && own.resume.deadline.is_none();
        let restart = own.resume.restarts || may && !NEVER_RESTARTED.contains(&call);
        if !restart {
            own.registers.rip += 2;
            own.registers.rax = -i64::from(EINTR) as u64;
        }
        own.resume.clear();
    }
    let (before, trap) = {
        let signals = lock(&thread.signals);
        (signals.mask, signals.trap)
    };
    // rt_sigsuspend: the mask of before the call comes back after the handler.
    let kept = kept.unwrap_or(before);
    if frame::build(own, info, action, kept, trap).is_err() {
        if number == SIGSEGV {
            lock(&super::actions(&thread.process)).reset(SIGSEGV);
        }
        super::set_mask(thread, kept);
        return fault::force(thread, own, SIGSEGV, super::SI_KERNEL, 0);
    }
    super::set_mask(thread, before | action.blocked(number));
}

impl Action {
    /// The signals that are blocked while the handler runs.
    fn blocked(&self, number: u8) -> u64 {
        let itself = if self.flags & super::action::NODEFER == 0 { bit(number) } else { 0 };
        self.mask | itself
    }
}

fn complain() {
    static TOLD: AtomicBool = AtomicBool::new(false);
    // Relaxed: only the mark.
    if !TOLD.swap(true, Ordering::Relaxed) {
        println!("samara: a stop signal does nothing: there is no job control");
    }
}
