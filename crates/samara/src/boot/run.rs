//! Runs QEMU, and reads its lines, and the bytes of the channel, as they come.

use super::channel::{Channel, Heard};
use super::ending::Ended;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

/// The most unread lines. With more, QEMU waits.
const WAITING: usize = 64;
/// The most bytes that are read at once.
const PIECE: usize = 128 << 10;
/// The most bytes of a line. A longer one is told in lines of this length: a machine may write
/// without an end of line, and must not fill our memory.
const LINE: usize = 64 << 10;
/// The pause between two checks for its end, when its output has ended.
const PAUSE: Duration = Duration::from_millis(5);
/// The time for the last lines of a machine that was ended.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// A line of the console, or none at the end, or the error of a stream.
type ConsoleLine = Result<Option<Vec<u8>>, String>;

/// Tells the main thread of lines.
pub(super) struct LineSender {
    lines: SyncSender<ConsoleLine>,
    /// One for each line that has been handled.
    handled: Receiver<()>,
}

impl LineSender {
    /// Tells of a line, and waits until it has been handled: then later output comes after it.
    /// Returns false if the run has ended.
    pub(super) fn line(&self, line: Vec<u8>) -> bool {
        self.lines.send(Ok(Some(line))).is_ok() && self.handled.recv().is_ok()
    }

    /// Tells of each line that ends in `bytes`. An unended line stays in `unended`, which has less
    /// than [`LINE`] bytes. Returns false if the run has ended.
    pub(super) fn lines(&self, unended: &mut Vec<u8>, mut bytes: &[u8]) -> bool {
        while !bytes.is_empty() {
            let most = &bytes[..bytes.len().min(LINE - unended.len())];
            let end = most.iter().position(|byte| *byte == b'\n');
            let (part, rest) = bytes.split_at(end.map_or(most.len(), |end| end + 1));
            bytes = rest;
            unended.extend_from_slice(part);
            let is_whole = end.is_some() || unended.len() == LINE;
            if is_whole && !self.line(std::mem::take(unended)) {
                return false;
            }
        }
        true
    }

    /// Tells of an error, which ends the run. If it has ended, the error is no news.
    pub(super) fn error(&self, error: String) {
        let _ = self.lines.send(Err(error));
    }

    /// Tells of errors from another thread, which does not keep the run from ending.
    pub(super) fn clone_errors(&self) -> impl FnOnce(String) + Send + use<> {
        let lines = self.lines.clone();
        move |error| drop(lines.send(Err(error)))
    }
}

/// Calls `line` with each line of the console, and waits for the end, for at most `limit`. The
/// lines come by QEMU's standard output, and by the channel. An error of `line` or of the channel
/// ends QEMU, too. Standard error is inherited.
///
/// # Errors
/// QEMU does not start, or the error of `line` or of the channel.
pub(super) fn run(
    mut command: Command,
    limit: Option<Duration>,
    channel: Option<Channel>,
    mut line: impl FnMut(&[u8]) -> Result<(), String>,
) -> Result<Ended, String> {
    // The console has no input; a program's input comes by the channel.
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    end_with_us(&mut command);
    let program = command.get_program().display().to_string();
    let failed = |error| format!("{program} does not run: {error}");
    let end = limit.and_then(|limit| Instant::now().checked_add(limit));
    let mut child = command.spawn().map_err(failed)?;
    let (sender, lines) = sync_channel(WAITING);
    let (handle, handled) = sync_channel(WAITING);
    let console = child.stdout.take();
    let told = LineSender { lines: sender, handled };
    thread::spawn(move || {
        read(console, channel.map(Channel::start), &told);
        // Another thread that waits for input may still have a sender.
        let _ = told.lines.send(Ok(None));
    });
    let mut line = |text: &[u8]| {
        let done = line(text);
        // The reader is gone if it has failed.
        let _ = handle.try_send(());
        done
    };
    let mut told = Ok(());
    let ended = loop {
        match next(&lines, end) {
            Ok(Ok(Some(text))) => {
                told = line(&text);
                if told.is_err() {
                    break None;
                }
            }
            Ok(Err(error)) => {
                told = Err(error);
                break None;
            }
            Err(RecvTimeoutError::Timeout) => break None,
            Ok(Ok(None)) | Err(RecvTimeoutError::Disconnected) => {
                break wait(&mut child, end).map_err(failed)?;
            }
        }
    };
    if let Some(status) = ended {
        return Ok(how(status));
    }
    child.kill().and_then(|()| child.wait()).map_err(failed)?;
    told?;
    let last = Instant::now() + LAST_WORDS;
    while let Ok(Ok(Some(text))) = next(&lines, Some(last)) {
        line(&text)?;
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

/// Tells of each line of the console, and of the rest that has no line end, and passes on the
/// frames of the channel. The kernel writes to the console in a panic, after all else: so that is
/// read when the channel has nothing.
fn read(console: Option<ChildStdout>, mut channel: Option<Heard>, told: &LineSender) {
    let Some(mut console) = console else { return };
    let (mut buffer, mut line) = (vec![0; PIECE], Vec::new());
    let mut goes_on = true;
    while goes_on || channel.is_some() {
        let (has_console, has_channel) = match readable(&console, channel.as_ref(), goes_on) {
            Ok(both) => both,
            Err(error) => return told.error(format!("QEMU's output cannot be read: {error}")),
        };
        if has_channel && let Some(heard) = &mut channel {
            if !heard.read(&mut buffer, told) {
                channel = None;
            }
        } else if has_console {
            let bytes = match console.read(&mut buffer) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                // It has ended; QEMU's exit code says why.
                Ok(0) | Err(_) => {
                    goes_on = false;
                    continue;
                }
                Ok(count) => &buffer[..count],
            };
            if !told.lines(&mut line, bytes) {
                return;
            }
        }
    }
    if !line.is_empty() {
        told.line(line);
    }
}

/// Waits until the console, if it goes on, or the channel can be read or has ended.
fn readable(
    console: &ChildStdout,
    channel: Option<&Heard>,
    goes_on: bool,
) -> io::Result<(bool, bool)> {
    let poll_for = |file| PollFd::new(file, PollFlags::POLLIN);
    let mut files = Vec::new();
    files.extend(channel.map(|heard| poll_for(heard.socket.as_fd())));
    files.extend(goes_on.then(|| poll_for(console.as_fd())));
    match poll(&mut files, PollTimeout::NONE) {
        Err(Errno::EINTR) => return Ok((false, false)),
        polled => polled?,
    };
    let mut has = files.iter().map(|file| file.any().unwrap_or(true));
    let has_channel = channel.is_some() && has.next() == Some(true);
    Ok((has.next() == Some(true), has_channel))
}

fn next(
    lines: &Receiver<ConsoleLine>,
    end: Option<Instant>,
) -> Result<ConsoleLine, RecvTimeoutError> {
    match end {
        Some(end) => lines.recv_timeout(end.saturating_duration_since(Instant::now())),
        None => lines.recv().map_err(|_| RecvTimeoutError::Disconnected),
    }
}

/// Returns `None` if it has not ended by then.
pub(super) fn wait(child: &mut Child, end: Option<Instant>) -> io::Result<Option<ExitStatus>> {
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
