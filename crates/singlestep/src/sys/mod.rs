//! Counting on Linux on x86-64: a child that runs, and a tracer that steps it and records.

mod access;
mod affinity;
mod child;
mod code;
mod marker;
mod permission;
mod repeat;
mod stack;
mod step;
mod tally;
mod tracee;
mod xstate;

use crate::{Counts, Error, Phase, operation::Plan};
use affinity::Bound;
use code::Code;
use marker::MarkerKind;
use tally::Tally;
use tracee::Tracee;

/// Forks, follows the child through its markers, and computes the counts.
pub(crate) fn count<T, S, O>(plan: Plan<'_, T>, setup: S, op: O) -> Result<Counts, Error>
where
    S: FnOnce() -> T,
    O: FnMut(&mut T),
{
    let runs = plan.runs;
    let stack_low = stack::low()?;
    let mut tracee = Tracee::fork(plan.time_limit, || child::live(plan, setup, op))?;

    let (address, length) = tracee.run_to(MarkerKind::Regions)?;
    let regions = marker::decode(&tracee.read(address, length)?)
        .ok_or(Error::Confused("its list of regions is invalid"))?;
    let _bound = Bound::to_one_cpu(tracee.pid());
    let mut code = Code::default();
    let mut tallies = Vec::new();
    for _ in 0..runs {
        tracee.phase = Phase::Preparing;
        tracee.run_to(MarkerKind::Begin)?;
        tracee.phase = Phase::Measuring;
        let mut tally = Tally::new(&regions, stack_low);
        step::through(&tracee, &mut code, &mut tally)?;
        tallies.push(tally);
    }
    Ok(tally::sum_up(&regions, &tallies))
}
