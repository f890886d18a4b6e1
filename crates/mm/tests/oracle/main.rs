//! The kernel as oracle for pages: random programs of calls and touches run in a real process on
//! the running Linux, and in an address space on the machine in software. The bytes read, the
//! signals, the errnos, mincore, the present bits, and the listings must agree.
//!
//! In some programs several threads take turns. Each is a CPU of the machine, with its own TLB.
//! Others have a userfaultfd, with all calls of its monitor, or scan by PAGEMAP_SCAN
//! (`monitor_random`). Their faults fail with SIGBUS, because a program cannot wait for
//! itself. Others make rarer calls (`calls_random`).
//!
//! The programs, their text, and the real process are those of `vma`'s test. `SAMARA_SEED=n` runs
//! the program of that seed, `SAMARA_SEEDS=n` that many programs, from `SAMARA_FIRST_SEED` on.
//! `SAMARA_PROGRAM=file` runs a program as a failure prints it.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]
#![allow(dead_code, reason = "this test uses some of the shared modules")]

use std::{env, fs};

mod answers;
mod calls_random;
mod chunks;
#[path = "../../../vma/tests/oracle/compare.rs"]
mod compare;
#[path = "../../../vma/tests/oracle/linux.rs"]
mod linux;
#[path = "../../../vma/tests/oracle/monitor.rs"]
mod monitor;
mod monitor_random;
mod monitored;
mod ours;
#[path = "../../../vma/tests/oracle/program.rs"]
mod program;
#[path = "../../../vma/tests/oracle/random.rs"]
mod random;
mod run;

#[path = "../../../trace/tests/common/needs.rs"]
mod needs;

use linux::Linux;
use monitor::Call;
use monitor_random::{About, feature};
use program::Step;
use run::{Runner, all_as_on_linux, compare_with, number};

/// The pages of the window.
const PAGES: usize = 64;
/// Programs that a plain run of the test carries out, and the steps of each.
const PROGRAMS: u64 = 500;
const STEPS: usize = 50;

/// Programs that showed a difference once.
const FOUND: [&str; 8] = [
    "share 1e000 3000 rw- fixed shared 0\nadvise 1f000 2000 guard_install\nlock 1f000 2000 1\n\
     fork\nswitch 1\nprotect 1e000 3000 r--\nmaps\n",
    "share 1d000 6000 rw- noreplace shared 2000\nadvise 21000 6000 populate_write\n",
    "put 5000 b\nshare 1d000 3000 rw- fixed private 5000\nread 1f001\npagemap 0 40000\n",
    "share 21000 5b2b rw- fixed private 1000\nadvise 22000 6000 guard_install\nwrite 22fff 10\n\
     lock 22000 5000 1\nfork\nswitch 1\nprotect 21000 4000 r--\nmaps\n",
    "share 1a000 4000 rw- hint private 2000\nput 3000 27\nread 1d800\npagemap 0 40000\n",
    "map 1d000 2000 -wx noreplace lazy\ncopy read 1d001 1d7b 0\ncopy peek 1d001 1d7b 0\n",
    "map 1e000 2000 rw- noreplace growsdown\ncopy read 1d000 1000 0\ncopy write 1d000 1000 1\n\
     maps\ncopy poke 1d000 1000 1\nmaps\n",
    "map 1e000 4000 rw- fixed lazy\nshare 1c000 3000 rw- noreplace read_shared 1000\n",
];

#[test]
fn what_was_found_once_stays_mended() {
    let mut linux = Linux::start();
    for text in FOUND {
        compare_with(&mut linux, text, program::parse(text).unwrap());
    }
}

/// The program of a seed. Every other one has a file, shared memory, and forks; of each of these
/// kinds, every other one has threads.
fn random(seed: u64) -> Vec<Step> {
    let program = match seed % 2 {
        0 => random::random_with_objects(seed, STEPS),
        _ => random::random(seed, STEPS),
    };
    if seed % 4 < 2 { program } else { random::with_threads(seed, program) }
}

/// Writes the programs of some seeds to the file `SAMARA_PROGRAMS`, for another runner: the steps
/// of each, and a line `end`.
#[test]
#[ignore = "it checks nothing; ./check user runs it"]
fn write_programs() {
    let file = env::var("SAMARA_PROGRAMS").expect("SAMARA_PROGRAMS names the file");
    let first = number("SAMARA_FIRST_SEED").unwrap_or(0);
    let count = number("SAMARA_SEEDS").unwrap_or(PROGRAMS);
    let mut text = String::new();
    for seed in first..first + count {
        random(seed).iter().for_each(|step| text.push_str(&format!("{step}\n")));
        text.push_str("end\n");
    }
    fs::write(&file, text).unwrap_or_else(|error| panic!("{file}: {error}"));
}

#[test]
fn pages_are_as_on_linux() {
    all_as_on_linux(&mut Linux::start(), random);
}

#[test]
fn other_calls_are_as_on_linux() {
    let mut linux = Linux::start();
    let locked = linux.run(&[Step::LockAll { flags: 1 }]);
    let cure = "run it without a limit of locked memory";
    if needs::permits("mlockall", locked == ["ok"], cure) {
        all_as_on_linux(&mut linux, |seed| calls_random::random(seed, STEPS));
    }
}

fn of_monitors_as_on_linux(about: About, needed: Call, name: &str) {
    let mut linux = Linux::start();
    let found = linux.run(&[Step::Monitor(needed)]);
    let lacks = matches!(&*found[0], "EINVAL" | "ENOTTY" | "ENOSYS" | "EPERM");
    if !needs::linux(6, 15) {
        needs::has("Linux 6.15", false, None);
        return;
    }
    let cure = "run a kernel with CONFIG_USERFAULTFD and CONFIG_PROC_PAGE_MONITOR";
    if needs::permits(name, !lacks, cure) {
        all_as_on_linux(&mut linux, |seed| monitor_random::random(about, seed, STEPS));
    }
}

#[test]
fn monitors_are_as_on_linux() {
    let needed = Call::Open { features: feature::ALL };
    of_monitors_as_on_linux(About::Monitors, needed, "userfaultfd with MOVE and POISON");
}

#[test]
fn scans_are_as_on_linux() {
    let Step::Monitor(needed) = monitor_random::everything() else { unreachable!() };
    of_monitors_as_on_linux(About::Scans, needed, "PAGEMAP_SCAN");
}
