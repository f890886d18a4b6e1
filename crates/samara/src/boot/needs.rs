//! Checks for the required programs, and names the command that installs a missing one.

use crate::cli::Arch;
use std::env;
use std::path::PathBuf;
use std::process::Command;

/// # Errors
/// The missing program, and how to install it. With `build` it checks the kernel's Rust target,
/// too.
pub(super) fn check(build: bool, arch: Arch) -> Result<(), String> {
    let mut missing = Vec::new();
    let path = env::var_os("PATH").unwrap_or_default();
    let (program, package) = arch.qemu();
    if !env::split_paths(&path).any(|directory| directory.join(program).is_file()) {
        let install = format!("apt-get install --no-install-recommends {package}");
        missing.push(format!("{program} is not installed; on Debian, as root: {install}"));
    }
    let target = arch.target();
    if build && !libraries(target)?.is_dir() {
        let install = format!("rustup target add {target}");
        missing.push(format!("Rust has no libraries for {target}: {install}"));
    }
    match missing.is_empty() {
        true => Ok(()),
        false => Err(missing.join("\nsamara: ")),
    }
}

/// The directory of Rust's libraries for programs without an operating system.
fn libraries(target: &str) -> Result<PathBuf, String> {
    let output = Command::new("rustc").args(["--print", "sysroot"]).output();
    let output =
        output.map_err(|error| format!("rustc does not start: {error}; see https://rustup.rs"))?;
    let sysroot = String::from_utf8_lossy(&output.stdout);
    Ok(PathBuf::from(sysroot.trim_end()).join("lib/rustlib").join(target))
}
