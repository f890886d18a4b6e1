//! The tree against a `BTreeMap` of ranges: every operation, both cursors, every mode.
//!
//! `PROPTEST_CASES=10000 cargo test --release -p maple --test model` looks harder, and
//! `--features small-nodes` makes every tree deep.
#![cfg(not(loom))]

mod ledger;
mod oracle;
mod play;
mod regressions;
mod run;
mod script;
mod strategy;

use proptest::prelude::*;
use run::{Mode, run};
use strategy::{scale, sessions};

proptest! {
    #![proptest_config(ProptestConfig { max_shrink_iters: 20_000, ..ProptestConfig::default() })]

    #[test]
    fn one_owner(scale in scale(), sessions in sessions()) {
        run::<0>(Mode::Single, scale, &sessions);
    }

    #[test]
    fn shared_with_a_lock(scale in scale(), sessions in sessions()) {
        run::<1>(Mode::Lock, scale, &sessions);
    }

    #[test]
    fn shared_with_a_token(scale in scale(), sessions in sessions()) {
        run::<2>(Mode::Token, scale, &sessions);
    }

    #[test]
    fn one_owner_then_shared(scale in scale(), sessions in sessions()) {
        run::<3>(Mode::Turns, scale, &sessions);
    }
}
