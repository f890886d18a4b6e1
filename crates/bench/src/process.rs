//! The driver's side of a worker process.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// A worker, with the name of its build.
pub(crate) struct Process {
    child: Child,
    requests: ChildStdin,
    answers: BufReader<ChildStdout>,
    name: String,
}

impl Process {
    /// Starts a worker.
    pub(crate) fn start(program: &Path, args: &[&str]) -> Result<Self, String> {
        let name = program.display().to_string();
        let mut child = Command::new(program)
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| format!("{name} does not start: {error}"))?;
        match (child.stdin.take(), child.stdout.take()) {
            (Some(requests), Some(answers)) => {
                Ok(Process { child, requests, answers: BufReader::new(answers), name })
            }
            _ => Err(format!("{name} has no pipes")),
        }
    }

    /// Sends a request and waits for the answer.
    pub(crate) fn ask(&mut self, request: &str) -> Result<String, String> {
        let mut answer = String::new();
        let done = writeln!(self.requests, "{request}")
            .and_then(|()| self.requests.flush())
            .and_then(|()| self.answers.read_line(&mut answer));
        match done {
            Ok(0) | Err(_) => {
                let end =
                    self.child.wait().map_or_else(|error| error.to_string(), |s| s.to_string());
                Err(format!("{} ended at the request \"{request}\": {end}", self.name))
            }
            Ok(_) if answer.starts_with("error") => {
                Err(format!("{}: {}", self.name, answer.trim()))
            }
            Ok(_) => Ok(answer.trim_end_matches('\n').into()),
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It waits for a request, or works on one whose answer is not needed any more.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
