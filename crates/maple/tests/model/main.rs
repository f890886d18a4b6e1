//! Compares the tree with a `BTreeMap` of ranges: every operation, both cursors, every mode.
//!
//! `PROPTEST_CASES=10000 cargo test --release -p samara-maple --test model` tries more cases.
//! `--cfg samara_small_nodes` in RUSTFLAGS makes every tree deep.
#![cfg(not(loom))]
// There, casts of an index to `u64` do nothing.
#![cfg_attr(target_pointer_width = "32", allow(clippy::unnecessary_cast))]

mod concurrent;
mod failure;
mod family;
mod ledger;
mod oracle;
mod panics;
#[path = "../../../trace/tests/common/patience.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod patience;
mod play;
mod regressions;
mod run;
mod script;
mod strategy;

use proptest::prelude::*;
use run::{Mode, run};
use strategy::{events, interrupted, ops, scale, sessions, walker};

/// A quarter of the usual number of cases without optimisation, unless the environment sets the
/// number.
fn config() -> ProptestConfig {
    let mut config = ProptestConfig::default();
    if cfg!(debug_assertions) && std::env::var_os("PROPTEST_CASES").is_none() {
        config.cases /= 4;
    }
    // A failure becomes a readable, permanent test in `regressions`.
    config.failure_persistence = None;
    config
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn one_owner(scale in scale(), sessions in sessions()) {
        run(Mode::Single, scale, &sessions);
    }

    #[test]
    fn shared_with_a_lock(scale in scale(), sessions in sessions()) {
        run(Mode::Lock, scale, &sessions);
    }

    #[test]
    fn shared_with_a_token(scale in scale(), sessions in sessions()) {
        run(Mode::Token, scale, &sessions);
    }

    #[test]
    fn one_owner_then_shared(scale in scale(), sessions in sessions()) {
        run(Mode::Turns, scale, &sessions);
    }

    #[test]
    fn a_family_of_trees(scale in scale(), events in events()) {
        family::alone(scale, &events);
    }

    #[test]
    fn a_family_of_shared_trees(scale in scale(), events in events()) {
        family::shared(scale, &events);
    }

    #[test]
    fn a_walk_beside_a_writer(
        scale in scale(),
        before in ops(12),
        walker in walker(),
        during in interrupted(),
    ) {
        concurrent::run(scale, &before, walker, &during);
    }
}
