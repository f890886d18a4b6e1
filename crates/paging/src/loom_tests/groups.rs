//! Groups of pages, which a CPU parts during walks without a lock, and during another change.

use super::world::{AT, LEVELS, Space, World, pages};
use crate::cursor::EntryChange;
use crate::format::{Attrs, Flags, Format, Stage2, Vmsa, group_entries};
use crate::gup::unpin;
use machine::{Frame, PageSize, VirtAddr};
use sim::model;
use std::vec::Vec;

/// A format with groups that has three levels.
type Guest = Vmsa<Stage2, LEVELS>;
/// The pages of a group in models.
const COUNT: usize = 4;
const _: () = assert!(group_entries::<Guest>() == COUNT);

const HOT: Attrs = Attrs::new(Attrs::USER_RW.flags.union(Flags::ACCESSED).union(Flags::DIRTY));

fn page(number: u64) -> VirtAddr {
    VirtAddr::new(AT.get() + number * Guest::PAGE.bytes())
}

/// Maps a group, and returns its frames.
fn group(world: &World<Guest>, space: &Space<Guest>) -> Vec<Frame> {
    let mut frames: Vec<_> = (0..2 * COUNT).map(|_| world.frame()).collect();
    frames.sort();
    let first = frames.iter().position(|frame| frame.is_aligned(PageSize::Size16K)).unwrap();
    let others = [&frames[..first], &frames[first + COUNT..]].concat();
    others.into_iter().for_each(|frame| space.release(frame));
    let frames = frames[first..first + COUNT].to_vec();
    // SAFETY: the model owns its space and frames.
    unsafe { space.tables.map(pages(AT, COUNT as u64), frames[0], HOT) }.unwrap();
    assert!(is_grouped(space));
    frames
}

fn is_grouped(space: &Space<Guest>) -> bool {
    let guard = <sim::ModelGrace as grace::Reclaim>::pin();
    let walk = space.walk(&guard);
    let found: Vec<_> = (0..COUNT as u64).map(|number| walk.group_of(page(number))).collect();
    assert!(found.iter().all(|group| *group == found[0]), "a group is not whole");
    found[0].is_some()
}

fn clear(space: &Space<Guest>, number: u64) -> Option<Frame> {
    space.change_held(page(number), |_| EntryChange::Clear).map(|page| page.frame)
}

fn end(world: World<Guest>, space: Space<Guest>, left: usize) {
    assert_eq!(space.remove(AT, COUNT as u64).len(), left);
    assert!(space.is_empty(), "an empty table is left");
    drop(space);
    world.end();
}

/// A walk finds each page that stays all the time, and a pin gets its frame.
#[test]
fn a_pin_beside_a_part() {
    model("part, pin", LEVELS, Some(2), |model| {
        let world = World::<Guest>::of(model);
        let space = world.space(1);
        let frames = group(&world, &space);
        let here = space.clone();
        let other = model.spawn(1, move || {
            let found = here.get(page(2)).expect("a walk finds no page while a group is parted");
            let mut frames = [Frame::default(); 1];
            let pins = here.get_user_pages_fast_only(page(2), true, &mut frames).ok();
            let pinned = pins.map(|pins| pins.keep()).is_some();
            (found.frame, pinned.then_some(frames[0]))
        });
        assert_eq!(clear(&space, 1), Some(frames[1]));
        let (found, pinned) = other.join().unwrap();
        assert_eq!(found, frames[2]);
        if let Some(pinned) = pinned {
            assert_eq!(pinned, frames[2]);
            // SAFETY: the pin that was kept.
            unsafe { unpin(model, &[pinned]) };
        }
        assert!(!is_grouped(&space));
        end(world, space, COUNT - 1);
    });
}

/// Two CPUs take a page each out of a group. Each finds its own, and the others stay.
#[test]
fn two_parts_of_a_group() {
    model("part twice", LEVELS, Some(2), |model| {
        let world = World::<Guest>::of(model);
        let space = world.space(1);
        let frames = group(&world, &space);
        let here = space.clone();
        let other = model.spawn(1, move || here.remove(page(3), 1));
        assert_eq!(clear(&space, 1), Some(frames[1]));
        assert_eq!(other.join().unwrap(), [frames[3]]);
        assert!(!is_grouped(&space));
        for number in [0, 2] {
            let found = space.get(page(number as u64)).unwrap();
            assert_eq!((found.frame, found.attrs), (frames[number], HOT));
        }
        end(world, space, COUNT - 2);
    });
}

/// An unmapping of the whole group finds each page, or leaves it to the other CPU.
#[test]
fn an_unmapping_beside_a_part() {
    model("part, unmap", LEVELS, Some(2), |model| {
        let world = World::<Guest>::of(model);
        let space = world.space(1);
        group(&world, &space);
        let here = space.clone();
        let other = model.spawn(1, move || clear(&here, 1));
        let mut gone = Vec::new();
        // SAFETY: the model owns the space. The references are dropped after the flush.
        let done = unsafe { space.unmap(pages(AT, COUNT as u64), |page| gone.push(page.frame)) };
        done.unwrap().flush();
        gone.iter().for_each(|frame| space.release(*frame));
        let by_other = usize::from(other.join().unwrap().is_some());
        assert_eq!(gone.len() + by_other, COUNT, "a page is lost, or gone twice");
        // The change may have made a table for nothing, and unlinked it.
        end(world, space, 0);
    });
}
