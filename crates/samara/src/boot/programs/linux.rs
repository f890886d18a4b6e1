//! A machine with a kernel of Linux, whose first program is ours.
//!
//! The kernel unpacks the same archive as its initial file system, and starts the program with the
//! words behind `--`. When the first program ends, Linux panics; it resets the machine then, and
//! QEMU ends, because it does not restart. The program writes to the serial port.

use crate::boot::ending::{Ended, Failure};
use crate::boot::{program, qemu, run, streams};
use crate::cli::{Boot, Task};
use std::os::fd::AsRawFd;
use std::path::Path;
use trace::report::messages;

use super::loops::NAME;

/// Linux's words: its messages are left out, but for the panic at the end, and there are no
/// mitigations, which this kernel does not have either.
const WORDS: &str = "console=ttyS0 quiet loglevel=1 panic=-1 mitigations=off";

/// Runs the loops on Linux, and returns the lines of the serial port.
///
/// # Errors
/// It does not start, or the program ends early.
pub(super) fn lines(machine: &Boot, kernel: &Path) -> Result<String, Failure> {
    let Some(Task::Run(options)) = &machine.task else { return Ok(String::new()) };
    if !kernel.is_file() {
        let cure = "--linux takes a bzImage, such as /boot/vmlinuz-VERSION";
        return Err(format!("there is no file {}: {cure}", kernel.display()).into());
    }
    let archive = program::archive(options, &machine.memory)?;
    let words: Vec<_> = options.command[1..].iter().map(|word| word.to_string_lossy()).collect();
    let words = format!("{WORDS} rdinit=/{NAME} -- {}", words.join(" "));
    let mut command = qemu::command(machine, kernel, &words);
    streams::inherit(&archive)?;
    command.args(["-initrd", &format!("/dev/fd/{}", archive.as_raw_fd())]);
    let mut text = String::new();
    let ended = run::run(command, machine.timeout.0, None, |line| {
        text.push_str(String::from_utf8_lossy(line).trim_end());
        text.push('\n');
        Ok(())
    })?;
    let done = text.lines().any(|line| line.starts_with(NAME) || line.contains("forkexit"));
    match ended {
        Ended::Code(0) if done => Ok(text),
        _ => {
            messages::show(&text);
            Err("the loops did not end on Linux: see above what it said".to_string().into())
        }
    }
}
