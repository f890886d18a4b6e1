//! QEMU's command line, and the kernel's within it.

use crate::bench::with_waiting;
use crate::cli::{Accel, Arch, Boot, BootBench, Huge, Machine, Run, Task, Trials, Unmap};
use clap::ValueEnum;
use report::quoted;
use std::path::Path;
use std::process::Command;

/// The power of two of the nanoseconds of an instruction, where waiting is counted.
pub(super) const WAITING: u8 = 4;

/// A machine with only the devices that the kernel needs, without a display. Its serial port is
/// standard output.
pub(super) fn command(options: &Boot, elf: &Path, words: &str) -> Command {
    let machine = match (options.arch, options.machine) {
        (Arch::Aarch64, _) => "virt,gic-version=3",
        (Arch::X86_64, None | Some(Machine::Microvm)) => "microvm",
        (Arch::X86_64, Some(Machine::Q35)) => "q35",
    };
    // The emulator counts and times each byte of a fast string instruction, unlike a processor. So
    // kernels and programs must not believe in them.
    let processor = match (options.arch, options.accel) {
        // The kernel does not read the register of the host's weaknesses, which some versions of
        // KVM tell of and then do not have.
        (_, Accel::Kvm) => "host,arch-capabilities=off",
        (Arch::Aarch64, _) => "max",
        (Arch::X86_64, _) => "max,erms=off,fsrm=off",
    };
    let mut command = Command::new(options.arch.qemu().0);
    command.args(["-M", machine, "-cpu", processor]);
    // Only an emulated processor can count.
    match icount_shift(options) {
        // Each instruction takes `1 << shift` nanoseconds, and sleep takes no time of the host.
        Some(shift) => {
            let icount = format!("shift={shift},sleep=off");
            command.args(["-icount", &icount, "-accel", "tcg,thread=single"])
        }
        None if options.accel == Accel::Kvm => command.args(["-accel", "kvm"]),
        None => command.args(["-accel", "tcg,thread=multi"]),
    };
    command
        .args(["-smp", &options.cpus.to_string(), "-m", &options.memory])
        .args(["-nodefaults", "-no-user-config", "-display", "none"])
        // A triple fault ends the machine instead of restarting it without end.
        .arg("-no-reboot")
        .args(["-serial", "stdio"])
        // By it the kernel ends the machine, with an exit code.
        .args(match options.arch {
            Arch::X86_64 => ["-device", "isa-debug-exit,iobase=0xf4,iosize=0x04"],
            Arch::Aarch64 => ["-semihosting-config", "enable=on,target=native"],
        })
        .arg("-kernel")
        .arg(elf)
        .args(["-append", words]);
    command
}

/// If instructions are counted, the power of two of the nanoseconds of each. It is large where the
/// kernel makes CPUs take short turns by a timer.
fn icount_shift(options: &Boot) -> Option<u8> {
    let (count, waiting) = match &options.task {
        Some(Task::Bench(bench)) => (bench.count, bench.waiting),
        Some(Task::Run(run)) => (run.count, run.waiting),
        _ => return None,
    };
    count.then_some(if waiting { WAITING } else { 0 })
}

/// The kernel's command line: words between spaces.
///
/// # Errors
/// An experiment on more CPUs than the machine has, or one that cannot count waiting.
pub(super) fn words(options: &Boot) -> Result<String, String> {
    let mut words = match &options.task {
        None => Vec::new(),
        Some(Task::Test(trials)) => test(trials),
        Some(Task::Bench(bench)) => experiments(bench, options.cpus)?,
        Some(Task::Run(run)) => program(run),
        Some(Task::Write(write)) => vec!["write".into(), write.mib.to_string()],
    };
    words.extend(options.append.clone());
    Ok(words.join(" "))
}

fn test(trials: &Trials) -> Vec<String> {
    let mut words = vec!["test".to_string()];
    words.extend(trials.names.iter().cloned());
    words.extend(trials.seed.map(|seed| format!("seed={seed}")));
    words.extend(trials.rounds.map(|rounds| format!("rounds={rounds}")));
    words
}

fn program(run: &Run) -> Vec<String> {
    let mut words = vec!["run".to_string()];
    words.extend(run.out.is_some().then(|| "out".into()));
    if run.unmap != Unmap::Immediate {
        words.push(format!("unmap={}", name(&run.unmap)));
    }
    if run.huge != Huge::Madvise {
        words.push(format!("huge={}", name(&run.huge)));
    }
    if run.strace {
        words.push(format!("strace={}", if run.json_lines { "json" } else { "people" }));
    }
    words.extend(run.waiting.then(|| format!("waiting={WAITING}")));
    words
}

fn experiments(bench: &BootBench, cpus: u8) -> Result<Vec<String>, String> {
    let counts: Vec<_> = cpu_counts(bench, cpus)?.iter().map(u8::to_string).collect();
    let mut words = vec!["bench".to_string()];
    words.extend(bench.experiments.iter().cloned());
    let counted = with_waiting();
    if bench.waiting && bench.experiments.iter().any(|one| !counted.contains(&one.as_str())) {
        let names = counted.join(" ");
        return Err(format!("--waiting counts {names} alone: --count --waiting {names}"));
    }
    words.push(format!("effort={}", name(&bench.effort)));
    words.push(format!("cpus={}", counts.join(",")));
    if bench.count {
        words.push("count".into());
    }
    if bench.waiting {
        words.push(format!("waiting={WAITING}"));
    }
    Ok(words)
}

/// The numbers of CPUs that take part.
///
/// # Errors
/// The machine has fewer.
pub(super) fn cpu_counts(bench: &BootBench, cpus: u8) -> Result<Vec<u8>, String> {
    let powers = || (0..8).map(|power| 1 << power).filter(|count| *count <= cpus);
    let counts: Vec<u8> = match bench.cpu_counts.is_empty() {
        true => powers().collect(),
        false => bench.cpu_counts.clone(),
    };
    match counts.iter().find(|count| **count > cpus) {
        Some(count) => {
            Err(format!("the machine has too few CPUs for --cpu-counts {count}: --cpus {count}"))
        }
        None => Ok(counts),
    }
}

/// The name of a value on the command line.
pub(super) fn name(value: &impl ValueEnum) -> String {
    value.to_possible_value().map_or_else(String::new, |value| value.get_name().into())
}

/// A command in the syntax of a shell.
pub(super) fn shown(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let words: Vec<_> = words.map(|word| quoted(&word.to_string_lossy())).collect();
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Arguments, Command as Subcommand};
    use clap::Parser;

    fn boot(line: &str) -> Boot {
        let line = ["samara", "boot"].into_iter().chain(line.split_whitespace());
        match Arguments::try_parse_from(line).unwrap().command {
            Subcommand::Boot(boot) => boot,
            other => panic!("{other:?}"),
        }
    }

    fn line(arguments: &str) -> String {
        let options = boot(arguments);
        let words = words(&options).unwrap();
        shown(&command(&options, Path::new("/k e/kernel"), &words))
    }

    #[test]
    fn a_machine_of_the_least_is_the_default() {
        assert_eq!(
            line(""),
            "qemu-system-x86_64 -M microvm -cpu max,erms=off,fsrm=off -accel tcg,thread=multi \
             -smp 2 -m 1G -nodefaults -no-user-config -display none -no-reboot -serial stdio \
             -device isa-debug-exit,iobase=0xf4,iosize=0x04 -kernel '/k e/kernel' -append ''"
        );
        assert_eq!(
            line("--arch aarch64 test"),
            "qemu-system-aarch64 -M virt,gic-version=3 -cpu max -accel tcg,thread=multi -smp 2 \
             -m 1G -nodefaults -no-user-config -display none -no-reboot -serial stdio \
             -semihosting-config enable=on,target=native -kernel '/k e/kernel' -append test"
        );
        let kvm = line("--accel kvm");
        assert!(kvm.contains("-cpu host,arch-capabilities=off -accel kvm "), "{kvm}");
        let other = line("--cpus 8 --memory 512M --machine q35");
        assert!(other.contains("-M q35 ") && other.contains("-smp 8 -m 512M "), "{other}");
    }

    #[test]
    fn the_kernel_gets_words() {
        let words = |line: &str| words(&boot(line));
        let is = |line: &str, expected: &str| assert_eq!(words(line), Ok(expected.into()));
        is("test", "test");
        is("test pins --seed 7 vmap --rounds 3", "test pins vmap seed=7 rounds=3");
        is("--append panic", "panic");
        is("test --cpus 4 --append panic", "test panic");
        is("bench", "bench effort=full cpus=1,2");
        is("run -- a", "run");
        is("run --unmap grace --count --waiting -- a", "run unmap=grace waiting=4");
        is("run --huge never -- a", "run huge=never");
        is("run --out dir --unmap grace -- a", "run out unmap=grace");
        is("run --strace -- a", "run strace=people");
        is("run --strace --json-lines -- a", "run strace=json");
        is("--cpus 7 bench gup vmallocinfo", "bench gup vmallocinfo effort=full cpus=1,2,4");
        is("bench --cpus 64 --effort quick", "bench effort=quick cpus=1,2,4,8,16,32,64");
        is("--cpus 8 bench --cpu-counts 3,8 --count", "bench effort=full cpus=3,8 count");
        is(
            "--cpus 8 bench vmap --count --waiting",
            "bench vmap effort=full cpus=1,2,4,8 count waiting=4",
        );
        let alone = words("bench --count --waiting vmap gup").unwrap_err();
        assert!(alone.contains("vmap alone"), "{alone}");
        let few = words("bench --cpu-counts 1,4").unwrap_err();
        assert!(few.contains("--cpus 4"), "{few}");
    }

    #[test]
    fn aarch64_has_trials_alone() {
        let refused = |line: &str| super::super::arch::check(&boot(line)).unwrap_err();
        for (line, what) in [
            ("--arch aarch64 bench", "no experiments"),
            ("run --arch aarch64 -- a", "no programs"),
            ("--arch aarch64 --machine q35 test", "virt"),
        ] {
            assert!(refused(line).contains(what), "{line}: {}", refused(line));
        }
        for line in ["--arch aarch64", "--arch aarch64 --cpus 8 test", "--machine q35 bench"] {
            assert_eq!(super::super::arch::check(&boot(line)), Ok(()), "{line}");
        }
    }

    #[test]
    fn kvm_neither_counts_nor_runs_other_processors() {
        let refused = |line: &str| super::super::accel::check(&boot(line)).unwrap_err();
        for line in ["--accel kvm bench vmap --count", "run --accel kvm --count -- a"] {
            assert!(refused(line).contains("cannot count"), "{line}: {}", refused(line));
        }
        assert!(refused("--accel kvm --arch aarch64").contains("x86_64 kernels"));
        for line in ["bench --count", "run --accel auto --count -- a", "--accel auto"] {
            assert_eq!(super::super::accel::check(&boot(line)), Ok(()), "{line}");
        }
    }

    #[test]
    fn a_machine_that_counts_has_one_thread() {
        let icount = line("bench --count");
        let expected = "-icount shift=0,sleep=off -accel tcg,thread=single ";
        assert!(icount.contains(expected) && !icount.contains("multi"), "{icount}");
        assert!(!line("bench").contains("icount"));
        assert!(line("bench --count --waiting vmap").contains("-icount shift=4,sleep=off "));
        assert!(line("run --count -- a").contains("-icount shift=0,sleep=off "));
        assert!(!line("run -- a").contains("icount"));
    }

    #[test]
    fn a_hung_machine_is_ended_at_the_time_limit() {
        let limit = |line: &str| boot(line).timeout.0.map(|limit| limit.as_secs());
        assert!(limit("").is_some() && limit("test") == limit("bench gup"));
        assert_eq!(limit("--timeout 5 test"), Some(5));
        assert_eq!(limit("test --timeout 5"), Some(5));
        assert_eq!((limit("--timeout 0"), limit("bench --timeout none")), (None, None));
    }

    #[test]
    fn arguments_that_qemu_or_the_kernel_refuses_are_errors() {
        let wrong: [&[&str]; 12] = [
            &["--timeout", "-1"],
            &["--timeout", "never"],
            &["--cpus", "0"],
            &["--memory", "1"],
            &["--memory", "0G"],
            &["--memory", "2M"],
            &["--memory", "11M"],
            &["--memory", "1G,slots=2"],
            &["test", "two words"],
            &["test", "seed=1"],
            &["bench", "gupp"],
            &["bench", "--waiting"],
        ];
        for arguments in wrong {
            let line = ["samara", "boot"].iter().chain(arguments);
            assert!(Arguments::try_parse_from(line).is_err(), "{arguments:?}");
        }
    }
}
