//! Tables that are linked and unlinked while others map in them.

use super::world::{AT, LEVELS, NEXT, Space, World, pages};
use crate::error::Error;
use crate::format::Attrs;
use machine::{Frame, VirtAddr};
use sim::model;

fn map(space: &Space, at: VirtAddr, frame: Frame) -> Result<(), Error> {
    // SAFETY: the models own their spaces and frames.
    unsafe { space.tables.map(pages(at, 1), frame, Attrs::USER_RO) }.map_err(|failed| failed.error)
}

/// A page that is mapped during the unlinking of its table is in a linked table.
#[test]
fn tables_are_unlinked_empty() {
    model("map, unlink", LEVELS, Some(3), |model| {
        let world = World::new(model);
        let (space, frames) = (world.space(1), [world.frame(), world.frame()]);
        map(&space, NEXT, frames[0]).unwrap();
        let (here, frame) = (space.clone(), frames[1]);
        let other = model.spawn(1, move || map(&here, AT, frame));
        assert_eq!(space.remove(NEXT, 1), [frames[0]]);
        assert_eq!(other.join().unwrap(), Ok(()));
        assert_eq!(space.remove(AT, 1), [frames[1]], "a mapping is lost");
        assert!(space.is_empty(), "an empty table is left");
        drop(space);
        world.end();
    });
}

/// Two CPUs map the same page. One of them does.
#[test]
fn one_of_two_maps_a_page() {
    model("map, map", LEVELS, Some(2), |model| {
        let world = World::new(model);
        let (space, frames) = (world.space(1), [world.frame(), world.frame()]);
        let (there, frame) = (space.clone(), frames[1]);
        let other = model.spawn(1, move || map(&there, AT, frame));
        let here = map(&space, AT, frames[0]);
        let there = other.join().unwrap();
        let (loser, winner) = match (here, there) {
            (Ok(()), Err(Error::Occupied(_))) => (frames[1], frames[0]),
            (Err(Error::Occupied(_)), Ok(())) => (frames[0], frames[1]),
            both => panic!("both, or none, have mapped the page: {both:?}"),
        };
        assert_eq!(space.remove(AT, 1), [winner]);
        space.release(loser);
        assert!(space.is_empty(), "an empty table is left");
        drop(space);
        world.end();
    });
}
