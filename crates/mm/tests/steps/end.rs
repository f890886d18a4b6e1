//! The state at the end of a run: all that can be seen of it.

use std::fmt::Write;

use crate::{
    common::*,
    ops::*,
    out::fault_name,
    world::{HALF, World},
};
use mm::*;

/// The state, a line for each thing.
pub(crate) type State = Vec<String>;

/// The pages that are looked at.
fn pages(world: &World) -> impl Iterator<Item = u8> + use<> {
    let heap =
        if world.kind == crate::world::WorldKind::Anon { HEAP_PAGE..HEAP_PAGE + 2 } else { 0..0 };
    (0..8).chain(heap).chain(FAR..FAR + 4)
}

/// The processes and the children of the calls of fork.
fn spaces(world: &World) -> impl Iterator<Item = (String, &Space)> {
    let processes = world.processes.iter().enumerate();
    let forks = world.forks.iter().enumerate();
    let forks =
        forks.filter_map(|(number, fork)| Some((format!("child of {number}"), fork.get()?)));
    processes.map(|(number, space)| (format!("process {number}"), space)).chain(forks)
}

/// Reads a word, as a debugger does not: with the rights of the program.
fn read(space: &Space, at: usize) -> String {
    let mut word = [0; 8];
    match space.read(at, &mut word) {
        Ok(()) => format!("{:x}", u64::from_le_bytes(word)),
        Err(error) => fault_name(error.error).into(),
    }
}

/// Looks at everything, and then changes it to see more: whether pages can be written, and by which
/// processes this is seen; the pages that a sync writes; whether maps allow a seal; the rest of an
/// object that becomes empty.
pub(crate) fn look(world: &World) -> State {
    let mut state = world.monitor.told();
    for (name, space) in spaces(world) {
        let mut text = format!("{name}:");
        space.for_each_vma(|range, flags| {
            let _ = write!(text, " {:x}-{:x}", range.start, range.end);
            flags.names().for_each(|flag| text.extend([".", flag]));
        });
        state.push(text);
        let mut text = format!("{name} has:");
        for page in pages(world) {
            let mut entry = [0];
            space.pagemap(at(page), &mut entry);
            let mark = |bit, name| if entry[0] & bit == 0 { "" } else { name };
            let _ = write!(
                text,
                " {page}={}{}{}{}",
                read(space, at(page)),
                // Faults around an access map an object's pages, dirty, whenever they come to it.
                if world.kind.has_object() { "" } else { mark(pagemap::SOFT_DIRTY, "*") },
                mark(pagemap::WRITE_PROTECTED, "+wp"),
                mark(pagemap::GUARD, "+guard"),
            );
            if world.kind.has_object() {
                let _ = write!(text, "/{}", read(space, at(page) + HALF as usize));
            }
        }
        state.push(text);
    }
    objects(world, &mut state);
    for (number, (name, space)) in spaces(world).enumerate() {
        let mut text = format!("{name} may write:");
        for page in pages(world) {
            let value = 0x2000 + (number << 8 | usize::from(page)) as u64;
            if space.write(at(page), &value.to_le_bytes()).is_ok() {
                let _ = write!(text, " {page}");
            }
        }
        state.push(text);
    }
    contents(world, &mut state);
    if world.kind == crate::world::WorldKind::Grouped {
        state.push(format!("the group has charged {} frames", world.group.used()));
    }
    emptied(world, &mut state);
    state
}

/// The first word of each page of each space.
fn contents(world: &World, state: &mut State) {
    for (name, space) in spaces(world) {
        let mut text = format!("{name} then has:");
        for page in pages(world) {
            let _ = write!(text, " {page}={}", read(space, at(page)));
        }
        state.push(text);
    }
}

fn objects(world: &World, state: &mut State) {
    if world.kind.has_memfd() {
        let memfd = &world.memfd.object;
        let mut text = format!("memfd: {} bytes, seals {}:", memfd.size(), memfd.seals().0);
        for half in 0..16 {
            let mut word = [0; 8];
            if memfd.read(half * HALF, &mut word) == 8 {
                let _ = write!(text, " {:x}", u64::from_le_bytes(word));
            }
        }
        state.push(text);
    }
    if world.kind == crate::world::WorldKind::File {
        let file = &world.file.object;
        let mut text = format!("file: {} bytes:", file.size());
        for half in 0..16 {
            let mut word = [0; 8];
            if file.read(half * HALF, &mut word) == Ok(8) {
                let _ = write!(text, " {:x}", u64::from_le_bytes(word));
            }
        }
        let synced = file.sync(0..8);
        let disk = world.disk.pages.lock().unwrap();
        let _ = write!(text, "; after a sync, {synced:?}:");
        for page in 0..file.size().div_ceil(PAGE as u64) {
            let words = disk.get(&page).map(|bytes| {
                [0, HALF as usize]
                    .map(|at| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap()))
            });
            let _ = write!(text, " {words:x?}");
        }
        state.push(text);
    }
}

fn emptied(world: &World, state: &mut State) {
    let mut text = String::from("an empty object: ");
    if world.kind.has_memfd() {
        let memfd = &world.memfd.object;
        let _ =
            write!(text, "seal {:?}, size {:?}", memfd.add_seals(Seals::WRITE), memfd.set_size(0));
    } else if world.kind == crate::world::WorldKind::File {
        let _ = write!(text, "size {:?}", world.set_file_size(0));
    } else {
        return;
    }
    state.push(text);
    contents(world, state);
}
