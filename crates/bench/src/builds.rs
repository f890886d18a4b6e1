//! Builds of the same code for other targets.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The directory that this program was built in: `target`, or its replacement.
fn target_dir() -> Result<PathBuf, String> {
    let program =
        env::current_exe().map_err(|error| format!("cannot find this program: {error}"))?;
    // target/release/deps/table-0123456789abcdef
    program
        .ancestors()
        .nth(3)
        .map(Path::to_path_buf)
        .ok_or("this program is not in a target directory".into())
}

/// This package's own directory.
fn home() -> PathBuf {
    env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into()).into()
}

/// Builds this program once more with all instructions of this machine's processor, in a target
/// directory of its own.
///
/// # Errors
/// The build failed. Cargo's output went to stderr.
pub(crate) fn native() -> Result<PathBuf, String> {
    let mut build = cargo();
    build
        .args(["bench", "--package", "samara-bench", "--bench", "table", "--no-run"])
        .args(["--message-format", "json-render-diagnostics", "--manifest-path"])
        .arg(home().join("Cargo.toml"))
        .arg("--target-dir")
        .arg(target_dir()?.join("bench-native"));
    let mut flags = env::var("RUSTFLAGS").unwrap_or_default();
    flags += " -Ctarget-cpu=native";
    executable(build.env("RUSTFLAGS", flags.trim()), "table")
}

/// Builds the worker without an operating system and vector registers.
///
/// # Errors
/// The build failed. Cargo's output went to stderr.
pub(crate) fn freestanding() -> Result<PathBuf, String> {
    const TARGET: &str = "x86_64-unknown-none";
    let mut build = cargo();
    build
        .args(["build", "--release", "--target", TARGET])
        .args(["--message-format", "json-render-diagnostics", "--manifest-path"])
        .arg(home().join("freestanding").join("Cargo.toml"))
        .arg("--target-dir")
        .arg(target_dir()?.join("bench-freestanding"));
    // Linux must load the program at the address that it was linked to; the target is otherwise for
    // kernels.
    build.env("RUSTFLAGS", "-Crelocation-model=static -Ccode-model=small");
    executable(&mut build, "freestanding")
        .map_err(|error| format!("{error}\nif the target is missing: rustup target add {TARGET}"))
}

fn cargo() -> Command {
    let cargo: OsString = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    // The flags of the outer build must not override ours.
    command.env_remove("CARGO_ENCODED_RUSTFLAGS");
    command
}

/// Runs a build, and finds the program of this name in its output.
fn executable(build: &mut Command, name: &str) -> Result<PathBuf, String> {
    let text = format!("{build:?}");
    eprintln!("building: {text}");
    let output = build
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| format!("cargo does not start: {error}: {text}"))?;
    if !output.status.success() {
        return Err(format!("the build failed ({}): {text}", output.status));
    }
    String::from_utf8_lossy(&output.stdout)
        .lines()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok())
        .filter(|message| message["target"]["name"] == name)
        .find_map(|message| message["executable"].as_str().map(PathBuf::from))
        .ok_or(format!("the build made no program: {text}"))
}
