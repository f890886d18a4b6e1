//! Prints records as lines, each in its only spelling.

use std::{
    fmt::{self, Write as _},
    io::{self, Write},
};

use super::{header::Header, stacks};
use crate::record::{Call, FileDesc, InitialVma, Record};

/// The start of the line before an `M` line that has the time of the call.
pub(super) const TIME: &str = "#@ ";

/// Writes a trace. Each record is one `write_all`, so the writer should be buffered.
///
/// ```
/// use trace::{record::Record, text::{Header, Printer}};
///
/// let mut printer = Printer::new(Vec::new(), &Header::new())?;
/// printer.record(&Record::ExitMmap { mm: 1 })?;
/// assert_eq!(printer.into_inner(), b"# vmtrace 1\nQ 1\n");
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct Printer<W> {
    out: W,
    text: String,
}

impl<W: Write> Printer<W> {
    /// Writes the header.
    pub fn new(mut out: W, header: &Header) -> io::Result<Self> {
        writeln!(out, "{header}")?;
        Ok(Printer { out, text: String::new() })
    }

    /// Writes one record.
    pub fn record(&mut self, record: &Record) -> io::Result<()> {
        self.text.clear();
        // Writing to a String fails only if a Display does, and these do not.
        write_record(&mut self.text, record).map_err(io::Error::other)?;
        self.out.write_all(self.text.as_bytes())
    }

    /// Flushes the writer.
    pub fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }

    /// Returns the writer.
    pub fn into_inner(self) -> W {
        self.out
    }
}

/// Text on one line: a newline is escaped as in the kernel's listing.
pub(super) struct OneLine<'a>(pub(super) &'a str);

impl fmt::Display for OneLine<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, part) in self.0.split('\n').enumerate() {
            if i > 0 {
                f.write_str("\\012")?;
            }
            f.write_str(part)?;
        }
        Ok(())
    }
}

/// Flags as one word, which is never empty.
struct Flags(vma::VmFlags);

impl fmt::Display for Flags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.names().next().is_none() && self.0.pkey() == 0 {
            return f.write_str("-");
        }
        self.0.fmt(f)
    }
}

fn write_record(out: &mut String, record: &Record) -> fmt::Result {
    match record {
        Record::Exec { mm, tid, vmas, brk, start_brk, start_stack, mmap_base, exe } => writeln!(
            out,
            "X {mm} {tid} vmas={vmas} brk={brk:x} start_brk={start_brk:x} \
             start_stack={start_stack:x} mmap_base={mmap_base:x} exe={}",
            OneLine(exe)
        ),
        Record::File(file) => write_file(out, file),
        Record::Vma(vma) => {
            out.push_str("V ");
            write_vma(out, vma)?;
            writeln!(out, " {}", OneLine(vma.name.as_deref().unwrap_or("-")))
        }
        Record::Vsyscall(line) => writeln!(out, "Y {}", OneLine(line)),
        Record::Call(call) => write_call(out, call),
        Record::DriverFlags { mm, flags } => writeln!(out, "L {mm} {}", Flags(*flags)),
        Record::Adopt { mm, vma } => {
            write!(out, "A {mm} ")?;
            write_vma(out, vma)?;
            match &vma.name {
                Some(name) => writeln!(out, " {}", OneLine(name)),
                None => writeln!(out),
            }
        }
        Record::Fault { mm, addr } => writeln!(out, "F {mm} {addr:x}"),
        Record::Grow { mm, end, start } => writeln!(out, "G {mm} {end:x} {start:x}"),
        Record::Settled { mm, start, end, flags } => match flags {
            Some(flags) => writeln!(out, "S {mm} {start:x} {end:x} {}", Flags(*flags)),
            None => writeln!(out, "S {mm} {start:x} {end:x} hole"),
        },
        Record::Rename { file, path } => writeln!(out, "N {file} {}", OneLine(path)),
        Record::Fork { mm, child, tid, child_tid } => {
            writeln!(out, "K {mm} {child} {tid} {child_tid}")
        }
        Record::Share { mm, tid, child_tid, vfork } => {
            writeln!(out, "T {mm} {tid} {child_tid} {}", if *vfork { "vfork" } else { "thread" })
        }
        Record::Check { mm, lines, hash } => writeln!(out, "C {mm} {lines} {hash:016x}"),
        Record::Listing(listing) => {
            let end = if listing.exec { "exec" } else { "exit" };
            writeln!(out, "Z {} {} {end} {}", listing.mm, listing.tid, listing.lines.len())?;
            for line in &listing.lines {
                writeln!(out, "= {}", OneLine(line))?;
            }
            for (start, flags) in &listing.flags {
                writeln!(out, "f {start:x} {}", Flags(*flags))?;
            }
            Ok(())
        }
        Record::Doubt { mm, cause } => writeln!(out, "U {mm} {}", cause.name()),
        Record::ExitMmap { mm } => writeln!(out, "Q {mm}"),
        Record::Image(image) => stacks::write_image(out, image),
        Record::Stack(stack) => stacks::write_stack(out, stack),
        Record::Symbol(symbol) => stacks::write_symbol(out, symbol),
    }
}

fn write_file(out: &mut String, file: &FileDesc) -> fmt::Result {
    let (major, minor) = file.dev;
    let kind = file.kind.name();
    let mode = if file.writable { "rw" } else { "ro" };
    let noexec = if file.noexec { "+noexec" } else { "" };
    writeln!(
        out,
        "D {} {major:x}:{minor:x} {} {kind} {mode}{noexec} {}",
        file.id,
        file.inode,
        OneLine(&file.path)
    )
}

fn write_vma(out: &mut String, vma: &InitialVma) -> fmt::Result {
    write!(out, "{:x} {:x} {} {:x} {}", vma.start, vma.end, Flags(vma.flags), vma.pgoff, vma.file)
}

fn write_call(out: &mut String, call: &Call) -> fmt::Result {
    // Lines of their own, which older parsers skip as comments.
    if let Some(at) = call.at {
        writeln!(out, "{TIME}{at}")?;
    }
    if call.stack != 0 {
        writeln!(out, "{}{}", stacks::STACK_OF, call.stack)?;
    }
    write!(out, "M {} {} {}", call.mm, call.tid, call.op.name())?;
    for arg in &call.args[..call.op.arity()] {
        write!(out, " {arg:x}")?;
    }
    if call.op == crate::record::Op::Mmap {
        write!(out, " f{}", call.file)?;
    }
    if let Some([a, b, c]) = call.memory {
        write!(out, " x{a:x},{b:x},{c:x}")?;
    }
    match call.result {
        error @ ..0 => writeln!(out, " = {error}"),
        value => writeln!(out, " = {value:x}"),
    }
}
