//! The numbers of signals, and sets of them.

pub(crate) const SIGILL: u8 = 4;
pub(crate) const SIGTRAP: u8 = 5;
pub(crate) const SIGBUS: u8 = 7;
pub(crate) const SIGFPE: u8 = 8;
pub(crate) const SIGKILL: u8 = 9;
pub(crate) const SIGSEGV: u8 = 11;
pub(crate) const SIGALRM: u8 = 14;
pub(crate) const SIGCHLD: u8 = 17;
pub(crate) const SIGCONT: u8 = 18;
pub(crate) const SIGSTOP: u8 = 19;
/// The highest signal.
pub(crate) const MOST: u8 = 64;

/// SIGSTOP, SIGTSTP, SIGTTIN, SIGTTOU.
pub(super) const STOPS: u64 = bit(19) | bit(20) | bit(21) | bit(22);
/// Signals that are never blocked, caught or ignored.
pub(crate) const UNCATCHABLE: u64 = bit(SIGKILL) | bit(SIGSTOP);

/// The bit of a signal in a set.
pub(crate) const fn bit(number: u8) -> u64 {
    1 << (number - 1)
}
