//! Results of walks without a lock. Changes of an entry in a table that an earlier walk has found:
//! only if it is still the table.

mod common;

use std::sync::Arc;

use common::*;
use grace::Reclaim;
use machine::*;
use paging::*;
use sim::Grace;

const AT: u64 = 0x20_0000;
const TOP: u64 = 0xffff_8000_0000_0000;

/// Sets the entry of an address to a frame, in the table that `look` finds by another space, at
/// another moment, or as it should be.
fn set<'g>(
    space: &Space,
    guard: &'g <Grace as Reclaim>::Guard,
    found: &Found<'g>,
    frame: Frame,
) -> Result<(), Error> {
    let change = |_: Option<Mapping>| (EntryChange::Set(frame, Attrs::USER_RW), ());
    // SAFETY: the test owns the pages and frames, and flushes.
    let done = unsafe { space.with_found(guard, found, change) };
    done.map(|((), pending)| pending.flush()).map_err(|failed| failed.error)
}

fn frame_at(space: &Space, at: u64) -> Option<Frame> {
    space.walk(&Grace::pin()).get(virt(at)).map(|page| page.frame)
}

/// The table of another space, and one of the kernel's half, are not used.
#[test]
fn only_tables_of_this_space() {
    on_machine(1, 256, |sim, shared| {
        let kernel = Arc::new(Space::<Grace>::kernel(shared).unwrap());
        let frames: Vec<Frame> = (0..4).map(|_| block(sim, 0)).collect();
        kernel.map_own(pages(TOP, 1), frames[0], Attrs::KERNEL_RW).unwrap();
        let [one, other] = [1, 2]
            .map(|tag| Space::<Grace>::user(shared, Asid(tag), Some(Arc::clone(&kernel))).unwrap());
        for (space, frame) in [(&one, frames[1]), (&other, frames[2])] {
            space.map_own(pages(AT, 1), frame, Attrs::USER_RW).unwrap();
        }
        let guard = Grace::pin();
        let [upper, next] = [TOP, TOP + 0x1000].map(|at| one.walk(&guard).look(virt(at)));
        assert_eq!(upper.mapping().map(|page| page.frame), Some(frames[0]));
        assert_eq!(set(&one, &guard, &next, frames[3]), Err(Error::Kernel(virt(TOP + 0x1000))));
        assert_eq!(frame_at(&kernel, TOP + 0x1000), None);
        let look = other.walk(&guard).look(virt(AT + 0x1000));
        set(&one, &guard, &look, frames[3]).unwrap();
        assert_eq!(frame_at(&one, AT + 0x1000), Some(frames[3]));
        assert_eq!(frame_at(&other, AT + 0x1000), None);
        drop(guard);
        for (space, at, pages_there) in [(&one, AT, 2), (&other, AT, 1)] {
            space.unmap_own(pages(at, pages_there), |_| ()).unwrap().flush();
        }
        kernel.unmap_own(pages(TOP, 1), |_| ()).unwrap().flush();
        frames.iter().for_each(|frame| release(sim, *frame));
    });
}

/// A table that was unlinked since, or that was not there, is not used: the page gets a new one.
#[test]
fn a_table_that_is_gone_is_made_again() {
    on_machine(1, 256, |sim, shared| {
        let space = Space::<Grace>::user(shared, Asid(1), None).unwrap();
        let (frame, other) = (block(sim, 0), block(sim, 0));
        let guard = Grace::pin();
        let absent = space.walk(&guard).look(virt(AT + 0x1234));
        assert_eq!(absent.mapping(), None);
        set(&space, &guard, &absent, frame).unwrap();
        assert_eq!(frame_at(&space, AT + 0x1000), Some(frame));
        let look = space.walk(&guard).look(virt(AT));
        space.unmap_own(pages(AT + 0x1000, 1), |_| ()).unwrap().flush();
        set(&space, &guard, &look, other).unwrap();
        assert_eq!(frame_at(&space, AT), Some(other));
        drop(guard);
        space.unmap_own(pages(AT, 1), |_| ()).unwrap().flush();
        [frame, other].into_iter().for_each(|frame| release(sim, frame));
    });
}

/// The absent pages of a range, in and without a lowest table, and next to a large page.
#[test]
fn absent_pages_of_a_range() {
    on_machine(1, 2048, |sim, shared| {
        let space = Space::<Grace>::user(shared, Asid(1), None).unwrap();
        let (frame, large) = (block(sim, 0), block(sim, 9));
        for at in [AT + 0x1000, AT + 0x3000] {
            space.map_own(pages(at, 1), frame, Attrs::USER_RW).unwrap();
        }
        space.map_own(pages(4 * AT, 512), large, Attrs::USER_RW).unwrap();
        let none = None::<fn(&Mapping) -> bool>;
        let guard = Grace::pin();
        let absent = |range| space.walk(&guard).absent(range, none);
        assert_eq!(absent(pages(AT, 6)), 0b11_0101);
        assert_eq!(absent(pages(AT + 0x1000, 1)), 0);
        // As far as 64 pages, and the table go.
        assert_eq!(absent(pages(AT, 100)), !0b1010);
        assert_eq!(absent(pages(AT + 0x1f_e000, 16)), 0b11);
        // Without a table.
        assert_eq!(absent(pages(8 * AT, 3)), 0b111);
        assert_eq!(absent(pages(8 * AT, 64)), u64::MAX);
        assert_eq!(absent(VirtRange::new(virt(8 * AT), 1).unwrap()), 0);
        assert_eq!(absent(pages(4 * AT, 3)), 0);
        let second = |page: &Mapping| page.page == virt(AT + 0x3000);
        assert_eq!(space.walk(&guard).absent(pages(AT, 4), Some(second)), 0b1101);
        for at in [AT, 4 * AT] {
            space.unmap_own(pages(at, 512), |_| ()).unwrap().flush();
        }
        [frame, large].into_iter().for_each(|frame| release(sim, frame));
    });
}

/// A look serves for other addresses: in its table without another walk, elsewhere by one.
#[test]
fn a_look_at_another_address() {
    on_machine(1, 256, |sim, shared| {
        let space = Space::<Grace>::user(shared, Asid(1), None).unwrap();
        let frames: Vec<Frame> = (0..3).map(|_| block(sim, 0)).collect();
        space.map_own(pages(AT, 1), frames[0], Attrs::USER_RW).unwrap();
        let guard = Grace::pin();
        let found = space.walk(&guard).look(virt(AT));
        let [near, far] = [AT + 0x1000, AT + 0x20_1000];
        for (at, frame) in [(near, frames[1]), (far, frames[2])] {
            let change = |_: Option<Mapping>| (EntryChange::Set(frame, Attrs::USER_RW), ());
            // SAFETY: the test owns the pages and frames, and flushes.
            let done = unsafe { space.with_found_at(&guard, &found, virt(at), change) };
            done.map(|((), pending)| pending.flush()).map_err(|failed| failed.error).unwrap();
        }
        drop(guard);
        for (at, frame) in [(AT, frames[0]), (near, frames[1]), (far, frames[2])] {
            assert_eq!(frame_at(&space, at), Some(frame));
        }
        // Parts of both tables, and the hole between them.
        let guard = Grace::pin();
        let bytes = |range, counts: &dyn Fn(Frame) -> bool| space.walk(&guard).bytes(range, counts);
        assert_eq!(bytes(pages(AT, 0x400), &|_| true), 3 * 0x1000);
        assert_eq!(bytes(pages(AT + 0x1000, 0x200), &|_| true), 0x1000);
        assert_eq!(bytes(pages(AT, 0x400), &|frame| frame != frames[1]), 2 * 0x1000);
        let all = VirtRange::new(virt(0), u64::MAX).unwrap();
        assert_eq!(bytes(all, &|_| true), 3 * 0x1000, "each page once");
        drop(guard);
        for at in [AT, near, far] {
            space.unmap_own(pages(at, 1), |_| ()).unwrap().flush();
        }
        frames.iter().for_each(|frame| release(sim, *frame));
    });
}

/// A page has frames for its own addresses alone.
#[test]
fn a_frame_of_another_page() {
    let frame = |number| Frame::new(number).unwrap();
    let (size, attrs) = (PageSize::Size2M, Attrs::USER_RW);
    let page = Mapping { page: virt(AT), size, frame: frame(512), attrs };
    assert_eq!(page.frame_of(virt(AT + 0x3fff)), Some(frame(515)));
    for at in [AT - 1, AT + 0x20_0000] {
        assert_eq!(page.frame_of(virt(at)), None);
    }
}
