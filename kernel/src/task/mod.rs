//! Processes and threads: their life, and which runs when.
//!
//! | module | contents |
//! |---|---|
//! | `exit` | the end of threads and processes |
//! | `oom` | memory that runs out |
//! | `signal` | signals |
//! | `process` | a process: the state that its threads share; the table of all processes |
//! | `thread` | a thread: its registers |
//! | `run_queue` | the queues of ready threads |
//! | `program` | the program of a process, for `/proc`, and a loaded one that can start |
//! | `credentials` | the users and groups of a process |
//! | `pid` | the number of a process, and its end |
//! | `state` | whether a thread runs, waits or is ready |
//! | `schedule` | how long a thread runs while others wait |
//! | `usage` | the time and the faults of threads |
//! | `memory` | the memory of a process |
//! | `wait` | queues of threads that wait for an event |
//! | `timer` | timers, which call a value at a time |
//!
//! Each uses those below it; `process`, `thread` and `run_queue` also use each other, and the
//! states of `signal` are below `process`. Files come between `program` and `memory`.

pub(crate) mod credentials;
pub(crate) mod exit;
pub(crate) mod memory;
pub(crate) mod oom;
pub(crate) mod pid;
pub(crate) mod process;
pub(crate) mod program;
pub(crate) mod run_queue;
pub(crate) mod schedule;
pub(crate) mod signal;
mod state;
pub(crate) mod thread;
pub(crate) mod timer;
pub(crate) mod usage;
pub(crate) mod wait;

/// The atomics of `state`; its models have loom's.
use core::sync::atomic as sync;

pub(crate) use memory::Space;
pub(crate) use process::Process;
pub(crate) use thread::{Own, Thread};
pub(crate) use wait::WaitQueue;
