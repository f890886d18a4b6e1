//! User mode: a CPU runs a program, and keeps its registers.
//!
//! # One stack for each CPU
//! A thread of a program has no stack in the kernel. Its registers are in [`Thread`](crate::task),
//! and each CPU has one stack. A CPU runs a loop (`run::cpu`): it chooses a thread, enters the
//! program ([`enter`]), and acts on the reason for which the program came back. A system call that
//! must wait leaves the loop's turn with nothing on the stack: it records its progress, and the CPU
//! runs another thread. When the thread is woken, it makes the call again from the beginning, and
//! finds its record.
//!
//! So code of the kernel never moves to another CPU in its middle, as `grace` and `machine` demand;
//! a CPU that comes back to its loop has left every read-side section; and a thread costs a few
//! hundred bytes and its vector registers.
//!
//! | module | contents |
//! |---|---|
//! | `enter` | into a program and back, with its registers |
//! | `xstate` | its floating-point and vector registers |
//! | `copy` | copies from and to its memory |

pub(crate) mod copy;
pub(crate) mod enter;
pub(crate) mod xstate;

use x86_64::registers::model_specific::{FsBase, KernelGsBase};

/// The first address that no program may have: a page below the end of its half, so that no
/// instruction ends at the hole.
pub(crate) const END: u64 = 0x7fff_ffff_f000;

/// The first address of the hole between the halves: it is not canonical.
pub(crate) const HOLE: u64 = 1 << 47;

/// Prepares this CPU.
///
/// # Safety
/// As for [`enter::start`].
pub(crate) unsafe fn start() {
    // SAFETY: passed on.
    unsafe { enter::start() };
    xstate::start();
}

/// Sets the bases of FS and GS that the program will have.
pub(crate) fn set_bases(fs: u64, gs: u64) {
    // While the kernel runs, the program's GS is in the other register (`swapgs`).
    FsBase::write(x86_64::VirtAddr::new_truncate(fs));
    KernelGsBase::write(x86_64::VirtAddr::new_truncate(gs));
}
