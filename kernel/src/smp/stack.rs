//! Where each CPU's stack is: above a page, and more, that nothing is mapped to.

use crate::cpu::area;
use crate::layout::STACKS;
use machine::{VirtAddr, VirtRange};

/// Bytes of a stack. As much lies below it that nothing is mapped to.
pub(crate) const STACK: u64 = 64 << 10;

/// The addresses of a CPU's stack.
pub(crate) fn stack_of(cpu: usize) -> VirtRange {
    let start = STACKS + (2 * cpu as u64 + 1) * STACK;
    VirtRange::new(VirtAddr::new(start), STACK).expect("CPUs are few")
}

/// The CPU below whose stack an address is.
pub(crate) fn stack_guard_of(at: u64) -> Option<usize> {
    let above = at.checked_sub(STACKS)?;
    let cpu = (above / (2 * STACK)) as usize;
    (above % (2 * STACK) < STACK && cpu < area::areas().len()).then_some(cpu)
}
