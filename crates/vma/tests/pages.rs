//! The protocol between calls and the pages behind the VMAs, concurrently with page faults that
//! come while a call works on pages.

mod common;

use std::{
    ops::Range,
    panic::{AssertUnwindSafe, catch_unwind},
};

use common::{File, PAGE, anonymous, of_file, space};
use grace::{Epoch, Reclaim};
use vma::{
    AddressSpace, Advice, Area, CallStep, Error, Host, Layout, MapFlags, Profile, RemapRequest,
    Uffd, VmFlags, Vma, Work,
};

const AT: usize = 0x1000_0000_0000;

fn page(n: usize) -> usize {
    AT + n * PAGE
}

/// Calls `work` with the name of each method and its range.
struct Each<W>(W);

impl<W, R: Reclaim> Host<File, R> for Each<W>
where
    W: FnMut(&'static str, Range<usize>, Option<&Vma<File>>, VmFlags),
{
    fn apply(&mut self, mut step: CallStep<'_, '_, File, R>) -> Result<(), Error> {
        step.hold()?;
        step.close(false)?;
        let none = VmFlags::empty();
        match step.work().clone() {
            Work::Nothing => {}
            Work::Unmap { range, .. } | Work::Replace(range) => {
                (self.0)("empty", range, None, none)
            }
            Work::Protect { range, old } => (self.0)("protect", range, step.vma(), old),
            Work::Move { from, .. } => (self.0)("move", from, None, none),
            Work::Advise { range, .. } => {
                (self.0)("advise", range, step.vma(), step.vma().unwrap().flags);
            }
        }
        step.open();
        Ok(())
    }
}

fn shared() -> AddressSpace<File, Epoch> {
    AddressSpace::new(Profile { guard_flag: true, ..Profile::LINUX_6_18 }, Layout::default())
}

/// A page fault does the first write of the VMA at an address without the mmap lock.
fn first_write(space: &AddressSpace<File, Epoch>, addr: usize) -> bool {
    let guard = space.pin();
    space.lookup(&guard, addr).is_some_and(|(_, seen)| space.first_write(&guard, addr, seen))
}

fn is_faulted(space: &AddressSpace<File, Epoch>, addr: usize) -> bool {
    let guard = space.pin();
    space.lookup(&guard, addr).unwrap().1.is_faulted()
}

/// A part of a VMA moves to its end and joins it, so the call splits the VMA.
#[test]
fn the_parts_during_a_moved_one_are_written_apart() {
    let space = shared();
    let mut nothing = Each(|_, _, _: Option<&Vma<File>>, _| ());
    space.write().mmap(anonymous(page(0), 10, 3)).unwrap();
    // The area that the part joins is no longer registered: its contents change with the move.
    let uffd = Uffd { id: 1, follows_fork: false, follows_remap: false };
    space.write().watch(page(0), 10 * PAGE, VmFlags::UFFD_MISSING, uffd).unwrap();
    let part = RemapRequest::moving(page(4), 2 * PAGE, page(10));
    space.write().with_host(&mut nothing).mremap(part).unwrap();
    assert_eq!(space.write().count(), 2);
    first_write(&space, page(0));
    space.write().first_write(page(0)).unwrap();
    assert_eq!([is_faulted(&space, page(0)), is_faulted(&space, page(7))], [true, false]);
}

/// A first write in a VMA that a call is about to replace would be lost.
#[test]
fn a_busy_vma_sees_no_first_write() {
    let space = shared();
    space.write().mmap(anonymous(page(0), 4, 1)).unwrap();
    let mut written = Vec::new();
    let mut during = Each(|what, range: Range<usize>, _: Option<&Vma<File>>, _| {
        written.push((what, first_write(&space, range.start)));
    });
    space.write().with_host(&mut during).mmap(anonymous(page(0), 4, 3)).unwrap();
    assert_eq!(written, [("empty", false)]);
    assert!(!is_faulted(&space, page(0)));
}

/// One VMA replaces several with different rights.
#[test]
fn settling_takes_the_rights_of_every_part() {
    let mut space = space();
    space.get_mut().mmap(anonymous(page(0), 2, 3)).unwrap();
    space.get_mut().mmap(anonymous(page(2), 2, 1)).unwrap();
    let flags = space.get_mut().area_at(page(2)).unwrap().vma.flags;
    // The part whose rights stay provides the contents.
    space.get_mut().madvise(page(2), PAGE, Advice::GuardInstall).unwrap();
    let mut lost = Vec::new();
    let mut pages = Each(|what, range: Range<usize>, now: Option<&Vma<File>>, old| {
        assert_eq!((what, now.unwrap().flags), ("protect", flags));
        if VmFlags::contains(&old, VmFlags::WRITE) {
            lost.push(range);
        }
    });
    space.get_mut().with_host(&mut pages).settle(page(0), page(4), Some(flags)).unwrap();
    let covered = |n: usize| lost.iter().any(|range: &Range<usize>| range.contains(&page(n)));
    assert!(covered(0) && covered(1), "pages keep the right to write: {lost:x?}");
}

/// The pages of a VMA are advised with the contents that it has then.
#[test]
fn guards_are_installed_in_the_marked_vma() {
    let mut space = space();
    space.get_mut().mmap(anonymous(page(0), 4, 3)).unwrap();
    let mut seen = Vec::new();
    let mut pages = Each(|what, range, now: Option<&Vma<File>>, flags| {
        seen.push((what, range, now.unwrap().is_faulted(), flags & VmFlags::MAYBE_GUARD));
    });
    let (at, len) = (page(1), 2 * PAGE);
    space.get_mut().with_host(&mut pages).madvise(at, len, Advice::GuardInstall).unwrap();
    assert_eq!(seen, [("advise", at..at + len, true, VmFlags::MAYBE_GUARD)]);
}

/// A panic of the host in the work on pages. The counts of VMAs hold still: fork relies on them.
#[test]
fn a_panic_in_the_work_on_pages_leaves_the_counts_right() {
    let file = File::regular();
    let locked_map = |n| {
        let mut request = anonymous(page(n), 1, 3);
        request.flags |= MapFlags::LOCKED;
        request
    };
    for unmaps in [false, true] {
        let mut space = space();
        space.get_mut().mmap(of_file(&file, page(0), 4, 3, 0)).unwrap();
        space.get_mut().mmap(of_file(&file, page(4), 1, 1, 0)).unwrap();
        let mut panics = Each(|_, _, _: Option<&Vma<File>>, _| panic!("of the host"));
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            let mut calls = space.get_mut().with_host(&mut panics);
            if unmaps {
                return calls.munmap(page(1), PAGE);
            }
            calls.mmap(locked_map(1)).map(drop)
        }));
        assert!(outcome.is_err());
        let calls = space.get_mut();
        assert_eq!(calls.count(), calls.areas().count());
        drop(calls);
        let mut child = space.get_mut().fork().unwrap();
        let locked = |area: Area<File>| area.vma.flags.contains(VmFlags::LOCKED);
        assert!(!child.get_mut().areas().any(locked), "the child has the parent's lock");
        // A new map does not join the VMA that stays busy.
        let mut calls = space.get_mut();
        calls.mmap(locked_map(2)).unwrap();
        let busy = |n| calls.area_at(page(n)).is_some_and(|area| area.vma.is_busy());
        assert_eq!([busy(1), busy(2)], [!unmaps, false]);
        calls.munmap(page(0), 5 * PAGE).unwrap();
        assert_eq!(calls.areas().count(), 0);
    }
}
