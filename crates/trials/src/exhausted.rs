//! The `exhausted` trial: memory runs out on all CPUs at once.
//!
//! The CPUs take every frame there is. Then each call that needs a frame must return an error that
//! says so, and all mappings must be unchanged (I7). When half of the frames are given back, the
//! calls must work again. In the end everything must be free.

mod calls;
mod hoard;
mod mappings;

use crate::environment::Environment;
use crate::program::Program;
use crate::space::{self, Areas};
use crate::worker::{Outcome, Worker, fail};
use alloc::format;
use alloc::string::String;
use calls::Calls;
use grace::Concurrent;
use hoard::Hoard;
use machine::{Machine, Translated, VirtAddr, VirtRange};
use mappings::Mappings;
use paging::Format;
use vmap::Options;

/// Quiescent states until no frame waits for a grace period.
const QUIET: usize = 16;
/// Free frames for each CPU, for calls that need more.
const FEW: usize = 3;

/// Shared by the CPUs.
struct Shared<'g, 'a, M: Machine, F: Format, G: Concurrent> {
    env: &'g Environment<'a, M, F, G>,
    program: &'g Program<'g, 'a, M, F, G>,
    /// Kernel addresses without tables.
    part: VirtRange,
    /// A space in which there are areas, and one in which there have never been any.
    used: &'g Areas<M, F, G>,
    bare: &'g Areas<M, F, G>,
}

pub(crate) fn exhausted<M: Machine + Translated, F: Format, G: Concurrent>(
    env: &Environment<'_, M, F, G>,
) -> Result<(), String> {
    env.whole(|| (0..env.rounds).try_for_each(|_| round(env)))
}

fn round<M: Machine + Translated, F: Format, G: Concurrent>(
    env: &Environment<'_, M, F, G>,
) -> Result<(), String> {
    let part = env.part(7)?;
    let used = space::make(env, 5, 16, Options::default())?;
    // Large enough for areas of all CPUs at once with too few tables, and for freed areas that
    // wait.
    let bare = match space::make(env, 6, 64 * env.cpus as u64, Options::default()) {
        Ok(bare) => bare,
        Err(text) => return space::end(env, used).and(Err(text)),
    };
    let result = Program::new(env).and_then(|program| {
        let shared = Shared { env, program: &program, part, used: &used, bare: &bare };
        let result = env.at_once(|worker| program.inside(|| shared.run(worker)));
        result.and(program.end())
    });
    let (used, bare) = (space::end(env, used), space::end(env, bare));
    let pruned = env.on_first(|| env.prune(part));
    result.and(used).and(bare).and(pruned)
}

impl<M: Machine + Translated, F: Format, G: Concurrent> Shared<'_, '_, M, F, G> {
    fn run(&self, worker: &mut Worker<'_, M>) -> Outcome {
        let mut mappings = Mappings::new(self, worker.cpu)?;
        let mut hoard = Hoard::new(self.env.host.machine);
        let done = mappings.begin().and_then(|()| self.exhaust(worker, &mappings, &mut hoard));
        // All that was taken is given back, even after an error.
        let given = hoard.give(usize::MAX);
        let ended = mappings.end();
        self.used.idle();
        self.bare.idle();
        done.and(given).and(ended)
    }

    fn exhaust(
        &self,
        worker: &Worker<'_, M>,
        mappings: &Mappings<'_, '_, '_, M, F, G>,
        hoard: &mut Hoard<'_, M>,
    ) -> Outcome {
        worker.meet()?;
        // Frames that wait for a grace period must not come back during the trial.
        for _ in 0..QUIET {
            (self.env.host.quiet)();
            worker.meet()?;
        }
        self.env.tables.paging().quick().drain();
        worker.meet()?;
        hoard.fill()?;
        worker.meet()?;
        // Frames that another CPU had for a moment.
        hoard.fill()?;
        worker.meet()?;
        mappings.look("when all frames are taken")?;
        let calls = Calls::new(self, mappings);
        calls.are_refused(hoard)?;
        mappings.look("after calls that failed without memory")?;
        worker.meet()?;
        hoard.give(FEW)?;
        worker.meet()?;
        calls.are_too_large(hoard, FEW * self.env.cpus)?;
        mappings.look("after calls that wanted more memory than there was")?;
        worker.meet()?;
        hoard.give(hoard.len() / 2)?;
        worker.meet()?;
        calls.are_granted()?;
        mappings.look("after calls that worked again")?;
        worker.meet()
    }

    /// The address so many bytes into this CPU's kernel addresses.
    fn kernel_at(&self, cpu: usize, bytes: u64) -> Outcome<VirtAddr> {
        let at = self.part.start().checked_add(((cpu as u64) << 27) + bytes);
        match at.filter(|at| self.part.contains(*at)) {
            Some(at) => Ok(at),
            None => fail(format!("{:?} is too short for cpu{cpu}", self.part)),
        }
    }

    /// The address so many bytes into this CPU's part of the program.
    fn program_at(&self, cpu: usize, bytes: u64) -> VirtAddr {
        VirtAddr::new(0x40_0000_0000 + ((cpu as u64) << 30) + bytes)
    }
}
