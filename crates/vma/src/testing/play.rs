//! Turns bytes into calls and makes each call on both sides.

use super::{File, Kind, maps::Map, model::*, moves::Move, world::World};
use crate::{
    Advice, AttachRequest, Error, LockAll, MapFlags, MapRequest, PAGE_SIZE, Policy, RemapRequest,
    Uffd, VmFlags as V, WholeVma,
};

/// Numbers from bytes. After the last byte, all numbers are zero.
struct Dice<'b>(&'b [u8]);

impl<'b> Dice<'b> {
    /// Takes its numbers from these bytes.
    fn new(bytes: &'b [u8]) -> Self {
        Dice(bytes)
    }

    /// A number below `sides`, which is at most 256.
    fn roll(&mut self, sides: usize) -> usize {
        let Some((&first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        usize::from(first) % sides
    }

    fn one_in(&mut self, sides: usize) -> bool {
        self.roll(sides) == sides - 1
    }
}

/// Makes calls until the bytes are used up. Checks both sides after every call, and that nothing is
/// left at the end.
///
/// # Panics
/// If the two sides differ, or if ours violates an invariant.
pub fn play(bytes: &[u8]) {
    play_on(World::new(), bytes);
}

/// As [`play`], but every allocation of every call fails once. `allow` sets how many allocations
/// may still succeed; `None`: all.
///
/// It locks and populates nothing: without memory, populating skips pages, and the model does not
/// know which.
///
/// # Panics
/// As [`play`].
pub fn play_failing(bytes: &[u8], allow: fn(Option<usize>) -> Option<usize>) {
    play_on(World::new().failing(allow), bytes);
}

fn play_on(mut world: World, bytes: &[u8]) {
    let mut dice = Dice::new(bytes);
    let mut files = 4;
    while !dice.0.is_empty() {
        let i = dice.roll(8).min(world.pairs.len() - 1);
        let mut kind = dice.roll(64);
        if world.is_failing() && (47..=49).contains(&kind) {
            kind = 2;
        }
        if kind == 0 && world.pairs.len() < 5 {
            world.fork(i);
        } else if kind == 1 && world.pairs.len() > 1 {
            world.pairs.remove(i);
        } else {
            step(&mut world, i, kind, &mut dice, &mut files);
        }
        world.check();
    }
    world.finish();
}

fn errno(error: Error) -> i32 {
    error.errno()
}

fn unit(result: Result<(), Error>) -> Outcome {
    result.map(|()| 0).map_err(errno)
}

/// A random range of pages.
fn range(dice: &mut Dice<'_>) -> (usize, usize) {
    let start = LOWEST - 2 + dice.roll(40);
    (start, start + 1 + dice.roll(7))
}

fn some_file(dice: &mut Dice<'_>) -> Option<File> {
    match dice.roll(8) {
        0 | 1 => Some(File { id: 1, kind: Kind::Writable }),
        2 => Some(File { id: 2, kind: Kind::ReadOnly }),
        3 => Some(File { id: 3, kind: Kind::Zero }),
        _ => None,
    }
}

fn prot(dice: &mut Dice<'_>) -> u32 {
    [3, 1, 0, 3, 5, 7, 2, 3][dice.roll(8)]
}

/// One call on one address space, on both sides.
fn step(world: &mut World, i: usize, kind: usize, dice: &mut Dice<'_>, files: &mut u32) {
    let (start, end) = range(dice);
    let (at, len) = (start * PAGE_SIZE, (end - start) * PAGE_SIZE);
    let (ours, model): (Outcome, Outcome) = match kind {
        2..=17 => {
            let mut map = some_map(dice, start, end - start);
            if world.is_failing() {
                map.flags -= MapFlags::LOCKED | MapFlags::POPULATE;
            }
            let ours = mmap(world, i, &map);
            (ours, world.model(i, |m| m.mmap(&map)))
        }
        18..=23 => (
            unit(world.at_once(i, |s| s.munmap(at, len))),
            world.model(i, |m| m.unmap(start, end).map(|()| 0)),
        ),
        24..=29 => {
            let prot = prot(dice);
            (
                unit(world.ours(i, |s| s.mprotect(at, len, prot, None))),
                world.model(i, |m| m.mprotect(start, end, prot)),
            )
        }
        30..=36 => {
            let request = some_move(dice, start);
            let ours = mremap(world, i, &request);
            (ours, world.model(i, |m| m.mremap(request)))
        }
        37..=42 => {
            let page = start + dice.roll(2);
            // Mostly as a page fault does it, without the write right where that is enough.
            let done = !page.is_multiple_of(4) && world.pairs[i].first_write(page * PAGE_SIZE);
            let ours = match done {
                true => Ok(0),
                false => unit(world.at_once(i, |s| s.first_write(page * PAGE_SIZE))),
            };
            let model = world.model(i, |m| match m.at(page) {
                Some(i) => {
                    m.touch(i);
                    Ok(0)
                }
                None => Err(ENOMEM),
            });
            (ours, model)
        }
        43..=46 => {
            let advice = [
                Advice::Normal,
                Advice::Random,
                Advice::Sequential,
                Advice::DontFork,
                Advice::DoFork,
                Advice::DontDump,
                Advice::DoDump,
                Advice::HugePage,
                Advice::NoHugePage,
                Advice::Mergeable,
                Advice::Unmergeable,
                Advice::WipeOnFork,
                Advice::KeepOnFork,
                Advice::GuardInstall,
                Advice::DontNeed,
            ][dice.roll(15)];
            (
                unit(world.ours(i, |s| s.madvise(at, len, advice))),
                world.model(i, |m| m.madvise(start, end, advice)),
            )
        }
        47..=49 => lock(world, i, dice, start, end),
        50 | 51 => {
            let brk = HEAP * PAGE_SIZE + dice.roll(12) * 0x900;
            let ours = world.pairs[i].calls().brk(brk);
            (Ok(ours), Ok(world.model(i, |m| m.brk(brk))))
        }
        52 => {
            let policy = match dice.roll(3) {
                0 => None,
                mode => Some(Policy { mode: mode as u32, nodes: 1, home: None }),
            };
            (
                unit(world.ours(i, |s| s.mbind(at, len, policy))),
                world.model(i, |m| m.mbind(start, end, policy)),
            )
        }
        53 | 54 => watch(world, i, dice, start, end),
        55 | 56 => shm(world, i, dice, start, files),
        57 if dice.one_in(3) => {
            (unit(world.ours(i, |s| s.mseal(at, len))), world.model(i, |m| m.mseal(start, end)))
        }
        58 => {
            let pgoff = dice.roll(6);
            let ours = world.ours(i, |s| s.remap_file_pages(at, len, pgoff));
            (unit(ours), world.model(i, |m| m.remap_file_pages(start, end, pgoff)))
        }
        59 | 60 => {
            // Most likely the end of a VMA.
            let vmas = &world.pairs[i].model.vmas;
            let end = vmas.get(dice.roll(16)).map_or(end, |m| m.end);
            let start = end.saturating_sub(1 + dice.roll(8));
            let ours = world.at_once(i, |s| s.grow_down(end * PAGE_SIZE, start * PAGE_SIZE));
            (unit(ours), world.model(i, |m| m.grow(end, start)))
        }
        61 => {
            let on = dice.roll(2) == 1;
            world.model(i, |m| m.memory_merge(on));
            (unit(world.ours(i, |s| s.set_memory_merge(on))), Ok(0))
        }
        62 => {
            let flags = V::READ | V::MAYREAD | V::IO | V::PFNMAP | V::DONTEXPAND | V::DONTDUMP;
            let (end, file, name) = (at + len, None, None);
            let whole = WholeVma { start: at, end, flags, pgoff: start, file, name };
            (
                unit(world.at_once(i, |s| s.adopt(whole.clone()))),
                world.model(i, |m| m.adopt(start, at.wrapping_add(len) / PAGE_SIZE, flags)),
            )
        }
        _ => return,
    };
    assert_eq!(ours, model, "call of kind {kind} on pages {start}..{end}");
}

fn some_map(dice: &mut Dice<'_>, at: usize, len: usize) -> Map {
    let file = some_file(dice);
    let odd = [
        MapFlags::NORESERVE,
        MapFlags::STACK,
        MapFlags::POPULATE,
        MapFlags::LOCKED,
        MapFlags::GROWSDOWN,
    ];
    let mut flags = MapFlags::PRIVATE;
    if file.is_some_and(|file| file.kind != Kind::Zero) && dice.roll(3) == 1 {
        flags = MapFlags::SHARED;
    }
    if let Some(&odd) = odd.get(dice.roll(16)) {
        flags |= odd;
    }
    flags |= match dice.roll(4) {
        0 => MapFlags::FIXED_NOREPLACE,
        1 => MapFlags::empty(),
        _ => MapFlags::FIXED,
    };
    // Often the offset with which neighbours join.
    let pgoff = if dice.one_in(4) { dice.roll(4) } else { at };
    let exact = flags.intersects(MapFlags::FIXED | MapFlags::FIXED_NOREPLACE);
    let at = if !exact && dice.roll(2) == 0 { 0 } else { at };
    // Sometimes longer than any free range.
    let len = if dice.one_in(32) { len * 64 } else { len };
    Map { at, len, prot: prot(dice), flags, file, pgoff, without: V::empty() }
}

fn mmap(world: &mut World, i: usize, map: &Map) -> Outcome {
    let mut flags = map.flags;
    flags.set(MapFlags::ANONYMOUS, map.file.is_none());
    let request = MapRequest {
        addr: map.at * PAGE_SIZE,
        len: map.len * PAGE_SIZE,
        prot: map.prot,
        flags,
        file: map.file,
        offset: map.pgoff * PAGE_SIZE,
        driver_flags: None,
    };
    let foretold = world.pairs[i].ours.get_mut().choose_address(&request);
    let got = world.at_once(i, |s| s.mmap(request.clone()));
    if let Ok(got) = got {
        assert_eq!(foretold, Ok(got));
        let new = got..got + map.len * PAGE_SIZE;
        assert!(!world.pairs[i].pages.any(new), "the map is new and has pages");
    }
    got.map(|at| at / PAGE_SIZE).map_err(errno)
}

fn some_move(dice: &mut Dice<'_>, at: usize) -> Move {
    let old = dice.roll(6);
    let new = if dice.roll(2) == 0 { old } else { dice.roll(8) };
    let to = LOWEST - 2 + dice.roll(40);
    let (fixed, dont_unmap) = match dice.roll(6) {
        0 => (None, None),
        1 => (None, Some(if dice.roll(2) == 0 { 0 } else { to })),
        2 => (Some(to), Some(to)),
        _ => (Some(to), None),
    };
    Move { at, old, new, may_move: !dice.one_in(6), fixed, dont_unmap }
}

fn mremap(world: &mut World, i: usize, m: &Move) -> Outcome {
    let bytes = |pages: usize| pages * PAGE_SIZE;
    let request = RemapRequest {
        addr: bytes(m.at),
        old_len: bytes(m.old),
        new_len: bytes(m.new),
        may_move: m.may_move,
        fixed: m.fixed.map(bytes),
        dont_unmap: m.dont_unmap.map(bytes),
    };
    let kept = bytes(m.old.min(m.new));
    let before = world.pairs[i].pages.places(request.addr..request.addr + kept);
    let outcome = if m.fixed.is_none() {
        world.at_once(i, |s| s.mremap(request))
    } else if m.old == m.new {
        // This moves several VMAs, one after the other. A repeated call would not find the moved
        // ones.
        world.pairs[i].calls().mremap(request)
    } else {
        world.ours(i, |s| s.mremap(request))
    };
    if let Ok(at) = outcome {
        // Where the old range has a hole, the target keeps what it had.
        let after = world.pairs[i].pages.places(at..at + kept);
        assert!(before.iter().all(|place| after.contains(place)), "{m:?} loses pages");
    }
    outcome.map(|at| at / PAGE_SIZE).map_err(errno)
}

fn lock(
    world: &mut World,
    i: usize,
    dice: &mut Dice<'_>,
    start: usize,
    end: usize,
) -> (Outcome, Outcome) {
    let (at, len) = (start * PAGE_SIZE, (end - start) * PAGE_SIZE);
    let on_fault = V::LOCKED | V::LOCKONFAULT;
    match dice.roll(8) {
        0 => {
            let what = dice.roll(8);
            let (current, future) = (what & 1 != 0, what & 2 != 0);
            let flags = if what & 4 != 0 { on_fault } else { V::LOCKED };
            let ours = unit(
                world.ours(i, |s| s.mlockall(LockAll { current, future, on_fault: what & 4 != 0 })),
            );
            if !current && !future {
                return (ours, Err(EINVAL));
            }
            let to_come = if future { flags } else { V::empty() };
            world.model(i, |m| m.lock_all(current.then_some(flags), to_come));
            (ours, Ok(0))
        }
        1 => {
            let ours = unit(world.ours(i, |s| s.munlockall()));
            world.model(i, |m| m.lock_all(Some(V::empty()), V::empty()));
            (ours, Ok(0))
        }
        2 | 3 => (
            unit(world.ours(i, |s| s.munlock(at, len))),
            world.model(i, |m| m.lock(start, end, V::empty())),
        ),
        4 => (
            unit(world.ours(i, |s| s.mlock(at, len, true))),
            world.model(i, |m| m.lock(start, end, on_fault)),
        ),
        _ => {
            // One byte of a page locks the whole page.
            let ours = unit(world.ours(i, |s| s.mlock(at + 5, len - 9, false)));
            (ours, world.model(i, |m| m.lock(start, end, V::LOCKED)))
        }
    }
}

fn watch(
    world: &mut World,
    i: usize,
    dice: &mut Dice<'_>,
    start: usize,
    end: usize,
) -> (Outcome, Outcome) {
    let (at, len) = (start * PAGE_SIZE, (end - start) * PAGE_SIZE);
    let id = dice.roll(2) as u64;
    match dice.roll(6) {
        0 => {
            let ours = unit(world.ours(i, |s| s.close_watch(id)));
            world.model(i, |m| m.close_watch(id));
            (ours, Ok(0))
        }
        1 => {
            (unit(world.ours(i, |s| s.unwatch(at, len))), world.model(i, |m| m.unwatch(start, end)))
        }
        _ => {
            let modes = [V::UFFD_MISSING, V::UFFD_WP, V::UFFD_MISSING | V::UFFD_WP][dice.roll(3)];
            let uffd = Uffd { id, follows_fork: id == 1, follows_remap: id == 1 };
            (
                unit(world.ours(i, |s| s.watch(at, len, modes, uffd))),
                world.model(i, |m| m.watch(start, end, modes, uffd)),
            )
        }
    }
}

fn shm(
    world: &mut World,
    i: usize,
    dice: &mut Dice<'_>,
    start: usize,
    files: &mut u32,
) -> (Outcome, Outcome) {
    const SEGMENT: usize = 4;
    if dice.roll(2) == 0 {
        return (
            unit(world.ours(i, |s| s.shmdt(start * PAGE_SIZE))),
            world.model(i, |m| m.shmdt(start)),
        );
    }
    let (fixed, replace, read_only) = (dice.roll(2) == 0, dice.roll(2) == 0, dice.roll(3) == 0);
    // Each attachment is an open file description of its own.
    *files += 1;
    let segment = File { id: *files, kind: Kind::Segment(SEGMENT) };
    let ours = world.at_once(i, |s| {
        s.shmat(AttachRequest {
            segment,
            len: SEGMENT * PAGE_SIZE,
            addr: fixed.then_some(start * PAGE_SIZE),
            read_only,
            exec: false,
            replace,
            round: false,
        })
    });
    let map = Map {
        at: if fixed { start } else { 0 },
        len: SEGMENT,
        prot: if read_only { 1 } else { 3 },
        flags: MapFlags::SHARED | if fixed { MapFlags::FIXED } else { MapFlags::empty() },
        file: Some(segment),
        pgoff: 0,
        without: if read_only { V::SHARED | V::MAYWRITE } else { V::empty() },
    };
    let model = world.model(i, |m| {
        let taken = fixed && !replace && !m.is_free(start, start + SEGMENT);
        if taken || (replace && !fixed) { Err(EINVAL) } else { m.mmap(&map) }
    });
    (ours.map(|at| at / PAGE_SIZE).map_err(errno), model)
}
