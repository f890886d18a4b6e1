//! The accelerator of the machine: QEMU's own emulation (TCG), or KVM.
//!
//! KVM is there on some hosts, can be opened, and then hangs, or does not execute what its CPUID
//! promises. So `--accel auto` takes it only after the kernel has booted on it, with as many CPUs
//! and as much memory as asked for, within [`PATIENCE`]. That costs a boot.

use super::qemu;
use super::run::wait;
use crate::cli::{Accel, Arch, Boot, Task};
use std::fs::File;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use trace::report::messages;

/// The time for the boot, and then for the end of a machine that did not boot.
const PATIENCE: Duration = Duration::from_secs(2);
/// QEMU's code of a kernel whose command has succeeded.
const DONE: i32 = 33;

/// Refuses options that KVM does not have.
///
/// # Errors
/// The refused option, and the cure.
pub(super) fn check(options: &Boot) -> Result<(), String> {
    if options.accel != Accel::Kvm {
        return Ok(());
    }
    let cure = "--accel tcg is QEMU's own emulation";
    let counts = match &options.task {
        Some(Task::Bench(bench)) => bench.count,
        Some(Task::Run(run)) => run.count,
        _ => false,
    };
    if counts {
        return Err(format!("KVM cannot count instructions, as --count demands: {cure}"));
    }
    possible(options).map_err(|why| format!("{why}; {cure}"))
}

/// # Errors
/// Why there can be no KVM.
fn possible(options: &Boot) -> Result<(), String> {
    if options.arch != Arch::X86_64 || !cfg!(target_arch = "x86_64") {
        return Err("--accel kvm is for x86_64 kernels on x86-64 hosts".into());
    }
    let opened = File::options().read(true).write(true).open("/dev/kvm");
    opened.map(drop).map_err(|error| format!("/dev/kvm cannot be opened: {error}"))
}

/// The options with `auto` decided.
pub(super) fn choose(options: &Boot, elf: &Path) -> Boot {
    let mut chosen = options.clone();
    if options.accel == Accel::Auto {
        let counts = Boot { accel: Accel::Kvm, ..options.clone() };
        chosen.accel = match check(&counts).and_then(|()| probe(&counts, elf)) {
            Ok(()) => Accel::Kvm,
            Err(why) => {
                messages::show(&format!("without KVM: {why}\n"));
                Accel::Tcg
            }
        };
    }
    chosen
}

/// Boots the kernel by KVM.
///
/// # Errors
/// Why it did not succeed.
fn probe(options: &Boot, elf: &Path) -> Result<(), String> {
    let mut command = qemu::command(options, elf, "");
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    runs(command).map_err(|how| format!("the kernel, tried by it, {how}"))
}

fn runs(mut command: Command) -> Result<(), String> {
    let failed = |error| format!("did not start: {error}");
    let mut child = command.spawn().map_err(failed)?;
    let end = || Some(Instant::now() + PATIENCE);
    if let Some(status) = wait(&mut child, end()).map_err(failed)? {
        return if status.code() == Some(DONE) { Ok(()) } else { Err("did not boot".into()) };
    }
    child.kill().map_err(failed)?;
    // One that hangs in the host's kernel is left to it.
    let _ = wait(&mut child, end());
    Err(format!("did not boot within {} s", PATIENCE.as_secs()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_that_hangs_or_fails_is_not_taken() {
        let sh = |script: &str| {
            let mut command = Command::new("sh");
            command.args(["-c", script]);
            runs(command)
        };
        assert_eq!(sh("exit 33"), Ok(()));
        assert_eq!(sh("exit 1"), Err("did not boot".into()));
        assert_eq!(sh("kill -ABRT $$"), Err("did not boot".into()));
        let start = Instant::now();
        assert_eq!(sh("exec sleep 100"), Err("did not boot within 2 s".into()));
        assert!(start.elapsed() < Duration::from_secs(50));
    }
}
