//! Calls made on both sides, ours and the model, with what must hold of ours alone.

use super::{File, Kind, dice::Dice, maps::Map, model::*, moves::Move, world::World};
use crate::{
    AttachRequest, Error, LockAll, MapFlags, MapRequest, PAGE_SIZE, Policy, RemapRequest, Uffd,
    VmFlags as V, WholeVma,
};

/// The outcomes of a call: of ours, and of the model.
pub(super) type Both = (Outcome, Outcome);

fn errno(error: Error) -> i32 {
    error.errno()
}

/// The outcome of a call of ours that returns nothing.
pub(super) fn unit(result: Result<(), Error>) -> Outcome {
    result.map(|()| 0).map_err(errno)
}

/// mmap. The map lies where `choose_address` has said, and has no pages.
pub(super) fn mmap(world: &mut World, i: usize, map: &Map) -> Both {
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
    let ours = got.map(|at| at / PAGE_SIZE).map_err(errno);
    (ours, world.model(i, |m| m.mmap(map)))
}

/// mremap. No page within both lengths is lost.
pub(super) fn mremap(world: &mut World, i: usize, m: Move) -> Both {
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
    let ours = outcome.map(|at| at / PAGE_SIZE).map_err(errno);
    (ours, world.model(i, |model| model.mremap(m)))
}

/// mlock, mlock2, munlock, mlockall or munlockall.
pub(super) fn lock(
    world: &mut World,
    i: usize,
    dice: &mut Dice<'_>,
    start: usize,
    end: usize,
) -> Both {
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

/// Registers a range with a userfaultfd, unregisters it, or closes the userfaultfd.
pub(super) fn watch(
    world: &mut World,
    i: usize,
    dice: &mut Dice<'_>,
    start: usize,
    end: usize,
) -> Both {
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

/// shmat or shmdt.
pub(super) fn shm(
    world: &mut World,
    i: usize,
    dice: &mut Dice<'_>,
    start: usize,
    files: &mut u32,
) -> Both {
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
            addr: fixed.then_some(start * PAGE_SIZE),
            read_only,
            replace,
            ..AttachRequest::new(segment, SEGMENT * PAGE_SIZE)
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

/// A first write, mostly as a page fault does it: without the mmap lock where that is enough.
pub(super) fn first_write(world: &mut World, i: usize, page: usize) -> Both {
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

/// Growth of a stack to lower addresses. Its end is that of some VMA, or `end`.
pub(super) fn grow_down(world: &mut World, i: usize, dice: &mut Dice<'_>, end: usize) -> Both {
    let vmas = &world.pairs[i].model.vmas;
    let end = vmas.get(dice.roll(16)).map_or(end, |m| m.end);
    let start = end.saturating_sub(1 + dice.roll(8));
    let ours = world.at_once(i, |s| s.grow_down(end * PAGE_SIZE, start * PAGE_SIZE));
    (unit(ours), world.model(i, |m| m.grow(end, start)))
}

/// mbind with some policy, or with none.
pub(super) fn mbind(
    world: &mut World,
    i: usize,
    dice: &mut Dice<'_>,
    start: usize,
    end: usize,
) -> Both {
    let policy = match dice.roll(3) {
        0 => None,
        mode => Some(Policy { mode: mode as u32, nodes: 1, home: None }),
    };
    let (at, len) = (start * PAGE_SIZE, (end - start) * PAGE_SIZE);
    (
        unit(world.ours(i, |s| s.mbind(at, len, policy))),
        world.model(i, |m| m.mbind(start, end, policy)),
    )
}

/// A VMA as a driver makes it.
pub(super) fn adopt(world: &mut World, i: usize, start: usize, end: usize) -> Both {
    let flags = V::READ | V::MAYREAD | V::IO | V::PFNMAP | V::DONTEXPAND | V::DONTDUMP;
    let (file, name) = (None, None);
    let (first, after) = (start * PAGE_SIZE, end * PAGE_SIZE);
    let whole = WholeVma { start: first, end: after, flags, pgoff: start, file, name };
    (
        unit(world.at_once(i, |s| s.adopt(whole.clone()))),
        world.model(i, |m| m.adopt(start, end, flags)),
    )
}
