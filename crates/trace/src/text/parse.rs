//! Parses lines into records.

use std::io::BufRead;

use super::{
    complete::Complete,
    error::{Error, Expected, shorten},
    fields::{Fields, decimal, hex},
    header::Header,
    lines::{Lines, NoLine},
    print::TIME,
    stacks::{self, STACK_OF},
};
use crate::{
    listing::Line,
    record::{Call, Doubt, FileDesc, FileKind, InitialVma, Listing, Op, Record, StackId},
};

/// Reads a trace, one record at a time. The first error is final.
///
/// Memory is bounded by the longest listing and by the number of files and address spaces that the
/// trace introduces. A number in the trace never determines an allocation.
///
/// ```
/// use trace::{record::Record, text::Parser};
///
/// let mut parser = Parser::new(&b"# vmtrace 1\nQ 1\n"[..], "a.vmtrace")?;
/// assert_eq!(parser.next_record()?, Some(Record::ExitMmap { mm: 1 }));
/// assert_eq!((parser.next_record()?, parser.line()), (None, 3));
/// # Ok::<(), trace::text::Error>(())
/// ```
pub struct Parser<R> {
    file: String,
    lines: Lines<R>,
    header: Header,
    complete: Complete,
}

impl<R: BufRead> Parser<R> {
    /// Reads the header. `file` is the name that errors show.
    pub fn new(reader: R, file: impl Into<String>) -> Result<Self, Error> {
        let mut parser = Parser {
            file: file.into(),
            lines: Lines::new(reader),
            header: Header::default(),
            complete: Complete::default(),
        };
        const WHAT: &str = "the header \"# vmtrace 1 ...\" of a recording";
        let header = parser.lines.advance().map(str::parse);
        // If this is another kind of file, the error says so, and not that the line is too long or
        // not UTF-8.
        let ours = parser.lines.text().starts_with("# vmtrace");
        let header = match header {
            Ok(header) => header,
            Err(NoLine::NotText | NoLine::TooLong | NoLine::Cut) if !ours => Err(WHAT.into()),
            Err(none) => return Err(parser.no_line(none, WHAT.into())),
        };
        parser.header = header.map_err(|expected| parser.error(expected))?;
        Ok(parser)
    }

    /// The first line.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// The number of the newest record's last line, from 1.
    pub fn line(&self) -> usize {
        self.lines.number
    }

    /// An error at the newest line, for a caller that finds a record impossible.
    pub fn error(&self, expected: impl Into<Expected>) -> Error {
        Error {
            file: self.file.clone(),
            line: self.lines.number,
            expected: expected.into(),
            found: shorten(&self.lines.text()),
            source: None,
        }
    }

    /// The next record; `None` at the end of a complete trace.
    pub fn next_record(&mut self) -> Result<Option<Record>, Error> {
        let mut promised = 0;
        let mut of = CallComments::default();
        let record = loop {
            match self.lines.advance() {
                Ok(line) if line.starts_with(TIME) || line.starts_with(STACK_OF) => {
                    if let Err(expected) = of.line(line) {
                        return Err(self.error(expected));
                    }
                }
                Ok(line) if line.starts_with('#') => {
                    if let Some(record) = stacks::record(line) {
                        break record;
                    }
                }
                Ok(line) => break record(line, &mut promised),
                Err(NoLine::End) if of != CallComments::default() => {
                    return Err(self.no_line(NoLine::End, OF_CALL.into()));
                }
                Err(NoLine::End) => {
                    return match self.complete.end() {
                        Ok(()) => Ok(None),
                        Err(missing) => Err(self.no_line(NoLine::End, missing)),
                    };
                }
                Err(none) => return Err(self.no_line(none, "a record".into())),
            }
        };
        let mut record = record.map_err(|expected| self.error(expected))?;
        match &mut record {
            Record::Call(call) => (call.at, call.stack) = (of.time, of.stack.unwrap_or(0)),
            _ if of != CallComments::default() => return Err(self.error(OF_CALL)),
            _ => {}
        }
        self.complete.check(&record).map_err(|expected| self.error(expected))?;
        if let Record::Listing(listing) = &mut record {
            self.listing(listing, promised)?;
        }
        Ok(Some(record))
    }

    /// Reads the lines that a `Z` line announced, one by one. It allocates nothing for the
    /// announced number.
    fn listing(&mut self, listing: &mut Listing, promised: usize) -> Result<(), Error> {
        for left in (1..=promised).rev() {
            let expected = || format!("{left} more lines \"= ...\" of the listing");
            match self.lines.advance() {
                Ok(line) => match line.strip_prefix("= ") {
                    Some(text) => listing.lines.push(text.to_string()),
                    None => return Err(self.error(expected())),
                },
                Err(none) => return Err(self.no_line(none, expected().into())),
            }
        }
        // The vsyscall page is no VMA: smaps does not flag it, so it has no `f` line.
        let vmas = listing.lines.iter().filter(|line| !Line::is_vsyscall(line)).count();
        for left in (1..=vmas).rev() {
            let expected =
                || format!("{left} more lines \"f START VMFLAGS\", one a VMA of the listing");
            let parsed = match self.lines.advance() {
                Ok(line) => flag_line(line),
                Err(none) => return Err(self.no_line(none, expected().into())),
            };
            match parsed {
                Ok(flags) => listing.flags.push(flags),
                Err(_) => return Err(self.error(expected())),
            }
        }
        Ok(())
    }

    fn no_line(&self, none: NoLine, expected: Expected) -> Error {
        let mut error = self.error(expected);
        match none {
            NoLine::End => {}
            NoLine::TooLong => error.expected = "a line of less than 65536 bytes".into(),
            NoLine::NotText => error.expected = "text in UTF-8".into(),
            NoLine::Cut => error.expected = "a newline: the file is truncated here".into(),
            NoLine::Failed(source) => error.source = Some(source),
        }
        error
    }
}

impl<R: BufRead> Iterator for Parser<R> {
    type Item = Result<Record, Error>;
    fn next(&mut self) -> Option<Self::Item> {
        self.next_record().transpose()
    }
}

const MM: &str = "the number of an address space";
const TID: &str = "the number of a thread";
const FILE: &str = "the number of a file";
const OF_CALL: &str = "the M line of the call whose time or stack the # line before has";

/// The comment lines before an `M` line, which describe the call.
#[derive(Default, PartialEq)]
struct CallComments {
    time: Option<u64>,
    stack: Option<StackId>,
}

impl CallComments {
    /// Parses such a line. Each kind comes once.
    fn line(&mut self, line: &str) -> Result<(), Expected> {
        let again = match line.starts_with(TIME) {
            true => self.time.replace(time_line(line)?).is_some(),
            false => self.stack.replace(stacks::stack_of(line)?).is_some(),
        };
        if again { Err(OF_CALL.into()) } else { Ok(()) }
    }
}

/// Parses one line. A `Z` line gives an empty [`Listing`], and sets the number of announced lines.
fn record(line: &str, promised: &mut usize) -> Result<Record, Expected> {
    let mut fields = Fields::new(line);
    let f = &mut fields;
    let record = match f.word("a record")? {
        "X" => exec(f)?,
        "D" => Record::File(file(f)?),
        "V" => {
            let mut vma = vma(f)?;
            vma.name = Some(f.tail("the VMA's name, or -")?)
                .filter(|name| *name != "-")
                .map(str::to_string);
            Record::Vma(vma)
        }
        "Y" => Record::Vsyscall(f.tail("the line of the vsyscall page")?.to_string()),
        "M" => Record::Call(call(f)?),
        "L" => Record::DriverFlags { mm: f.decimal(MM)?, flags: f.flags()? },
        "A" => {
            let (mm, mut vma) = (f.decimal(MM)?, vma(f)?);
            if f.more() {
                vma.name = Some(f.tail("the VMA's name")?.to_string());
            }
            Record::Adopt { mm, vma }
        }
        "F" => Record::Fault { mm: f.decimal(MM)?, addr: f.page("the start of a VMA")? },
        "G" => {
            let (mm, end) = (f.decimal(MM)?, f.page("the end of the stack VMA")?);
            Record::Grow { mm, end, start: f.page("the new start of the stack VMA")? }
        }
        "S" => {
            let (mm, range) = (f.decimal(MM)?, f.range()?);
            let flags = match f.peek() {
                "hole" => f.word("hole").map(|_| None)?,
                _ => Some(f.flags()?),
            };
            Record::Settled { mm, start: range.start, end: range.end, flags }
        }
        "N" => Record::Rename { file: f.decimal(FILE)?, path: f.tail("the new path")?.to_string() },
        "K" => Record::Fork {
            mm: f.decimal(MM)?,
            child: f.decimal("the number of the child's address space")?,
            tid: f.decimal(TID)?,
            child_tid: f.decimal("the number of the child")?,
        },
        "T" => Record::Share {
            mm: f.decimal(MM)?,
            tid: f.decimal(TID)?,
            child_tid: f.decimal("the number of the new thread")?,
            vfork: either(f, "thread", "vfork", "thread or vfork")?,
        },
        "C" => Record::Check {
            mm: f.decimal(MM)?,
            lines: f.decimal("the number of lines")?,
            hash: f.hash("the FNV-1a 64 of the listing")?,
        },
        "Z" => {
            let (mm, tid) = (f.decimal(MM)?, f.decimal(TID)?);
            let exec = either(f, "exit", "exec", "exit or exec")?;
            *promised = f.decimal("the number of lines")?;
            Record::Listing(Listing { mm, tid, exec, lines: Vec::new(), flags: Vec::new() })
        }
        "U" => {
            const WHAT: &str = "touch, overlap, files, attached or ring";
            let mm = f.decimal(MM)?;
            Record::Doubt { mm, cause: Doubt::named(f.word(WHAT)?).ok_or(WHAT)? }
        }
        "Q" => Record::ExitMmap { mm: f.decimal(MM)? },
        "=" | "f" => return Err("a Z line before the lines of its listing".into()),
        _ => {
            return Err("a record: one of X D V Y M L A F G S N K T C Z U Q, or a # comment".into());
        }
    };
    fields.end()?;
    Ok(record)
}

fn either(f: &mut Fields<'_>, no: &str, yes: &str, what: &'static str) -> Result<bool, Expected> {
    match f.word(what)? {
        word if word == no => Ok(false),
        word if word == yes => Ok(true),
        _ => Err(what.into()),
    }
}

fn exec(f: &mut Fields<'_>) -> Result<Record, Expected> {
    const VMAS: &str = "vmas= and the number of VMAs";
    Ok(Record::Exec {
        mm: f.decimal(MM)?,
        tid: f.decimal(TID)?,
        vmas: decimal(f.keyed("vmas=", VMAS)?).ok_or(VMAS)?,
        brk: f.keyed_hex("brk=", "brk= and an address")?,
        start_brk: f.keyed_hex("start_brk=", "start_brk= and an address")?,
        start_stack: f.keyed_hex("start_stack=", "start_stack= and an address")?,
        mmap_base: f.keyed_hex("mmap_base=", "mmap_base= and an address")?,
        exe: f.tail("exe= and a path")?.strip_prefix("exe=").ok_or("exe= and a path")?.to_string(),
    })
}

fn file(f: &mut Fields<'_>) -> Result<FileDesc, Expected> {
    const MODE: &str = "ro or rw, +noexec after it for such a mount";
    let id = f.decimal(FILE)?;
    if id == 0 {
        return Err("the number of a file, from 1".into());
    }
    let dev = f.device()?;
    let inode = f.decimal("the inode")?;
    let kind = FileKind::named(f.word("the kind of file")?).ok_or(
        "the kind of file: exec, reg, reg-thp, shmem, shmem-thp, dev, huge, shmanon or adopted",
    )?;
    let mode = f.word(MODE)?;
    let (access, noexec) = match mode.strip_suffix("+noexec") {
        Some(access) => (access, true),
        None => (mode, false),
    };
    let writable = match access {
        "ro" => false,
        "rw" => true,
        _ => return Err(MODE.into()),
    };
    Ok(FileDesc {
        id,
        dev,
        inode,
        kind,
        writable,
        noexec,
        path: f.tail("the file's path")?.to_string(),
    })
}

fn vma(f: &mut Fields<'_>) -> Result<InitialVma, Expected> {
    let range = f.range()?;
    Ok(InitialVma {
        start: range.start,
        end: range.end,
        flags: f.flags()?,
        pgoff: f.hex("the offset in pages")?,
        file: f.decimal(FILE)?,
        name: None,
    })
}

/// The time of the call in the next line.
fn time_line(line: &str) -> Result<u64, Expected> {
    const WHAT: &str = "#@ and the nanoseconds since the run began";
    let at = line.strip_prefix(TIME).and_then(decimal);
    at.ok_or(WHAT.into())
}

fn flag_line(line: &str) -> Result<(usize, vma::VmFlags), Expected> {
    let mut f = Fields::new(line.strip_prefix("f ").ok_or("f")?);
    let flags = (f.page("the start of a VMA")?, f.flags()?);
    f.end()?;
    Ok(flags)
}

fn call(f: &mut Fields<'_>) -> Result<Call, Expected> {
    let (mm, tid) = (f.decimal(MM)?, f.decimal(TID)?);
    let name = f.word("the name of a system call")?;
    let op = Op::named(name).ok_or("the name of a system call that changes VMAs")?;
    let mut args = [0; 6];
    // The number of arguments of prctl and ioctl depends on the first ones.
    let (least, most) =
        if matches!(op, Op::Prctl | Op::Ioctl) { (2, 6) } else { (op.arity(), op.arity()) };
    let mut count = 0;
    while count < most && hex(f.peek()).is_some() {
        args[count] = f.hex("an argument")?;
        count += 1;
    }
    if count < least {
        return Err(format!("{least} arguments of {name}, in hexadecimal").into());
    }
    let mut file = 0;
    if op == Op::Mmap {
        const WHAT: &str = "f and the number of the mapped file";
        file = decimal(f.keyed("f", WHAT)?).ok_or(WHAT)?;
    }
    let mut memory = None;
    if f.peek().starts_with('x') {
        const WHAT: &str = "x and three numbers that the call read from memory";
        let mut numbers = f.keyed("x", WHAT)?.split(',').map(hex);
        let mut number = || numbers.next().flatten().ok_or(WHAT);
        memory = Some([number()?, number()?, number()?]);
        if numbers.next().is_some() {
            return Err(WHAT.into());
        }
    }
    if f.word("= and the result")? != "=" {
        return Err("= and the result".into());
    }
    const RESULT: &str = "the result: an address or number, or - and an error code up to 4095";
    let word = f.word(RESULT)?;
    let result = match word.strip_prefix('-') {
        Some(code) => {
            decimal::<isize>(code).filter(|code| (1..4096).contains(code)).map(|code| -code)
        }
        None => hex(word).and_then(|value| isize::try_from(value).ok()),
    };
    Ok(Call { file, memory, ..Call::new(mm, tid, op, &args, result.ok_or(RESULT)?) })
}
