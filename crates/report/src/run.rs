//! The run that figures come from: the command, the machine and the day.

use alloc::string::String;
use serde::{Deserialize, Serialize};

/// The unit that the clock of a run counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Clock {
    /// Time. It depends on the machine and on its load.
    #[default]
    Time,
    /// Instructions: rows in nanoseconds are numbers of instructions, the same in each run.
    Instructions,
}

/// One run of a benchmark or of a traced program. It is the first line of a result, so that a
/// reader knows where the figures below it were measured.
///
/// ```
/// use report::{Clock, Run};
/// let run = Run { run: "samara bench gup".into(), clock: Clock::Instructions, ..Run::default() };
/// assert_eq!((run.clock, run.processors), (Clock::Instructions, 0));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// The command line.
    pub run: String,
    /// The version of Samara.
    pub version: String,
    /// The machine that was measured, if it is not the host itself: an emulator, a simulation.
    pub machine: String,
    /// The host's processor.
    pub processor: String,
    /// The number of the host's processors.
    pub processors: usize,
    /// The host's system.
    pub system: String,
    /// The unit that the clock counts.
    pub clock: Clock,
    /// The day, as in 2026-11-25, in UTC.
    pub date: String,
    /// The processes that were ready to run on the host when the run began, on average over a
    /// minute. More than half of the processors disturb times. `None` if the host does not tell.
    pub load: Option<f64>,
}
