//! Helpers for tests: running `samara`, and its results.

use std::process::{Command, Stdio};

use serde_json::Value;

/// The result of a command that ended.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Ran {
    pub(crate) fn of(command: &mut Command) -> Self {
        let output = command.stdin(Stdio::null()).output().unwrap();
        let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
        let (out, err) = (text(&output.stdout), text(&output.stderr));
        Self { code: output.status.code(), out, err }
    }

    /// The command must have ended with this exit code.
    #[track_caller]
    pub(crate) fn with_code(self, code: i32) -> Self {
        assert_eq!(self.code, Some(code), "{}\n{}", self.out, self.err);
        self
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap()
    }
}

pub(crate) fn samara(arguments: &[&str]) -> Ran {
    // A shell warns of a locale that is not installed, and other programs would speak it.
    Ran::of(Command::new(env!("CARGO_BIN_EXE_samara")).args(arguments).env("LC_ALL", "C"))
}
