//! An operation and the parameters of its measurement.

use std::time::Duration;

use crate::{Counts, Error, Region, sys};

/// Names the regions of a state.
type Namer<'a, T> = Box<dyn FnOnce(&T) -> Vec<Region> + 'a>;

/// The closures and parameters of the measured child.
pub(crate) struct Plan<'a, T> {
    /// Runs before each run. Not counted.
    pub(crate) prepare: Box<dyn FnMut(&mut T) + 'a>,
    /// Names parts of memory, after the warm-up.
    pub(crate) regions: Namer<'a, T>,
    /// Runs that are not measured.
    pub(crate) warm_up: usize,
    /// The number of measured runs, not zero.
    pub(crate) runs: usize,
    /// The time limit of the whole measurement.
    pub(crate) time_limit: Duration,
}

/// An operation on a state. [`count`](Operation::count) measures it.
pub struct Operation<'a, T, S, O> {
    setup: S,
    op: O,
    plan: Plan<'a, T>,
}

/// An operation on the state that `setup` makes. By default: 16 runs to warm up, 16 measured runs,
/// no preparation, no regions, and a time limit of one minute.
///
/// `setup` and everything after it run in a child process, so their changes are gone afterwards.
/// Store the results of the operation in the state, or pass them to
/// [`black_box`](std::hint::black_box), so that the compiler does not remove the work.
pub fn operation<'a, T, S, O>(setup: S, op: O) -> Operation<'a, T, S, O>
where
    S: FnOnce() -> T,
    O: FnMut(&mut T),
{
    let plan = Plan {
        prepare: Box::new(|_| ()),
        regions: Box::new(|_| Vec::new()),
        warm_up: 16,
        runs: 16,
        time_limit: Duration::from_secs(60),
    };
    Operation { setup, op, plan }
}

impl<'a, T, S, O> Operation<'a, T, S, O>
where
    S: FnOnce() -> T,
    O: FnMut(&mut T),
{
    /// Runs `prepare` before each run, also in the warm-up, without counting it. For example, it
    /// gives back the memory that the last run took, so that each run measures the steady state.
    pub fn prepare(mut self, prepare: impl FnMut(&mut T) + 'a) -> Self {
        self.plan.prepare = Box::new(prepare);
        self
    }

    /// Names parts of memory. Called once, between the warm-up and the first measured run.
    pub fn regions(mut self, regions: impl FnOnce(&T) -> Vec<Region> + 'a) -> Self {
        self.plan.regions = Box::new(regions);
        self
    }

    /// Sets the number of runs that warm up. Lazy initialisation and symbol binding happen in them.
    pub fn warm_up(mut self, runs: usize) -> Self {
        self.plan.warm_up = runs;
        self
    }

    /// Sets the number of measured runs.
    pub fn runs(mut self, runs: usize) -> Self {
        self.plan.runs = runs;
        self
    }

    /// Sets the time limit of the whole measurement, setup included.
    pub fn time_limit(mut self, limit: Duration) -> Self {
        self.plan.time_limit = limit;
        self
    }

    /// Forks, runs and counts. Blocks until it is done; each step takes some microseconds (see the
    /// README). Meanwhile the calling thread is bound to one processor, which halves the time.
    ///
    /// The child has only the calling thread. So no other thread may hold a lock that the closures
    /// need, or the child waits for it until the time limit. (The C library's allocator handles its
    /// own locks.) No thread may reap children that it does not know (`waitpid(-1)`, `SIGCHLD`
    /// ignored) meanwhile. In the child, panics print nothing, and asynchronous signals are
    /// blocked.
    ///
    /// # Errors
    /// See [`Error`]. No child is left behind in any case.
    pub fn count(self) -> Result<Counts, Error> {
        if self.plan.runs == 0 {
            return Err(Error::NoRuns);
        }
        sys::count(self.plan, self.setup, self.op)
    }
}
