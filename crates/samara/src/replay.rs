//! `samara replay`: replays and measures recordings.

use std::{
    fs::File,
    io::BufReader,
    path::Path,
    process::ExitCode,
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use trace::{
    mirror::Mirror,
    record::Record,
    replay::{profile, replay, replay_with_shadow},
    report::{Style, Summary, json, messages, mismatch, picture, tables},
    text::{Error, Parser},
};

use crate::{
    cli, complain, exit_code,
    flame::Flame,
    output::{self, Lines},
    pages::PagesOfAll,
    what_if::{Report, WhatIf},
};

/// A comparison failed.
const DIFFERS: u8 = 3;
/// With pages, something is wrong or left.
const WRONG: u8 = 1;
/// A file cannot be read or is malformed, or a result cannot be written.
const MALFORMED: u8 = 2;

pub(crate) fn run(options: &cli::Replay) -> ExitCode {
    exit_code(replay_all(options).map_err(|what| (MALFORMED, what)))
}

fn replay_all(options: &cli::Replay) -> Result<u8, String> {
    let mut pages = PagesOfAll::new(options.pages)?;
    let results = [("--json", options.json.as_deref())];
    output::refuse_one_file(results.into_iter().chain(options.flame.files()))?;
    // It is opened first, so that a file that cannot be written is reported before the work.
    let json = output::open(options.json.as_deref())?;
    let flame = Flame::open(&options.flame)?;
    let to_stdout = matches!(json, Lines::Stdout);
    let style = Style { full: options.full, ..Style::of_stderr() };
    let mut all = Summary::default();
    let mut speed = Speed::default();
    let mut errors = Vec::new();
    let mut asked = Vec::new();
    for path in &options.files {
        match one(path, options, &mut speed, &mut pages, &mut asked) {
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
    if !matches!(json, Lines::Nowhere) {
        let mut object = json::object(&all);
        if let Value::Object(map) = &mut object {
            map.insert("errors".into(), json!(errors));
            if options.pages {
                map.insert("pages".into(), json!(pages.objects));
            }
            if !options.what_if.is_empty() {
                let all = asked.iter();
                let reports = all.map(|(name, report)| report.json(name, &options.what_if));
                map.insert("what_if".into(), reports.collect());
            }
            if options.repeat.is_some() {
                map.insert("operations".into(), json!(speed.calls));
                map.insert("operations_per_second".into(), json!(speed.operations_per_second()));
                map.insert("mirrored_per_second".into(), json!(speed.mirrored_per_second()));
            }
        }
        json.write(&format!("{object}\n"))?;
    }
    let names: Vec<_> = options.files.iter().map(|path| path.display().to_string()).collect();
    if flame.is_wanted() && all.stacks.is_empty() {
        let cure = "make one by samara trace --stacks --record";
        return Err(format!("the recordings have no call stacks; {cure}"));
    }
    flame.write(&all.stacks, &names.join(", "))?;
    if !to_stdout && errors.len() < options.files.len() {
        messages::show(&tables::render(&all, style));
        pages.texts.iter().for_each(|text| messages::show(&format!("\n{text}")));
        for (name, report) in &asked {
            messages::show(&format!("\n{}", report.text(name, &options.what_if)));
        }
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
    // The report could not be written. With --json - there is none.
    let unwritten = !to_stdout && messages::failure().is_some();
    Ok(ending(&all, errors.is_empty(), pages.failed, options.strict, unwritten))
}

/// The first bytes of a recording.
pub(crate) const RECORDING: &[u8] = b"# vmtrace";

/// The exit code.
fn ending(all: &Summary, read: bool, pages_failed: bool, strict: bool, unwritten: bool) -> u8 {
    match all.total.mismatches {
        _ if !read => MALFORMED,
        _ if pages_failed => WRONG,
        0 if strict && all.total.cannot_tell > 0 => DIFFERS,
        0 if unwritten => MALFORMED,
        0 => 0,
        _ => DIFFERS,
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

fn one(
    path: &Path,
    options: &cli::Replay,
    speed: &mut Speed,
    pages: &mut PagesOfAll,
    asked: &mut Vec<(String, Report)>,
) -> Result<Summary, Error> {
    let (reader, name) = open(path)?;
    let summary = if options.pages {
        pages.replay(reader, &name)?
    } else if options.what_if.is_empty() {
        replay(reader, &name)?
    } else {
        let (summary, what_if) = replay_with_shadow(reader, &name, WhatIf::new(&options.what_if))?;
        asked.push((name, what_if.finish()));
        summary
    };
    if let Some(times) = options.repeat {
        speed.measure(path, times)?;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exit_code_is_that_of_the_worst() {
        let mut all = Summary::default();
        assert_eq!(ending(&all, true, false, false, false), 0);
        assert_eq!(ending(&all, true, false, false, true), MALFORMED);
        assert_eq!(ending(&all, true, true, false, true), WRONG);
        assert_eq!(ending(&all, false, true, false, false), MALFORMED);
        all.total.cannot_tell = 1;
        assert_eq!(ending(&all, true, false, false, false), 0);
        assert_eq!(ending(&all, true, false, true, false), DIFFERS);
        all.total.mismatches = 1;
        assert_eq!(ending(&all, true, false, false, true), DIFFERS);
        assert_eq!(ending(&all, true, true, false, false), WRONG);
    }
}
