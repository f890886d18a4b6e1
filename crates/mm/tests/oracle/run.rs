//! Runs the programs that the environment asks for.

use std::{env, fs};

use crate::{
    PROGRAMS,
    compare::compare,
    linux::Linux,
    ours::Ours,
    program::{self, Step},
};

/// Carries out a program, each time from the same state: nothing is mapped in the window, and the
/// heap ends in its middle. Answers each step with one line.
pub(crate) trait Runner {
    fn run(&mut self, program: &[Step]) -> Vec<String>;
}

pub(crate) fn number(name: &str) -> Option<u64> {
    let text = env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} is no number: {text}")))
}

pub(crate) fn compare_with(linux: &mut Linux, name: &str, program: Vec<Step>) {
    if let Some(difference) = compare(linux, &mut Ours, &program) {
        panic!("{name}: the smallest program that shows it:\n\n{difference}");
    }
}

/// The programs that the environment asks for, or the first ones.
pub(crate) fn all_as_on_linux(linux: &mut Linux, random: impl Fn(u64) -> Vec<Step>) {
    if let Ok(file) = env::var("SAMARA_PROGRAM") {
        let text = fs::read_to_string(&file).unwrap_or_else(|error| panic!("{file}: {error}"));
        let program = program::parse(&text).unwrap_or_else(|error| panic!("{file}: {error}"));
        return compare_with(linux, &file, program);
    }
    let (first, count) = match number("SAMARA_SEED") {
        Some(seed) => (seed, 1),
        None => {
            (number("SAMARA_FIRST_SEED").unwrap_or(0), number("SAMARA_SEEDS").unwrap_or(PROGRAMS))
        }
    };
    for seed in first..first + count {
        compare_with(linux, &format!("SAMARA_SEED={seed}"), random(seed));
    }
}
