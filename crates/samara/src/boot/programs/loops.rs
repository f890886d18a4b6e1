//! Builds the program of the loops.

use crate::boot::kernel::{checkout, target};
use std::fs;
use std::path::PathBuf;
use std::process::Command;

/// Its name, and its path in the machine.
pub(super) const NAME: &str = "loops";

/// Compiles it, and returns the folder that is the root of the machine's files.
///
/// # Errors
/// The checkout is gone, there is no compiler, or it fails.
pub(super) fn build() -> Result<PathBuf, String> {
    let Some(checkout) = checkout() else {
        return Err("bench programs needs a checkout: name one by SAMARA_CHECKOUT=DIR".into());
    };
    let source = checkout.join("programs").join("loops.c");
    if !source.is_file() {
        let source = source.display();
        return Err(format!(
            "there is no {source}: bench programs needs a checkout, which SAMARA_CHECKOUT=DIR names"
        ));
    }
    let root = target(&checkout)?.join("loops");
    // Linux's initial file system has no such folder; this kernel makes it.
    fs::create_dir_all(root.join("tmp")).map_err(|error| format!("{}: {error}", root.display()))?;
    let flags = ["-O2", "-std=gnu11", "-static", "-pthread", "-o"];
    let output = Command::new("cc").args(flags).arg(root.join(NAME)).arg(&source).output();
    let output = output.map_err(|error| {
        format!("cc does not start: {error}; on Debian, as root: apt-get install build-essential")
    })?;
    match output.status.success() {
        true => Ok(root),
        false => {
            let why = String::from_utf8_lossy(&output.stderr).into_owned();
            Err(format!("cc cannot compile {}: {why}", source.display()))
        }
    }
}
