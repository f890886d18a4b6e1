//! The memory of a process, and its end.
//!
//! Processes share an address space after a clone with CLONE_VM. The last one that ends empties it,
//! step by step, before its parent hears of the end. So a parent that has waited for a child has
//! the child's memory back, and the end of a large program delays no other.

use crate::grace::Grace;
use crate::machine::Kernel;
use crate::stats::frames_at_start;
use alloc::sync::Arc;
use mm::{Commitment, Overcommit, Shared};
use paging::X86_64L4;
use spin::Once;

/// The memory of a program.
pub(crate) type Space = mm::AddressSpace<Kernel, X86_64L4, Grace>;

/// The longest that a stack becomes.
pub(crate) const STACK: usize = 8 << 20;
/// The pages of a step: between two of them, the CPU looks whether the turn is over.
const STEP: usize = 1024;

/// The memory that is promised to programs. As with `vm.overcommit_memory` 0, one call alone may
/// not ask for more than there is.
pub(crate) fn promises() -> Result<&'static Shared<Commitment<Kernel>>, vma::Error> {
    static PROMISES: Once<Shared<Commitment<Kernel>>> = Once::new();
    PROMISES.try_call_once(|| {
        let memory = (frames_at_start() << 12) as usize;
        Commitment::try_new(&Kernel, Overcommit::Heuristic { memory })
    })
}

/// The memory of a process.
pub(crate) struct Memory {
    pub(crate) space: Arc<Space>,
    /// One for each process that uses the space.
    user: Option<Arc<()>>,
}

impl Memory {
    pub(crate) fn new(space: Arc<Space>) -> Memory {
        Memory { space, user: Some(Arc::new(())) }
    }

    /// The same memory for another process.
    pub(crate) fn share(&self) -> Memory {
        Memory { space: Arc::clone(&self.space), user: self.user.clone() }
    }

    /// The process uses it no more. Returns the space to empty if no other process uses it: of
    /// several that call this at once, one gets it.
    pub(crate) fn leave(&mut self) -> Option<Arc<Space>> {
        let last = self.user.take().and_then(Arc::into_inner);
        last.map(|()| Arc::clone(&self.space))
    }
}

/// Empties a part of a space. Returns whether it was the last part.
pub(super) fn empty(space: &Space) -> bool {
    space.reap(STEP) < STEP
}
