//! Sequential `mm` is the specification of concurrent `mm`.
//!
//! Two or three threads make one to three operations each, on the machine in software, from a seed.
//! Each result, and all that can be seen at the end, must be that of some order of the steps of
//! these operations on one CPU (`run`, `orders`, `check`).
//!
//! - An operation that has returned comes before one that begins later.
//! - A call that changes what is mapped is one step. A call on the contents of pages is one step
//!   for each page. An access is a fault, if there is one, and an access (`ops`).
//! - Results are words, rights and errors, never frames or addresses that a space has chosen.
//!
//! Rules of the manual pages hold in every order (`laws`). Results that Linux documents as weaker,
//! and accesses by old translations, are in `tables`.
//!
//! CI runs all ordered pairs of operations concurrently with an access, each in one of the worlds
//! that both fit (`scripts`, `world`), and chains: many operations of one thread, for the rules
//! alone. `campaign/steps` runs the pairs in all worlds, triples, and more chains. A failure prints
//! the shortest script that was found (`shrink`).
//!
//! Environment: `SAMARA_STEPS=n` runs `n` triples and `n` chains instead, from `SAMARA_FIRST_SEED`
//! on; `SAMARA_SCRIPT=p12`, `t34` or `c56` runs one pair, triple or chain, with the seed
//! `SAMARA_SEED` only if that is set, and with `SAMARA_SEEDS` seeds otherwise. `SAMARA_WORLDS=n`
//! runs each pair in up to `n` worlds, `SAMARA_WORLD=Huge` leaves out other worlds. With
//! `SAMARA_STOP=n` the first thread stops at its step 0, `n`, `2 * n` and so on, one for each seed,
//! while the others run whole. That also finds UFFDIO_MOVE during a copy, whose pins it refuses, as
//! Linux does, and a copy of the other process that is a fault and an access.

#[path = "../common/mod.rs"]
mod common;
#[path = "../common/ram.rs"]
mod ram;

mod apply;
mod check;
mod end;
mod host;
mod laws;
mod memory;
mod ops;
mod orders;
mod out;
mod parts;
mod run;
mod scripts;
mod shrink;
mod tables;
mod world;

use std::{
    collections::BTreeMap,
    fmt::Write,
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

use run::Script;

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}={text} is not a number")))
}

/// The scripts of a run, each with its name.
fn chosen() -> Vec<(String, Script)> {
    let worlds = number("SAMARA_WORLDS").unwrap_or(1) as usize;
    let pairs = || {
        let scripts = scripts::pairs(worlds, number("SAMARA_ROUND").unwrap_or(0) as usize);
        scripts.into_iter().enumerate().map(|(number, script)| (format!("p{number}"), script))
    };
    let triple = |number| (format!("t{number}"), scripts::triple(number));
    let chain = |number| (format!("c{number}"), scripts::chain(number));
    if let Ok(name) = std::env::var("SAMARA_SCRIPT") {
        let number = |sort| name.strip_prefix(sort).and_then(|number| number.parse().ok());
        return match (number('t'), number('c')) {
            (Some(number), _) => vec![triple(number)],
            (_, Some(number)) => vec![chain(number)],
            _ => pairs().filter(|(other, _)| *other == name).collect(),
        };
    }
    let scripts: Vec<_> = match number("SAMARA_STEPS") {
        Some(count) => {
            let first = number("SAMARA_FIRST_SEED").unwrap_or(0);
            (first..first + count).map(triple).chain((first..first + count).map(chain)).collect()
        }
        None => pairs().chain((0..CHAINS).map(chain)).collect(),
    };
    let Ok(world) = std::env::var("SAMARA_WORLD") else { return scripts };
    let is_there = |script: &Script| format!("{:?}", script.kind) == world;
    scripts.into_iter().filter(|(_, script)| is_there(script)).collect()
}

/// The chains that CI runs.
const CHAINS: u64 = 1000;

/// The failures, by the operations of the shortest script that has them.
type Found = BTreeMap<String, (usize, String)>;

#[test]
fn each_result_is_that_of_an_order_of_steps() {
    let scripts = chosen();
    assert!(!scripts.is_empty(), "no script has this name");
    let (first, seeds) = match number("SAMARA_SEED") {
        Some(seed) => (seed, 1),
        None => (0, number("SAMARA_SEEDS").unwrap_or(1)),
    };
    let (next, orders, found) =
        (AtomicUsize::new(0), AtomicUsize::new(0), Mutex::<Found>::default());
    let work = || {
        // Relaxed: each script is taken once; the findings are behind the lock.
        while let Some((name, script)) = scripts.get(next.fetch_add(1, Relaxed)) {
            match shrink::attempt(script, first, seeds) {
                Ok(known) => _ = orders.fetch_add(known.orders(), Relaxed),
                Err(wrong) => tell(name, wrong, &found),
            }
        }
    };
    let workers = std::thread::available_parallelism().map_or(1, |count| count.get());
    std::thread::scope(|scope| (0..workers).for_each(|_| drop(scope.spawn(work))));
    println!("{} scripts, {} orders of steps", scripts.len(), orders.into_inner());
    let mut text = String::new();
    for (names, (count, wrong)) in found.into_inner().unwrap() {
        let _ = writeln!(text, "{count} scripts, shortest: {names}\n{wrong}");
    }
    assert!(text.is_empty(), "\n{text}");
}

/// Notes a failure, with the shortest script that has it.
fn tell(name: &str, wrong: check::Wrong, found: &Mutex<Found>) {
    let mut again = "again: ".to_string();
    // The number of a pair depends on these.
    for variable in ["SAMARA_WORLDS", "SAMARA_ROUND"] {
        if let Ok(value) = std::env::var(variable) {
            let _ = write!(again, "{variable}={value} ");
        }
    }
    let _ = write!(again, "SAMARA_SCRIPT={name} SAMARA_SEED={}", wrong.seed);
    let wrong = shrink::shrink(wrong);
    let mut names: Vec<_> = wrong.script.ops().map(ops::Op::name).collect();
    names.sort();
    let names = format!("{} {:?} {}", wrong.what.sort(), wrong.script.kind, names.join(" "));
    let mut found = found.lock().unwrap();
    found.entry(names).or_insert_with(|| (0, format!("{again}\n{wrong}"))).0 += 1;
}
