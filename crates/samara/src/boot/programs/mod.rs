//! `samara boot bench programs`: the loops of `programs/loops.c`, on this kernel and on Linux.
//!
//! For each number of CPUs, a machine with so many CPUs runs all loops, as that many processes and
//! as that many threads. This kernel does so twice: with munmaps that flush at once, and with those
//! that wait for TLB grace periods. With `--linux`, a kernel of Linux does so, too: in the same
//! emulator, as the first program of an initial file system, and with huge pages where this kernel
//! has them. The systems take turns, and a figure is the median of the rounds. [`loops`] builds the
//! program, [`linux`] has Linux's machine, [`figures`] makes rows and targets of the program's
//! lines, and [`verdict`] compares.
//!
//! With `--count` an instruction takes a nanosecond, so figures are instructions of all CPUs for an
//! operation. Linux is not run with `--waiting`: its CPUs give up their turns when they wait.
//!
//! If a run fails, the figures of its earlier loops are kept, the report has a note that names the
//! loop, and that system does not run that program again. The others go on, and the exit code is
//! that of the first failure.

mod figures;
mod linux;
mod loops;
mod verdict;

use super::channel::Output;
use super::ending::Failure;
use super::{execute, qemu};
use crate::bench::PROGRAMS;
use crate::cli::{Boot, BootBench, Effort, Huge, Machine, Run, Task, Unmap, mib};
use crate::output::Lines;
use crate::{bench, output};
use figures::{Figures, RunEnd, Unit};
use report::{Note, Report};
use std::io::{self, Write};
use std::path::Path;
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
    Linux(linux::Image),
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

/// A run of the program: all that it wrote, and how it ended.
struct Ran {
    text: String,
    ended: Result<(), Failure>,
}

/// Measures, and writes the report.
///
/// # Errors
/// A machine cannot be run, or ends early. Its console was shown, and the report is written.
pub(super) fn bench(options: &Boot, bench: &BootBench) -> Result<(), Failure> {
    let json = output::open(bench.json.as_deref())?;
    let mut other = String::new();
    let mut systems = vec![System::Ours(Unmap::Immediate), System::Ours(Unmap::Grace)];
    if let Some(path) = &bench.linux {
        if bench.waiting {
            let why = "its CPUs give up their turns when they wait";
            return Err(format!("--linux does not count --waiting: {why}").into());
        }
        let image = linux::open(path)?;
        let huge = if bench.huge { "with" } else { "without" };
        other = format!("; Linux {}, both kernels {huge} huge pages", image.version);
        systems.push(System::Linux(image));
    }
    let files = loops::build()?;
    let elf = super::kernel::find(options.kernel.as_deref(), options.arch)?;
    let options = &super::accel::choose(options, &elf);
    let mut run = super::described(options);
    run.machine += &other;
    let (rounds, words) = effort(bench);
    let unit = match (bench.count, bench.waiting) {
        (false, _) => Unit::Rate,
        (true, waiting) => Unit::Instructions(if waiting { qemu::WAITING } else { 0 }),
    };
    let (mut figures, mut failed) = (Figures::new(unit), Failed::default());
    let chosen = if bench.loops.is_empty() { vec!["all".into()] } else { bench.loops.clone() };
    for cpus in qemu::cpu_counts(bench, options.cpus)? {
        let mut programs: Vec<Vec<String>> = Vec::new();
        for name in &chosen {
            programs.push([&words[..], &[name.clone(), cpus.to_string(), "both".into()]].concat());
        }
        if bench.loops.is_empty() {
            let fork = ["forkexit".into(), FORK_MIB.to_string(), FORKS.into()];
            programs.push([&SETTLE.map(String::from)[..], &fork].concat());
        }
        for round in 1..=rounds {
            for system in &systems {
                let name = system.name();
                messages::show(&format!("{name}, {cpus} CPUs, round {round} of {rounds}\n"));
                for words in &programs {
                    if failed.has(name, cpus, words) {
                        continue;
                    }
                    let program = run_of(bench, system, &files, words);
                    let machine = machine(options, cpus, system, &elf, program);
                    let Ran { text, ended } = match system {
                        System::Ours(_) => ours(&machine),
                        System::Linux(image) => linux::measure(&machine, image),
                    };
                    let told = figures.add(name, cpus.into(), &text);
                    if let Err(failure) = ended.and_then(|()| told.finished()) {
                        if let System::Linux(_) = system {
                            linux::show(&text);
                        }
                        failed.add((name, cpus, words), round, &told, failure);
                    }
                }
            }
        }
    }
    let Failed { notes, first, .. } = failed;
    let mut report = Report { run: Some(run), ..figures.report() };
    report.notes.extend(notes);
    if !matches!(json, Lines::Stdout) {
        Lines::Stdout.write(&figures.comparisons())?;
    }
    bench::write(&report, json)?;
    first.map_or(Ok(()), Err)
}

/// Runs that failed.
#[derive(Default)]
struct Failed {
    /// The systems, the numbers of CPUs and the programs that do not run again.
    runs: Vec<(&'static str, u8, Vec<String>)>,
    notes: Vec<Note>,
    first: Option<Failure>,
}

impl Failed {
    fn has(&self, system: &str, cpus: u8, words: &[String]) -> bool {
        self.runs.iter().any(|one| (one.0, one.1, &one.2[..]) == (system, cpus, words))
    }

    fn add(
        &mut self,
        (system, cpus, words): (&'static str, u8, &[String]),
        round: u32,
        told: &RunEnd,
        failure: Failure,
    ) {
        let case = told.begun.as_deref().unwrap_or("before the first loop or after the last");
        let what = format!("{system} failed in round {round}: {}", failure.what);
        let kept = "the figures of before are kept";
        self.notes.push(Note::new(PROGRAMS, case, cpus.into(), 0, format!("{what}; {kept}")));
        self.runs.push((system, cpus, words.into()));
        let what = format!("{case}, {cpus} CPUs: {what}: see above; {kept}");
        messages::show(&format!("{what}\n"));
        self.first.get_or_insert(Failure { what, ..failure });
    }
}

/// Forks of the process with many pages.
const FORKS: &str = "20";
/// Linux does work of its own after its boot. Both kernels get this second.
const SETTLE: [&str; 2] = ["--settle", "1"];

/// The rounds, and the program's words for the length of a loop.
fn effort(bench: &BootBench) -> (u32, Vec<String>) {
    let (rounds, seconds, iterations) = match bench.effort {
        Effort::Full => (verdict::ENOUGH, "1", "10"),
        Effort::Quick => (verdict::ENOUGH, "0.3", "4"),
        Effort::Least => (1, "0.05", "1"),
    };
    let length = if bench.count { ["--iterations", iterations] } else { ["--seconds", seconds] };
    let words = SETTLE.iter().chain(&length).map(|word| word.to_string()).collect();
    (bench.rounds.unwrap_or(rounds), words)
}

/// A run of the program with these words.
fn run_of(bench: &BootBench, system: &System, files: &Path, words: &[String]) -> Run {
    let command = [loops::NAME.into()].into_iter().chain(words.iter().map(Into::into));
    Run {
        files: Some(files.into()),
        unmap: if let System::Ours(unmap) = system { *unmap } else { Unmap::Immediate },
        huge: if bench.huge { Huge::Always } else { Huge::Never },
        count: bench.count,
        waiting: bench.waiting,
        command: command.collect(),
        ..Run::default()
    }
}

/// The machine for this run.
fn machine(options: &Boot, cpus: u8, system: &System, elf: &Path, run: Run) -> Boot {
    let machine = match system {
        System::Ours(_) => options.machine,
        // Linux finds the rate of its clock by another one, which the minimal machine lacks.
        System::Linux(_) => Some(Machine::Q35),
    };
    let least = REST_MIB + (u64::from(cpus) * WORKER_MIB).max(FORK_MIB);
    let memory = match mib(&options.memory) {
        Some(memory) if memory >= least => options.memory.clone(),
        _ => format!("{least}M"),
    };
    let (kernel, task) = (Some(elf.into()), Some(Task::Run(run)));
    Boot { cpus, memory, machine, append: None, kernel, task, ..options.clone() }
}

/// Runs it on this kernel. If it fails, the console and its lines are shown.
fn ours(machine: &Boot) -> Ran {
    let Some(Task::Run(run)) = &machine.task else {
        return Ran { text: String::new(), ended: Ok(()) };
    };
    let (written, mut console) = (Written::default(), Vec::new());
    let output: Output = Box::new(written.clone());
    let ended = execute(machine, run, output, Box::new(&mut console));
    let text = written.text();
    let ended = ended.and_then(|outcome| match outcome.code() {
        0 => Ok(()),
        code => Err(format!("the program ended with exit code {code}").into()),
    });
    if ended.is_err() {
        messages::show(&format!("{}{text}", String::from_utf8_lossy(&console)));
    }
    Ran { text, ended }
}

/// The kept output of a program.
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
