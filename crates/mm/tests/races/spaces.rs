//! Faults during calls that change the same pages, from seeds on the machine in
//! software.
//!
//! Each CPU writes to a word of its own in each page, so it knows what it must read: its last
//! value, or zero if a call has emptied the page since. The caller counts: an odd count means that
//! a call is under way, and nothing is known.

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use crate::common::*;
use machine::Step;
use mm::*;
use paging::{Aarch64, Format, X86_64L4};
use sim::{Arch, Config, Failure, Grace, Sim, seeded};

const SEEDS: u64 = if cfg!(debug_assertions) { 150 } else { 300 };
const SHARED: MapFlags = MapFlags::SHARED.union(MapFlags::ANONYMOUS).union(MapFlags::FIXED);
/// The last page of a table, and the first of the next one.
const AT: usize = 0x3fff_f000;
const LEN: usize = 2 * PAGE;
/// Where the pages move to.
const FAR: usize = 0x55_0000_1000;

/// The caller's operation.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Call {
    Unmap,
    MapOver,
    Discard,
    Protect,
    Move,
}

impl Call {
    const ALL: [Call; 5] = [Call::Unmap, Call::MapOver, Call::Discard, Call::Protect, Call::Move];

    /// Whether the pages are new afterwards.
    fn empties(self) -> bool {
        !matches!(self, Call::Protect | Call::Move)
    }
}

/// The calls begun and ended.
struct Count<'s>(&'s Sim, AtomicU64);

impl Count<'_> {
    fn now(&self) -> u64 {
        self.0.step(machine::SharedAccess::Other);
        // SeqCst: the driver runs one CPU at a time.
        self.1.load(SeqCst)
    }

    fn add_one(&self) {
        self.0.step(machine::SharedAccess::Other);
        // SeqCst: as above.
        self.1.fetch_add(1, SeqCst);
    }
}

/// Writes and reads the words of a CPU, and checks what it reads.
fn touch<F: Format>(sim: &Sim, space: &SpaceOf<F>, count: &Count<'_>, call: Call, cpu: usize) {
    // The value of each word, and the count at which it was written.
    let mut words = [(0, 0); 2];
    for round in 0..8 {
        let page = (round + cpu) % 2;
        let at = AT + page * PAGE + 8 * cpu;
        let before = count.now();
        let value = (round as u64 + 1) << 8 | cpu as u64;
        let writes = round % 3 != 1;
        let outcome = match writes {
            true => store(sim, space, at, value).map(|()| value),
            false => load(sim, space, at),
        };
        let steady = before.is_multiple_of(2) && count.now() == before;
        match outcome {
            Ok(_) if writes => words[page] = (value, before),
            Ok(found) if steady => {
                let (written, when) = words[page];
                let kept = !call.empties() || when == before;
                assert!(
                    found == written && kept || found == 0 && (!kept || written == 0),
                    "{found:#x} is read at {before}, {written:#x} was written at {when}"
                );
            }
            Ok(_) => {}
            Err(error) => assert!(!steady, "{error} at {before}"),
        }
        // A write that a call overtook may be gone or not.
        if writes && !steady {
            words[page] = match load_settled(sim, space, count, at) {
                Some((found, now)) => (found, now),
                None => return,
            };
        }
        Grace::reclaim(usize::MAX);
    }
}

/// Reads a word while no call is under way.
fn load_settled<F: Format>(
    sim: &Sim,
    space: &SpaceOf<F>,
    count: &Count<'_>,
    at: usize,
) -> Option<(u64, u64)> {
    for _ in 0..40 {
        let before = count.now();
        let found = load(sim, space, at);
        if before.is_multiple_of(2) && count.now() == before {
            return Some((found.expect("memory is mapped between calls"), before));
        }
        sim.relax();
    }
    None
}

fn move_to<F: Format>(space: &SpaceOf<F>, from: usize, to: usize) {
    assert_eq!(space.mremap(RemapRequest::moving(from, LEN, to)), Ok(to));
}

fn call<F: Format>(
    sim: &Sim,
    space: &SpaceOf<F>,
    count: &Count<'_>,
    (call, flags): (Call, MapFlags),
) {
    for _ in 0..3 {
        count.add_one();
        match call {
            Call::Unmap => {
                space.munmap(AT, LEN).unwrap();
                assert_eq!(space.resident(AT..AT + LEN), 0, "a page is left in a hole");
                assert_eq!(space.mmap(AT, LEN, 3, flags), Ok(AT));
            }
            Call::Move => {
                move_to(space, AT, FAR);
                assert_eq!(space.resident(AT..AT + LEN), 0, "a page is left in a hole");
                move_to(space, FAR, AT);
            }
            Call::MapOver => assert_eq!(space.mmap(AT, LEN, 3, flags), Ok(AT)),
            Call::Discard => space.madvise(AT, LEN, Advice::DontNeed).unwrap(),
            Call::Protect => {
                space.mprotect(AT, LEN, 1, None).unwrap();
                let words = || [0, 8, PAGE, PAGE + 8].map(|at| load(sim, space, AT + at).unwrap());
                let before = words();
                sim.relax();
                assert_eq!(words(), before, "written after mprotect returned");
                space.mprotect(AT, LEN, 3, None).unwrap();
            }
        }
        count.add_one();
        Grace::reclaim(usize::MAX);
    }
}

/// One run: `touch` on two CPUs, during `call` on a third. The memory is mapped with
/// `flags`.
fn run<F: Format>(
    arch: Arch,
    seed: u64,
    flags: MapFlags,
    touch: impl Fn(&Sim, &SpaceOf<F>, &Count<'_>, usize) + Sync,
    call: impl Fn(&Sim, &SpaceOf<F>, &Count<'_>) + Sync,
) -> Result<(), Failure> {
    let config = Config { arch, tick: Some(23), speculation: 100, ..racing(3, 96) };
    let race = RaceOf::<F>::new(config, |space| _ = space.mmap(AT, LEN, 3, flags).unwrap());
    let (sim, space, touch) = (&race.sim, &*race.space, &touch);
    let count = &Count(sim, AtomicU64::new(0));
    let program = |cpu: usize| race.active(move || touch(sim, space, count, cpu));
    let caller = race.active(|| call(sim, space, count));
    seeded(sim, seed, vec![program(0), program(1), caller])?;
    race.end(())
}

fn faults_during<F: Format>(arch: Arch, what: Call, flags: MapFlags) {
    each_seed(SEEDS, |seed| {
        run::<F>(
            arch,
            seed,
            flags,
            |sim, space, count, cpu| touch(sim, space, count, what, cpu),
            |sim, space, count| call(sim, space, count, (what, flags)),
        )
    });
}

#[test]
fn faults_during_calls() {
    for what in Call::ALL {
        faults_during::<X86_64L4>(Arch::X86_64, what, FIXED);
    }
}

/// The pages are those of an object, which is another one after each call.
#[test]
fn faults_of_an_object_during_calls() {
    for what in [Call::Unmap, Call::MapOver, Call::Move] {
        faults_during::<X86_64L4>(Arch::X86_64, what, SHARED);
    }
}

/// On AArch64 the old page is flushed before a fault stores the new one.
#[test]
fn faults_break_before_they_make() {
    for what in Call::ALL {
        faults_during::<Aarch64>(Arch::Aarch64, what, FIXED);
    }
}

/// Writes to a word while the map is read-only, and is replaced by a writable one. A write that
/// succeeds was a write into the new map, so it must be found there.
fn write_into_new(sim: &Sim, space: &Space, count: &Count<'_>, cpu: usize) {
    for round in 0..24 {
        let at = AT + round % 2 * PAGE + 8 * cpu;
        let before = count.now();
        if before % 3 != 2 {
            sim.relax();
            continue;
        }
        let value = (round as u64 + 1) << 8 | cpu as u64;
        if store(sim, space, at, value).is_ok() {
            let found = load(sim, space, at);
            if count.now() <= before + 1 {
                assert_eq!(found, Ok(value), "a write into the new map is lost");
            }
        }
        Grace::reclaim(usize::MAX);
    }
}

#[test]
fn a_map_over_another_loses_no_write() {
    let replace = |sim: &Sim, space: &Space, count: &Count<'_>| {
        // The new map joins it, and so has an anon_vma from the start.
        space.mmap(AT - PAGE, PAGE, 3, FIXED).unwrap();
        store(sim, space, AT - PAGE, 1).unwrap();
        for _ in 0..3 {
            count.add_one();
            assert_eq!(space.mmap(AT, LEN, 3, FIXED), Ok(AT));
            // Pages of the read-only map, which must go.
            assert_eq!(space.madvise(AT, LEN, Advice::PopulateWrite), Ok(()));
            assert_eq!(space.mprotect(AT, LEN, 1, None), Ok(()));
            count.add_one();
            assert_eq!(space.mmap(AT, LEN, 3, FIXED), Ok(AT));
            count.add_one();
            Grace::reclaim(usize::MAX);
        }
    };
    each_seed(SEEDS, |seed| run::<X86_64L4>(Arch::X86_64, seed, FIXED, write_into_new, replace));
}
