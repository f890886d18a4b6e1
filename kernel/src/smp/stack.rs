//! The CPUs' stacks, each above an unmapped guard.

use crate::cpu::area;
use crate::layout::STACKS;
use machine::{VirtAddr, VirtRange};

/// Bytes of a stack. The unmapped guard below has the same size.
pub(crate) const STACK: u64 = 64 << 10;

/// The addresses of a CPU's stack.
pub(crate) fn stack_of(cpu: usize) -> VirtRange {
    let start = STACKS + (2 * cpu as u64 + 1) * STACK;
    VirtRange::new(VirtAddr::new(start), STACK).expect("CPUs are few")
}

/// The CPU in whose guard an address lies.
pub(crate) fn stack_guard_of(at: u64) -> Option<usize> {
    let above = at.checked_sub(STACKS)?;
    let cpu = (above / (2 * STACK)) as usize;
    (above % (2 * STACK) < STACK && cpu < area::areas().len()).then_some(cpu)
}
