//! Runs QEMU, and reads its lines as they come.

use super::ending::Ended;
use super::streams::Streams;
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

/// The most unread lines. With more, QEMU waits.
const WAITING: usize = 64;
/// The pause between two checks for its end, when its output has ended.
const PAUSE: Duration = Duration::from_millis(5);
/// The time for the last lines of a machine that was ended.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// A line of the serial port, or the error of a stream.
type Line = Result<Vec<u8>, String>;

/// Where the output of a program goes.
pub(super) type Output = Box<dyn Write + Send>;

/// Calls `line` with each line of standard output, and waits for the end, for at most `limit`. An
/// error of `line` or of the program's streams ends QEMU, too. Standard error is inherited.
///
/// # Errors
/// QEMU does not start, or the error of `line` or of the streams.
pub(super) fn run(
    mut command: Command,
    limit: Option<Duration>,
    streams: Option<(Streams, Output)>,
    mut line: impl FnMut(&[u8]) -> Result<(), String>,
) -> Result<Ended, String> {
    // The kernel has no input, and QEMU must not read a script that is our standard input.
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    end_with_us(&mut command);
    let program = command.get_program().display().to_string();
    let failed = |error| format!("{program} does not run: {error}");
    let end = limit.and_then(|limit| Instant::now().checked_add(limit));
    let mut child = command.spawn().map_err(failed)?;
    let (sender, lines) = sync_channel(WAITING);
    let output = child.stdout.take();
    if let Some((streams, to)) = streams {
        let sender = sender.clone();
        // The receiver is gone if the run has ended. Then the error is no news.
        streams.copy(to, move |error| drop(sender.send(Err(error))));
    }
    thread::spawn(move || read(output, sender));
    let mut told = Ok(());
    let ended = loop {
        match next(&lines, end) {
            Ok(text) => {
                told = text.and_then(|text| line(&text));
                if told.is_err() {
                    break None;
                }
            }
            Err(RecvTimeoutError::Timeout) => break None,
            Err(RecvTimeoutError::Disconnected) => break wait(&mut child, end).map_err(failed)?,
        }
    };
    if let Some(status) = ended {
        return Ok(how(status));
    }
    child.kill().and_then(|()| child.wait()).map_err(failed)?;
    told?;
    let last = Instant::now() + LAST_WORDS;
    while let Ok(text) = next(&lines, Some(last)) {
        line(&text?)?;
    }
    Ok(Ended::TimedOut)
}

/// Ends QEMU when this process ends for any reason: an interrupt, a signal to this process alone, a
/// panic. QEMU could run forever otherwise.
#[cfg(target_os = "linux")]
fn end_with_us(command: &mut Command) {
    use nix::sys::{prctl::set_pdeathsig, signal::Signal};
    use nix::unistd::{getpid, getppid};
    use std::os::unix::process::CommandExt;
    let us = getpid();
    let before = move || {
        // The signal is sent when the thread that starts QEMU ends. That is the main thread.
        set_pdeathsig(Signal::SIGKILL)?;
        // If this process ended before that call, no signal is sent any more.
        match getppid() == us {
            true => Ok(()),
            false => Err(io::ErrorKind::BrokenPipe.into()),
        }
    };
    // SAFETY: between fork and execve it makes two system calls, which neither allocate nor take a
    // lock.
    unsafe { command.pre_exec(before) };
}

/// Does nothing: only Linux has a signal for the death of the parent. If this process is killed,
/// QEMU runs on.
#[cfg(not(target_os = "linux"))]
fn end_with_us(_: &mut Command) {}

/// Sends each line, and the rest that has no line end.
fn read(output: Option<ChildStdout>, lines: SyncSender<Line>) {
    let Some(output) = output else { return };
    let mut output = BufReader::new(output);
    loop {
        let mut line = Vec::new();
        match output.read_until(b'\n', &mut line) {
            // The pipe has ended; QEMU's exit code says why.
            Ok(0) | Err(_) => return,
            Ok(_) if lines.send(Ok(line)).is_err() => return,
            Ok(_) => {}
        }
    }
}

fn next(lines: &Receiver<Line>, end: Option<Instant>) -> Result<Line, RecvTimeoutError> {
    match end {
        Some(end) => lines.recv_timeout(end.saturating_duration_since(Instant::now())),
        None => lines.recv().map_err(|_| RecvTimeoutError::Disconnected),
    }
}

/// Returns `None` if it has not ended by then.
fn wait(child: &mut Child, end: Option<Instant>) -> io::Result<Option<ExitStatus>> {
    let Some(end) = end else { return child.wait().map(Some) };
    loop {
        let status = child.try_wait()?;
        if status.is_some() || Instant::now() >= end {
            return Ok(status);
        }
        thread::sleep(PAUSE);
    }
}

fn how(status: ExitStatus) -> Ended {
    match (status.code(), status.signal()) {
        (Some(code), _) => Ended::Code(code),
        (None, signal) => Ended::Signal(signal.unwrap_or_default()),
    }
}
