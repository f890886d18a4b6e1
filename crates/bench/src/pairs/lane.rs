//! The work of one thread, repeated, and its speed.

use crate::clock;
use crate::cpus;
use crate::maps::Concurrent;
use crate::peer::{Reader, Writer};
use crate::workload::Move;
use std::hint::black_box;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Operations under one guard or lock, where these are held.
const HELD: usize = 64;

/// Nanoseconds an operation.
#[derive(Clone, Copy)]
pub(crate) struct Speed {
    /// By the thread's processor time.
    pub(crate) processor: f64,
    /// By the wall clock.
    pub(crate) wall: f64,
}

/// Work without an end.
pub(crate) trait Lane: Send {
    /// Runs some operations, and returns their number.
    fn step(&mut self) -> usize;
}

/// Lookups of random keys. `more` runs with each.
pub(crate) struct Reads<'a, P, F> {
    map: &'a P,
    keys: &'a [usize],
    at: usize,
    more: F,
}

impl<'a, P, F: Fn(usize) + Send> Reads<'a, P, F> {
    pub(crate) fn new(map: &'a P, keys: &'a [usize], more: F) -> Self {
        Reads { map, keys, at: 0, more }
    }
}

impl<P: Concurrent, F: Fn(usize) + Send> Lane for Reads<'_, P, F> {
    fn step(&mut self) -> usize {
        let piece = &self.keys[self.at..(self.at + HELD).min(self.keys.len())];
        self.at = (self.at + piece.len()) % self.keys.len();
        let reader = self.map.reader();
        for &key in piece {
            black_box(reader.load(key));
            (self.more)(key);
        }
        piece.len()
    }
}

/// Random moves, which end where they began. `more` runs with each half of a move.
pub(crate) struct Writes<'a, P, F> {
    map: &'a P,
    moves: Vec<Move>,
    at: usize,
    more: F,
}

impl<'a, P, F: Fn(usize) + Send> Writes<'a, P, F> {
    pub(crate) fn new(map: &'a P, moves: Vec<Move>, more: F) -> Self {
        Writes { map, moves, at: 0, more }
    }
}

impl<P: Concurrent, F: Fn(usize) + Send> Lane for Writes<'_, P, F> {
    fn step(&mut self) -> usize {
        let piece = &self.moves[self.at..(self.at + HELD / 2).min(self.moves.len())];
        self.at = (self.at + piece.len()) % self.moves.len();
        let mut writer = self.map.concurrent_writer();
        for step in piece {
            writer.erase(step.from);
            (self.more)(step.from.start);
            writer.insert(step.to);
            (self.more)(step.to.start);
        }
        2 * piece.len()
    }
}

/// Runs the lanes at once, each on its processor, for so many milliseconds.
pub(crate) fn run(lanes: &mut [(usize, &mut dyn Lane)], milliseconds: u64) -> Vec<Speed> {
    let stop = AtomicBool::new(false);
    let ready = Barrier::new(lanes.len() + 1);
    thread::scope(|scope| {
        let threads: Vec<_> = lanes
            .iter_mut()
            .map(|(cpu, lane)| {
                let (stop, ready) = (&stop, &ready);
                scope.spawn(move || {
                    let pinned = cpus::allow(&[*cpu]);
                    ready.wait();
                    pinned.expect("a processor that is allowed");
                    measure(&mut **lane, stop)
                })
            })
            .collect();
        ready.wait();
        thread::sleep(Duration::from_millis(milliseconds));
        // Relaxed: it carries nothing but itself.
        stop.store(true, Ordering::Relaxed);
        threads.into_iter().map(|one| one.join().expect("a lane does not panic")).collect()
    })
}

fn measure(lane: &mut dyn Lane, stop: &AtomicBool) -> Speed {
    let (start, began) = (clock::thread_time(), Instant::now());
    let mut operations = 0;
    // Relaxed: as above. At least one step, however late this thread is.
    loop {
        operations += lane.step();
        if stop.load(Ordering::Relaxed) {
            break;
        }
    }
    let operations = operations as f64;
    let processor = clock::thread_time().saturating_sub(start) as f64 / operations;
    Speed { processor, wall: began.elapsed().as_nanos() as f64 / operations }
}
