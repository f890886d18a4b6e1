//! `samara replay`: replays and measures recordings.

use std::{
    fs::File,
    io::{BufReader, Write},
    path::Path,
    process::ExitCode,
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use trace::{
    mirror::Mirror,
    record::Record,
    replay::{profile, replay},
    report::{Style, Summary, json, messages, mismatch, picture, tables},
    text::{Error, Parser},
};

use crate::{cli, complain};

/// A comparison failed.
const DIFFERS: u8 = 3;
/// A file cannot be read or is malformed, or a result cannot be written.
const MALFORMED: u8 = 2;

pub(crate) fn run(options: &cli::Replay) -> ExitCode {
    let style = Style::of_stderr();
    let mut all = Summary::default();
    let mut speed = Speed::default();
    let mut errors = Vec::new();
    for path in &options.files {
        match one(path, options, &mut speed) {
            Ok(summary) => {
                if let Some(first) = &summary.first_mismatch {
                    messages::show(&mismatch::render(first, style));
                }
                for notice in &summary.notices {
                    complain(format_args!("{}: {notice}", path.display()));
                }
                all.merge(summary);
            }
            Err(error) => {
                complain(&error);
                errors.push(error.to_string());
            }
        }
    }
    if options.repeat.is_some() {
        all.timing = speed.summary.timing.clone();
    }
    if options.json {
        let mut object = json::object(&all);
        if let Value::Object(map) = &mut object {
            map.insert("errors".into(), json!(errors));
            if options.repeat.is_some() {
                map.insert("operations".into(), json!(speed.calls));
                map.insert("operations_per_second".into(), json!(speed.operations_per_second()));
                map.insert("mirrored_per_second".into(), json!(speed.mirrored_per_second()));
            }
        }
        let mut out = std::io::stdout().lock();
        if let Err(error) = writeln!(out, "{object}").and_then(|()| out.flush()) {
            complain(format_args!("cannot write to standard output: {error}"));
            return MALFORMED.into();
        }
    } else if errors.len() < options.files.len() {
        messages::show(&tables::render(&all, style));
        if options.repeat.is_some() {
            messages::show(&format!(
                "measured {} calls without comparisons: {:.0} operations a second, {:.0} with all \
                 that a mirror does\n",
                speed.calls,
                speed.operations_per_second(),
                speed.mirrored_per_second(),
            ));
        }
        if let Some(largest) = &all.largest {
            messages::show(&format!("\n{}", picture::render(largest, style)));
        }
    }
    match (errors.is_empty(), all.total.mismatches) {
        (false, _) => MALFORMED.into(),
        (true, 0) if options.strict && all.total.cannot_tell > 0 => DIFFERS.into(),
        // The report could not be written. With --json it went elsewhere.
        (true, 0) if !options.json && messages::failure().is_some() => MALFORMED.into(),
        (true, 0) => ExitCode::SUCCESS,
        (true, _) => DIFFERS.into(),
    }
}

fn open(path: &Path) -> Result<(BufReader<File>, String), Error> {
    let name = path.display().to_string();
    match File::open(path) {
        Ok(file) => Ok((BufReader::new(file), name)),
        Err(source) => {
            let expected = "a vmtrace file".into();
            Err(Error { file: name, line: 0, expected, found: String::new(), source: Some(source) })
        }
    }
}

fn one(path: &Path, options: &cli::Replay, speed: &mut Speed) -> Result<Summary, Error> {
    let (reader, name) = open(path)?;
    let summary = replay(reader, &name)?;
    if let Some(times) = options.repeat {
        speed.measure(path, times.get())?;
    }
    Ok(summary)
}

/// The times of repeated runs without comparisons.
#[derive(Default)]
struct Speed {
    calls: u64,
    took: Duration,
    /// Only its times are used.
    summary: Summary,
}

impl Speed {
    /// Runs a recording `times` times from memory, so that the mirror is measured and not the
    /// parser.
    fn measure(&mut self, path: &Path, times: u32) -> Result<(), Error> {
        let (reader, name) = open(path)?;
        let mut parser = Parser::new(reader, name)?;
        let mut records = Vec::new();
        while let Some(record) = parser.next_record()? {
            if !matches!(record, Record::Check { .. } | Record::Listing(_)) {
                records.push(record);
            }
        }
        for _ in 0..times {
            let mut mirror = Mirror::new(profile(parser.header()));
            let begun = Instant::now();
            for record in &records {
                mirror.apply(record, || None).map_err(|expected| parser.error(expected))?;
            }
            self.took += begun.elapsed();
            let summary = mirror.finish();
            self.calls += summary.total.calls();
            self.summary.merge(summary);
        }
        Ok(())
    }

    /// Calls divided by the time in our operations alone.
    fn operations_per_second(&self) -> f64 {
        let timings = self.summary.timing.values();
        let (count, took) = timings.fold((0, Duration::ZERO), |(count, took), timing| {
            (count + timing.ours.len(), took + timing.ours.total())
        });
        per_second(count, took)
    }

    /// Calls divided by the time of whole replays, which includes files, faults, forks and the ends
    /// of address spaces.
    fn mirrored_per_second(&self) -> f64 {
        per_second(self.calls, self.took)
    }
}

fn per_second(count: u64, took: Duration) -> f64 {
    if took.is_zero() { 0.0 } else { count as f64 / took.as_secs_f64() }
}
