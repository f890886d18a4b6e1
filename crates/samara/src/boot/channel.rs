//! The channel to the kernel: a port of a virtio-serial device, which QEMU connects to a socket.
//!
//! From the kernel come frames (`kernel/src/channel`): four bytes (the kind, then the length in 24
//! bits, little-endian), then so many bytes. They are the output of programs, lines of the console,
//! and an archive of files, in the order in which the kernel wrote them. [`Heard`] writes them in
//! that order. If we are slow, the socket fills, and the program in the machine waits.
//!
//! When a program asks for its input, a thread sends ours: four bytes with a length, then so many
//! bytes; the length 0 is the end. If the program does not read it, that thread waits.
//!
//! The kernel is not trusted: a frame of an unknown kind ends the run, no length reserves memory,
//! and a line of the console without an end is told in pieces.

use super::run::LineSender;
use super::spool::Spool;
use crate::cli::{Arch, Boot, Machine};
use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::thread;

/// The kinds of frames.
const CONSOLE: u8 = 0;
const OUTPUT: u8 = 1;
const ERRORS: u8 = 2;
const ARCHIVE: u8 = 3;
const WANTED: u8 = 4;
/// The bytes of a frame's head.
const HEAD: usize = 4;
/// The most bytes of standard input that are sent as one frame.
const PIECE: usize = 32 << 10;

/// The target of a program's output.
pub(super) type Output = Box<dyn Write + Send>;

/// Both ends of the socket.
pub(super) struct Channel {
    ours: UnixStream,
    /// Kept until QEMU has it.
    theirs: UnixStream,
    output: Output,
    archive: Option<Spool>,
}

impl Channel {
    /// Makes the socket, and adds the devices to QEMU's arguments. The output of programs goes to
    /// `output`, the archive of files to `archive`.
    ///
    /// # Errors
    /// There are no file descriptors left.
    pub(super) fn connect(
        options: &Boot,
        command: &mut Command,
        output: Output,
        archive: Option<Spool>,
    ) -> Result<Channel, String> {
        let failed = |error| format!("no socket for the program's output: {error}");
        let (ours, theirs) = UnixStream::pair().map_err(failed)?;
        inherit(&theirs)?;
        let by_pci = options.arch == Arch::X86_64 && options.machine == Some(Machine::Q35);
        // The kernel uses the legacy interface. Without ioeventfd a CPU hands its bytes over:
        // no thread of QEMU has to be woken.
        command.args(match by_pci {
            true => ["-device", "virtio-serial-pci,disable-legacy=off,ioeventfd=off,max_ports=2"]
                .as_slice(),
            false => &[
                "-global",
                "virtio-mmio.force-legacy=true",
                "-global",
                "virtio-mmio.ioeventfd=off",
                "-device",
                "virtio-serial-device,max_ports=2",
            ],
        });
        command
            .args(["-chardev", &format!("socket,id=channel,fd={}", theirs.as_raw_fd())])
            .args(["-device", "virtserialport,chardev=channel,nr=1"]);
        Ok(Channel { ours, theirs, output, archive })
    }

    /// The end of ours, when QEMU has started: then the socket ends when QEMU ends.
    pub(super) fn start(self) -> Heard {
        drop(self.theirs);
        Heard {
            socket: self.ours,
            output: self.output,
            archive: self.archive,
            head: Vec::new(),
            rest: 0,
            line: Vec::new(),
            feeds: false,
        }
    }
}

/// Lets the next command inherit a file.
///
/// # Errors
/// The error of fcntl(2).
pub(super) fn inherit(file: &impl AsFd) -> Result<(), String> {
    fcntl(file, FcntlArg::F_SETFD(FdFlag::empty()))
        .map(drop)
        .map_err(|error| format!("a file cannot be inherited: {error}"))
}

/// The frames of the kernel, as far as they have come.
pub(super) struct Heard {
    pub(super) socket: UnixStream,
    output: Output,
    archive: Option<Spool>,
    /// The head of the current frame.
    head: Vec<u8>,
    /// Bytes of it that are still to come.
    rest: usize,
    /// The console's line that has not ended.
    line: Vec<u8>,
    /// A thread sends our input.
    feeds: bool,
}

impl Heard {
    /// Passes on the bytes that have come. It does not wait if the socket is readable. Returns
    /// false at the end, or if nothing more can be told.
    pub(super) fn read(&mut self, buffer: &mut [u8], told: &LineSender) -> bool {
        let count = match self.socket.read(buffer) {
            Ok(0) => 0,
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return true,
            // QEMU has ended without reading our input.
            Err(_) => 0,
        };
        if count == 0 {
            // A panic may cut a line short.
            if !self.line.is_empty() {
                told.line(std::mem::take(&mut self.line));
            }
            return false;
        }
        let passed = self.pass(&buffer[..count], told);
        passed.unwrap_or_else(|error| {
            told.error(error);
            false
        })
    }

    fn pass(&mut self, mut bytes: &[u8], told: &LineSender) -> Result<bool, String> {
        while !bytes.is_empty() {
            if self.rest == 0 {
                let (head, rest) = bytes.split_at(bytes.len().min(HEAD - self.head.len()));
                self.head.extend_from_slice(head);
                bytes = rest;
                if self.head.len() < HEAD {
                    break;
                }
                self.rest =
                    self.head[1..].iter().rev().fold(0, |all, byte| all << 8 | *byte as usize);
                if self.rest > 0 {
                    continue;
                }
            }
            let (piece, rest) = bytes.split_at(bytes.len().min(self.rest));
            bytes = rest;
            self.rest -= piece.len();
            let kind = self.head[0];
            if self.rest == 0 {
                self.head.clear();
            }
            if !self.piece(kind, piece, told)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Passes on a piece of a frame.
    fn piece(&mut self, kind: u8, piece: &[u8], told: &LineSender) -> Result<bool, String> {
        let written = |name: &str, written: io::Result<()>| {
            written.map_err(|error| format!("cannot write to standard {name}: {error}"))
        };
        match kind {
            CONSOLE => return Ok(told.lines(&mut self.line, piece)),
            OUTPUT => written("output", write(&mut self.output, piece))?,
            ERRORS => written("error", write(&mut io::stderr(), piece))?,
            ARCHIVE if let Some(archive) = &mut self.archive => {
                archive.append(piece)?;
            }
            WANTED if !self.feeds => {
                self.feeds = true;
                let failed = |error| format!("no second socket for standard input: {error}");
                let socket = self.socket.try_clone().map_err(failed)?;
                let told = told.clone_errors();
                thread::spawn(move || feed(socket).unwrap_or_else(told));
            }
            WANTED => {}
            other => {
                let why = "it is not the kernel of this version of samara";
                return Err(format!("the kernel sent a frame of the unknown kind {other}: {why}"));
            }
        }
        Ok(true)
    }
}

fn write(to: &mut dyn Write, bytes: &[u8]) -> io::Result<()> {
    to.write_all(bytes).and_then(|()| to.flush())
}

/// Sends our standard input, until it or the machine ends.
///
/// # Errors
/// It cannot be read.
fn feed(mut socket: UnixStream) -> Result<(), String> {
    let failed = |error| format!("cannot read standard input: {error}");
    // Without the buffer of `Stdin`, which would only copy.
    let input = io::stdin().as_fd().try_clone_to_owned().map_err(failed)?;
    let mut input = File::from(input);
    let mut frame = vec![0; HEAD + PIECE];
    loop {
        let count = match input.read(&mut frame[HEAD..]) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            read => read.map_err(failed)?,
        };
        frame[..HEAD].copy_from_slice(&(count as u32).to_le_bytes());
        // If it cannot be written, the machine has ended.
        if socket.write_all(&frame[..HEAD + count]).is_err() || count == 0 {
            return Ok(());
        }
    }
}
