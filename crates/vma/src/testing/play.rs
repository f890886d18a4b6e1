//! Turns bytes into calls, makes each call on both sides, and checks both after it.

use super::{both_sides::*, dice::Dice, model::HEAP, world::World};
use crate::{MapFlags, PAGE_SIZE};

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
    while !dice.is_empty() {
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

/// One call on one address space, on both sides.
fn step(world: &mut World, i: usize, kind: usize, dice: &mut Dice<'_>, files: &mut u32) {
    let (start, end) = dice.range();
    let (at, len) = (start * PAGE_SIZE, (end - start) * PAGE_SIZE);
    let (ours, model) = match kind {
        2..=17 => {
            let mut map = dice.map(start, end - start);
            if world.is_failing() {
                map.flags -= MapFlags::LOCKED | MapFlags::POPULATE;
            }
            mmap(world, i, &map)
        }
        18..=23 => (
            unit(world.at_once(i, |s| s.munmap(at, len))),
            world.model(i, |m| m.unmap(start, end).map(|()| 0)),
        ),
        24..=29 => {
            let prot = dice.prot();
            (
                unit(world.ours(i, |s| s.mprotect(at, len, prot, None))),
                world.model(i, |m| m.mprotect(start, end, prot)),
            )
        }
        30..=36 => mremap(world, i, dice.mremap(start)),
        37..=42 => first_write(world, i, start + dice.roll(2)),
        43..=46 => {
            let advice = dice.advice();
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
        52 => mbind(world, i, dice, start, end),
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
        59 | 60 => grow_down(world, i, dice, end),
        61 => {
            let on = dice.roll(2) == 1;
            world.model(i, |m| m.memory_merge(on));
            (unit(world.ours(i, |s| s.set_memory_merge(on))), Ok(0))
        }
        62 => adopt(world, i, start, end),
        _ => return,
    };
    assert_eq!(ours, model, "call of kind {kind} on pages {start}..{end}");
}
