//! The lines of the kernel's serial port.
//!
//! A line that begins with [`RECORD`] is for programs, and goes to the JSON lines without that
//! character. All other lines are for people. Bytes stay as they are, except carriage returns,
//! which are removed. A panic may cut a record short and continue the line. Then it is no JSON, and
//! goes to people.

use super::backtrace::Backtraces;
use crate::output::Lines;
use report::Run;
use serde_json::Value;
use std::io::{self, Write};
use std::path::Path;

/// The record separator, with which RFC 7464 begins JSON texts.
const RECORD: u8 = 0x1e;

/// The destinations of lines.
pub(super) struct Console<'a> {
    people: Sink<'a>,
    programs: Option<Sink<'a>>,
    record: Option<Value>,
    backtraces: Backtraces<'a>,
}

/// One destination, with its name for errors.
struct Sink<'a> {
    out: Box<dyn Write + 'a>,
    name: String,
}

impl Sink<'_> {
    /// Writes the line in one piece, so that a reader gets whole lines.
    fn line(&mut self, line: &[u8]) -> Result<(), String> {
        let written = self.out.write_all(&[line, b"\n"].concat()).and_then(|()| self.out.flush());
        written.map_err(|error| format!("cannot write {}: {error}", self.name))
    }
}

impl<'a> Console<'a> {
    /// `elf` is the running kernel, for the names of its functions.
    pub(super) fn new(json: Lines<'a>, elf: &'a Path) -> Console<'a> {
        let stdout = || Sink { out: Box::new(io::stdout()), name: "to standard output".into() };
        let (people, programs) = match json {
            Lines::Nowhere => (stdout(), None),
            Lines::File(file, path) => {
                (stdout(), Some(Sink { out: Box::new(file), name: path.display().to_string() }))
            }
            Lines::Stdout => {
                let stderr = Sink { out: Box::new(io::stderr()), name: "to standard error".into() };
                (stderr, Some(stdout()))
            }
        };
        Console { people, programs, record: None, backtraces: Backtraces::new(elf) }
    }

    /// All lines for people go to `out`, standard error as a rule, and the last record is kept.
    pub(super) fn of_program(elf: &'a Path, out: Box<dyn Write + 'a>) -> Console<'a> {
        let people = Sink { out, name: "to standard error".into() };
        Console { people, programs: None, record: None, backtraces: Backtraces::new(elf) }
    }

    /// Writes the line of the run for programs, before all others.
    ///
    /// # Errors
    /// It cannot be written.
    pub(super) fn run(&mut self, run: &Run) -> Result<(), String> {
        let Some(programs) = &mut self.programs else { return Ok(()) };
        let line = serde_json::to_vec(run).map_err(|error| error.to_string())?;
        programs.line(&line)
    }

    /// The last record.
    pub(super) fn record(self) -> Option<Value> {
        self.record
    }

    /// # Errors
    /// It cannot be written.
    pub(super) fn line(&mut self, line: &[u8]) -> Result<(), String> {
        let line: Vec<u8> = line.iter().copied().filter(|byte| !b"\r\n".contains(byte)).collect();
        if let Some(record) = line.strip_prefix(&[RECORD])
            && let Ok(value) = serde_json::from_slice::<Value>(record)
        {
            self.record = Some(value);
            return self.programs.as_mut().map_or(Ok(()), |programs| programs.line(record));
        }
        self.people.line(&line)?;
        for frame in self.backtraces.of(&String::from_utf8_lossy(&line)) {
            self.people.line(frame.as_bytes())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_for_programs_are_taken_out() {
        let (mut people, mut programs) = (Vec::new(), Vec::new());
        let sink = |out| Sink { out: Box::new(out), name: String::new() };
        let mut console = Console {
            people: sink(&mut people),
            programs: Some(sink(&mut programs)),
            record: None,
            backtraces: Backtraces::new(Path::new("/nowhere")),
        };
        let long = vec![b'x'; 1 << 20];
        console.run(&Run { run: "samara boot".into(), ..Run::default() }).unwrap();
        let lines: [&[u8]; 7] = [
            b"found 2 CPUs\r\n",
            b"\x1e{\"value\":1}\r\n",
            b"\n",
            b"\xff\x1e{}\n",
            &long,
            b"\x1e{\"value\":PANIC on cpu0\n",
            b"cut sho",
        ];
        for line in lines {
            console.line(line).unwrap();
        }
        drop(console);
        let expected = [
            b"found 2 CPUs\n\n\xff\x1e{}\n".as_slice(),
            &long,
            b"\n\x1e{\"value\":PANIC on cpu0\ncut sho\n",
        ]
        .concat();
        assert!(people == expected, "{}", String::from_utf8_lossy(&people[..40]));
        let programs = String::from_utf8(programs).unwrap();
        let (run, rest) = programs.split_once('\n').unwrap();
        assert!(run.starts_with("{\"run\":\"samara boot\""), "{run}");
        assert_eq!(rest, "{\"value\":1}\n");
    }

    #[test]
    fn a_place_that_is_full_is_named() {
        let full = std::fs::File::create("/dev/full").unwrap();
        let mut console =
            Console::new(Lines::File(full, Path::new("a.jsonl")), Path::new("/nowhere"));
        let error = console.line(b"\x1e{}").unwrap_err();
        assert!(error.contains("cannot write a.jsonl"), "{error}");
    }
}
