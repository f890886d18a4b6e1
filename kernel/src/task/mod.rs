//! Processes and threads: their life, and who runs when.
//!
//! | module | contents |
//! |---|---|
//! | `thread` | a thread: its registers |
//! | `state` | whether a thread runs, waits or is ready |
//! | `process` | a process: what its threads share; the table of all processes |
//! | `run` | the loop of a CPU |
//! | `run_queue` | the queues of ready threads |
//! | `wait` | queues of threads that wait for an event |
//! | `timer` | threads that wait for a time |
//! | `usage` | the time and the faults of threads |
//! | `schedule` | how long a thread runs while others wait |
//! | `credentials` | the users and groups of a process |
//! | `exit` | the end of threads and processes |
//! | `memory` | the memory of a process |
//! | `oom` | memory that runs out |
//! | `signal` | signals |

pub(crate) mod credentials;
pub(crate) mod exit;
pub(crate) mod memory;
pub(crate) mod oom;
pub(crate) mod process;
pub(crate) mod run;
pub(crate) mod run_queue;
pub(crate) mod schedule;
pub(crate) mod signal;
mod state;
pub(crate) mod thread;
pub(crate) mod timer;
pub(crate) mod usage;
pub(crate) mod wait;

use crate::file::sysfs;
use crate::file::userfaultfd::Monitors;
use crate::grace::Grace;
use crate::machine::Kernel;
use crate::smp::tlb_grace;
use crate::space::tables;
use crate::stats::frames_at_start;
use alloc::sync::Arc;
/// What `state` uses; its models have loom's.
use core::sync::atomic as sync;
use core::sync::atomic::{AtomicBool, Ordering};
use mm::{Commitment, Layout, Overcommit, Profile, Shared, UnmapPolicy};
use paging::{Tag, X86_64L4};
use spin::Once;

pub(crate) use process::Process;
pub(crate) use thread::{Own, Thread};
pub(crate) use wait::WaitQueue;

/// The memory of a program.
pub(crate) type Space = mm::AddressSpace<Kernel, X86_64L4, Grace>;

/// An empty address space. Tags are assigned; this machine has one, which all get. Huge pages come
/// where the settings say.
pub(crate) fn new_space(layout: Layout) -> Result<Arc<Space>, mm::Error> {
    let kernel = Some(Arc::clone(tables()));
    let paging = tables().paging();
    let mut space = Space::try_new(paging, Tag::Assigned, kernel, Profile::LINUX_6_18, layout)?;
    space.set_userfault_handler(Arc::new(Monitors));
    space.set_shortage_handler(Arc::new(oom::Shortage));
    space.set_commitment(promises()?);
    // Relaxed: written before there are programs.
    if GRACE.load(Ordering::Relaxed) {
        // SAFETY: these are the machine's periods. Each CPU that runs programs takes part, and
        // makes the kernel's tables active before it goes idle (`run`).
        unsafe { space.set_unmap_policy(UnmapPolicy::Grace(Arc::clone(tlb_grace()))) }?;
    }
    let space = Arc::new(space);
    sysfs::apply(&space);
    Ok(space)
}

/// The memory that is promised to programs. As with `vm.overcommit_memory` 0, one call alone may
/// not ask for more than there is.
pub(crate) fn promises() -> Result<&'static Shared<Commitment<Kernel>>, vma::Error> {
    static PROMISES: Once<Shared<Commitment<Kernel>>> = Once::new();
    PROMISES.try_call_once(|| {
        let memory = (frames_at_start() << 12) as usize;
        Commitment::try_new(&Kernel, Overcommit::Heuristic { memory })
    })
}

/// Whether munmap waits for TLB grace periods instead of interrupting CPUs.
static GRACE: AtomicBool = AtomicBool::new(false);

/// Lets munmap wait for TLB grace periods in all programs that start from now on.
pub(crate) fn unmap_by_grace_periods() {
    // Relaxed: as in `new_space`.
    GRACE.store(true, Ordering::Relaxed);
}
