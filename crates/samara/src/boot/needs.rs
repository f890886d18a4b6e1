//! Checks for the required programs, and names the command that installs a missing one.

use super::kernel::TARGET;
use super::qemu::PROGRAM;
use std::env;
use std::path::PathBuf;
use std::process::Command;

/// # Errors
/// The missing program, and how to install it. With `build` it checks the kernel's Rust target,
/// too.
pub(super) fn check(build: bool) -> Result<(), String> {
    let mut missing = Vec::new();
    let path = env::var_os("PATH").unwrap_or_default();
    if !env::split_paths(&path).any(|directory| directory.join(PROGRAM).is_file()) {
        let install = "apt-get install --no-install-recommends qemu-system-x86";
        missing.push(format!("{PROGRAM} is not installed; on Debian, as root: {install}"));
    }
    if build && !libraries()?.is_dir() {
        let install = format!("rustup target add {TARGET}");
        missing.push(format!("Rust has no libraries for {TARGET}: {install}"));
    }
    match missing.is_empty() {
        true => Ok(()),
        false => Err(missing.join("\nsamara: ")),
    }
}

/// The directory of Rust's libraries for programs without an operating system.
fn libraries() -> Result<PathBuf, String> {
    let output = Command::new("rustc").args(["--print", "sysroot"]).output();
    let output =
        output.map_err(|error| format!("rustc does not start: {error}; see https://rustup.rs"))?;
    let sysroot = String::from_utf8_lossy(&output.stdout);
    Ok(PathBuf::from(sysroot.trim_end()).join("lib/rustlib").join(TARGET))
}
