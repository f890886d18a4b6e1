//! Calls of a userfaultfd's monitor, while the program maps something else there.

use std::sync::{Arc, OnceLock};

use mm::*;
use sim::{Failure, Program, Sim, seeded};

use super::*;

const SEEDS: u64 = if cfg!(debug_assertions) { 300 } else { 3_000 };

/// Maps memory at the place, and registers it.
fn map_registered(space: &Space, file: Option<(Backing<Sim>, usize)>) {
    match file {
        Some((file, offset)) => space.mmap_object(AT, PAGE, 3, SHARED, file, offset),
        None => space.mmap(AT, PAGE, 3, FIXED),
    }
    .unwrap();
    space.userfault_register(AT, PAGE, UserFaultModes::MISSING, Uffd::new(1)).unwrap();
}

/// The limit of a group is reached: something happens, and it is raised.
#[derive(Default)]
struct AtLimit(Work, OnceLock<WeakShared<FrameGroup<Sim>>>);

struct Host(Arc<AtLimit>);

impl OnLimit for Host {
    fn make_room(&self, _: usize) -> bool {
        run(&self.0.0);
        self.0.1.get().unwrap().upgrade().unwrap().set_limit(100);
        true
    }
}

struct Panics;

impl UserFaultHandler for Panics {
    fn handle(&self, _: UserFault) -> bool {
        panic!("the monitor")
    }
}

/// The monitor of a page far behind panics: the pages that a long-term pin has pinned before are
/// free again.
#[test]
fn a_panic_ends_the_pins_before_it() {
    const PAGES: usize = 40;
    on_machine(one_cpu(256), None, |sim, shared| {
        let mut space = new_space(shared, 1).unwrap();
        space.set_userfault_handler(Arc::new(Panics));
        space.mmap(AT, PAGES * PAGE, 3, FIXED).unwrap();
        let last = AT + (PAGES - 1) * PAGE;
        space.userfault_register(last, PAGE, UserFaultModes::MISSING, Uffd::new(1)).unwrap();
        let mut frames = [machine::Frame::default(); PAGES];
        panics(|| space.pin_pages_long_term(AT, &mut frames).map(drop));
        drop(space);
        assert!(sim.settle());
    });
}

/// A page for private memory does not go into a shared map.
#[test]
fn a_page_fits_the_map_that_is_there() {
    on_machine(one_cpu(256), None, |sim, shared| {
        let host = Arc::new(AtLimit::default());
        let group = FrameGroup::try_new(sim, 0, Box::new(Host(host.clone()))).unwrap();
        host.1.set(mm::Shared::downgrade(&group)).unwrap();
        let mut space = new_space(shared, 1).unwrap();
        space.set_group(&group).unwrap();
        space.set_userfault_handler(Arc::new(Never::default()));
        let space = Arc::new(space);
        map_registered(&space, None);
        let memory = Shmem::memfd(shared, "name", 1).unwrap();
        memory.write(0, &[1; PAGE]).unwrap();
        let (same, file) = (Arc::downgrade(&space), opened(&memory));
        *host.0.lock().unwrap() =
            Some(Box::new(move || map_registered(&same.upgrade().unwrap(), Some((file, 0)))));
        assert!(space.userfault_copy(AT, &[2; PAGE], false).is_err());
        assert_eq!(byte(&space, AT), 1, "the page is the object's");
    });
}

/// A monitor resolves pages while the program maps private and shared memory in turn. Each page is
/// one of its map, so that a write ends.
fn pages_during_maps(seed: u64) -> Result<(), Failure> {
    let (race, memory) = Race::with(racing(2, 256), None, |shared, space| {
        space.set_userfault_handler(Arc::new(Never::default()));
        map_registered(space, None);
        let memory = Shmem::memfd(shared, "name", 1).unwrap();
        memory.write(0, &[1; PAGE]).unwrap();
        memory.write(PAGE as u64, &[2; PAGE]).unwrap();
        memory
    });
    let file = opened(&memory);
    let make = |cpu: usize| -> Program<'_> {
        let (space, file) = (&race.space, &file);
        Box::new(move || {
            for turn in 0..6 {
                match (cpu, seed % 2, turn % 2) {
                    (0, 0, _) => _ = space.userfault_zeropage(AT, PAGE),
                    (0, ..) => _ = space.userfault_continue(AT, PAGE, false),
                    (_, 0, 1) => map_registered(space, None),
                    (_, _, turn) => {
                        map_registered(space, Some((file.clone(), turn * PAGE)));
                        let mut found = [0];
                        // The page of zeros is written, or the object's is found.
                        space.read(AT, &mut found).unwrap();
                        assert_eq!(found, [1 + turn as u8]);
                        space.write(AT + 1, &[3]).unwrap();
                    }
                }
            }
        })
    };
    seeded(&race.sim, seed, (0..2).map(make).collect())?;
    race.end((file, memory))
}

#[test]
fn each_page_is_one_of_its_map() {
    each_seed(SEEDS, pages_during_maps);
}
