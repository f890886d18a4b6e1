//! Fuzzes the tree with the model test of maple, with small nodes. The bytes encode the script.
#![no_main]

#[path = "../../crates/maple/tests/model/family.rs"]
mod family;
// The model test itself uses more items of these two modules.
#[allow(dead_code)]
#[path = "../../crates/maple/tests/model/ledger.rs"]
mod ledger;
#[allow(dead_code)]
#[path = "../../crates/maple/tests/model/oracle.rs"]
mod oracle;
#[allow(dead_code)]
#[path = "../../crates/trace/tests/common/patience.rs"]
mod patience;
#[path = "../../crates/maple/tests/model/play.rs"]
mod play;
#[path = "../../crates/maple/tests/model/run.rs"]
mod run;
#[path = "../../crates/maple/tests/model/script.rs"]
mod script;

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use run::{Mode, run};
use script::{Event, Scale, Session};

#[derive(Arbitrary, Debug)]
enum Script {
    /// One tree.
    One(u8, Vec<Session>),
    /// Several trees that share nodes.
    Family(bool, Vec<(u8, Event)>),
}

fuzz_target!(|input: (u8, Script)| {
    let (scale, script) = input;
    let scale = Scale(u32::from(scale % 57));
    match script {
        Script::One(mode, sessions) => {
            let mode = [Mode::Single, Mode::Lock, Mode::Token, Mode::Turns][usize::from(mode % 4)];
            run(mode, scale, &sessions);
        }
        Script::Family(false, events) => family::alone(scale, &events),
        Script::Family(true, events) => family::shared(scale, &events),
    }
});
