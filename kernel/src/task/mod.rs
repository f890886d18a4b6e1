//! Processes and threads: their life, and which runs when.
//!
//! | module | contents |
//! |---|---|
//! | `thread` | a thread: its registers |
//! | `state` | whether a thread runs, waits or is ready |
//! | `pid` | what is left of a process that has ended |
//! | `process` | a process: what its threads share; the table of all processes |
//! | `run_queue` | the queues of ready threads |
//! | `wait` | queues of threads that wait for an event |
//! | `timer` | threads that wait for a time |
//! | `usage` | the time and the faults of threads |
//! | `schedule` | how long a thread runs while others wait |
//! | `credentials` | the users and groups of a process |
//! | `exit` | the end of threads and processes |
//! | `memory` | the memory of a process |
//! | `program` | what is known of a program |
//! | `oom` | memory that runs out |
//! | `signal` | signals |

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
