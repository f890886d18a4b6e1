//! Runs mixed operations on areas for a given time, on a machine that checks every access:
//! `campaign/soak --minutes 60`.
//!
//! Four CPUs, one thread each, map and unmap by all calls, free areas of other CPUs, read the
//! listing and the bytes of areas, and enter and leave idle. At the end all areas, addresses and
//! frames must have been given back. Progress goes to standard error, the result to standard
//! output.

#[path = "../../tests/common/mod.rs"]
mod common;
mod run;

use sim::Checks;
use std::process::ExitCode;
use std::time::Duration;

/// All checks except the search of all page tables at each free of a frame, which takes ten times
/// as long as the rest. A frame that is freed while mapped still shows by wrong contents; and
/// `tests/soak.rs` runs with this check, too.
const CHECKS: Checks = Checks { frames: false, ..Checks::ALL };

const USAGE: &str =
    "usage: soak [--minutes N | --seconds N] [--seed N]\nDefault: one minute, seed 0.";

fn arguments() -> Option<(Duration, u64)> {
    let (mut time, mut seed) = (Duration::from_secs(60), 0);
    let mut arguments = std::env::args().skip(1);
    while let Some(name) = arguments.next() {
        let number: u64 = arguments.next()?.parse().ok()?;
        match name.as_str() {
            "--minutes" => time = Duration::from_secs(number.checked_mul(60)?),
            "--seconds" => time = Duration::from_secs(number),
            "--seed" => seed = number,
            _ => return None,
        }
    }
    Some((time, seed))
}

fn main() -> ExitCode {
    let Some((time, seed)) = arguments() else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    match run::soak(time, seed, CHECKS, |progress| eprintln!("{progress}")) {
        Ok(done) => {
            println!("{done}\nno error was found, and nothing is left over");
            ExitCode::SUCCESS
        }
        Err(found) => {
            println!("{found}");
            ExitCode::FAILURE
        }
    }
}
