//! The code for x86-64 and for AArch64. Both architectures have these modules, with the same
//! functions:
//!
//! | module | contents |
//! |---|---|
//! | `boot` | from the loader to Rust, on the boot CPU and the others; the loader's data |
//! | `section` | this CPU's area, and interrupt-free sections |
//! | `features` | the registers that protect the kernel from its own errors; access to pages of programs |
//! | `trap` | interrupts and faults; accesses that may fault |
//! | `irqchip` | the timer, and interrupts to other CPUs |
//! | `tlb` | flushes, and the active table |
//! | `clock` | time |
//! | `serial` | the port of the console |
//! | `exit` | the exit code of the emulator |
//! | `place` | the addresses of memory and of the image, and the format of page tables |
//!
//! x86-64 also runs programs (`user`) and counts instructions in experiments (`icount`).

#[cfg(target_arch = "aarch64")]
mod aarch64;
#[cfg(target_arch = "x86_64")]
mod x86_64;

#[cfg(target_arch = "aarch64")]
pub(crate) use aarch64::*;
#[cfg(target_arch = "x86_64")]
pub(crate) use x86_64::*;
