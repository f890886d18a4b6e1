//! A short run of the soak that `campaign/soak` runs for hours.

mod common;
#[path = "../examples/soak/run.rs"]
mod run;

use sim::Checks;
use std::time::Duration;

#[test]
fn a_second_of_mixed_use_on_four_cpus() {
    let done =
        run::soak(Duration::from_secs(1), 1, Checks::ALL, |progress| eprintln!("{progress}"));
    println!("{}", done.unwrap_or_else(|found| panic!("{found}")));
}
