//! The actions of a process at signals (sigaction(2)).

use super::number::{MOST, SIGCHLD, SIGCONT, STOPS, UNCATCHABLE, bit};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

const DEFAULT: u64 = 0;
const IGNORE: u64 = 1;

const NOCLDWAIT: u64 = 2;
const SIGINFO: u64 = 4;
pub(super) const RESTORER: u64 = 0x400_0000;
pub(super) const ONSTACK: u64 = 0x800_0000;
pub(super) const RESTART: u64 = 0x1000_0000;
pub(super) const NODEFER: u64 = 0x4000_0000;
const RESETHAND: u64 = 0x8000_0000;
/// All flags that Linux knows: those, SA_NOCLDSTOP and SA_EXPOSE_TAGBITS. It clears others, so that
/// a program sees which are supported.
const FLAGS: u64 =
    1 | NOCLDWAIT | SIGINFO | 0x800 | RESTORER | ONSTACK | RESTART | NODEFER | RESETHAND;

/// Signals that do nothing by default: SIGCHLD, SIGCONT, SIGURG, SIGWINCH.
const QUIET: u64 = bit(SIGCHLD) | bit(SIGCONT) | bit(23) | bit(28);

/// A `sigaction` of the kernel's ABI.
#[repr(C)]
#[derive(Clone, Copy, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub(crate) struct Action {
    pub(super) handler: u64,
    pub(super) flags: u64,
    pub(super) restorer: u64,
    pub(super) mask: u64,
}

/// The effect of a signal on a process.
pub(super) enum Effect {
    Nothing,
    /// It would stop, but there is no job control.
    Stop,
    End,
    Handler(Action),
}

impl Action {
    /// Whether it ignores a signal, by its own word or by default.
    fn ignores(&self, number: u8) -> bool {
        self.handler == IGNORE || self.handler == DEFAULT && QUIET & bit(number) != 0
    }
}

/// The actions of a process.
#[derive(Clone)]
pub(crate) struct Actions([Action; MOST as usize]);

impl Default for Actions {
    fn default() -> Self {
        Actions([Action::default(); MOST as usize])
    }
}

impl Actions {
    fn at(&mut self, number: u8) -> &mut Action {
        &mut self.0[usize::from(number) - 1]
    }

    /// Whether a signal would do nothing.
    pub(super) fn ignore(&self, number: u8) -> bool {
        self.0[usize::from(number) - 1].ignores(number) && UNCATCHABLE & bit(number) == 0
    }

    /// Whether a signal is ignored by the program's word.
    pub(super) fn ignore_explicitly(&self, number: u8) -> bool {
        self.0[usize::from(number) - 1].handler == IGNORE
    }

    /// Sets an action, if there is a new one. Returns the one before, and whether the new one
    /// ignores the signal.
    pub(super) fn change(&mut self, number: u8, new: Option<Action>) -> (Action, bool) {
        let at = self.at(number);
        let before = *at;
        let Some(new) = new else { return (before, false) };
        *at = Action { flags: new.flags & FLAGS, mask: new.mask & !UNCATCHABLE, ..new };
        (before, at.ignores(number))
    }

    /// Makes an action the default one.
    pub(super) fn reset(&mut self, number: u8) {
        self.at(number).handler = DEFAULT;
    }

    /// Makes all actions the default ones, but those that ignore.
    pub(super) fn clear(&mut self) {
        for action in &mut self.0 {
            let handler = if action.handler == IGNORE { IGNORE } else { DEFAULT };
            *action = Action { handler, ..Action::default() };
        }
    }

    /// The effect of a signal that is delivered now. SA_RESETHAND makes its action the default one.
    pub(super) fn effect(&mut self, number: u8) -> Effect {
        let action = self.at(number);
        match action.handler {
            IGNORE => Effect::Nothing,
            DEFAULT if QUIET & bit(number) != 0 => Effect::Nothing,
            DEFAULT if STOPS & bit(number) != 0 => Effect::Stop,
            DEFAULT => Effect::End,
            _ => {
                let found = *action;
                if found.flags & RESETHAND != 0 {
                    action.handler = DEFAULT;
                }
                Effect::Handler(found)
            }
        }
    }

    /// Whether children are not to be waited for, and whether their end is not told.
    pub(super) fn child_rules(&self) -> (bool, bool) {
        let action = self.0[usize::from(SIGCHLD) - 1];
        let ignored = action.handler == IGNORE;
        (ignored || action.flags & NOCLDWAIT != 0, ignored)
    }
}
