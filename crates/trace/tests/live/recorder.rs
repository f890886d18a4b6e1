//! An observer without a model. It keeps every record, and answers the tracer's questions from the
//! newest listing.

use std::{
    collections::{HashMap, HashSet},
    io,
    ops::Range,
    time::Duration,
};

use trace::{
    live::{self, Exit, Options},
    observer::{Observer, Wanted},
    record::{Call, FileDesc, FileId, MmId, Op, Record},
    text::{Header, Parser, Printer, fnv1a64},
};
use vma::VmFlags;

/// The parts of a listing's line that the questions need.
#[derive(Clone, Debug)]
pub(crate) struct Line {
    pub(crate) range: Range<usize>,
    pub(crate) private: bool,
    pub(crate) stack: bool,
}

#[derive(Default)]
pub(crate) struct Recorder {
    pub(crate) records: Vec<Record>,
    pub(crate) timed: usize,
    pub(crate) notices: Vec<String>,
    pub(crate) listings: usize,
    /// Whether to read flags at each listing, too.
    pub(crate) read_flags: bool,
    /// The time that it takes for a call.
    pub(crate) pause: Duration,
    spaces: HashMap<MmId, Vec<Line>>,
    touched: HashSet<(MmId, usize)>,
}

fn parse(maps: &str) -> Vec<Line> {
    maps.lines()
        .filter(|line| !line.ends_with("[vsyscall]"))
        .map(|line| {
            let (addresses, rest) = line.split_once(' ').expect("a listing's line has fields");
            let (start, end) = addresses.split_once('-').expect("a range");
            let hex = |text| usize::from_str_radix(text, 16).expect("an address");
            Line {
                range: hex(start)..hex(end),
                private: rest.as_bytes()[3] == b'p',
                stack: line.ends_with("[stack]"),
            }
        })
        .collect()
}

impl Observer for Recorder {
    fn record(&mut self, record: Record, kernel: Option<Duration>) {
        self.timed += usize::from(kernel.is_some());
        match &record {
            Record::Fork { mm, child, .. } => {
                let lines = self.spaces[mm].clone();
                self.spaces.insert(*child, lines);
            }
            Record::Fault { mm, addr } => {
                assert!(self.touched.insert((*mm, *addr)), "touched twice: {mm} {addr:x}");
            }
            Record::Grow { mm, end, start } => {
                let lines = self.spaces.get_mut(mm).expect("the address space is known");
                let stack = lines.iter_mut().find(|l| l.range.end == *end).expect("a known VMA");
                assert!(*start < stack.range.start);
                self.touched.remove(&(*mm, stack.range.start));
                stack.range.start = *start;
                self.touched.insert((*mm, *start));
            }
            Record::ExitMmap { mm } => {
                self.spaces.remove(mm).expect("the address space is known");
            }
            Record::Call(_) => std::thread::sleep(self.pause),
            Record::Exec { mm, .. } => {
                self.spaces.insert(*mm, Vec::new());
            }
            _ => {}
        }
        self.records.push(record);
    }

    fn listing(
        &mut self,
        mm: MmId,
        maps: &str,
        smaps: &mut dyn FnMut() -> io::Result<Vec<(usize, VmFlags)>>,
    ) {
        self.listings += 1;
        let lines = parse(maps);
        if self.read_flags {
            let starts: Vec<usize> = smaps().unwrap().iter().map(|(start, _)| *start).collect();
            assert!(
                lines.iter().map(|line| line.range.start).eq(starts),
                "listing and flags agree"
            );
        }
        self.touched
            .retain(|(m, start)| *m != mm || lines.iter().any(|line| line.range.start == *start));
        self.spaces.insert(mm, lines);
        self.records.push(Record::Check {
            mm,
            lines: maps.lines().count(),
            hash: fnv1a64(maps.as_bytes()),
        });
    }

    fn ranges(&self, mm: MmId, around: Range<usize>, wanted: Wanted) -> Vec<Range<usize>> {
        let near = |line: &&Line| line.range.start <= around.end && around.start <= line.range.end;
        let is_wanted = |line: &&Line| match wanted {
            Wanted::Growing => line.stack,
            _ => line.private && !self.touched.contains(&(mm, line.range.start)),
        };
        let lines = self.spaces[&mm].iter().filter(near).filter(is_wanted);
        lines.map(|line| line.range.clone()).collect()
    }

    fn released(&mut self) -> Vec<FileId> {
        Vec::new()
    }

    fn notice(&mut self, text: &str) {
        self.notices.push(text.to_owned());
    }
}

impl Recorder {
    /// Runs a command until it ends.
    pub(crate) fn run(command: &[&str]) -> (Recorder, Exit) {
        let mut recorder = Recorder::default();
        let exit = live::run(Options::default(), command, &mut recorder).expect("it runs");
        recorder.is_well_formed();
        (recorder, exit)
    }

    /// The records that `pick` selects.
    pub(crate) fn all<'r, T>(&'r self, pick: impl Fn(&'r Record) -> Option<T>) -> Vec<T> {
        self.records.iter().filter_map(pick).collect()
    }

    pub(crate) fn calls(&self) -> impl Iterator<Item = &Call> {
        self.all(|r| if let Record::Call(call) = r { Some(call) } else { None }).into_iter()
    }

    pub(crate) fn files(&self) -> Vec<&FileDesc> {
        self.all(|r| if let Record::File(file) = r { Some(file) } else { None })
    }

    /// The number of notices with this text.
    pub(crate) fn told(&self, text: &str) -> usize {
        self.notices.iter().filter(|notice| notice.contains(text)).count()
    }

    pub(crate) fn count(&self, wanted: impl Fn(&Record) -> bool) -> usize {
        self.records.iter().filter(|r| wanted(r)).count()
    }

    pub(crate) fn ops(&self, op: Op) -> usize {
        self.calls().filter(|call| call.op == op).count()
    }

    /// Checks that the trace can be printed and parsed back unchanged, and that it is complete. The
    /// parser checks that each file and space is introduced, used and ended in order.
    pub(crate) fn is_well_formed(&self) {
        let mut out = Vec::new();
        let mut printer = Printer::new(&mut out, &Header::new()).unwrap();
        for record in &self.records {
            printer.record(record).unwrap();
        }
        drop(printer);
        let mut parser = Parser::new(&out[..], "live").unwrap();
        let mut back = Vec::new();
        while let Some(record) = parser.next_record().unwrap_or_else(|e| panic!("{e}")) {
            back.push(record);
        }
        assert_eq!(back, self.records);
        assert!(self.spaces.is_empty(), "every address space ended");
        self.places_agree();
    }

    /// Checks that the last listing of each space equals the newest one read, if that came after
    /// its last call.
    fn places_agree(&self) {
        let mut newest = HashMap::new();
        for record in &self.records {
            match record {
                Record::Check { mm, hash, .. } => {
                    newest.insert(*mm, *hash);
                }
                Record::Grow { mm, .. } | Record::Call(Call { mm, .. }) => {
                    newest.remove(mm);
                }
                Record::Rename { .. } => newest.clear(),
                Record::Listing(last) => {
                    let mut text = last.lines.join("\n");
                    text.push('\n');
                    if let Some(hash) = newest.get(&last.mm) {
                        assert_eq!(*hash, fnv1a64(text.as_bytes()), "space {}", last.mm);
                    }
                    let starts = parse(&text).into_iter().map(|line| line.range.start);
                    assert!(starts.eq(last.flags.iter().map(|(start, _)| *start)));
                }
                _ => {}
            }
        }
    }
}
