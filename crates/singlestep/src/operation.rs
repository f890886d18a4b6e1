//! What is to be measured, and how often.

use std::time::Duration;

use crate::{Counts, Error, Region, sys};

/// Names the regions of a state.
type Namer<'a, T> = Box<dyn FnOnce(&T) -> Vec<Region> + 'a>;

/// What the measured child runs.
pub(crate) struct Plan<'a, T> {
    /// Before each run, not counted.
    pub(crate) prepare: Box<dyn FnMut(&mut T) + 'a>,
    /// Names parts of memory, once the state is warm.
    pub(crate) regions: Namer<'a, T>,
    /// Runs that are not measured.
    pub(crate) warm_up: usize,
    /// Runs that are; not zero.
    pub(crate) runs: usize,
    /// For everything.
    pub(crate) time_limit: Duration,
}

/// An operation on a state, to be counted by [`count`](Operation::count).
pub struct Operation<'a, T, S, O> {
    setup: S,
    op: O,
    plan: Plan<'a, T>,
}

/// An operation on a state that `setup` makes. 16 runs to warm up and 16 measured ones, nothing to
/// prepare, no regions, one minute at most.
///
/// `setup` and everything after it runs in a child process, so what they change is gone
/// afterwards. What the operation returns it should store in the state, or hand to
/// [`black_box`](std::hint::black_box), lest the compiler remove the work.
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
    /// What runs before each run, also those that warm up, and is not counted: for example to give
    /// back what the last run took, so that each run is one operation in the steady state.
    pub fn prepare(mut self, prepare: impl FnMut(&mut T) + 'a) -> Self {
        self.plan.prepare = Box::new(prepare);
        self
    }

    /// Names parts of memory. Asked once, between warm-up and the first measured run.
    pub fn regions(mut self, regions: impl FnOnce(&T) -> Vec<Region> + 'a) -> Self {
        self.plan.regions = Box::new(regions);
        self
    }

    /// How many runs warm up: lazy initialisation and symbol binding happen in them.
    pub fn warm_up(mut self, runs: usize) -> Self {
        self.plan.warm_up = runs;
        self
    }

    /// How many runs are measured.
    pub fn runs(mut self, runs: usize) -> Self {
        self.plan.runs = runs;
        self
    }

    /// How long all of it may take, setup included.
    pub fn time_limit(mut self, limit: Duration) -> Self {
        self.plan.time_limit = limit;
        self
    }

    /// Forks, runs and counts. Blocks until done; a step takes some microseconds (see the README).
    /// While it lasts, the calling thread is bound to one processor, since that halves the time.
    ///
    /// The child has the calling thread only. Call this while no other thread holds a lock that
    /// the closures need (the C library's allocator sees to its own locks); otherwise the child
    /// waits for a thread that it does not have, and the time limit ends it. No thread may reap
    /// children it does not know (`waitpid(-1)`, `SIGCHLD` ignored) meanwhile. In the child, panics
    /// print nothing, and asynchronous signals are blocked.
    ///
    /// # Errors
    /// See [`Error`]; no child is left behind in any case.
    pub fn count(self) -> Result<Counts, Error> {
        if self.plan.runs == 0 {
            return Err(Error::NoRuns);
        }
        sys::count(self.plan, self.setup, self.op)
    }
}
