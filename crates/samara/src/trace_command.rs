//! `samara trace`: a live run, from the options to the exit code.

use std::{
    fs::{self, File},
    io::{self, BufWriter, ErrorKind, Write},
    path::Path,
    process::ExitCode,
};

use mm::Profile;
use trace::{
    live::{self, Exit},
    report::{Style, Summary, json, mismatch, picture, tables},
    session::Session,
    text::Header,
};

use crate::{DIFFERS, cli, complain};

/// The program could not be followed, or what was asked for could not be written.
const FAILED: u8 = 125;
/// The program was found and could not be run.
const NOT_RUN: u8 = 126;
/// The program was not found.
const NOT_FOUND: u8 = 127;

pub(crate) fn run(options: &cli::Trace) -> ExitCode {
    match follow(options) {
        Ok(code) => code.into(),
        Err((code, what)) => {
            complain(what);
            code.into()
        }
    }
}

type Failure = (u8, String);

fn follow(options: &cli::Trace) -> Result<u8, Failure> {
    // Both files are made first: a run whose result has nowhere to go is not worth starting.
    let json = options.json.as_deref().map(|path| Ok((path, create(path)?))).transpose()?;
    let recording = options.record.as_deref().map(create).transpose()?.map(BufWriter::new);

    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let profile = live::profile();
    let header = header(release.trim(), profile);
    let what =
        options.command.first().map_or_else(Default::default, |program| program.to_string_lossy());
    let unwritten = |error| {
        let path = options.record.as_deref().unwrap_or(Path::new("")).display();
        (FAILED, format!("the recording {path} is incomplete: {error}"))
    };
    let mut session =
        Session::new(&what, profile, recording.map(|out| (out, &header))).map_err(unwritten)?;
    let follow = live::Options { every: options.every.get().into(), forward_signals: true };
    let exit = live::run(follow, &options.command, &mut session).map_err(start_failure)?;
    let summary = session.finish().map_err(unwritten)?;

    report(&summary);
    if let Some((path, mut file)) = json {
        writeln!(file, "{}", json::object(&summary))
            .map_err(|error| (FAILED, format!("cannot write {}: {error}", path.display())))?;
    }
    Ok(match exit {
        _ if summary.total.mismatches > 0 => DIFFERS,
        // What wait(2) tells of an exit code is its low eight bits.
        Exit::Code(code) => (code & 0xff) as u8,
        Exit::Signal(signal) => 128u8.saturating_add(u8::try_from(signal).unwrap_or(u8::MAX)),
    })
}

fn create(path: &Path) -> Result<File, Failure> {
    File::create(path)
        .map_err(|error| (FAILED, format!("cannot write {}: {error}", path.display())))
}

/// The settings of this kernel that decide how its rules apply.
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
}

/// Exit codes as env(1), nohup(1) and timeout(1) have them.
fn start_failure(error: live::Error) -> Failure {
    let code = match &error {
        live::Error::Exec { cause, .. } if cause.kind() == ErrorKind::NotFound => NOT_FOUND,
        live::Error::Exec { .. } => NOT_RUN,
        _ => FAILED,
    };
    (code, error.to_string())
}

fn report(summary: &Summary) {
    let style = Style::of_stderr();
    let mut text = String::new();
    if let Some(first) = &summary.first_mismatch {
        text += &mismatch::render(first, style);
        text.push('\n');
    }
    text += &tables::render(summary, style);
    if let Some(largest) = &summary.largest {
        text.push('\n');
        text += &picture::render(largest, style);
    }
    // A reader that went away is no reason to lose the program's exit code.
    let _ = io::stderr().lock().write_all(text.as_bytes());
}
