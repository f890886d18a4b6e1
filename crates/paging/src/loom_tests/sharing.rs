//! Tables that a fork shares: concurrent changes of both spaces, walks, pins,
//! hardware and another fork.

use super::world::{AFTER, AT, LEVELS, NEXT, Space, World, pages};
use crate::cursor::{EntryChange, SweepChange};
use crate::format::{Attrs, Flags, Share};
use machine::{Frame, VirtAddr};
use sim::model;

/// A parent and its child, which share all tables. Both map the first two frames at `AT` and
/// `NEXT`.
struct Family {
    world: World,
    parent: Space,
    child: Space,
    pages: [Frame; 2],
}

impl Family {
    fn new(model: &sim::Model) -> Family {
        let world = World::new(model);
        let parent = world.space(1);
        let pages = [world.frame(), world.frame()];
        for (at, frame) in [AT, NEXT].into_iter().zip(pages) {
            parent.map(at, frame, Attrs::USER_RW.with_share(Share::Exclusive));
        }
        let child = parent.child(2);
        Family { world, parent, child, pages }
    }

    /// As [`new`](Self::new), but only the lowest table is shared by now: fewer steps.
    fn with_upper_tables(model: &sim::Model) -> Family {
        let family = Family::new(model);
        for space in [&family.parent, &family.child] {
            space.put(AFTER, family.world.frame());
        }
        family
    }

    /// A new frame for each.
    fn frames<const N: usize>(&self) -> [Frame; N] {
        [(); N].map(|()| self.world.frame())
    }

    /// Takes the spaces down, and asserts that nothing is left.
    fn end(self) {
        for space in [&self.parent, &self.child] {
            space.remove(AT, 2);
            space.remove(AFTER, 1);
        }
        drop((self.parent, self.child));
        self.world.end();
    }
}

fn frame_at(space: &Space, at: VirtAddr) -> Option<Frame> {
    space.get(at).map(|page| page.frame)
}

/// Both spaces replace the page, each by a frame of its own. One of them copies the tables, and the
/// other takes them over or copies them, too.
#[test]
fn both_spaces_change_a_page() {
    model("unshare, both spaces", LEVELS, Some(3), |model| {
        let family = Family::with_upper_tables(model);
        let [ours, theirs] = family.frames();
        let child = family.child.clone();
        let other = model.spawn(1, move || child.put(AT, theirs));
        family.parent.put(AT, ours);
        other.join().unwrap();
        assert_eq!(frame_at(&family.parent, AT), Some(ours), "the parent has lost a change");
        assert_eq!(frame_at(&family.child, AT), Some(theirs), "the child has lost a change");
        assert_eq!(frame_at(&family.parent, NEXT), Some(family.pages[1]));
        assert_eq!(frame_at(&family.child, NEXT), Some(family.pages[1]));
        family.end();
    });
}

/// Two CPUs of one space replace two pages. The other space keeps both, and no change is lost.
fn two_cpus(name: &'static str, put: fn(&Space, VirtAddr, Frame)) {
    model(name, LEVELS, Some(2), move |model| {
        let family = Family::new(model);
        let [first, second] = family.frames();
        let parent = family.parent.clone();
        let other = model.spawn(1, move || put(&parent, NEXT, second));
        family.parent.put(AT, first);
        other.join().unwrap();
        assert_eq!(frame_at(&family.parent, AT), Some(first), "a change is lost");
        assert_eq!(frame_at(&family.parent, NEXT), Some(second), "a change is lost");
        assert_eq!(frame_at(&family.child, AT), Some(family.pages[0]), "the child has changed");
        assert_eq!(frame_at(&family.child, NEXT), Some(family.pages[1]), "the child has changed");
        family.end();
    });
}

#[test]
fn two_cpus_of_a_space_change_a_shared_table() {
    two_cpus("unshare, one space twice", Space::put);
}

/// One of them locks the table that it has found, without another walk.
#[test]
fn two_cpus_of_a_space_change_a_table_that_was_found() {
    two_cpus("unshare, found table", Space::put_found);
}

/// The parent leaves a table while one of its CPUs has the way there in its TLB. The child, alone
/// with the table then, maps a page of its own there. The parent's CPU never reaches it.
#[test]
fn hardware_does_not_follow_the_way_to_a_table_that_was_left() {
    model("unshare, cached way", LEVELS, Some(3), |model| {
        let family = Family::with_upper_tables(model);
        let [ours, theirs] = family.frames();
        model.as_cpu(1, || {
            family.parent.run();
            assert_eq!(model.access(AT, false, |frame| frame), Some(family.pages[0]));
        });
        let (child, machine) = (family.child.clone(), model.clone());
        let other = model.spawn(2, move || {
            child.put(NEXT, theirs);
            machine.as_cpu(1, || machine.access(NEXT, false, |frame| frame))
        });
        family.parent.put(AT, ours);
        let reached = other.join().unwrap();
        assert_ne!(reached, Some(theirs), "a CPU has reached a page of another space");
        family.end();
    });
}

/// The parent unmaps a page, which takes it off a shared table, and the child replaces the page
/// there. A pin through the parent's tables never gets the child's frame.
#[test]
fn a_pin_beside_the_leaving_of_a_table() {
    model("unshare, pin", LEVELS, Some(2), |model| {
        let family = Family::new(model);
        let [theirs] = family.frames();
        let parent = family.parent.clone();
        let other = model.spawn(1, move || parent.pin(AT));
        family.parent.remove(AT, 1);
        family.child.put(AT, theirs);
        let pinned = other.join().unwrap();
        assert_ne!(pinned, Some(theirs), "a page of another space was pinned");
        family.end();
    });
}

/// The same, with the fork under way as well.
#[test]
fn a_pin_beside_a_fork() {
    model("fork, pin", LEVELS, Some(2), |model| {
        let world = World::new(model);
        let (parent, frames) = (world.space(1), [world.frame(), world.frame()]);
        parent.map(AT, frames[0], Attrs::USER_RW.with_share(Share::Exclusive));
        let space = parent.clone();
        let other = model.spawn(1, move || space.pin(AT));
        let child = parent.child(2);
        parent.remove(AT, 1);
        child.put(AT, frames[1]);
        let pinned = other.join().unwrap();
        assert_ne!(pinned, Some(frames[1]), "a page of another space was pinned");
        child.remove(AT, 1);
        drop((parent, child));
        world.end();
    });
}

/// An object takes a page back from both spaces, while a CPU of the parent makes the table the
/// parent's own. The page is gone everywhere.
#[test]
fn a_page_that_is_taken_back_beside_a_copy_of_its_table() {
    model("unshare, take back", LEVELS, Some(3), |model| {
        let family = Family::new(model);
        let [ours] = family.frames();
        let parent = family.parent.clone();
        let other = model.spawn(1, move || parent.put(NEXT, ours));
        for space in [&family.parent, &family.child] {
            let (mut pending, mut gone) = (space.no_flush(), alloc::vec::Vec::new());
            // SAFETY: the models own their spaces; no other call than faults runs.
            let done = unsafe {
                space.take_back(pages(AT, 1), &mut pending, |page| {
                    gone.push(page.frame);
                    SweepChange::Clear
                })
            };
            assert_eq!(done, Ok(None));
            pending.flush();
            // SAFETY: the references of the entries.
            let release = |frame| unsafe { machine::FrameSource::release(&space.model, frame) };
            gone.into_iter().for_each(|frame| assert!(release(frame).is_ok()));
        }
        other.join().unwrap();
        for space in [&family.parent, &family.child] {
            assert_eq!(frame_at(space, AT), None, "a page that was taken back is still mapped");
        }
        family.end();
    });
}

/// A CPU of the parent may write when the fork begins. When the fork's flush is done, it may not.
#[test]
fn no_write_passes_after_a_fork() {
    model("fork, cached right", LEVELS, Some(3), |model| {
        let world = World::new(model);
        let (parent, frame) = (world.space(1), world.frame());
        parent.map(AT, frame, Attrs::USER_RW.with_share(Share::Exclusive));
        model.store(frame, 0, 0);
        model.as_cpu(1, || {
            parent.run();
            assert!(model.access(AT, true, |_| ()).is_some());
        });
        let machine = model.clone();
        let other = model.spawn(1, move || {
            for value in 1..=2 {
                machine.access(AT, true, |frame| machine.store(frame, 0, value));
            }
        });
        let child = parent.child(2);
        let before = model.load(frame, 0);
        other.join().unwrap();
        assert_eq!(model.load(frame, 0), before, "a write reached the child");
        assert_eq!(frame_at(&child, AT), Some(frame));
        drop(parent.remove(AT, 1));
        drop(child.remove(AT, 1));
        drop((parent, child));
        world.end();
    });
}

/// A first touch during a fork: the page is in one space, or in both, with its references. A page
/// at `first` is mapped before.
fn fault_beside_a_fork(name: &'static str, first: VirtAddr) {
    model(name, LEVELS, Some(3), move |model| {
        let world = World::new(model);
        let (parent, frames) = (world.space(1), [world.frame(), world.frame()]);
        let attrs = Attrs::USER_RW.with_share(Share::Exclusive);
        parent.map(first, frames[0], attrs);
        let (space, frame) = (parent.clone(), frames[1]);
        let other = model.spawn(1, move || {
            space.change_held(NEXT, |_| EntryChange::Set(frame, attrs));
        });
        let child = parent.child(2);
        other.join().unwrap();
        assert_eq!(frame_at(&parent, NEXT), Some(frames[1]), "the fault is lost");
        assert_eq!(frame_at(&child, first), Some(frames[0]), "the child lacks a page");
        for space in [&parent, &child] {
            let page = space.get(first).unwrap();
            assert!(!page.attrs.flags.contains(Flags::WRITE), "a shared page is writable");
            space.remove(AT, 2);
            space.remove(AFTER, 1);
        }
        drop((parent, child));
        world.end();
    });
}

#[test]
fn a_fault_beside_a_fork() {
    fault_beside_a_fork("fork, fault", AT);
}

/// The fault links a table, which it cannot while the fork is marking the way there.
#[test]
fn a_fault_without_a_table_beside_a_fork() {
    fault_beside_a_fork("fork, fault, no table", AFTER);
}

/// The only page of a table is not mapped after all, so a fault unlinks the table that it has made.
/// Meanwhile the space forks, and leaves the upper table, and the child ends with it.
#[test]
fn an_empty_table_beside_the_end_of_a_share() {
    model("fork, end of a share", LEVELS, Some(2), |model| {
        let world = World::new(model);
        let parent = world.space(1);
        parent.map(AFTER, world.frame(), Attrs::USER_RW.with_share(Share::Exclusive));
        let space = parent.clone();
        let other = model.spawn(1, move || space.change(AT, |_| EntryChange::Keep));
        let child = parent.child(2);
        let mut pending = parent.no_flush();
        // SAFETY: the model owns its spaces. The flush follows.
        let left = unsafe { parent.leave_shared(pages(AT, 1 << 18), &mut pending) };
        pending.flush();
        drop(child);
        other.join().unwrap();
        if left != Ok(None) {
            // The fault was first to make the way the space's own, and the range goes beyond
            // the few entries of a model's table.
            parent.remove(AFTER, 1);
        }
        drop(parent);
        world.end();
    });
}
