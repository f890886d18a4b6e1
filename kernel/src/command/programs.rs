//! The commands that need more than the trials do: experiments, and programs.

use super::Words;
use crate::archive::Archive;
use crate::bench::{Bench, experiments};
use crate::call::strace;
use crate::channel;
use crate::console::{RECORD, print};
use crate::exit::Exit;
use crate::file::sysfs;
use crate::machine::Kernel;
use crate::{export, icount, load, println};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use machine::Cpus;
use workloads::Scale;

/// Makes waiting CPUs count, if the words say so. Returns whether they do.
fn waiting(words: &mut Words<'_>) -> Result<bool, String> {
    let Some(word) = words.setting("waiting") else { return Ok(false) };
    // With a smaller shift a CPU starves; with a larger one no timer is due soon enough.
    let shift = word.parse().ok().filter(|shift| (2..=6).contains(shift));
    icount::count_waiting(shift.ok_or_else(|| format!("waiting={word}: 2 to 6"))?);
    Ok(true)
}

pub(super) fn run_bench(mut words: Words<'_>) -> Result<Exit, String> {
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
pub(super) fn run_program(mut words: Words<'_>) -> Result<Exit, String> {
    match words.setting("unmap") {
        None | Some("immediate") => {}
        Some("grace") => load::unmap_by_grace_periods(),
        Some(other) => return Err(format!("unmap={other}: immediate or grace")),
    }
    if let Some(word) = words.setting("huge") {
        let cause = || format!("huge={word}: always, madvise or never");
        sysfs::set_huge_pages(word).map_err(|_| cause())?;
    }
    match words.setting("strace") {
        None => {}
        Some("people") => strace::start(false),
        Some("json") => strace::start(true),
        Some(other) => return Err(format!("strace={other}: people or json")),
    }
    if waiting(&mut words)? {
        icount::take(icount::MEDIUM);
    }
    let out = words.flag("out");
    words.names_of(&[])?;
    channel::start()?;
    let archive = Archive::read().ok_or("there are no files: start QEMU with -initrd ARCHIVE")?;
    let archive = archive.map_err(|error| format!("{error}"))?;
    Ok(match crate::run::run(&archive, out) {
        Ok(outcome) => {
            print(format_args!("{RECORD}{outcome}\n"));
            if let Some(Err(cause)) = out.then(export::send) {
                println!("samara: the files for the host are incomplete: {cause}");
            }
            Exit::Done
        }
        Err(cause) => {
            println!("samara: {cause}");
            Exit::Failed
        }
    })
}
