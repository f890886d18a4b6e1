//! The kernel as oracle for pages. Random programs of calls and touches run in a real process on
//! the running Linux and in ours. The bytes read, the signals, the errnos, mincore, the present
//! bits of pagemap, and the listings must agree.
//!
//! `SAMARA_SEED=n` runs the program of that seed, and `SAMARA_SEEDS=n` that many programs, from
//! `SAMARA_FIRST_SEED` on. `SAMARA_PROGRAM=file` runs a program as a failure prints it.
//!
//! Comparing takes about 7 microseconds a step.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

use std::{env, fs};

mod compare;
mod linux;
mod model;
mod monitor;
mod program;
mod random;

use compare::{Difference, compare};
use linux::Linux;
use model::Model;
use program::{Advice, Span, Step};

/// The pages of the window. The lower half and the upper half have page tables of their own.
const PAGES: usize = 64;
/// Programs that a plain run of the test carries out, and the steps of each.
const PROGRAMS: u64 = 400;
const STEPS: usize = 50;

/// Carries out a program, each time from the same state: nothing is mapped in the window, and the
/// heap ends in its middle. Answers each step with one line.
trait Runner {
    fn run(&mut self, program: &[Step]) -> Vec<String>;
}

fn number(name: &str) -> Option<u64> {
    let text = env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} is no number: {text}")))
}

/// The first of some programs on which the runners differ, made small.
fn first_difference(
    ours: &mut dyn Runner,
    programs: impl Iterator<Item = (String, Vec<Step>)>,
) -> Option<(String, Difference)> {
    let mut linux = Linux::start();
    for (name, program) in programs {
        if let Some(difference) = compare(&mut linux, ours, &program) {
            return Some((name, difference));
        }
    }
    None
}

fn random(seeds: std::ops::Range<u64>) -> impl Iterator<Item = (String, Vec<Step>)> {
    seeds.map(|seed| (format!("SAMARA_SEED={seed}"), random::random(seed, STEPS)))
}

#[test]
fn pages_are_as_on_linux() {
    let difference = if let Ok(file) = env::var("SAMARA_PROGRAM") {
        let text = fs::read_to_string(&file).unwrap_or_else(|error| panic!("{file}: {error}"));
        let program = program::parse(&text).unwrap_or_else(|error| panic!("{file}: {error}"));
        first_difference(&mut Model, [(file, program)].into_iter())
    } else if let Some(seed) = number("SAMARA_SEED") {
        first_difference(&mut Model, random(seed..seed + 1))
    } else {
        let first = number("SAMARA_FIRST_SEED").unwrap_or(0);
        let count = number("SAMARA_SEEDS").unwrap_or(PROGRAMS);
        first_difference(&mut Model, random(first..first + count))
    };
    if let Some((name, difference)) = difference {
        panic!("{name}: the smallest program that shows it:\n\n{difference}");
    }
}

type IsStep = fn(&Step) -> bool;

/// Believes that some calls do nothing.
struct Skipping<R>(R, IsStep);

impl<R: Runner> Runner for Skipping<R> {
    fn run(&mut self, program: &[Step]) -> Vec<String> {
        let nothing = Step::Advise { span: Span { at: 0, len: 0 }, advice: Advice::DontNeed };
        let skip = |step: &Step| if self.1(step) { nothing } else { *step };
        self.0.run(&program.iter().map(skip).collect::<Vec<_>>())
    }
}

#[test]
fn a_wrong_rule_is_found_and_made_small() {
    let rules: [(&str, IsStep); 3] = [
        ("dontneed keeps pages", |step| {
            matches!(step, Step::Advise { advice: Advice::DontNeed, .. })
        }),
        ("protect changes nothing", |step| matches!(step, Step::Protect { .. })),
        ("unmap keeps all", |step| matches!(step, Step::Unmap(_))),
    ];
    for (rule, is_wrong) in rules {
        let mut ours = Skipping(Model, is_wrong);
        let (_, difference) = first_difference(&mut ours, random(0..PROGRAMS)).expect(rule);
        let text = difference.to_string();
        // A map, the call, and a look at its effect; or the call alone, which Linux refuses.
        let Difference { program, .. } = &difference;
        assert!(program.len() <= 4 && program.iter().any(is_wrong), "{rule}:\n{text}");
        assert_eq!(program::parse(&text).as_ref(), Ok(program));
    }
}
