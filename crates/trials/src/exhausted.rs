//! The `exhausted` trial: memory runs out on all CPUs at once.
//!
//! The CPUs take every frame there is. Then each call that needs a frame must return an error that
//! says so, and all mappings must be unchanged (I7). When half of the frames are given back, the
//! calls must work again. In the end everything must be free.

mod calls;
mod hand;
mod hoard;

use crate::crew::{Outcome, Told, Worker, seen};
use crate::ground::Ground;
use crate::own::Own;
use crate::program::Program;
use crate::space::{self, Areas};
use alloc::format;
use alloc::string::String;
use calls::Calls;
use grace::Concurrent;
use hand::Hand;
use hoard::Hoard;
use machine::{Machine, Translated, VirtAddr, VirtRange};
use paging::Format;
use vmap::Options;

/// Quiescent states until no frame waits for a grace period.
const QUIET: usize = 16;
/// Free frames for each CPU, for calls that need more.
const FEW: usize = 3;

/// Shared by the CPUs.
struct Stage<'g, 'a, M: Machine, F: Format, G: Concurrent> {
    ground: &'g Ground<'a, M, F, G>,
    program: &'g Program<'g, 'a, M, F, G>,
    /// Kernel addresses without tables.
    part: VirtRange,
    /// A space in which there are areas, and one in which there have never been any.
    used: &'g Areas<M, F, G>,
    bare: &'g Areas<M, F, G>,
}

pub(crate) fn exhausted<M: Machine + Translated, F: Format, G: Concurrent>(
    ground: &Ground<'_, M, F, G>,
) -> Result<(), String> {
    ground.whole(|| (0..ground.rounds).try_for_each(|_| round(ground)))
}

fn round<M: Machine + Translated, F: Format, G: Concurrent>(
    ground: &Ground<'_, M, F, G>,
) -> Result<(), String> {
    let part = ground.part(7)?;
    let used = space::make(ground, 5, 16, Options::default())?;
    // Large enough for areas of all CPUs at once with too few tables, and for freed areas that
    // wait.
    let bare = match space::make(ground, 6, 64 * ground.cpus as u64, Options::default()) {
        Ok(bare) => bare,
        Err(text) => return space::end(ground, used).and(Err(text)),
    };
    let result = Program::new(ground).and_then(|program| {
        let stage = Stage { ground, program: &program, part, used: &used, bare: &bare };
        let result = ground.at_once(|worker| program.inside(|| stage.run(worker)));
        result.and(program.end())
    });
    let (used, bare) = (space::end(ground, used), space::end(ground, bare));
    let pruned = ground.on_first(|| {
        ground.tables.prune_own(part).of("could not prune")?.flush();
        Ok(())
    });
    result.and(used).and(bare).and(pruned)
}

impl<M: Machine + Translated, F: Format, G: Concurrent> Stage<'_, '_, M, F, G> {
    fn run(&self, worker: &mut Worker<'_, M>) -> Outcome {
        let mut hand = Hand::new(self, worker.cpu)?;
        let mut hoard = Hoard::new(self.ground.host.machine);
        let done = hand.begin().and_then(|()| self.exhaust(worker, &hand, &mut hoard));
        // All that was taken is given back, even after an error.
        let given = hoard.give(usize::MAX);
        let ended = hand.end();
        self.used.idle();
        self.bare.idle();
        done.and(given).and(ended)
    }

    fn exhaust(
        &self,
        worker: &Worker<'_, M>,
        hand: &Hand<'_, '_, '_, M, F, G>,
        hoard: &mut Hoard<'_, M>,
    ) -> Outcome {
        worker.meet()?;
        // Frames that wait for a grace period must not come back during the trial.
        for _ in 0..QUIET {
            (self.ground.host.quiet)();
            worker.meet()?;
        }
        self.ground.tables.paging().quick().drain();
        worker.meet()?;
        hoard.fill()?;
        worker.meet()?;
        // Frames that another CPU had for a moment.
        hoard.fill()?;
        worker.meet()?;
        hand.look("when all frames are taken")?;
        let calls = Calls::new(self, hand);
        calls.are_refused(hoard)?;
        hand.look("after calls that failed without memory")?;
        worker.meet()?;
        hoard.give(FEW)?;
        worker.meet()?;
        calls.are_too_large(hoard, FEW * self.ground.cpus)?;
        hand.look("after calls that wanted more memory than there was")?;
        worker.meet()?;
        hoard.give(hoard.len() / 2)?;
        worker.meet()?;
        calls.are_granted()?;
        hand.look("after calls that worked again")?;
        worker.meet()
    }

    /// The address so many bytes into this CPU's kernel addresses.
    fn kernel_at(&self, cpu: usize, bytes: u64) -> Outcome<VirtAddr> {
        let at = self.part.start().checked_add(((cpu as u64) << 27) + bytes);
        match at.filter(|at| self.part.contains(*at)) {
            Some(at) => Ok(at),
            None => seen(format!("{:?} is too short for cpu{cpu}", self.part)),
        }
    }

    /// The address so many bytes into this CPU's part of the program.
    fn program_at(&self, cpu: usize, bytes: u64) -> VirtAddr {
        VirtAddr::new(0x40_0000_0000 + ((cpu as u64) << 30) + bytes)
    }
}
