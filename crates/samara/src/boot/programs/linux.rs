//! A machine with a kernel of Linux, whose first program is ours.
//!
//! The kernel unpacks the same archive as its initial file system, and starts the program with the
//! words behind `--`. The program writes to the serial port, and restarts the machine at its end.
//! QEMU then ends, because it does not restart. If the program fails, Linux panics and restarts the
//! machine itself: the last line of the program tells the two apart.

use super::Ran;
use super::loops::NAME;
use crate::boot::ending::Failure;
use crate::boot::{channel, ending::Ended, program, qemu, run};
use crate::cli::{Boot, Run, Task};
use std::fs::File;
use std::io::Read;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use trace::report::messages;

/// Linux's words. Its messages are left out, but for a panic, which ends the machine. `mitigations`
/// and `init_on_alloc`: this kernel has neither. `tsc=reliable`: otherwise emulated CPUs stop while
/// Linux patches its own code. `nowatchdog`, `nokaslr` and `no5lvl`: nothing else runs,
/// addresses are the same in each run, and tables have four levels as in this kernel.
const WORDS: &str = "console=ttyS0 quiet loglevel=1 panic=-1 mitigations=off tsc=reliable \
    nowatchdog nokaslr no5lvl init_on_alloc=0";

/// The start of a bzImage that has its header and, most often, its version.
const HEAD: u64 = 1 << 16;

/// A kernel of Linux.
pub(super) struct Image {
    path: PathBuf,
    /// As `uname -r` shows it.
    pub(super) version: String,
}

/// Looks at a kernel of Linux, before anything is measured.
///
/// # Errors
/// It cannot be read, or is no bzImage.
pub(super) fn open(path: &Path) -> Result<Image, String> {
    const CURE: &str = "--linux takes a bzImage: campaign/lean-linux DIR builds one";
    let mut head = Vec::new();
    let read = File::open(path).and_then(|file| file.take(HEAD).read_to_end(&mut head));
    read.map_err(|error| format!("cannot read {}: {error}; {CURE}", path.display()))?;
    let version = version(&head);
    let version = version.ok_or_else(|| format!("{} is no bzImage; {CURE}", path.display()))?;
    Ok(Image { path: path.into(), version })
}

/// The version in the header of a bzImage: the boot protocol's `kernel_version`, up to the name of
/// the machine that built it.
fn version(head: &[u8]) -> Option<String> {
    (head.get(0x202..0x206)? == b"HdrS").then_some(())?;
    let at = head.get(0x20e..0x210)?;
    let at = usize::from(u16::from_le_bytes([at[0], at[1]])) + 0x200;
    let text = head.get(at..)?.split(|byte| *byte == 0 || *byte == b' ').next()?;
    Some(String::from_utf8_lossy(text).into_owned())
}

/// The whole command line.
fn words(run: &Run) -> String {
    let huge = qemu::name(&run.huge);
    let words: Vec<_> = run.command[1..].iter().map(|word| word.to_string_lossy()).collect();
    let own = words.join(" ");
    format!("{WORDS} transparent_hugepage={huge} rdinit=/{NAME} -- --init {own}")
}

/// Runs the loops on Linux, and returns the lines of the serial port.
pub(super) fn measure(machine: &Boot, kernel: &Image) -> Ran {
    let mut text = String::new();
    let ended = boot(machine, kernel, &mut text).and_then(|ended| match ended {
        Ended::Code(0) => Ok(()),
        ended => Err(how(ended)),
    });
    Ran { text, ended }
}

fn boot(machine: &Boot, kernel: &Image, text: &mut String) -> Result<Ended, Failure> {
    let Some(Task::Run(options)) = &machine.task else { return Ok(Ended::Code(0)) };
    let archive = program::archive(options, &machine.memory)?;
    let mut command = qemu::command(machine, &kernel.path, &words(options));
    channel::inherit(&archive)?;
    command.args(["-initrd", &format!("/dev/fd/{}", archive.as_raw_fd())]);
    Ok(run::run(command, machine.timeout.0, None, |line| {
        text.push_str(String::from_utf8_lossy(line).trim_end());
        text.push('\n');
        Ok(())
    })?)
}

/// An end that is not the restart of the machine.
fn how(ended: Ended) -> Failure {
    let what = match ended {
        Ended::TimedOut => "it was not done within --timeout".into(),
        Ended::Code(code) => format!("QEMU ended with code {code}"),
        Ended::Signal(signal) => format!("QEMU was ended by signal {signal}"),
    };
    what.into()
}

/// Shows the last lines of Linux and the program.
pub(super) fn show(text: &str) {
    const LINES: usize = 40;
    let lines: Vec<&str> = text.lines().collect();
    let last = &lines[lines.len().saturating_sub(LINES)..];
    messages::show(&format!("{}\n", last.join("\n")));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::Huge;

    #[test]
    fn a_bzimage_has_a_version() {
        let mut head = vec![0; 0x1000];
        assert_eq!(version(&head), None);
        assert_eq!(version(b"short"), None);
        head[0x202..0x206].copy_from_slice(b"HdrS");
        head[0x20e..0x210].copy_from_slice(&0x400u16.to_le_bytes());
        head[0x600..0x61a].copy_from_slice(b"6.12.117 (name@host) #1 SM");
        assert_eq!(version(&head).as_deref(), Some("6.12.117"));
        head[0x20e..0x210].copy_from_slice(&0xffffu16.to_le_bytes());
        assert_eq!(version(&head), None);
    }

    #[test]
    fn a_file_that_is_no_kernel_is_named_with_the_cure() {
        let error = open(Path::new("/no/bzImage")).err().unwrap();
        assert!(error.contains("/no/bzImage") && error.contains("campaign/lean-linux"), "{error}");
        let error = open(Path::new(file!()).file_name().unwrap().as_ref()).err().unwrap();
        assert!(error.contains("cannot read"), "{error}");
    }

    #[test]
    fn huge_pages_are_those_of_the_other_kernel() {
        let run = |huge| Run {
            huge,
            command: ["loops", "--settle", "1", "all", "2", "both"].map(Into::into).into(),
            ..Run::default()
        };
        let never = words(&run(Huge::Never));
        assert!(never.contains("tsc=reliable") && !never.contains('\n'), "{never}");
        let end = "transparent_hugepage=never rdinit=/loops -- --init --settle 1 all 2 both";
        assert!(never.ends_with(end), "{never}");
        assert!(words(&run(Huge::Always)).contains("transparent_hugepage=always "));
    }
}
