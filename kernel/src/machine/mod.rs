//! The traits of `machine` for this kernel: a second implementation, like the machines in
//! software.
//!
//! | trait | how |
//! |---|---|
//! | `Cpus`, `Irqs` | a word in the CPU's area (`cpus`, `cpu::area`, `arch::section`) |
//! | `Step` | `step` is empty; `relax` pauses and answers cross-calls (`cpus`) |
//! | `Tlb` | `arch::tlb` |
//! | `Memory`, `FrameSource` | the direct map; `machine::Frames` (`memory`) |
//! | `Translated` | accesses that may fault (`translated`) |

mod cpus;
mod kernel;
mod memory;
mod translated;

pub(crate) use kernel::Kernel;
pub(crate) use memory::start as start_memory;
#[cfg(target_arch = "x86_64")]
pub(crate) use translated::compare_exchange;
