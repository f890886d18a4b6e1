//! A live run: passes the tracer's events to the mirror, to the recording, and to the progress
//! line.

use std::{
    io::{self, Write},
    ops::Range,
    time::{Duration, Instant},
};

use vma::{Profile, VmFlags};

use crate::{
    mirror::{Mirror, Verdict},
    observer::{Code, Event, KernelVma, Observer, Wanted},
    record::{FileId, MmId, Record},
    report::{Progress, Summary, View, messages},
    stream::Stream,
    text::{Header, Printer, fnv1a64},
};

/// Shows the state of a run, which it gets by calling its argument. Returns whether to go on.
type Show = dyn FnMut(&mut dyn FnMut() -> View) -> bool + Send;

/// Shows the state of the run.
struct LiveView {
    show: Box<Show>,
    /// When names were asked for last.
    named: Instant,
}

/// How long a program that ran before is followed. It is left soon after one of these is reached.
///
/// ```
/// use trace::session::Limits;
/// assert_eq!(Limits::default().calls, None);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// A number of memory calls.
    pub calls: Option<u64>,
    /// A time.
    pub time: Option<Duration>,
}

/// Mirrors and compares a run, and writes a recording if requested.
///
/// ```
/// use trace::{observer::Observer, record::Record, session::Session, text::Header};
/// let mut recorded = Vec::new();
/// let header = Header::new();
/// let profile = vma::Profile::LINUX_6_18;
/// let mut session = Session::new(profile, Some((&mut recorded, &header)))?;
/// session.record(Record::ExitMmap { mm: 1 }, None);
/// assert_eq!(session.finish()?.total.calls(), 0);
/// assert!(recorded.ends_with(b"Q 1\n"));
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct Session<W> {
    mirror: Mirror,
    recording: Option<Printer<W>>,
    /// The first error of writing the recording. Nothing is written after it.
    unwritten: Option<io::Error>,
    stream: Option<Stream>,
    /// The first error of writing the stream. Nothing is written after it.
    unstreamed: Option<io::Error>,
    /// The reason why the program's first process was not followed to its end, if it was not.
    unfollowed: Option<String>,
    progress: Progress,
    /// Whether notices are kept for the summary only.
    silent: bool,
    limits: Limits,
    watch: Option<LiveView>,
    begun: Instant,
    calls: u64,
    mismatches: u64,
}

impl<W: Write> Session<W> {
    /// Starts a run on a kernel with these rules. A recording goes to `out`, if given.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn new(profile: Profile, recording: Option<(W, &Header)>) -> io::Result<Self> {
        Ok(Session {
            mirror: Mirror::new(profile),
            recording: recording.map(|(out, header)| Printer::new(out, header)).transpose()?,
            unwritten: None,
            stream: None,
            unstreamed: None,
            unfollowed: None,
            progress: Progress::hidden(),
            silent: false,
            limits: Limits::default(),
            watch: None,
            begun: Instant::now(),
            calls: 0,
            mismatches: 0,
        })
    }

    /// Shows this line while the program runs.
    pub fn set_progress(&mut self, progress: Progress) {
        self.progress = progress;
    }

    /// Writes no notice to standard error. The summary has them.
    pub fn set_silent(&mut self) {
        self.silent = true;
    }

    /// Leaves a program that ran before when one of these is reached.
    pub fn set_limits(&mut self, limits: Limits) {
        self.limits = limits;
    }

    /// Shows the state of the run now and then, until `show` returns false: then a program that ran
    /// before is left. The program may wait for it, so it must not take long.
    pub fn set_watch(
        &mut self,
        show: impl FnMut(&mut dyn FnMut() -> View) -> bool + Send + 'static,
    ) {
        self.watch = Some(LiveView { show: Box::new(show), named: Instant::now() });
    }

    /// Shows each call in `stream` as it happens.
    pub fn set_stream(&mut self, stream: Stream) {
        self.stream = Some(stream);
    }

    /// The first error of writing the stream, if there was one. Call it before
    /// [`finish`](Self::finish).
    pub fn unstreamed(&mut self) -> Option<io::Error> {
        self.show_call();
        self.unstreamed.take()
    }

    /// Ends the run.
    ///
    /// # Errors
    /// The first error of writing the recording. The summary is lost then, because the user asked
    /// for both.
    pub fn finish(mut self) -> io::Result<Summary> {
        if let Some(recording) = &mut self.recording {
            recording.flush()?;
        }
        if let Some(error) = self.unwritten {
            return Err(error);
        }
        let mut summary = self.mirror.finish();
        summary.elapsed = self.begun.elapsed();
        Ok(summary)
    }

    /// The reason why the program itself was not followed to its end, if it was not. Its children
    /// do not count.
    pub fn unfollowed(&self) -> Option<&str> {
        self.unfollowed.as_deref()
    }

    fn write(&mut self, record: &Record) {
        let Some(recording) = &mut self.recording else { return };
        if let Err(error) = recording.record(record) {
            self.notice(&format!("the recording ends here, because it cannot be written: {error}"));
            self.recording = None;
            self.unwritten = Some(error);
        }
    }

    /// Shows the newest call, with the size of its address space after it.
    fn show_call(&mut self) {
        let Some(stream) = &mut self.stream else { return };
        if let Err(error) = stream.show(|mm| self.mirror.size(mm)) {
            self.notice(&format!("the calls are not shown any longer: {error}"));
            self.stream = None;
            self.unstreamed = Some(error);
        }
    }

    fn judge(&mut self, verdict: Result<Verdict, String>) -> bool {
        match verdict {
            Ok(Verdict::Agrees) => true,
            Ok(Verdict::Differs) => {
                self.mismatches += 1;
                false
            }
            Ok(Verdict::CannotTell(cause)) => {
                self.notice(cause.explain());
                false
            }
            Ok(Verdict::DiffersAgain) => false,
            Err(expected) => {
                self.notice(&format!(
                    "the tracer made a record that does not fit: expected {expected}"
                ));
                false
            }
        }
    }
}

impl<W: Write> Observer for Session<W> {
    fn record(&mut self, mut record: Record, kernel: Option<Duration>) {
        if let Record::Call(call) = &mut record {
            // A run of more than 500 years would need more bits.
            call.at = Some(self.begun.elapsed().as_nanos() as u64);
            // Several records may come from one system call.
            self.show_call();
        }
        self.write(&record);
        if let Some(stream) = &mut self.stream {
            stream.record(&record);
        }
        let verdict = self.mirror.apply(&record, || None);
        self.judge(verdict);
        if let Record::Call(call) = &record {
            self.calls += 1;
            if let Some(took) = kernel {
                self.mirror.kernel_time(call.op, took);
            }
        }
        self.progress.update(self.calls, self.mismatches);
    }

    fn listing(
        &mut self,
        mm: MmId,
        maps: &str,
        smaps: &mut dyn FnMut() -> io::Result<Vec<(usize, VmFlags)>>,
    ) {
        // The digest takes as long as our own listing, and only a recording needs it.
        if self.recording.is_some() {
            let lines = maps.lines().count();
            self.write(&Record::Check { mm, lines, hash: fnv1a64(maps.as_bytes()) });
        }
        let verdict = self.mirror.compare(mm, maps);
        if self.judge(verdict) {
            return;
        }
        let taken = smaps()
            .map_err(|error| error.to_string())
            .and_then(|flags| self.mirror.take_over(mm, maps, &flags));
        if let Err(error) = taken {
            self.notice(&format!("address space {mm} is not followed any longer: {error}"));
        }
    }

    fn agrees_around(&mut self, mm: MmId, around: Range<usize>, kernel: &[KernelVma]) -> bool {
        self.mirror.agrees_around(mm, around, kernel)
    }

    fn ranges(&self, mm: MmId, around: Range<usize>, wanted: Wanted) -> Vec<Range<usize>> {
        self.mirror.ranges(mm, around, wanted)
    }

    fn likely_place(&mut self, mm: MmId, length: usize) -> Option<Range<usize>> {
        self.mirror.likely_place(mm, length)
    }

    fn undetermined(&mut self, mm: MmId, limited: bool) -> Vec<Range<usize>> {
        self.mirror.undetermined(mm, limited)
    }

    fn file_at(&self, mm: MmId, addr: usize) -> (FileId, String) {
        self.mirror.file_at(mm, addr)
    }

    fn code_at(&self, mm: MmId, addr: usize) -> Option<Code> {
        self.mirror.code_at(mm, addr)
    }

    fn released(&mut self) -> Vec<FileId> {
        self.mirror.released()
    }

    fn event(&mut self, event: Event<'_>) {
        match event {
            Event::CallReported => self.show_call(),
            Event::Settled { mm, range, vmas } => {
                for record in self.mirror.unsettled(mm, range, vmas) {
                    self.record(record, None);
                }
            }
            Event::Descriptor(descriptor) => {
                if let Some(stream) = &mut self.stream {
                    stream.descriptor(descriptor);
                }
            }
            Event::Resident { mm, bytes } => {
                self.mirror.summary_mut().timeline.resident(mm, bytes);
            }
            Event::Peak { mm, mut moment } => {
                moment.at = self.begun.elapsed();
                self.mirror.peak(mm, moment);
            }
            Event::Used { mm, usage } => self.mirror.used(mm, usage),
            Event::Unfollowed { why, first } => {
                self.mirror.summary_mut().unfollowed += 1;
                if first {
                    self.unfollowed.get_or_insert_with(|| why.to_owned());
                }
                self.notice(why);
            }
        }
    }

    fn wants_names(&mut self) -> bool {
        const BETWEEN: Duration = Duration::from_secs(1);
        let watch = self.watch.as_mut().filter(|watch| watch.named.elapsed() >= BETWEEN);
        watch.map(|watch| watch.named = Instant::now()).is_some()
    }

    fn has_enough(&mut self) -> bool {
        if let Some(watch) = &mut self.watch {
            let (mirror, elapsed) = (&mut self.mirror, self.begun.elapsed());
            if !(watch.show)(&mut || View { elapsed, ..mirror.view() }) {
                return true;
            }
        }
        self.limits.calls.is_some_and(|calls| self.calls >= calls)
            || self.limits.time.is_some_and(|time| self.begun.elapsed() >= time)
    }

    fn notice(&mut self, text: &str) {
        if self.mirror.summary_mut().notice(text) && !self.silent {
            self.progress.suspend(|| messages::tell(text));
        }
    }
}
