//! The description of this host and of this command.

use crate::{Clock, Run};
use std::format;
use std::string::{String, ToString};
use std::time::{SystemTime, UNIX_EPOCH};
use std::vec::Vec;
use std::{env, fs, thread};

impl Run {
    /// A run of this program, by its command line, on this host, now. `machine` is what is measured
    /// if it is not the host itself, else it is empty. `program` is how people call it.
    ///
    /// ```
    /// use report::{Clock, Run};
    /// let run = Run::here("samara", "", Clock::Time);
    /// assert!(run.run.starts_with("samara") && run.processors > 0 && run.date.starts_with("20"));
    /// ```
    pub fn here(program: &str, machine: &str, clock: Clock) -> Run {
        let arguments = env::args_os().skip(1).map(|argument| quoted(&argument.to_string_lossy()));
        let words: Vec<String> = [program.to_string()].into_iter().chain(arguments).collect();
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let release = read("/proc/sys/kernel/osrelease");
        Run {
            run: words.join(" "),
            version: env!("CARGO_PKG_VERSION").into(),
            machine: machine.into(),
            processor: processor(&read("/proc/cpuinfo")),
            processors: thread::available_parallelism().map_or(1, usize::from),
            system: format!("{} {}", system(), release.trim()).trim().into(),
            clock,
            date: today(),
            load: read("/proc/loadavg").split(' ').next().and_then(|word| word.parse().ok()),
        }
    }
}

/// The name of this system, as people write it.
fn system() -> &'static str {
    match env::consts::OS {
        "linux" => "Linux",
        "macos" => "macOS",
        other => other,
    }
}

/// The name of the processor in the text of `/proc/cpuinfo`, else its architecture.
fn processor(cpuinfo: &str) -> String {
    let name = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    name.map_or(env::consts::ARCH, |(_, name)| name.trim()).into()
}

/// A word of a command line, in quotes if a shell would split it.
pub fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_alphanumeric() || "-_./,=:+@%".contains(c);
    match !word.is_empty() && word.chars().all(plain) {
        true => word.into(),
        false => format!("'{}'", word.replace('\'', "'\\''")),
    }
}

fn today() -> String {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    date(seconds / 86_400)
}

/// The date of a day, counted from 1970-01-01. Years begin in March here, so the day that a leap
/// year adds is a year's last.
fn date(day: u64) -> String {
    // 1970-01-01 is day 719,468 from 0000-03-01. 146,097 days are 400 years.
    let day = day + 719_468;
    let (era, day) = (day / 146_097, day % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let of_month = day - (153 * month + 2) / 5 + 1;
    let (month, next) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    format!("{:04}-{month:02}-{of_month:02}", 400 * era + year + next)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_are_dates() {
        let days = [0, 58, 59, 789, 790, 19_782, 19_783, 20_782].map(date);
        let expected = [
            "1970-01-01",
            "1970-02-28",
            "1970-03-01",
            "1972-02-29",
            "1972-03-01",
            "2024-02-29",
            "2024-03-01",
            "2026-11-25",
        ];
        assert_eq!(days, expected);
    }

    #[test]
    fn words_and_processors_are_as_people_read_them() {
        assert_eq!(["a-b", "", "it's", "a b"].map(quoted), ["a-b", "''", "'it'\\''s'", "'a b'"]);
        let name = "processor\t: 0\nmodel name\t: Xeon: 9\nmodel name\t: other\n";
        assert_eq!(processor(name), "Xeon: 9");
        assert_eq!(processor(""), env::consts::ARCH);
    }
}
