//! The tree, on any script: what maple's model test does, from bytes, on small nodes.
#![no_main]

// The model's own tests use more of these two.
#[allow(dead_code)]
#[path = "../../crates/maple/tests/model/ledger.rs"]
mod ledger;
#[allow(dead_code)]
#[path = "../../crates/maple/tests/model/oracle.rs"]
mod oracle;
#[path = "../../crates/maple/tests/model/play.rs"]
mod play;
#[path = "../../crates/maple/tests/model/run.rs"]
mod run;
#[path = "../../crates/maple/tests/model/script.rs"]
mod script;

use libfuzzer_sys::fuzz_target;
use run::{Mode, run};
use script::{Scale, Session};

fuzz_target!(|script: (u8, u8, Vec<Session>)| {
    let (mode, scale, sessions) = script;
    let mode = [Mode::Single, Mode::Lock, Mode::Token, Mode::Turns][usize::from(mode % 4)];
    run::<0>(mode, Scale(u32::from(scale % 13)), &sessions);
});
