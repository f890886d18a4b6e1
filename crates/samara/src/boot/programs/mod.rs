//! `samara boot bench programs`: the loops of `programs/loops.c`, on this kernel and on Linux.
//!
//! For each number of CPUs, a machine with so many CPUs runs all loops, as that many processes and
//! as that many threads. This kernel does so twice: with munmaps that flush at once, and with those
//! that wait for TLB grace periods. With `--linux`, a kernel of Linux does so, too: in the same
//! emulator, as the first program of an initial file system. The systems take turns, and a figure
//! is the median of the rounds. [`loops`] builds the program, [`linux`] has Linux's machine, and
//! [`figures`] makes rows and targets of the program's lines.
//!
//! With `--count` an instruction takes a nanosecond, so figures are instructions of all CPUs for an
//! operation. Linux is not run with `--waiting`: its CPUs give up their turns when they wait.

mod figures;
mod linux;
mod loops;

use super::ending::Failure;
use super::run::Output;
use super::{execute, qemu};
use crate::cli::{Boot, BootBench, Effort, Machine, Run, Task, Unmap, mib};
use crate::{bench, output};
use figures::{Figures, Unit};
use report::Report;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use trace::report::messages;

/// MiB for each worker: a file of 128 MiB, a private copy of it, and tables.
const WORKER_MIB: u64 = 288;
/// MiB of the process that forks.
const FORK_MIB: u64 = 256;
/// MiB for the rest.
const REST_MIB: u64 = 192;

/// A system that runs the loops.
enum System {
    Ours(Unmap),
    Linux(PathBuf),
}

impl System {
    fn name(&self) -> &'static str {
        match self {
            System::Ours(Unmap::Immediate) => figures::OURS,
            System::Ours(Unmap::Grace) => figures::GRACE,
            System::Linux(_) => figures::LINUX,
        }
    }
}

/// Measures, and writes the report.
///
/// # Errors
/// A machine cannot be run, or ends early. Its console was shown.
pub(super) fn bench(options: &Boot, bench: &BootBench) -> Result<(), Failure> {
    let json = output::open(bench.json.as_deref())?;
    let files = loops::build()?;
    let elf = super::kernel::find(options.kernel.as_deref(), options.arch)?;
    let mut systems = vec![System::Ours(Unmap::Immediate), System::Ours(Unmap::Grace)];
    if let Some(linux) = &bench.linux {
        if bench.waiting {
            let why = "its CPUs give up their turns when they wait";
            return Err(format!("--linux does not count --waiting: {why}").into());
        }
        systems.push(System::Linux(linux.clone()));
    }
    let (rounds, words) = effort(bench);
    let unit = match (bench.count, bench.waiting) {
        (false, _) => Unit::Rate,
        (true, waiting) => Unit::Instructions(if waiting { qemu::WAITING } else { 0 }),
    };
    let mut figures = Figures::new(unit);
    let chosen = if bench.loops.is_empty() { vec!["all".into()] } else { bench.loops.clone() };
    for cpus in qemu::cpu_counts(bench, options.cpus)? {
        let mut programs: Vec<Vec<String>> = Vec::new();
        for name in &chosen {
            programs.push([&words[..], &[name.clone(), cpus.to_string(), "both".into()]].concat());
        }
        if bench.loops.is_empty() {
            programs.push(["forkexit".into(), FORK_MIB.to_string(), FORKS.into()].into());
        }
        for round in 1..=rounds {
            for system in &systems {
                let name = system.name();
                messages::show(&format!("{name}, {cpus} CPUs, round {round} of {rounds}\n"));
                for words in &programs {
                    let machine = machine(options, bench, cpus, system, &files, &elf, words);
                    let lines = match system {
                        System::Ours(_) => ours(&machine)?,
                        System::Linux(kernel) => linux::lines(&machine, kernel)?,
                    };
                    figures.add(name, cpus.into(), &lines)?;
                }
            }
        }
    }
    let run = Some(super::described(options));
    Ok(bench::write(&Report { run, ..figures.report() }, json)?)
}

/// Forks of the process with many pages.
const FORKS: &str = "20";

/// The rounds, and the program's words for the length of a loop.
fn effort(bench: &BootBench) -> (u32, Vec<String>) {
    let (rounds, seconds, iterations) = match bench.effort {
        Effort::Full => (3, "1", "10"),
        Effort::Quick => (1, "0.3", "4"),
        Effort::Least => (1, "0.05", "1"),
    };
    match bench.count {
        // The same in each round.
        true => (1, vec!["--iterations".into(), iterations.into()]),
        false => (rounds, vec!["--seconds".into(), seconds.into()]),
    }
}

/// The machine for one run of the program with these words.
fn machine(
    options: &Boot,
    bench: &BootBench,
    cpus: u8,
    system: &System,
    files: &Path,
    elf: &Path,
    words: &[String],
) -> Boot {
    let (unmap, kind) = match system {
        System::Ours(unmap) => (*unmap, options.machine),
        // Linux finds the rate of its clock by another one, which the minimal machine lacks.
        System::Linux(_) => (Unmap::Immediate, Some(Machine::Q35)),
    };
    let least = REST_MIB + (u64::from(cpus) * WORKER_MIB).max(FORK_MIB);
    let memory = match mib(&options.memory) {
        Some(memory) if memory >= least => options.memory.clone(),
        _ => format!("{least}M"),
    };
    let command = [loops::NAME.into()].into_iter().chain(words.iter().map(Into::into));
    Boot {
        cpus,
        memory,
        arch: options.arch,
        machine: kind,
        timeout: options.timeout,
        append: None,
        kernel: Some(elf.into()),
        task: Some(Task::Run(Run {
            files: Some(files.into()),
            env: Vec::new(),
            unmap,
            count: bench.count,
            waiting: bench.waiting,
            json: None,
            command: command.collect(),
        })),
    }
}

/// Runs it on this kernel, and returns what it wrote.
fn ours(machine: &Boot) -> Result<String, Failure> {
    let Some(Task::Run(run)) = &machine.task else { return Ok(String::new()) };
    let (written, mut console) = (Written::default(), Vec::new());
    let output: Output = Box::new(written.clone());
    // Shown only if it fails.
    let ended = execute(machine, run, output, Box::new(&mut console));
    let text = written.text();
    match ended.map(|outcome| outcome.code()) {
        Ok(0) => Ok(text),
        ended => {
            messages::show(&format!("{}{text}", String::from_utf8_lossy(&console)));
            Err(ended.err().unwrap_or_else(|| {
                "a loop failed in the machine: see above what it said".to_string().into()
            }))
        }
    }
}

/// What a program writes, kept.
#[derive(Clone, Default)]
struct Written(Arc<Mutex<Vec<u8>>>);

impl Written {
    fn text(&self) -> String {
        let bytes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

impl Write for Written {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
