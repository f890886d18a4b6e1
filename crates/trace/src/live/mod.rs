//! The live tracer: follows a real program with its children and threads. It reports every memory
//! call to an [`Observer`], in the order of effect, together with the kernel's own listing.
//!
//! # How
//!
//! A seccomp filter stops a thread only at the entry of a memory call, so the rest of the program
//! runs at native speed. ptrace stops the thread again at the exit of the call. At the entry, the
//! tracer looks for the two events that affect the call's outcome and that no system call reports:
//! first writes and stack growth. At the exit, it reports the call and its result, and reads the
//! listing.
//!
//! | module | contents |
//! |---|---|
//! | `follower`, `events` | the main loop; the events of the threads, in a fair order |
//! | `attach`, `lifecycle` | a program that runs already; fork, execve, exit, sudden death |
//! | `filter`, `calls`, `confine` | the seccomp filter; the calls to trace; those that would escape |
//! | `call_entry`, `call_exit` | a thread at the entry of a call; a call that has returned |
//! | `neighbours`, `image`, `inspect` | reading an address space: around a change, whole, between calls |
//! | `pause` | the other threads during a call, and when an order is unknowable |
//! | `tasks`, `files`, `descriptors` | threads and spaces; mapped files; descriptors |
//! | `watchers`, `userfault` | userfaultfds with registered ranges; their requests and close |
//! | `stacks` | call stacks: unwinding, `names` of functions, `python` frames, `perf_map` of JITs |
//! | `peak`, `usage` | the search for the peak; the use of memory by a process |
//! | `sys` | the system calls of the tracer |
//!
//! # Why the order is correct
//!
//! An address space has one operation in flight at a time (see `tasks`). A thread that reaches a
//! memory call stays stopped at its entry until the operation in flight has ended. fork counts as
//! an operation, because it reads the whole address space; so does execve, because it ends the
//! address space. A thread that makes no memory call can change only two things: first writes and
//! the size of the stack.
//!
//! A first write by another thread, between the look at a call's entry and the call's own effect,
//! can decide whether VMAs merge. If one is possible, the running threads are stopped for the time
//! of the call (see `pause`). A sleeping thread is not stopped, and may wake in that time. Its
//! first write is found at the exit, but its order is unknown. Then a record says so
//! ([`Doubt`](crate::record::Doubt)), and a difference is not counted as a mismatch.
//!
//! There is one exception: a call that sleeps while other threads wait for it. It may itself wait
//! for one of them, such as the thread that serves a userfaultfd. The tracer finds such a call by
//! reading its state each millisecond. It then lets the other threads run, and compares nothing
//! while several calls are in flight. A record and a notice say so.
//!
//! # Sudden death
//!
//! Any thread can be killed at any moment, also between two requests of the tracer. Then the
//! request fails and is dropped, and the thread's end is reported like any other. If a kill
//! interrupts a call, the result register of the dying thread holds its result. If the tracer
//! itself dies, the kernel kills every tracee.
//!
//! # The time of a call
//!
//! `kernel` in [`Observer::record`] is the time from resuming the thread at the entry until the
//! tracer learns of the exit, minus the median of the same time for empty calls, which is measured
//! before the program starts. It is given only if no other event came in between. The switches
//! between tracer and program vary by 1 to 2 µs, and so does this time. It is accurate as a median
//! over many calls, but not for one call.
//!
//! # Cost
//!
//! Per memory call: two stops (four context switches), and three to six small system calls of the
//! tracer. Then one more for each VMA around the change (see `neighbours`), or the text of the
//! whole listing, which grows with the number of VMAs.

mod attach;
mod call_entry;
mod call_exit;
mod calls;
mod confine;
mod descriptors;
mod error;
mod events;
mod facilities;
mod files;
mod filter;
mod follower;
mod image;
mod inspect;
mod lifecycle;
mod neighbours;
mod pause;
mod peak;
#[cfg(feature = "stacks")]
mod stacks;
#[cfg(not(feature = "stacks"))]
#[path = "no_stacks.rs"]
mod stacks;
mod sys;
mod tasks;
mod tmpfs_huge;
mod usage;
mod userfault;
mod watchers;

use std::{
    ffi::{CString, OsStr},
    os::unix::ffi::OsStrExt,
};

pub use attach::attach;
pub use error::Error;
pub use facilities::profile;

use crate::observer::Observer;
use facilities::Facilities;
use follower::Follower;
use sys::{
    heartbeat::{Forwarding, Heartbeat},
    spawn::{self, SpawnStage},
};

/// Options of following a program.
///
/// ```
/// use trace::live::Options;
/// let seldom = Options { every: 100, ..Options::default() };
/// assert!(!seldom.forward_signals);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Read the listing after every Nth memory call of an address space. 0: only when an address
    /// space begins and ends.
    pub every: u64,
    /// While a listing has more than 256 lines, read it only after so many calls that each costs at
    /// most so many lines, on average. 0: no matter how long it is.
    pub lines_per_call: usize,
    /// After all other memory calls, compare the VMAs around what the call has changed.
    pub around: bool,
    /// Forward SIGINT, SIGTERM, SIGHUP and SIGQUIT of this process to the program, as often as they
    /// come, unless the terminal has sent them to it, too. When the program has ended, its children
    /// get the first one, and a second one kills them. Only one run in a process can have this at a
    /// time.
    pub forward_signals: bool,
    /// Follow the program's children, too. Otherwise they run on unobserved. The program's threads
    /// are always followed, and a vforked child until its execve, because it uses the program's
    /// memory.
    pub children: bool,
    /// Record the call stack of each memory call, with at most so many frames; 0 for none. All
    /// else needs the feature `stacks`.
    pub stack_depth: usize,
}

impl Options {
    /// Refuses what this build cannot do.
    fn check(&self) -> Result<(), Error> {
        match self.stack_depth == 0 || cfg!(feature = "stacks") {
            true => Ok(()),
            false => Err(Error::NoStacks),
        }
    }
}

impl Default for Options {
    fn default() -> Self {
        Options {
            every: 1,
            lines_per_call: 0,
            around: false,
            forward_signals: false,
            children: true,
            stack_depth: 0,
        }
    }
}

/// The end of the program's first process.
///
/// ```
/// use trace::live::Exit;
/// assert_ne!(Exit::Code(9), Exit::Signal(9));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// It exited with this code.
    Code(i32),
    /// This signal ended it.
    Signal(i32),
}

/// Runs `command` and follows it until the last of its processes has ended, including orphaned
/// ones.
///
/// Blocks the calling thread. No other thread may wait for children meanwhile. The program gets
/// this process's standard streams, environment and process group. Allocates. The [module](self)
/// states the cost.
///
/// # Errors
/// If the program cannot be started, or if a request of the tracer fails during the run. Then the
/// program is killed, so that it never runs unobserved.
///
/// ```
/// use std::{io, ops::Range, time::Duration};
/// use trace::{live, observer::{Observer, Wanted}, record::{FileId, MmId, Record}};
///
/// #[derive(Default)]
/// struct Calls(usize);
///
/// impl Observer for Calls {
///     fn record(&mut self, record: Record, _kernel: Option<Duration>) {
///         self.0 += usize::from(matches!(record, Record::Call(_)));
///     }
///     fn listing(
///         &mut self,
///         _mm: MmId,
///         _maps: &str,
///         _smaps: &mut dyn FnMut() -> io::Result<Vec<(usize, vma::VmFlags)>>,
///     ) {
///     }
///     fn ranges(&self, _: MmId, _around: Range<usize>, _: Wanted) -> Vec<Range<usize>> {
///         Vec::new()
///     }
///     fn released(&mut self) -> Vec<FileId> {
///         Vec::new()
///     }
///     fn notice(&mut self, _text: &str) {}
/// }
///
/// let mut calls = Calls::default();
/// let exit = live::run(live::Options::default(), &["true"], &mut calls)?;
/// assert_eq!(exit, live::Exit::Code(0));
/// assert!(calls.0 > 3);
/// # Ok::<(), live::Error>(())
/// ```
pub fn run<S: AsRef<OsStr>>(
    options: Options,
    command: &[S],
    observer: &mut dyn Observer,
) -> Result<Exit, Error> {
    run_with(options, Facilities::probe(), command, observer)
}

/// [`run`] with only the given facilities of the kernel.
fn run_with<S: AsRef<OsStr>>(
    options: Options,
    facilities: Facilities,
    command: &[S],
    observer: &mut dyn Observer,
) -> Result<Exit, Error> {
    let words: Result<Vec<CString>, _> =
        command.iter().map(|word| CString::new(word.as_ref().as_bytes())).collect();
    let words = words.map_err(|_| Error::ZeroByte)?;
    let program = words.first().ok_or(Error::NoCommand)?.to_string_lossy().into_owned();
    options.check()?;
    if !facilities::proc_is_ours() {
        return Err(Error::Proc);
    }
    let has_others = sys::ptrace::has_children();
    let mut child = spawn::spawn(&words, &filter::build())?;
    let mut follower = Follower::new(options, facilities, observer, child.pid);
    follower.has_others = has_others;
    let start = |cause| Error::Follow { doing: "starting to follow it", cause };
    let beat = Heartbeat::start().map_err(start)?;
    let forwarding = match options.forward_signals {
        true => Forwarding::start(child.pid).map_err(start)?,
        false => None,
    };
    let exit = follower.run_all(&beat, forwarding.as_ref())?;
    follower.tell_symbols();
    drop(follower);
    let report = child.failure().map_err(|cause| Error::Follow { doing: "ending", cause })?;
    match (report, exit) {
        (Some((SpawnStage::Filter, cause)), _) => Err(Error::Filter(cause)),
        (Some((SpawnStage::Exec, cause)), _) => Err(Error::Exec { program, cause }),
        (None, Some(exit)) => Ok(exit),
        (None, None) => Err(Error::Follow {
            doing: "waiting for its end",
            cause: std::io::Error::other("the kernel did not report its end"),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::Session;

    /// Whatever is missing, the run continues, reports it, and the mirror still agrees with the
    /// kernel.
    #[test]
    fn each_facility_has_a_substitute() {
        let all = Facilities::probe();
        let script = "for i in 1 2 3; do echo $i | cat | tr 1 2; done; ls / | wc -l";
        let missing = [
            Facilities { scan: false, ..all },
            Facilities { query: false, ..all },
            Facilities { identity: false, ..all },
            Facilities { compare: false, ..all },
            Facilities { scan: false, query: false, identity: false, compare: false },
        ];
        for facilities in missing {
            let mut session = Session::<Vec<u8>>::new(profile(), None).unwrap();
            let command = ["bash", "-c", &format!("({script}) > /dev/null")];
            let exit = run_with(Options::default(), facilities, &command, &mut session).unwrap();
            assert_eq!(exit, Exit::Code(0));
            let seen = session.finish().unwrap();
            for notice in facilities.notices() {
                assert!(seen.notices.iter().any(|seen| seen.text == notice), "{notice}");
            }
            // Rules differ between kernels. The substitutes are checked only where the rules are
            // known.
            if sys::kernel_release().unwrap().starts_with("6.18") {
                assert_eq!(seen.total.mismatches, 0, "{facilities:?} {:?}", seen.first_mismatch);
            }
            assert!(seen.total.listings > 100);
        }
    }
}
