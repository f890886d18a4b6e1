//! What tests of `samara trace` share: running it, its files, and programs in C.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

use serde_json::Value;

pub(crate) fn samara(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_samara"))
        .arg("trace")
        .args(arguments)
        // A shell warns of a locale that is not installed, and other programs would speak it.
        .env("LC_ALL", "C")
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

pub(crate) fn temporary(name: &str) -> PathBuf {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = fs::remove_file(&path);
    path
}

pub(crate) fn object(path: &Path) -> Value {
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

/// A small C program.
pub(crate) fn compile(name: &str, source: &str, flags: &[&str]) -> PathBuf {
    let program = temporary(name);
    let file = program.with_extension("c");
    fs::write(&file, source).unwrap();
    let done = Command::new("cc").args(flags).arg("-o").arg(&program).arg(&file).status();
    assert!(done.unwrap().success());
    program
}
