//! The output of the program in the machine: pipes from two devices of QEMU to our own standard
//! output and standard error. A benchmark reads the output itself.
//!
//! The kernel writes to the ports of two `isa-debugcon` devices (`kernel/src/output.rs`). QEMU
//! inherits the write ends of two pipes, and writes each byte at once. A thread per pipe copies
//! them. If we are slow, the pipe fills, and the program in the machine waits. A byte
//! costs QEMU a system call: about a microsecond.

use std::io::{self, PipeReader, PipeWriter, Read, Write, pipe};
use std::os::fd::{AsFd, AsRawFd};
use std::process::Command;
use std::thread;

use nix::fcntl::{FcntlArg, FdFlag, fcntl};

/// The names of the streams, and their ports. SeaBIOS writes to port 0x402, where such a device
/// often is.
const STREAMS: [(&str, &str); 2] = [("output", "0x502"), ("error", "0x503")];
/// Bytes that are copied at once: those of a pipe.
const PIECE: usize = 1 << 16;

/// The pipes.
pub(super) struct Streams {
    readers: [PipeReader; 2],
    /// Kept until QEMU has them.
    writers: [PipeWriter; 2],
}

impl Streams {
    /// Makes the pipes, and adds their devices to QEMU's arguments.
    ///
    /// # Errors
    /// There are no file descriptors left.
    pub(super) fn connect(command: &mut Command) -> Result<Streams, String> {
        let failed = |error| format!("no pipe for the program's output: {error}");
        let (out, err) = (pipe().map_err(failed)?, pipe().map_err(failed)?);
        let streams = Streams { readers: [out.0, err.0], writers: [out.1, err.1] };
        for (set, ((name, port), writer)) in STREAMS.iter().zip(&streams.writers).enumerate() {
            let set = set + 1;
            inherit(writer)?;
            command
                .args(["-add-fd", &format!("fd={},set={set}", writer.as_raw_fd())])
                .args(["-chardev", &format!("file,id={name},path=/dev/fdset/{set},append=on")])
                .args(["-device", &format!("isa-debugcon,iobase={port},chardev={name}")]);
        }
        Ok(streams)
    }

    /// Copies the output to `to`, and the error to ours, in threads. Call it when QEMU has started.
    /// Each thread drops its clone of `told` when it has written all; it calls it at most once,
    /// with an error.
    pub(super) fn copy(
        self,
        mut to: impl Write + Send + 'static,
        told: impl Fn(String) + Clone + Send + 'static,
    ) {
        // Then the pipes end when QEMU ends.
        drop(self.writers);
        let [out, err] = self.readers;
        let tell = told.clone();
        thread::spawn(move || report("output", copy(out, &mut to), tell));
        thread::spawn(move || report("error", copy(err, &mut io::stderr()), told));
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

fn report(name: &str, copied: io::Result<()>, tell: impl Fn(String)) {
    if let Err(error) = copied {
        tell(format!("cannot write to standard {name}: {error}"));
    }
}

/// Copies each piece at once. A pipe that cannot be read has ended.
fn copy(mut from: PipeReader, to: &mut impl Write) -> io::Result<()> {
    let mut piece = vec![0; PIECE];
    loop {
        match from.read(&mut piece) {
            Ok(0) => return Ok(()),
            Ok(bytes) => to.write_all(&piece[..bytes]).and_then(|()| to.flush())?,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return Ok(()),
        }
    }
}
