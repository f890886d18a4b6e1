//! The kernel's command line: a command, names, and settings of the form `name=value`.
//!
//! | command | what it does |
//! |---|---|
//! | (none) | lists the commands |
//! | `bench [EXPERIMENT...] [effort=full\|quick\|least] [cpus=1,2,4] [count] [waiting=SHIFT]` | experiments |
//! | `test [TRIAL...] [seed=N] [rounds=N] [mutant=NAME]` | trials |
//! | `run [unmap=immediate\|grace] [waiting=SHIFT]` | runs the program of the loader's archive |
//! | `panic`, `overflow`, `twice` | fails as named, to test the failure path; `twice` fails again while it reports |

use crate::archive::Archive;
use crate::bench::{Bench, experiments};
use crate::console::{RECORD, print};
use crate::exit::Exit;
use crate::machine::Kernel;
use crate::{mutant, println, smp, task, test, turns};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use machine::{Cpus, FrameSource, Step};
use workloads::Scale;

/// The words that have not been used yet.
struct Words<'a> {
    names: Vec<&'a str>,
    settings: Vec<(&'a str, &'a str)>,
}

impl<'a> Words<'a> {
    fn read(words: impl Iterator<Item = &'a str>) -> Self {
        let mut read = Words { names: Vec::new(), settings: Vec::new() };
        for word in words {
            match word.split_once('=') {
                Some(setting) => read.settings.push(setting),
                None => read.names.push(word),
            }
        }
        read
    }

    /// Removes a setting and returns its value. The last one counts.
    fn setting(&mut self, name: &str) -> Option<&'a str> {
        let found = self.settings.iter().rfind(|(of, _)| *of == name).map(|(_, value)| *value);
        self.settings.retain(|(of, _)| *of != name);
        found
    }

    /// Removes a name, and returns whether it was there.
    fn flag(&mut self, name: &str) -> bool {
        let before = self.names.len();
        self.names.retain(|of| *of != name);
        self.names.len() != before
    }

    /// The remaining names, each of which must be in `all`; `all` if there are none.
    fn names_of(self, all: &[&'a str]) -> Result<Vec<&'a str>, String> {
        if let Some((name, value)) = self.settings.first() {
            return Err(format!("there is no setting {name}={value}"));
        }
        if let Some(name) = self.names.iter().find(|name| !all.contains(*name)) {
            return Err(format!("there is no {name}: there are {}", all.join(", ")));
        }
        Ok(if self.names.is_empty() { all.to_vec() } else { self.names })
    }
}

/// Runs the command, and returns the exit code.
pub(crate) fn run(line: &str) -> Exit {
    let mut words = line.split_ascii_whitespace();
    println!("samara: {} CPUs, {} MiB free", Kernel.count(), Kernel.free_frames() >> 8);
    let done = match words.next() {
        None => Ok(Exit::Done),
        Some("test") => run_test(Words::read(words)),
        Some("bench") => run_bench(Words::read(words)),
        Some("run") => run_program(Words::read(words)),
        Some("panic") => panic_on_last(),
        Some("overflow") => overflow(0),
        Some("twice") => panic!("{}", Unspeakable),
        Some(other) => Err(format!(
            "there is no command {other}: there are test, bench, run, panic, overflow, twice"
        )),
    };
    done.unwrap_or_else(|cause| {
        println!("samara: {cause}");
        Exit::Usage
    })
}

fn run_test(mut words: Words<'_>) -> Result<Exit, String> {
    let mut number = |name: &str, otherwise| match words.setting(name) {
        None => Ok(otherwise),
        Some(value) => value.parse().map_err(|_| format!("{name}={value}: a number is wanted")),
    };
    let (seed, rounds) = (number("seed", 1)?, number("rounds", 1)?);
    if rounds == 0 {
        return Err("rounds=0: what is not done shows nothing".into());
    }
    if let Some(name) = words.setting("mutant") {
        mutant::choose(name)?;
    }
    let trials = words.names_of(&test::names())?;
    Ok(if test::test(&trials, seed, rounds as usize) { Exit::Done } else { Exit::Failed })
}

/// Makes waiting CPUs count, if the words say so. Returns whether they do.
fn waiting(words: &mut Words<'_>) -> Result<bool, String> {
    let Some(word) = words.setting("waiting") else { return Ok(false) };
    // With a smaller shift a CPU starves; with a larger one no timer is due soon enough.
    let shift = word.parse().ok().filter(|shift| (2..=6).contains(shift));
    turns::count_waiting(shift.ok_or_else(|| format!("waiting={word}: 2 to 6"))?);
    Ok(true)
}

fn run_bench(mut words: Words<'_>) -> Result<Exit, String> {
    let scale = match words.setting("effort") {
        None | Some("full") => Scale::FULL,
        Some("quick") => Scale::QUICK,
        Some("least") => Scale::LEAST,
        Some(other) => {
            return Err(format!("there is no effort {other}: there are full, quick, least"));
        }
    };
    let icount = words.flag("count");
    let waiting = waiting(&mut words)?;
    if waiting && !icount {
        return Err("waiting=SHIFT is for count".into());
    }
    let all = Kernel.count();
    let mut cpus = Vec::new();
    match words.setting("cpus") {
        None => cpus.extend((0..).map(|power| 1 << power).take_while(|cpus| *cpus <= all)),
        Some(list) => {
            for word in list.split(',') {
                let number = word.parse().ok().filter(|number| (1..=all).contains(number));
                cpus.push(number.ok_or_else(|| format!("cpus={word}: 1 to {all} are there"))?);
            }
        }
    }
    cpus.sort_unstable();
    cpus.dedup();
    let all = experiments(waiting);
    let all_names: Vec<_> = all.iter().map(|one| one.name).collect();
    let names = words.names_of(&all_names)?;
    let bench = Bench { scale, cpus: &cpus, icount, waiting };
    // In the order in which they are named, which may be twice.
    for experiment in names.iter().flat_map(|name| all.iter().filter(|one| one.name == *name)) {
        let report = match bench.measure(experiment) {
            Ok(report) => report,
            Err(cause) => {
                println!("{}: {cause}", experiment.name);
                return Ok(Exit::Failed);
            }
        };
        println!("{report}");
        for line in report.json_lines().lines() {
            print(format_args!("{RECORD}{line}\n"));
        }
    }
    Ok(Exit::Done)
}

/// Prints the record of the program's end. If it cannot be run, it prints the cause.
fn run_program(mut words: Words<'_>) -> Result<Exit, String> {
    match words.setting("unmap") {
        None | Some("immediate") => {}
        Some("grace") => task::unmap_by_grace_periods(),
        Some(other) => return Err(format!("unmap={other}: immediate or grace")),
    }
    if waiting(&mut words)? {
        turns::take(turns::MEDIUM);
    }
    words.names_of(&[])?;
    let archive = Archive::read().ok_or("there are no files: start QEMU with -initrd ARCHIVE")?;
    let archive = archive.map_err(|error| format!("{error}"))?;
    Ok(match crate::run::run(&archive.argv, &archive.env, &archive) {
        Ok(outcome) => {
            print(format_args!("{RECORD}{outcome}\n"));
            Exit::Done
        }
        Err(cause) => {
            println!("samara: {cause}");
            Exit::Failed
        }
    })
}

/// The last CPU panics. The others are running and must be stopped.
fn panic_on_last() -> ! {
    let last = Kernel.count() - 1;
    let program = |cpu: usize| -> () {
        assert!(cpu != last, "as the command line asks for");
        loop {
            Kernel.relax();
        }
    };
    smp::host().on_each(Kernel.count(), program);
    unreachable!("the last CPU has panicked")
}

/// A value whose `Display` panics.
struct Unspeakable;

impl fmt::Display for Unspeakable {
    fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
        panic!("as the command line asks for")
    }
}

/// Recurses until the stack overflows.
#[expect(unconditional_recursion, reason = "it is what is asked for")]
fn overflow(depth: u64) -> Result<Exit, String> {
    core::hint::black_box([depth; 32]);
    let deeper = overflow(depth + 1);
    core::hint::black_box(&deeper);
    deeper
}
