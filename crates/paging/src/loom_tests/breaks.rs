//! Break-before-make: a page that gets another frame during walks without a lock.
//!
//! Meanwhile the entry is that of a page without rights. The machine translates by another format,
//! so these models look at the tables only; the machine in software checks what hardware sees.

use super::world::{AT, LEVELS, NEXT, Space, World, pages};
use crate::cursor::EntryChange;
use crate::format::{Attrs, Format, Stage2, Vmsa};
use crate::gup::unpin;
use machine::{Frame, VirtAddr};
use sim::model;
use std::vec::Vec;

/// The format with break-before-make that has three levels.
type Guest = Vmsa<Stage2, LEVELS>;
const _: () = assert!(Guest::BREAK_BEFORE_MAKE);

/// Replaces the page by another frame, if there is a page. Drops the references that are left.
fn replace(space: &Space<Guest>, at: VirtAddr, frame: Frame) {
    let old = space.change_held(at, |found| match found {
        Some(_) => EntryChange::Replace(frame, Attrs::USER_RW),
        None => EntryChange::Keep,
    });
    if old.is_none() {
        space.release(frame);
    }
}

/// Unmaps [`AT`] by the call that needs no decision, and returns how many pages were there.
fn unmap(space: &Space<Guest>) -> usize {
    let mut gone = Vec::new();
    // SAFETY: the model owns the space. The references are dropped after the flush.
    let done = unsafe { space.unmap(pages(AT, 1), |page| gone.push(page.frame)) };
    done.unwrap().flush();
    gone.iter().for_each(|frame| space.release(*frame));
    gone.len()
}

/// An unmapping finds the page, whenever it comes: it takes away the old frame or the new one.
fn beside_a_break(name: &'static str, unmap: fn(&Space<Guest>) -> usize) {
    model(name, LEVELS, None, move |model| {
        let world = World::<Guest>::of(model);
        let space = world.space(1);
        space.map(AT, world.frame(), Attrs::USER_RW);
        space.map(NEXT, world.frame(), Attrs::USER_RW);
        let (here, frame) = (space.clone(), world.frame());
        let other = model.spawn(1, move || replace(&here, AT, frame));
        let gone = unmap(&space);
        other.join().unwrap();
        assert_eq!(gone, 1, "an unmapping misses a broken page");
        assert_eq!(space.get(AT), None, "a page is left in an unmapped range");
        space.remove(NEXT, 1);
        assert!(space.is_empty(), "an empty table is left");
        drop(space);
        world.end();
    });
}

#[test]
fn an_unmapping_beside_a_break() {
    beside_a_break("break, unmap", unmap);
}

#[test]
fn a_sweep_beside_a_break() {
    beside_a_break("break, sweep", |space| space.remove(AT, 1).len());
}

/// A walk finds a page all the time, and a pin gets no frame that is another owner's.
#[test]
fn a_pin_beside_a_break() {
    model("break, pin", LEVELS, None, |model| {
        let world = World::<Guest>::of(model);
        let space = world.space(1);
        space.map(AT, world.frame(), Attrs::USER_RW);
        let frame = world.frame();
        let here = space.clone();
        let other = model.spawn(1, move || {
            assert!(here.get(AT).is_some(), "a walk finds no page during a break");
            let mut frames = [Frame::default(); 1];
            let pins = here.get_user_pages_fast_only(AT, true, &mut frames).ok()?;
            pins.keep();
            Some(frames[0])
        });
        replace(&space, AT, frame);
        // The frame that was freed last is allocated first.
        let another = world.frame();
        let pinned = other.join().unwrap();
        assert_ne!(pinned, Some(another), "another owner's frame is pinned");
        if let Some(pinned) = pinned {
            // SAFETY: the pin that was kept.
            unsafe { unpin(model, &[pinned]) };
        }
        assert_eq!(space.get(AT).map(|page| page.frame), Some(frame));
        space.release(another);
        space.remove(AT, 1);
        drop(space);
        world.end();
    });
}

/// Two CPUs replace one page. One of the frames stays, and each is dropped once.
#[test]
fn two_breaks_of_a_page() {
    model("break twice", LEVELS, Some(3), |model| {
        let world = World::<Guest>::of(model);
        let space = world.space(1);
        space.map(AT, world.frame(), Attrs::USER_RW);
        let [first, second] = [world.frame(), world.frame()];
        let here = space.clone();
        let other = model.spawn(1, move || replace(&here, AT, first));
        replace(&space, AT, second);
        other.join().unwrap();
        let left = space.get(AT).map(|page| page.frame);
        assert!(left == Some(first) || left == Some(second));
        space.remove(AT, 1);
        drop(space);
        world.end();
    });
}
