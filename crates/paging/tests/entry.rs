//! Changes of one entry under its table's lock, and sweeps: the entries that they see, change and
//! leave.

mod common;

use common::*;
use grace::Reclaim;
use machine::*;
use paging::*;
use sim::{Config, Grace, Sim};

const AT: u64 = 0x20_0000;
const TOP: u64 = 0xffff_8000_0000_0000;
const MARKS: Flags = Flags::ACCESSED.union(Flags::DIRTY);

/// Calls `f` on CPU 0 of a machine, with the active tables of a user space. Nothing is left
/// afterwards.
fn with_space(f: impl FnOnce(&Sim, &Space)) {
    let (sim, shared) =
        machine_of::<X86_64L4>(Config { cpus: 1, frames: 2048, ..Config::default() });
    let space = sim.on_cpu(0, || {
        let space = Space::<Grace>::user(&shared, Asid(1), None).unwrap();
        space.activate_own();
        f(&sim, &space);
        assert!(sim.settle());
        assert_eq!(tables(&sim), 1, "empty tables stay");
        space
    });
    // The CPU has stopped, so no tables are active on it.
    sim.on_cpu(0, || drop(space));
    all_given_back(&sim, &shared).unwrap();
}

/// Changes an entry; returns what it mapped before, and the addresses to flush. Flushes.
fn change(
    space: &Space,
    at: u64,
    change: EntryChange,
) -> Result<(Option<Mapping>, Option<VirtRange>), Error> {
    let guard = Grace::pin();
    let done = space.with_entry_own(&guard, virt(at), |found| (change, found));
    done.map(|(found, pending)| (found, pending.range())).map_err(|failed| failed.error)
}

fn get(space: &Space, at: u64) -> Option<Mapping> {
    space.walk(&Grace::pin()).get(virt(at))
}

fn store(sim: &Sim, at: u64) -> bool {
    sim.store_own(virt(at), 1).is_ok()
}

/// Unmaps a range.
fn clear(space: &Space, range: VirtRange) -> Vec<Mapping> {
    let mut gone = Vec::new();
    space.unmap_own(range, |page| gone.push(page)).unwrap().flush();
    gone
}

#[test]
fn an_absent_entry_is_set_in_a_new_table() {
    with_space(|sim, space| {
        let frame = block(sim, 0);
        let set = EntryChange::Set(frame, Attrs::USER_RW);
        // Any address of the page will do.
        assert_eq!(change(space, AT + 0x123, set), Ok((None, None)));
        assert_eq!(tables(sim), 4);
        assert!(store(sim, AT));
        let found = get(space, AT).unwrap();
        assert_eq!((found.page, found.frame), (virt(AT), frame));
        assert_eq!(found.attrs.flags, Attrs::USER_RW.flags | MARKS);
        assert_eq!(change(space, AT, EntryChange::Keep), Ok((Some(found), None)));
        assert_eq!(get(space, AT), Some(found));
        // The same attributes, and more rights: no flush. The marks stay.
        let more = Attrs::new(Flags::RWX | Flags::USER);
        for attrs in [Attrs::USER_RW, more, Attrs { soft: 1, ..more }] {
            assert_eq!(change(space, AT, EntryChange::Set(frame, attrs)).unwrap().1, None);
            let marked = Attrs { flags: attrs.flags | MARKS, ..attrs };
            assert_eq!(get(space, AT).unwrap().attrs, marked);
        }
        // Fewer rights, another key or memory type: a flush of the page.
        let page = Some(pages(AT, 1));
        let fewer = Attrs { soft: 1, ..Attrs::USER_RO };
        assert_eq!(change(space, AT, EntryChange::Set(frame, fewer)).unwrap().1, page);
        assert!(!store(sim, AT), "it is not flushed");
        let key = Attrs { key: 3, ..fewer };
        assert_eq!(change(space, AT, EntryChange::Set(frame, key)).unwrap().1, page);
        let device = Attrs { cache: Cache::Uncached, ..key };
        assert_eq!(change(space, AT, EntryChange::Set(frame, device)).unwrap().1, page);
        assert_eq!(get(space, AT).unwrap().attrs.cache, Cache::Uncached);
        let none = Attrs::new(Flags::empty());
        assert_eq!(change(space, AT, EntryChange::Set(frame, none)).unwrap().1, page);
        assert_eq!(get(space, AT).unwrap().attrs.flags, MARKS);
        // A PROT_NONE page is not cached.
        assert_eq!(change(space, AT, EntryChange::Set(frame, fewer)).unwrap().1, None);
        sim.load_own(virt(AT)).unwrap();
        let (found, range) = change(space, AT, EntryChange::Clear).unwrap();
        assert_eq!((found.unwrap().frame, range), (frame, page));
        assert!(sim.load_own(virt(AT)).is_err(), "it is not flushed");
        release(sim, frame);
    });
}

/// Whatever becomes of an entry, the count of its table stays right: it is unlinked when it is
/// empty, and not before.
#[test]
fn a_table_goes_with_its_last_entry() {
    with_space(|sim, space| {
        let frame = block(sim, 0);
        let set = EntryChange::Set(frame, Attrs::USER_RW);
        // Neither leaves a new table.
        for nothing in [EntryChange::Keep, EntryChange::Clear] {
            let (found, range) = change(space, AT, nothing).unwrap();
            assert_eq!(found, None);
            assert!(range.is_some(), "hardware may have cached the way to the table");
            assert!(sim.settle());
            assert_eq!(tables(sim), 1);
        }
        for at in [AT, AT + 0x1000] {
            change(space, at, set).unwrap();
            change(space, at, set).unwrap();
        }
        change(space, AT, EntryChange::Clear).unwrap();
        change(space, AT, EntryChange::Clear).unwrap();
        change(space, AT, EntryChange::Keep).unwrap();
        assert!(sim.settle());
        assert_eq!(tables(sim), 4);
        change(space, AT + 0x1000, EntryChange::Clear).unwrap();
        assert!(sim.settle());
        assert_eq!(tables(sim), 1);
        release(sim, frame);
    });
}

/// Each refusal leaves the entry and the tables as they were.
#[test]
fn an_entry_refuses_what_no_page_may_be() {
    with_space(|sim, space| {
        let (frame, other) = (block(sim, 0), block(sim, 0));
        let set = EntryChange::Set(frame, Attrs::USER_RW);
        let refused = |at, what, error| {
            let before = get(space, at);
            assert_eq!(change(space, at, what), Err(error));
            assert_eq!(get(space, at), before);
            assert!(sim.settle());
        };
        let global = Attrs::new(Attrs::USER_RW.flags | Flags::GLOBAL);
        let not_valid = |at| {
            let set = |attrs| EntryChange::Set(frame, attrs);
            refused(at, set(global), Error::Global(virt(at)));
            refused(at, set(Attrs::new(Flags::READ)), Error::NotUser(virt(at)));
            refused(at, set(Attrs { key: 16, ..Attrs::USER_RO }), FormatError::Key(16).into());
            let write = Attrs::new(Flags::WRITE | Flags::USER);
            assert!(matches!(change(space, at, set(write)), Err(Error::Format(_))));
        };
        not_valid(AT);
        let root = EntryChange::Set(space.root(), Attrs::USER_RW);
        refused(AT, root, Error::Frame(virt(AT), space.root(), Owner::Table(3)));
        assert_eq!(tables(sim), 1, "a refusal leaves a new table");
        refused(TOP, set, Error::Kernel(virt(TOP)));
        refused(1 << 47, set, Error::NotCanonical(virt(1 << 47)));

        change(space, AT, set).unwrap();
        not_valid(AT);
        let another = EntryChange::Set(other, Attrs::USER_RW);
        refused(AT, another, Error::Occupied(virt(AT)));
        assert_eq!(clear(space, pages(AT, 1)).len(), 1);

        let large = block(sim, 9);
        space.map_own(pages(AT, 512), large, Attrs::USER_RW).unwrap();
        refused(AT + 0x5000, set, Error::Occupied(virt(AT)));
        assert_eq!(clear(space, pages(AT, 512)).len(), 1);
        [frame, other, large].into_iter().for_each(|frame| release(sim, frame));
    });
}

/// Every allocation of a table fails once, and nothing has changed then (I7). `with_entry` does not
/// reclaim, so each is an error; a sweep needs no memory.
#[test]
fn no_memory_for_a_table() {
    with_space(|sim, space| {
        let settled = || {
            assert!(sim.settle());
            space.paging().quick().drain();
            (sim.free_count(), tables(sim))
        };
        let (frame, far) = (block(sim, 0), block(sim, 0));
        // Next to another page there is less to make.
        for (next_to, missing) in
            [(None, 3), (Some(1 << 38), 2), (Some(AT << 1), 1), (Some(AT + 0x1000), 0)]
        {
            if let Some(at) = next_to {
                change(space, at, EntryChange::Set(far, Attrs::USER_RW)).unwrap();
            }
            let before = settled();
            let mut failed = 0;
            loop {
                sim.fail_alloc(failed + 1, true);
                let done = change(space, AT, EntryChange::Set(frame, Attrs::USER_RW));
                if !sim.alloc_failed() {
                    assert_eq!(done, Ok((None, None)));
                    break;
                }
                assert!(matches!(done, Err(Error::Frames(FrameError::OutOfFrames { .. }))));
                assert_eq!(get(space, AT), None);
                assert_eq!(settled(), before, "an empty table stays");
                failed += 1;
            }
            assert_eq!(failed, missing);
            sim.fail_alloc(1, true);
            let mut pending = space.no_flush();
            let all = |_| SweepChange::Clear;
            let done = space.sweep_own(pages(0, 1 << 35), &mut pending, all);
            assert_eq!(done, Ok(None));
            assert!(!sim.alloc_failed());
        }
        [frame, far].into_iter().for_each(|frame| release(sim, frame));
    });
}

/// Runs a test in a space with a page of an object at `AT`, and with a child.
fn with_child(test: impl FnOnce(&Sim, &Space, Frame, Space)) {
    with_space(|sim, space| {
        let frame = block(sim, 0);
        let set = EntryChange::Set(frame, Attrs::USER_RW.with_share(Share::Object));
        change(space, AT, set).unwrap();
        let child = space.fork_own(Asid(2), false);
        test(sim, space, frame, child);
    });
}

/// An empty table that spaces share stays linked: the CPUs of the others walk it.
#[test]
fn passing_the_locks_leaves_shared_tables() {
    with_child(|sim, space, frame, child| {
        let shared = tables(sim);
        let mut pending = space.no_flush();
        // SAFETY: the page is this test's.
        let taken = unsafe { space.take_back(pages(AT, 1), &mut pending, |_| SweepChange::Clear) };
        assert_eq!(taken, Ok(None));
        // SAFETY: nothing runs concurrently.
        unsafe { space.pass_locks(pages(AT, 512), &mut pending) }.unwrap();
        pending.flush();
        assert!(sim.settle());
        assert_eq!(tables(sim), shared);
        drop(child);
        let mut pending = space.no_flush();
        space.unlink_empty(pages(AT, 512), &mut pending).unwrap();
        pending.flush();
        release(sim, frame);
    });
}

/// A sweep of a table that a fork shares changes a copy of it: the other space keeps its page.
#[test]
fn a_sweep_leaves_the_pages_of_a_parent() {
    with_child(|sim, space, frame, child| {
        let mut pending = child.no_flush();
        let all = |_| SweepChange::Clear;
        // SAFETY: the page is this test's. The frame is given back below, after the flush.
        let swept = unsafe { child.sweep(pages(AT, 512), &mut pending, all) };
        assert_eq!(swept, Ok(None));
        pending.flush();
        let found = |of: &Space| of.walk(&Grace::pin()).get(virt(AT)).map(|page| page.frame);
        assert_eq!((found(space), found(&child)), (Some(frame), None));
        // The reference of the copy.
        release(sim, frame);
        assert!(sim.settle());
        drop(child);
        assert_eq!(clear(space, pages(AT, 1)).len(), 1);
        release(sim, frame);
    });
}

/// A fork fails after many copies of pinned pages: it gives all of them back.
#[test]
fn a_failed_fork_gives_many_copies_back() {
    const PAGES: u64 = 100;
    with_space(|sim, space| {
        let exclusive = Attrs::USER_RW.with_share(Share::Exclusive);
        let frames: Vec<Frame> = (0..PAGES).map(|_| block(sim, 0)).collect();
        for (page, &frame) in (0..).zip(&frames) {
            change(space, AT + page * 0x1000, EntryChange::Set(frame, exclusive)).unwrap();
            assert!(sim.info(frame).unwrap().try_pin(1));
        }
        let copies = |at: VirtAddr| match at.get() == AT + (PAGES - 1) * 0x1000 {
            true => Err(FrameError::NotOurs(Frame::default())),
            false => sim.alloc(0, NodePolicy::Local).map(Some),
        };
        // SAFETY: each entry holds the reference of its frame, and nothing runs concurrently.
        let failed = unsafe { space.fork_with(Asid(2), Some(&copies)) }.map(drop);
        assert!(failed.is_err());
        drop(failed);
        for (page, &frame) in (0..).zip(&frames) {
            // SAFETY: pinned above.
            unsafe { sim.unpin(frame, 1) }.unwrap();
            change(space, AT + page * 0x1000, EntryChange::Clear).unwrap();
            release(sim, frame);
        }
    });
}

/// A sweep finds the pages of all tables, in order. Without a page it changes nothing.
#[test]
fn a_sweep_finds_the_pages_of_all_tables() {
    with_space(|sim, space| {
        let frame = block(sim, 0);
        let large = block(sim, 9);
        // One page in each of two tables, none in the second half of either; a hole of a gigabyte;
        // a large page.
        for at in [AT, 2 * AT] {
            change(space, at, EntryChange::Set(frame, Attrs::USER_RW)).unwrap();
        }
        space.map_own(pages(1 << 32, 512), large, Attrs::USER_RW).unwrap();
        let sweep = |range| {
            let (mut pending, mut found) = (space.no_flush(), Vec::new());
            let keep = |page: Mapping| (found.push(page.page), SweepChange::Keep).1;
            assert_eq!(space.sweep_own(range, &mut pending, keep), Ok(None));
            assert!(pending.is_nothing());
            found
        };
        assert_eq!(sweep(pages(AT + 0x10_0000, 3)), []);
        let all = pages(0, 1 << 35);
        assert_eq!(sweep(all), [virt(AT), virt(2 * AT), virt(1 << 32)]);
        assert_eq!(sweep(pages(AT + 0x1f_f000, 2)), [virt(2 * AT)]);
        assert_eq!(sweep(pages(1 << 40, 1)), []);
        let mut pending = space.no_flush();
        assert_eq!(space.unlink_empty(all, &mut pending), Ok(()));
        assert!(pending.is_nothing());
        // Two empty tables that a sweep has kept.
        pending.keep_tables(true);
        let small = pages(AT, 1024);
        assert_eq!(space.sweep_own(small, &mut pending, |_| SweepChange::Clear), Ok(None));
        pending.flush();
        let kept = tables(sim);
        let mut pending = space.no_flush();
        assert_eq!(space.unlink_empty(small, &mut pending), Ok(()));
        pending.flush();
        assert!(sim.settle());
        // With the table above them, which is empty then.
        assert_eq!(tables(sim), kept - 3);
        assert_eq!(clear(space, all).len(), 1);
        [frame, large].into_iter().for_each(|frame| release(sim, frame));
    });
}

/// Each page becomes what `change` says; one flush is pending for all.
#[test]
fn a_sweep_changes_page_by_page() {
    with_space(|sim, space| {
        let first = block(sim, 3);
        let range = pages(AT - 0x4000, 8);
        space.map_own(range, first, Attrs::USER_RW).unwrap();
        range.pages(PageSize::Size4K).for_each(|at| assert!(store(sim, at.get())));
        let mut pending = space.no_flush();
        let mut seen = 0;
        let odd = |page: Mapping| {
            assert_eq!(page.frame.number(), first.number() + seen);
            assert!(page.attrs.flags.contains(MARKS));
            seen += 1;
            match seen {
                2 | 5 | 6 => SweepChange::Clear,
                3 => SweepChange::Set(Attrs::USER_RO),
                7 => SweepChange::Set(Attrs::USER_RW),
                8 => SweepChange::Stop,
                _ => SweepChange::Keep,
            }
        };
        let stopped = space.sweep_own(range, &mut pending, odd);
        assert_eq!(stopped, Ok(Some(virt(AT + 0x3000))));
        assert_eq!(pending.range(), Some(pages(AT - 0x3000, 5)));
        pending.flush();
        let at = |n: u64| AT - 0x4000 + (n << 12);
        let left: Vec<bool> = (0..8).map(|n| get(space, at(n)).is_some()).collect();
        assert_eq!(left, [true, false, true, true, false, false, true, true]);
        assert_eq!(get(space, at(2)).unwrap().attrs.flags, Attrs::USER_RO.flags | MARKS);
        assert!(!store(sim, at(2)) && !store(sim, at(1)), "it is not flushed");
        assert!(store(sim, at(6)) && store(sim, at(7)));
        // From where it stopped, to the end. The tables go.
        let mut pending = space.no_flush();
        let rest = VirtRange::between(virt(at(7)), range.end().unwrap()).unwrap();
        let all = |_| SweepChange::Clear;
        assert_eq!(space.sweep_own(rest, &mut pending, all), Ok(None));
        assert_eq!(space.sweep_own(range, &mut pending, all), Ok(None));
        pending.flush();
        assert_eq!(clear(space, range), []);
        release(sim, first);
    });
}

/// A page gets another frame in a sweep, which no CPU reads by its old translation after the flush.
#[test]
fn a_sweep_replaces_a_page() {
    with_space(|sim, space| {
        let (old, new) = (block(sim, 1), block(sim, 0));
        space.map_own(pages(AT, 2), old, Attrs::USER_RW).unwrap();
        assert!(store(sim, AT) && store(sim, AT + 0x1000));
        let mut pending = space.no_flush();
        let no_rights = Attrs::new(Flags::empty());
        let replace = |page: Mapping| match page.page == virt(AT) {
            true => SweepChange::Replace(new, no_rights),
            false => SweepChange::Keep,
        };
        let swept = space.sweep_own(pages(AT, 2), &mut pending, replace);
        assert_eq!((swept, pending.range()), (Ok(None), Some(pages(AT, 1))));
        pending.flush();
        assert!(!store(sim, AT) && store(sim, AT + 0x1000));
        let found = get(space, AT).unwrap();
        assert_eq!((found.frame, found.attrs.flags), (new, Flags::empty()));
        assert_eq!(clear(space, pages(AT, 2)).len(), 2);
        [old, new].into_iter().for_each(|frame| release(sim, frame));
    });
}

/// A refused sweep changes nothing; one whose `change` returns what no page can have stops there.
#[test]
fn a_sweep_refuses() {
    with_space(|sim, space| {
        let (large, small) = (block(sim, 9), block(sim, 1));
        space.map_own(pages(2 * AT, 512), large, Attrs::USER_RW).unwrap();
        space.map_own(pages(2 * AT - 0x2000, 2), small, Attrs::USER_RW).unwrap();
        let sweep = |range, what| {
            let mut pending = space.no_flush();
            let done = space.sweep_own(range, &mut pending, |_| what);
            (done, pending.range())
        };
        let clear_all = SweepChange::Clear;
        let kernel = (Err(Error::Kernel(virt(TOP))), None);
        assert_eq!(sweep(pages(TOP, 1), clear_all), kernel);
        assert_eq!(sweep(pages(AT, 0), clear_all), (Err(Error::Empty), None));
        let cut = (Err(Error::Cut(virt(2 * AT), PageSize::Size2M)), None);
        assert_eq!(sweep(pages(2 * AT - 0x2000, 3), clear_all), cut);
        assert_eq!(sweep(pages(2 * AT + 0x1000, 511), clear_all), cut);
        let at = 2 * AT - 0x2000;
        let kernels = SweepChange::Set(Attrs::new(Flags::READ));
        assert_eq!(sweep(pages(at, 2), kernels), (Err(Error::NotUser(virt(at))), None));
        let keyed = SweepChange::Set(Attrs { key: 16, ..Attrs::USER_RW });
        let no_key = Err(FormatError::Key(16).into());
        assert_eq!(sweep(pages(at, 514), keyed), (no_key, None));
        let all = pages(at, 514);
        assert_eq!(clear(space, all).len(), 3);
        [large, small].into_iter().for_each(|frame| release(sim, frame));
    });
    on_machine(1, 64, |_, shared| {
        let [one, other] = [1, 2].map(|tag| Space::<Grace>::user(shared, Asid(tag), None).unwrap());
        let mut pending = other.no_flush();
        let done = one.sweep_own(pages(AT, 1), &mut pending, |_| SweepChange::Keep);
        assert_eq!(done, Err(Error::NotTheTables));
    });
}

/// The kernel's tables: they stay when they are empty, and both ends of the addresses can be swept.
#[test]
fn entries_of_the_kernel() {
    on_machine(1, 64, |sim, shared| {
        let kernel = Space::<Grace>::kernel(shared).unwrap();
        let device = Frame::new(1 << 24).unwrap();
        let last = u64::MAX - 0xfff;
        for at in [TOP, last] {
            let set = EntryChange::Set(device, Attrs::KERNEL_RW);
            assert_eq!(change(&kernel, at, set), Ok((None, None)));
        }
        let made = tables(sim);
        assert_eq!(made, 7);
        let all = VirtRange::new(virt(TOP), 1 << 47).unwrap();
        let mut pending = kernel.no_flush();
        let done = kernel.sweep_own(all, &mut pending, |_| SweepChange::Clear);
        assert_eq!(done, Ok(None));
        pending.flush();
        assert_eq!(change(&kernel, TOP, EntryChange::Keep), Ok((None, None)));
        assert!(sim.settle());
        assert_eq!(tables(sim), made);
    });
}
