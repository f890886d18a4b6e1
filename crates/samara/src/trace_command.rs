//! `samara trace`: a live run, from the options to the exit code.

use std::{
    fs::{self, File},
    io::{BufWriter, ErrorKind},
    os::unix::{fs::MetadataExt, process::ExitStatusExt},
    path::Path,
    process::{ExitCode, ExitStatus},
};

use report::{Clock, Run};
use trace::{
    live::{self, Exit},
    record::Op,
    report::{Progress, Style, Summary, json, messages, mismatch, picture, tables},
    session::{Limits, Session},
    stream::Stream,
    text::Header,
};
use vma::Profile;

use crate::{PROGRAM, cli, exit_code, flame::Flame, output};

/// Our listing, an address or a result differed from the kernel's. Few programs use this code.
const DIFFERS: u8 = 122;
/// The program could not be followed, or a requested result could not be written.
const FAILED: u8 = 125;
/// The program was found and could not be run.
const NOT_RUN: u8 = 126;
/// The program was not found.
const NOT_FOUND: u8 = 127;

pub(crate) fn run(options: &cli::Trace) -> ExitCode {
    exit_code(follow(options))
}

type Failure = (u8, String);

fn follow(options: &cli::Trace) -> Result<u8, Failure> {
    refuse_stacks(options)?;
    // Files are created before the run, so that one that cannot be written is reported first.
    let failed = |what| (FAILED, what);
    let results = [
        ("--record", options.record.as_deref()),
        ("--json", options.json.as_deref()),
        ("--json-lines", options.json_lines.as_deref()),
        ("--output", options.output.as_deref()),
    ];
    output::refuse_one_file(results.into_iter().chain(options.flame.files())).map_err(failed)?;
    let json = output::open(options.json.as_deref()).map_err(failed)?;
    let calls = output::open(options.json_lines.as_deref()).map_err(failed)?;
    let report_file = output::open(options.output.as_deref()).map_err(failed)?;
    let flame = Flame::open(&options.flame).map_err(failed)?;
    let recording = options.record.as_deref().map(create).transpose()?.map(BufWriter::new);

    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let profile = live::profile();
    let header = header(release.trim(), profile);
    let attached = options.attach.map(|pid| format!("process {pid}"));
    let program = options.command.first().map(|program| program.to_string_lossy().into_owned());
    let what = attached.or(program).unwrap_or_default();
    let unwritten = |error| {
        let path = options.record.as_deref().unwrap_or(Path::new("")).display();
        (FAILED, format!("the recording {path} is incomplete: {error}"))
    };
    let mut session =
        Session::new(profile, recording.map(|out| (out, &header))).map_err(unwritten)?;
    if options.progress || !options.quiet && options.attach.is_some_and(has_other_terminal) {
        session.set_progress(Progress::new(&what));
    }
    session.set_limits(Limits { calls: options.max_calls, time: options.time });
    let stream = match calls {
        output::Lines::Nowhere => None,
        output::Lines::Stdout => Some(Stream::new(std::io::stdout())),
        output::Lines::File(file, _) => Some(Stream::new(file)),
    };
    let shown = shown(options);
    if let Some(stream) = stream {
        session.set_stream(match &shown {
            Some(shown) => stream.only(shown),
            None => stream,
        });
    }
    let every = every(options);
    let follow = live::Options {
        every,
        lines_per_call: if is_brief(options) { LINES_PER_CALL } else { 0 },
        around: every > 1 || is_brief(options),
        forward_signals: true,
        children: options.follow == cli::Follow::All,
        stack_depth: match options.stacks || flame.is_wanted() {
            true => options.stack_depth.into(),
            false => 0,
        },
    };
    let exit = match options.attach {
        // The end of a program that is not ours is no result of this command.
        Some(pid) => live::attach(follow, pid, &mut session).map(|_| Exit::Code(0)),
        None => live::run(follow, &options.command, &mut session),
    };
    let exit = exit.map_err(start_failure)?;
    let unfollowed = session.unfollowed().map(str::to_owned);
    let unstreamed = session.unstreamed();
    let mut summary = session.finish().map_err(unwritten)?;
    (summary.shown, summary.shows_end) = (shown, options.at_end);

    let whole = |style| report(&summary, Style { full: options.full, ..style }) + &ended_by(exit);
    match &options.output {
        Some(_) => report_file.write(&whole(Style::PLAIN)).map_err(failed)?,
        None if options.quiet => messages::show(&first_mismatch(&summary, Style::of_stderr())),
        None => messages::show(&whole(Style::of_stderr())),
    }
    if json.is_wanted() {
        let mut object = json::object(&summary);
        let run = Run::here(PROGRAM, "", Clock::Time);
        object["run"] = serde_json::to_value(run).unwrap_or_default();
        json.write(&format!("{object}\n")).map_err(failed)?;
    }
    flame.write(&summary.stacks, &what).map_err(failed)?;
    if let Some(failure) = judge(&summary, unfollowed, options.strict) {
        return Err(failure);
    }
    match unstreamed {
        Some(error) => {
            Err((FAILED, format!("the JSON lines of the calls are incomplete: {error}")))
        }
        None => Ok(code_of(exit)),
    }
}

/// Refuses call stacks in a build that has none.
#[cfg(not(feature = "full"))]
fn refuse_stacks(options: &cli::Trace) -> Result<(), Failure> {
    let files = &options.flame;
    let asked = [
        (options.stacks, "--stacks"),
        (files.flame.is_some(), "--flame"),
        (files.folded.is_some(), "--folded"),
        (files.speedscope.is_some(), "--speedscope"),
    ];
    match asked.iter().find(|(is_asked, _)| *is_asked) {
        Some((_, option)) => Err((FAILED, crate::not_built(&format!("samara trace {option}")))),
        None => Ok(()),
    }
}

#[cfg(feature = "full")]
fn refuse_stacks(_: &cli::Trace) -> Result<(), Failure> {
    Ok(())
}

/// Whether a process does not use the terminal on which the line of progress would be drawn. A
/// program that we start has our standard error.
fn has_other_terminal(pid: u32) -> bool {
    let device = |path: &str| fs::metadata(path).ok().map(|meta| meta.rdev());
    let ours = device("/proc/self/fd/2");
    (0..3).all(|number| device(&format!("/proc/{pid}/fd/{number}")) != ours)
}

/// The calls to show; `None` for all.
fn shown(options: &cli::Trace) -> Option<Vec<Op>> {
    // The names were checked when they were parsed.
    let ops: Vec<Op> = options.calls.iter().filter_map(|name| Op::named(name)).collect();
    (!ops.is_empty()).then_some(ops)
}

/// The lines of long listings per call, on average, if nothing else is asked: about a microsecond.
const LINES_PER_CALL: usize = 2;

/// Whether long listings are compared seldom.
fn is_brief(options: &cli::Trace) -> bool {
    options.every.is_none() && !options.verify
}

/// The calls between two comparisons of whole listings. A recording has one after each call, as
/// long as the listings are short.
fn every(options: &cli::Trace) -> u64 {
    const SELDOM: u32 = 1000;
    match options.every {
        Some(every) => every.into(),
        None if options.verify || options.record.is_some() => 1,
        None => SELDOM.into(),
    }
}

/// The reason why the exit code is not the program's, if it is not.
fn judge(summary: &Summary, unfollowed: Option<String>, strict: bool) -> Option<Failure> {
    let total = &summary.total;
    if total.mismatches > 0 {
        return Some((DIFFERS, "we and the kernel differed: see the mismatch above".into()));
    }
    if strict && total.cannot_tell > 0 {
        return Some((DIFFERS, "some differences are uncertain".into()));
    }
    if let Some(why) = unfollowed {
        return Some((FAILED, format!("the program was not followed to its end: {why}")));
    }
    if strict && summary.unfollowed > 0 {
        return Some((FAILED, "some processes were not followed to their end".into()));
    }
    // Standard error cannot report it, so the exit code does.
    let unwritten = messages::failure()?;
    Some((FAILED, format!("the report could not be written to standard error: {unwritten}")))
}

fn code_of(exit: Exit) -> u8 {
    match exit {
        // wait(2) returns only the low eight bits of an exit code.
        Exit::Code(code) => (code & 0xff) as u8,
        Exit::Signal(signal) => 128u8.saturating_add(u8::try_from(signal).unwrap_or(u8::MAX)),
    }
}

/// A line about the signal that ended the program. A shell prints none, as this command exits.
fn ended_by(exit: Exit) -> String {
    match exit {
        Exit::Code(_) => String::new(),
        Exit::Signal(signal) => {
            let status = ExitStatus::from_raw(signal);
            format!("samara: the program was ended by a {status}; exit code {}\n", code_of(exit))
        }
    }
}

fn create(path: &Path) -> Result<File, Failure> {
    File::create(path)
        .map_err(|error| (FAILED, format!("cannot write {}: {error}", path.display())))
}

/// The kernel's settings that affect its rules.
fn header(release: &str, profile: Profile) -> Header {
    let setting = |path| fs::read_to_string(path).map(|text| text.trim().to_string());
    let thp = setting("/sys/kernel/mm/transparent_hugepage/enabled")
        .ok()
        .and_then(|all| Some(all.split_once('[')?.1.split_once(']')?.0.to_string()));
    let overcommit = setting("/proc/sys/vm/overcommit_memory").unwrap_or_else(|_| "unknown".into());
    Header::new()
        .with("kernel", release)
        .with("page", "4096")
        .with("overcommit", &overcommit)
        .with("thp", thp.as_deref().unwrap_or("absent"))
        .with("max_map_count", &profile.max_map_count.to_string())
        .with("guards", if profile.guard_flag { "flagged" } else { "unflagged" })
        .with("pkeys", if profile.protection_keys { "present" } else { "absent" })
}

/// The exit codes are those of env(1), nohup(1) and timeout(1).
fn start_failure(error: live::Error) -> Failure {
    let code = match &error {
        live::Error::Exec { cause, .. } if cause.kind() == ErrorKind::NotFound => NOT_FOUND,
        live::Error::Exec { .. } => NOT_RUN,
        _ => FAILED,
    };
    (code, error.to_string())
}

fn first_mismatch(summary: &Summary, style: Style) -> String {
    match &summary.first_mismatch {
        Some(first) => format!("{}\n", mismatch::render(first, style)),
        None => String::new(),
    }
}

fn report(summary: &Summary, style: Style) -> String {
    let mut text = first_mismatch(summary, style);
    text += &tables::render(summary, style);
    for notice in summary.notices.iter().filter(|notice| notice.times > 1) {
        text += &format!("samara: {notice}\n");
    }
    if let Some(largest) = &summary.largest {
        text.push('\n');
        text += &picture::render(largest, style);
    }
    text
}
