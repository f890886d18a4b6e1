//! Helpers for tests of `samara trace`: running it, its files, and programs in C.

#[path = "../common/ran.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
pub(crate) mod ran;

#[path = "../../../trace/tests/common/needs.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
pub(crate) mod needs;

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use ran::Ran;
use serde_json::Value;

pub(crate) fn samara(arguments: &[&str]) -> Ran {
    ran::samara(&[&["trace"], arguments].concat())
}

/// The output of a command on a terminal, if this computer can make one.
pub(crate) fn on_terminal(command: &str) -> Option<String> {
    let script = |arguments: &[&str]| {
        let mut script = Command::new("script");
        script.args(arguments).env("TERM", "xterm");
        script
    };
    let found = script(&["--version"]).output().is_ok();
    needs::has("script", found, Some("install bsdutils"))
        .then(|| Ran::of(&mut script(&["-qec", command, "/dev/null"])).with_code(0).out)
}

pub(crate) fn lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
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
