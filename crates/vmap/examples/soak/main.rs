//! Mixed use of areas for as long as one likes, on a machine that checks everything: `campaign/soak
//! --minutes 60`.
//!
//! Four CPUs, each a thread, map and unmap by all calls, free what others have mapped, read the
//! listing and the bytes of each other's areas, go idle and come back. At the end everything must
//! have been given back: areas, addresses, frames. Progress goes to standard error, what was done
//! to standard output.

#[path = "../../tests/common/mod.rs"]
mod common;
mod run;

use sim::Checks;
use std::process::ExitCode;
use std::time::Duration;

/// All but a search of all tables for each frame that is freed, which takes ten times as long as
/// all else. A frame that is mapped still shows by what is in it; and the test of this has that
/// check, too.
const CHECKS: Checks = Checks { frames: false, ..Checks::ALL };

const USAGE: &str =
    "soak [--minutes N] [--seconds N] [--seed N]: one minute unless it says otherwise";

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
            println!("{done}\nnothing was found, and nothing is left");
            ExitCode::SUCCESS
        }
        Err(found) => {
            println!("{found}");
            ExitCode::FAILURE
        }
    }
}
