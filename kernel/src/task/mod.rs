//! Processes and threads: their life, and which runs when.
//!
//! | module | contents |
//! |---|---|
//! | `exit` | the end of threads and processes |
//! | `oom` | memory that runs out |
//! | `signal` | signals |
//! | `process` | a process: what its threads share; the table of all processes |
//! | `thread` | a thread: its registers |
//! | `run_queue` | the queues of ready threads |
//! | `program` | what is known of a program |
//! | `credentials` | the users and groups of a process |
//! | `pid` | what is left of a process that has ended |
//! | `state` | whether a thread runs, waits or is ready |
//! | `schedule` | how long a thread runs while others wait |
//! | `usage` | the time and the faults of threads |
//! | `memory` | the memory of a process |
//! | `wait` | queues of threads that wait for an event |
//! | `timer` | what is called at a time |
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

/// What `state` uses; its models have loom's.
use core::sync::atomic as sync;

pub(crate) use memory::Space;
pub(crate) use process::Process;
pub(crate) use thread::{Own, Thread};
pub(crate) use wait::WaitQueue;
