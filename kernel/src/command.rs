//! The kernel's command line: a command, names, and settings of the form `name=value`. `bench` and
//! `run` are for x86-64.
//!
//! | command | what it does |
//! |---|---|
//! | (none) | boots, and ends |
//! | `bench [EXPERIMENT...] [effort=full\|quick\|least] [cpus=1,2,4] [count] [waiting=SHIFT]` | experiments |
//! | `test [TRIAL...] [seed=N] [rounds=N] [mutant=NAME]` | trials |
//! | `run [out] [unmap=grace] [huge=always\|madvise\|never] [strace=people\|json] [waiting=SHIFT]` | runs a program |
//! | `write MIB` | writes numbers to standard output, as a program does: measures the channel |
//! | `panic`, `overflow`, `twice` | fails as named, to test the failure path; `twice` fails again while it reports |

#[cfg(target_arch = "x86_64")]
mod programs;

use crate::channel;
use crate::exit::Exit;
use crate::machine::Kernel;
use crate::{mutant, println, smp, test};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use machine::{Cpus, FrameSource, Step};

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
    #[cfg(target_arch = "x86_64")]
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
        Some("write") => write(words.next()),
        #[cfg(target_arch = "x86_64")]
        Some("bench") => programs::run_bench(Words::read(words)),
        #[cfg(target_arch = "x86_64")]
        Some("run") => programs::run_program(Words::read(words)),
        Some("panic") => panic_on_last(),
        Some("overflow") => overflow(0),
        Some("twice") => panic!("{}", Unspeakable),
        Some(other) => Err(format!(
            "there is no command {other}: there are test, write, {}panic, overflow, twice",
            if cfg!(target_arch = "x86_64") { "bench, run, " } else { "" }
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
        return Err("rounds=0: a test needs at least one round".into());
    }
    if let Some(name) = words.setting("mutant") {
        mutant::choose(name)?;
    }
    let trials = words.names_of(&test::names())?;
    Ok(if test::test(&trials, seed, rounds as usize) { Exit::Done } else { Exit::Failed })
}

/// Writes so many MiB to standard output: words of 8 bytes that count from 0, little-endian.
fn write(mib: Option<&str>) -> Result<Exit, String> {
    let mib = mib.and_then(|mib| mib.parse::<u64>().ok()).ok_or("write MIB: a number is wanted")?;
    channel::start()?;
    let mut piece = Vec::new();
    for word in 0..mib << 17 {
        piece.extend_from_slice(&word.to_le_bytes());
        if piece.len() == 4096 {
            channel::write(channel::MessageKind::Output, &piece);
            piece.clear();
        }
    }
    Ok(Exit::Done)
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
