//! The kernel: built from a checkout, as a separate package for another target, with a target
//! directory of its own; or the file of an installation.

use super::needs;
use crate::cli::Arch;
use std::env;
use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use trace::report::messages;

/// Settings of a build for this host. The kernel's own settings replace them.
const NOT_OURS: [&str; 6] = [
    "RUSTFLAGS",
    "CARGO_ENCODED_RUSTFLAGS",
    "CARGO_BUILD_RUSTFLAGS",
    "CARGO_BUILD_TARGET",
    "CARGO_TARGET_X86_64_UNKNOWN_NONE_RUSTFLAGS",
    "CARGO_TARGET_AARCH64_UNKNOWN_NONE_SOFTFLOAT_RUSTFLAGS",
];

/// The checkout that `SAMARA_CHECKOUT` names, or that this program was built from. A program of a
/// package (`packaging/build`) does not look where it was built.
pub(super) fn checkout() -> Option<PathBuf> {
    if let Some(named) = env::var_os("SAMARA_CHECKOUT") {
        return Some(PathBuf::from(named));
    }
    if option_env!("SAMARA_PACKAGED").is_some() {
        return None;
    }
    // crates/samara
    let mut path = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    path.pop();
    path.pop();
    Some(path)
}

/// The target directory of a checkout.
pub(super) fn target(checkout: &Path) -> Result<PathBuf, String> {
    let target = env::var_os("CARGO_TARGET_DIR").map_or(checkout.join("target"), PathBuf::from);
    std::path::absolute(target).map_err(|error| format!("the target directory: {error}"))
}

/// Whether a checkout has the kernel.
fn has_kernel(checkout: &Path) -> bool {
    checkout.join("kernel/Cargo.toml").is_file()
}

/// The kernel of an installation: in `lib/samara` next to the folder of this program.
fn installed(arch: Arch) -> Option<PathBuf> {
    let program = env::current_exe().ok()?;
    let kernel = program.parent()?.parent()?.join("lib/samara").join(arch.installed());
    kernel.is_file().then_some(kernel)
}

/// The kernel's ELF file: `named`, or that of the checkout, which is built, or the installed one.
///
/// # Errors
/// There is none, or a program is missing, or the build failed. Cargo's output went to standard
/// error.
pub(super) fn find(named: Option<&Path>, arch: Arch) -> Result<PathBuf, String> {
    let checkout = checkout();
    let with_kernel = checkout.as_deref().filter(|checkout| has_kernel(checkout));
    let installed = || installed(arch).filter(|_| with_kernel.is_none());
    let file = named.map(Path::to_owned).or_else(installed);
    match (file, with_kernel) {
        (Some(file), _) => needs::check(false, arch).map(|()| file),
        (None, Some(checkout)) => needs::check(true, arch).and_then(|()| build(checkout, arch)),
        (None, None) => {
            let there = checkout.map(|checkout| format!(" in {}", checkout.display()));
            Err(format!(
                "there is no kernel{}: name a checkout by SAMARA_CHECKOUT=DIR, or a kernel by \
                 --kernel FILE",
                there.unwrap_or_default()
            ))
        }
    }
}

fn build(checkout: &Path, arch: Arch) -> Result<PathBuf, String> {
    let home = &checkout.join("kernel");
    let target = target(checkout)?.join("kernel");
    let mut build = command(home, &target, arch);
    messages::show("building the kernel\n");
    // On a terminal cargo shows its progress; elsewhere it prints only errors.
    let shown = io::stderr().is_terminal();
    build.stderr(if shown { Stdio::inherit() } else { Stdio::piped() });
    let output = build.output().map_err(|error| format!("cargo does not start: {error}"))?;
    if !output.status.success() {
        messages::show(&String::from_utf8_lossy(&output.stderr));
        let (home, status) = (home.display(), output.status);
        return Err(format!(
            "the kernel's build failed ({status}): cargo build --release --target {} in {home}",
            arch.target()
        ));
    }
    executable(&output.stdout).ok_or("the kernel's build made no program".into())
}

fn command(home: &Path, target: &Path, arch: Arch) -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command
        // Cargo reads the settings of its working directory, not those of the package.
        .current_dir(home)
        .args(["build", "--release", "--target", arch.target()])
        .args(["--message-format", "json-render-diagnostics", "--target-dir"])
        .arg(target);
    for name in NOT_OURS {
        command.env_remove(name);
    }
    for (name, _) in env::vars_os() {
        if name.as_encoded_bytes().starts_with(b"CARGO_PROFILE_") {
            command.env_remove(name);
        }
    }
    command
}

/// The program that a build made: the last one in cargo's messages.
fn executable(messages: &[u8]) -> Option<PathBuf> {
    String::from_utf8_lossy(messages)
        .lines()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok())
        .filter_map(|message| message["executable"].as_str().map(PathBuf::from))
        .next_back()
}
