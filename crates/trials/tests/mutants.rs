//! Machines that omit flushes fail `stale`. The trial itself fails where the machine in software
//! checks nothing, as on silicon; otherwise the machine's checkers do.

mod common;

use common::lax::{Affected, Lax, LeftOut};
use common::{Found, OnSim, RunConfig, run, trial, trial_of_tables};
use paging::{Aarch64, Aarch64G16, Aarch64G64, Sv48, X86_64L4};
use sim::{Checks, Config, Grace, Violation};
use trials::Trial;

/// A trial on a machine that leaves out flushes.
type OnLax<F> = Trial<Lax, F, Grace>;

/// The error that is found with these flushes omitted.
fn found<F: OnSim>(
    trial: OnLax<F>,
    left_out: LeftOut,
    which: Affected,
    cpus: usize,
    checks: Checks,
    ticking: bool,
) -> Found {
    let way = RunConfig::threads(cpus, ticking);
    let way =
        RunConfig { config: Config { checks, events: 0, tlb_entries: 512, ..way.config }, ..way };
    let found = run(way, |sim| Lax::new(sim, left_out, which), trial);
    let found = found.expect_err("the flushes that were left out were not missed");
    let text = found.to_string();
    println!("{left_out:?}, {which:?}, {cpus} CPUs: {}", text.lines().next().unwrap_or_default());
    found
}

/// The trial finds the error, with these texts.
fn is_seen(left_out: LeftOut, which: Affected, cpus: &[usize], says: &[&str]) {
    is_seen_on::<X86_64L4>(left_out, which, cpus, says);
}

fn is_seen_on<F: OnSim>(left_out: LeftOut, which: Affected, cpus: &[usize], says: &[&str]) {
    is_seen_by::<F>(trial("stale"), left_out, which, cpus, says);
}

fn is_seen_by<F: OnSim>(
    trial: OnLax<F>,
    left_out: LeftOut,
    which: Affected,
    cpus: &[usize],
    says: &[&str],
) {
    for (cpus, ticking) in cpus.iter().flat_map(|cpus| [(*cpus, false), (*cpus, true)]) {
        match found::<F>(trial, left_out, which, cpus, Checks::NONE, ticking) {
            Found::Told(text) => {
                assert!(says.iter().all(|says| text.contains(says)), "{says:?}: {text}")
            }
            found => panic!("{found}"),
        }
    }
}

const WRITES: &[&str] = &["the kernel's page made read-only", "expected a fault: it is read-only"];
const READS: &[&str] =
    &["the kernel's page unmapped and flushed", "expected a fault: no page is mapped"];
const NEW: &[&str] =
    &["the kernel's page unmapped and mapped to other frames", "expected a readable page"];
const OLD: &[&str] = &["the kernel's page unmapped and mapped to other frames", "expected 0x5a1e"];

#[test]
fn local_flushes_left_out_are_seen() {
    is_seen(LeftOut::Local, Affected::Each, &[1, 2, 4], WRITES);
    is_seen(LeftOut::Local, Affected::After(1), &[1, 2, 4], READS);
    // The second turn, in which no CPU looks in between, has 5 flushes of each kind.
    is_seen(LeftOut::Local, Affected::After(2 + 5), &[1], OLD);
}

#[test]
fn remote_flushes_left_out_are_seen() {
    is_seen(LeftOut::Remote, Affected::Each, &[2, 4], WRITES);
    is_seen(LeftOut::Remote, Affected::After(1), &[2, 4], READS);
    // With two CPUs that is the third turn: the second has 5 flushes of each kind, the third 4.
    is_seen(LeftOut::Remote, Affected::After(2 + 10 + 4), &[2], OLD);
}

#[test]
fn flushes_of_programs_left_out_are_seen() {
    is_seen(LeftOut::Local, Affected::Programs, &[1, 2], &["the program's page made read-only"]);
    is_seen(LeftOut::Remote, Affected::Programs, &[2, 4], &["the program's page made read-only"]);
}

/// Addresses that `vmap` reuses.
#[test]
fn broadcasts_left_out_are_seen() {
    is_seen(LeftOut::Remote, Affected::Everything, &[2, 4], &["of an area made"]);
}

#[test]
fn the_end_of_flushes_left_out_is_seen() {
    is_seen(LeftOut::End, Affected::Each, &[1, 2], WRITES);
}

/// On AArch64, where hardware broadcasts flushes.
#[test]
fn broadcast_flushes_left_out_are_seen() {
    is_seen_on::<Aarch64>(LeftOut::Local, Affected::Each, &[1, 2], WRITES);
    is_seen_on::<Aarch64>(LeftOut::Remote, Affected::Each, &[2, 4], WRITES);
    is_seen_on::<Aarch64>(LeftOut::Remote, Affected::Everything, &[2], &["of an area made"]);
    is_seen_on::<Aarch64>(
        LeftOut::Remote,
        Affected::Programs,
        &[2],
        &["the program's page made read-only"],
    );
}

/// On architectures whose walks need a barrier, or that cache absent entries.
#[test]
fn barriers_left_out_are_seen() {
    is_seen_on::<Aarch64>(LeftOut::Published, Affected::Each, &[1, 2], NEW);
    is_seen_on::<Sv48>(LeftOut::Published, Affected::Each, &[1, 2], NEW);
}

/// With granules of 16 and 64 KiB.
#[test]
fn flushes_of_larger_pages_left_out_are_seen() {
    fn each<F: OnSim>() {
        let stale = trial_of_tables::<_, F, _>("stale");
        is_seen_by::<F>(stale, LeftOut::Local, Affected::Each, &[1, 2], WRITES);
        is_seen_by::<F>(stale, LeftOut::Remote, Affected::Each, &[2], WRITES);
        let program = &["the program's page made read-only"];
        is_seen_by::<F>(stale, LeftOut::Remote, Affected::Programs, &[2], program);
    }
    each::<Aarch64G16>();
    each::<Aarch64G64>();
}

/// The machine reports a stale store before the trial does.
#[test]
fn the_checkers_see_them_first() {
    for (left_out, cpus) in [(LeftOut::Local, 1), (LeftOut::Remote, 2)] {
        let found =
            found::<X86_64L4>(trial("stale"), left_out, Affected::Each, cpus, Checks::ALL, false);
        let Found::Machine(failure) = &found else { panic!("{found}") };
        let report = failure.report().unwrap_or_else(|| panic!("{found}"));
        let known = matches!(report.violation, Violation::StaleTranslation { write: true, .. });
        assert!(known, "{found}");
    }
}
