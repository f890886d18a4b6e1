//! The parts that depend on the architecture of the kernel: its target, and QEMU's program.

use crate::cli::{Arch, Boot, Task};

impl Arch {
    /// Rust's name of the target.
    pub(super) fn target(self) -> &'static str {
        match self {
            Arch::X86_64 => "x86_64-unknown-none",
            // The kernel saves no floating-point registers, so its code has none.
            Arch::Aarch64 => "aarch64-unknown-none-softfloat",
        }
    }

    /// QEMU's program, and Debian's package of it.
    pub(super) fn qemu(self) -> (&'static str, &'static str) {
        match self {
            Arch::X86_64 => ("qemu-system-x86_64", "qemu-system-x86"),
            Arch::Aarch64 => ("qemu-system-aarch64", "qemu-system-arm"),
        }
    }

    /// The name of the kernel's file in an installation.
    pub(super) fn installed(self) -> &'static str {
        match self {
            Arch::X86_64 => "kernel",
            Arch::Aarch64 => "kernel-aarch64",
        }
    }
}

/// Refuses options and commands that the kernel of an architecture does not have.
///
/// # Errors
/// The refused option, and the cure.
pub(super) fn check(options: &Boot) -> Result<(), String> {
    if options.arch == Arch::X86_64 {
        return Ok(());
    }
    let task = match &options.task {
        Some(Task::Bench(_)) => "experiments",
        Some(Task::Run(_)) => "programs",
        _ if options.machine.is_some() => {
            return Err("--machine is for x86_64; aarch64 runs on QEMU's machine virt".into());
        }
        _ => return Ok(()),
    };
    Err(format!("on aarch64 the kernel has no {task}, only trials; use --arch x86_64"))
}
