//! Frames that run out: the host makes room, and takes back the pages of a program that is to end.

use std::{
    mem::ManuallyDrop,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use crate::common::*;
use machine::{Asid, FrameSource, VirtAddr};
use mm::*;
use sim::{Failure, Program, seeded};

const SEEDS: u64 = if cfg!(debug_assertions) { 100 } else { 1_000 };

/// Locked, sealed and huge memory, guard pages and pages of objects.
#[test]
fn a_reap_takes_all_pages_and_no_vma() {
    with_space(4096, |sim, shared, space| {
        let at = space.mmap(0, 200 * PAGE, 3, PRIVATE).unwrap();
        space.write(at, &[7; 200 * PAGE]).unwrap();
        space.mlock(at, 10 * PAGE, false).unwrap();
        space.madvise(at + 20 * PAGE, PAGE, Advice::GuardInstall).unwrap();
        space.mprotect(at + 30 * PAGE, PAGE, 1, None).unwrap();
        space.with_vmas(|calls| calls.mseal(at + 30 * PAGE, PAGE)).unwrap();
        let memory = memfd(shared, 1);
        let object = space.mmap_object(0, PAGE, 3, MapFlags::SHARED, opened(&memory), 0).unwrap();
        space.write(object, b"kept").unwrap();
        space.set_huge_pages(HugePages::Always).unwrap();
        let huge = space.mmap(1 << 30, 2 << 20, 3, FIXED).unwrap();
        space.write(huge, &[1]).unwrap();
        assert_eq!(space.usage(huge..huge + (2 << 20)).huge, 2 << 20);
        let (before, free) = (listing(space), sim.free_frames());
        // One flush at a time, and then the rest.
        let first = space.reap(1);
        assert!((1..712).contains(&first), "{first} pages");
        assert!(sim.free_frames() > free);
        let rest = space.reap(usize::MAX);
        assert_eq!(first + rest, 200 + 1 + 512, "a guard page counts as one");
        assert_eq!(space.reap(usize::MAX), 0);
        assert_eq!(listing(space), before);
        assert_eq!(space.totals().resident, 0);
        // Pages that are touched later come anew.
        for page in [0, 20, 30] {
            assert_eq!(load(sim, space, at + page * PAGE), Ok(0), "page {page}");
        }
        assert_eq!(load(sim, space, object), Ok(u32::from_le_bytes(*b"kept").into()));
    });
}

#[test]
fn a_fork_keeps_what_its_parent_loses() {
    with_space(4096, |sim, shared, space| {
        let at = 1 << 30;
        space.mmap(at, 600 * PAGE, 3, FIXED).unwrap();
        space.write(at, &[5; 600 * PAGE]).unwrap();
        let child = space.fork(Asid(2)).unwrap();
        // The child has a table of its own now, and shares another one.
        child.write(at, &[6]).unwrap();
        // Also without memory for a table.
        without_frames(sim, 1, true, || space.reap(usize::MAX));
        assert_eq!(space.totals().resident, 0);
        assert_eq!(load(sim, space, at + 599 * PAGE), Ok(0));
        let mut bytes = vec![0; 600 * PAGE];
        child.read(at, &mut bytes).unwrap();
        assert_eq!((bytes[0], bytes[1]), (6, 5));
        assert!(bytes[1..].iter().all(|byte| *byte == 5));
        // And the reverse.
        let grandchild = child.fork(Asid(3)).unwrap();
        child.reap(usize::MAX);
        grandchild.read(at, &mut bytes).unwrap();
        assert_eq!((bytes[0], bytes[599 * PAGE]), (6, 5));
        drop((child, grandchild, shared));
    });
}

/// Reaps spaces, one each time it is asked.
#[derive(Default)]
struct Reaps {
    victims: Mutex<Vec<std::sync::Weak<Space>>>,
    asked: AtomicUsize,
}

impl OnLimit for Reaps {
    fn make_room(&self, needed: usize) -> bool {
        assert_eq!(needed, 1);
        self.asked.fetch_add(1, Ordering::Relaxed);
        let victim = self.victims.lock().unwrap().pop().and_then(|space| space.upgrade());
        victim.is_some_and(|space| space.reap(usize::MAX) > 0)
    }
}

#[test]
fn a_host_makes_room_for_a_fault_and_for_a_copy() {
    const PAGES: usize = 100;
    on_machine(one_cpu(256), None, |_, shared| {
        let reaps = Arc::new(Reaps::default());
        let space = |asid| {
            let mut space = new_space(shared, asid).unwrap();
            space.set_shortage_handler(Arc::clone(&reaps) as Arc<dyn OnLimit>);
            space.mmap(BASE, PAGES * PAGE, 3, FIXED).unwrap();
            Arc::new(space)
        };
        let (first, second, hungry) = (space(1), space(2), space(3));
        first.write(BASE, &[1; PAGES * PAGE]).unwrap();
        second.write(BASE, &[2; PAGES * PAGE]).unwrap();
        *reaps.victims.lock().unwrap() = vec![Arc::downgrade(&second), Arc::downgrade(&first)];
        // A copy asks in its middle, and goes on.
        hungry.write(BASE, &[3; PAGES * PAGE]).unwrap();
        assert_eq!(reaps.asked.load(Ordering::Relaxed), 1);
        assert_eq!((first.totals().resident, second.totals().resident), (0, PAGES * PAGE));
        // A child has the handler, too. A fork does not ask.
        let child = hungry.fork(Asid(4)).unwrap();
        child.write(BASE, &[4; PAGES * PAGE]).unwrap();
        assert_eq!(reaps.asked.load(Ordering::Relaxed), 2);
        assert_eq!(second.totals().resident, 0);
        // The host gives up: nothing has changed, and the error is the frame source's.
        first.write(BASE, &[1; PAGES * PAGE]).unwrap_err();
        let resident = first.totals().resident;
        let page = VirtAddr::new((BASE + resident) as u64);
        let refused = first.handle_fault(page, Access::Write);
        assert!(matches!(refused, Err(FaultError::OutOfMemory(_))), "{refused:?}");
        assert_eq!(first.totals().resident, resident);
        let asked = reaps.asked.load(Ordering::Relaxed);
        assert!(asked > 2);
        assert!(matches!(hungry.fork(Asid(5)), Err(Error::Tables(_))));
        assert_eq!(reaps.asked.load(Ordering::Relaxed), asked, "a fork does not ask");
    });
}

/// A space is reaped while its program runs, forks and unmaps. Its parent and its children
/// lose nothing, and no frame is left.
fn during_its_program(seed: u64) -> Result<(), Failure> {
    const PAGES: usize = 4;
    const AT: usize = 0x3fff_e000;
    let (race, victim) = Race::with(racing(3, 1024), None, |_, parent| {
        parent.mmap(AT, PAGES * PAGE, 3, FIXED).unwrap();
        parent.write(AT, &[9; PAGES * PAGE]).unwrap();
        ManuallyDrop::new(parent.fork(Asid(2)).unwrap())
    });
    let was = u64::from_le_bytes([9; 8]);
    let (sim, parent) = (&race.sim, &*race.space);
    let page = |number: usize| AT + number % PAGES * PAGE;
    let program: Program<'_> = Box::new(|| {
        activate(&victim);
        for round in 1..=12 {
            store(sim, &victim, page(round), round as u64).unwrap();
            let found = load(sim, &victim, page(round)).unwrap();
            assert!([0, round as u64].contains(&found), "{found} of {round}");
            let other = load(sim, &victim, page(round + 2)).unwrap();
            assert!(other == was || other < 13, "{other}");
            if round % 5 == 0 {
                victim.munmap(page(round), PAGE).unwrap();
                victim.mmap(page(round), PAGE, 3, FIXED).unwrap();
            }
        }
        leave(&victim);
    });
    let reaper: Program<'_> = Box::new(|| {
        for most in [1, usize::MAX, 2, 1, usize::MAX] {
            victim.reap(most);
        }
    });
    // A fork may find the hole between an munmap and the next mmap.
    let words = |of: &Space| {
        [0, 1, 2, 3].map(|number| {
            let mut word = [0; 8];
            of.read(page(number), &mut word).ok()?;
            Some(u64::from_le_bytes(word))
        })
    };
    let forks: Program<'_> = Box::new(|| {
        for asid in 3..6 {
            let child = victim.fork(Asid(asid)).unwrap();
            let found = words(&child);
            parent.write(AT, &[9; PAGE]).unwrap();
            assert_eq!(words(&child), found, "the child lost it");
            assert_eq!(words(parent), [Some(was); 4]);
        }
    });
    seeded(sim, seed, vec![program, reaper, forks])?;
    sim.on_cpu(0, || {
        assert_eq!(words(parent), [Some(was); 4]);
        victim.reap(usize::MAX);
        assert_eq!(victim.totals().resident, 0);
    });
    race.end(ManuallyDrop::into_inner(victim))
}

#[test]
fn a_reap_during_the_program_takes_nothing_of_others() {
    each_seed(SEEDS, during_its_program);
}
