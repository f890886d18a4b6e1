//! Runs a script: on several CPUs from a seed, or on one CPU in an order of steps.

use std::{
    fmt,
    mem::ManuallyDrop,
    sync::{
        Mutex,
        atomic::{AtomicU32, Ordering::SeqCst},
    },
};

use crate::{
    apply::Hand,
    common::{activate, leave},
    end::{self, State},
    laws::Laws,
    ops::{IS_HUGE, Op, Parts},
    orders::Span,
    out::OpResult,
    world::{World, WorldKind},
};
use machine::Step;
use sim::{Failure, Program, seeded, stopped};

/// A thread of a process, which runs on a CPU of its own.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Thread {
    pub(crate) process: usize,
    pub(crate) ops: Vec<Op>,
}

/// A run: its world, and its threads.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Script {
    pub(crate) kind: WorldKind,
    pub(crate) threads: Vec<Thread>,
}

impl fmt::Display for Script {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "in the world {:?}:", self.kind)?;
        for Thread { process, ops } in &self.threads {
            write!(f, "\n    process {process}: {ops:?}")?;
        }
        Ok(())
    }
}

impl Script {
    pub(crate) fn ops(&self) -> impl Iterator<Item = Op> {
        self.threads.iter().flat_map(|thread| thread.ops.iter().copied())
    }

    /// Whether it is one thread, of which only the laws are of interest.
    pub(crate) fn is_chain(&self) -> bool {
        self.threads.len() == 1
    }
}

/// The results of a run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Seen {
    pub(crate) outs: Vec<Vec<OpResult>>,
    pub(crate) state: State,
}

/// The most operations of a thread that is not alone.
pub(crate) const LENGTH: usize = 3;

fn number(thread: usize, op: usize) -> usize {
    thread * LENGTH + op
}

/// A run of a script on several CPUs.
pub(crate) struct Run {
    pub(crate) seen: Seen,
    /// When each operation began and ended.
    pub(crate) spans: Vec<Vec<Span>>,
    /// Whether the first thread has stopped. If not, it has no later place to stop at.
    pub(crate) has_stopped: bool,
}

/// Runs the script on as many CPUs as it has threads.
pub(crate) fn concurrent(script: &Script, seed: u64) -> Result<Run, Failure> {
    IS_HUGE.set(script.kind.is_huge());
    let tick = seed.is_multiple_of(2).then_some(23);
    let world = World::build(script.kind, script.threads.len(), tick);
    let clock = AtomicU32::new(0);
    let now = || {
        world.sim.step(machine::SharedAccess::Other);
        // SeqCst: the driver runs one CPU at a time.
        clock.fetch_add(1, SeqCst)
    };
    let ended: Vec<_> = script.threads.iter().map(|_| Mutex::new(Vec::new())).collect();
    // As in a sequential run, pins are held until all threads have ended.
    let held = Mutex::new(Vec::new());
    let programs =
        script.threads.iter().enumerate().zip(&ended).map(|((number_of, thread), ended)| {
            let (world, now, held) = (&world, &now, &held);
            Box::new(move || {
                let mut hand = Hand::new(world, thread.process);
                activate(hand.space());
                for (index, &op) in thread.ops.iter().enumerate() {
                    let begun = now();
                    let out = hand.apply(op, number(number_of, index));
                    let span = Span { begun, ended: now(), is_access: op.is_access(), steps: 1 };
                    ended.lock().unwrap().push((out, span));
                }
                held.lock().unwrap().extend(hand.pin.take());
                leave(hand.space());
            }) as Program<'_>
        });
    let programs = programs.collect();
    let has_stopped = match crate::number("SAMARA_STOP") {
        Some(stride) => stopped(&world.sim, seed, seed * stride, programs)?.is_some(),
        None => seeded(&world.sim, seed, programs).map(|_| true)?,
    };
    world.sim.on_cpu(0, || drop(held));
    let (outs, spans) = ended
        .into_iter()
        .map(|ended| ended.into_inner().unwrap().into_iter().unzip::<_, _, Vec<_>, Vec<_>>())
        .unzip();
    let state = finish(world)?;
    Ok(Run { seen: Seen { outs, state }, spans, has_stopped })
}

/// Looks at the state, and ends the world.
fn finish(world: ManuallyDrop<World>) -> Result<State, Failure> {
    let state = Mutex::new(State::new());
    let look = || *state.lock().unwrap() = end::look(&world);
    // Under the driver, so that a call that never ends fails the run.
    seeded(&world.sim, 0, vec![Box::new(look)])?;
    ManuallyDrop::into_inner(world).end()?;
    Ok(state.into_inner().unwrap())
}

/// Whether an operation is carried out as one call, or as its parts one by one: a bit for each
/// operation of the script, in the order of [`Script::ops`].
pub(crate) type Split = u32;

/// An access that comes before operations of its own thread, since it is stale.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Move {
    pub(crate) thread: usize,
    /// Its place in the program, and in this order.
    pub(crate) from: usize,
    pub(crate) to: usize,
    /// It may come this early.
    pub(crate) since: u32,
}

/// A thread on its way.
struct Progress<'w> {
    hand: Hand<'w>,
    /// The places of the operations in the program, in the order in which they are carried out.
    places: std::vec::IntoIter<usize>,
    op: usize,
    part: usize,
    out: OpResult,
    stopped: bool,
    outs: Vec<OpResult>,
}

/// The places of a thread's operations in the order in which they are carried out.
fn places(ops: usize, thread: usize, moves: &[Move]) -> std::vec::IntoIter<usize> {
    let mut places: Vec<_> = (0..ops).collect();
    for one in moves.iter().filter(|one| one.thread == thread) {
        let place = places.remove(one.from);
        places.insert(one.to, place);
    }
    places.into_iter()
}

/// The parts of each operation, if these operations are split.
pub(crate) fn parts(script: &Script, split: Split) -> Vec<Vec<Parts>> {
    let mut number = 0;
    let mut of = |op: Op| {
        number += 1;
        match split & 1 << (number - 1) {
            0 => Parts { ops: vec![op], join: crate::ops::Join::Stop },
            _ => op.parts(script.kind),
        }
    };
    script.threads.iter().map(|thread| thread.ops.iter().map(|&op| of(op)).collect()).collect()
}

/// Runs the script on one CPU, in this order of the threads' steps, with these operations split,
/// and these accesses moved. Returns what was seen, or, if it is `with_laws`, one that was broken:
/// the laws look at objects, so the results may differ.
pub(crate) fn sequential(
    script: &Script,
    (split, moves): (Split, &[Move]),
    order: &[u8],
    with_laws: bool,
) -> Result<(Seen, Option<String>), Failure> {
    IS_HUGE.set(script.kind.is_huge());
    let world = World::build(script.kind, 1, None);
    let ended = Mutex::new((Vec::new(), None));
    let run = || {
        let mut laws = with_laws.then(|| Laws::new(&world));
        let parts = parts(script, split);
        let mut threads: Vec<_> = script
            .threads
            .iter()
            .enumerate()
            .map(|(number, thread)| Progress {
                hand: Hand::new(&world, thread.process),
                places: places(thread.ops.len(), number, moves),
                op: 0,
                part: 0,
                out: OpResult::default(),
                stopped: false,
                outs: vec![OpResult::default(); thread.ops.len()],
            })
            .collect();
        let mut active = usize::MAX;
        for &which in order {
            let (which, thread) = (usize::from(which), &mut threads[usize::from(which)]);
            if thread.part == 0 {
                thread.op = thread.places.next().unwrap();
                thread.stopped = false;
            }
            let parts = &parts[which][thread.op];
            if std::mem::replace(&mut active, script.threads[which].process)
                != script.threads[which].process
            {
                activate(thread.hand.space());
            }
            let op = parts.ops[thread.part];
            if !thread.stopped {
                if let Some(laws) = &mut laws {
                    laws.before(&thread.hand, op);
                }
                let out = thread.hand.apply(op, number(which, thread.op));
                if let Some(laws) = &mut laws {
                    laws.after(&thread.hand, op, &out);
                }
                thread.stopped = !thread.out.then(out, parts.join);
            }
            thread.part += 1;
            if thread.part == parts.ops.len() {
                thread.outs[thread.op] = std::mem::take(&mut thread.out);
                thread.part = 0;
            }
        }
        let outs = threads.into_iter().map(|thread| thread.outs).collect::<Vec<_>>();
        if active != usize::MAX {
            leave(&world.processes[active]);
        }
        *ended.lock().unwrap() = (outs, laws.and_then(Laws::broken));
    };
    seeded(&world.sim, 0, vec![Box::new(run)])?;
    let (outs, broken) = ended.into_inner().unwrap();
    let state = match with_laws {
        true => ManuallyDrop::into_inner(world).end().map(|()| State::new())?,
        false => finish(world)?,
    };
    Ok((Seen { outs, state }, broken))
}
