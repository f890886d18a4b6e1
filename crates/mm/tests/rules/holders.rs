//! TLB shootdowns of threads that map, touch and unmap: on a machine whose TLBs software loads, no
//! CPU is interrupted that has not used a page (`paging::holder`).

use std::mem::ManuallyDrop;

use crate::common::*;
use machine::VirtAddr;
use mm::*;
use sim::{Config, Sim};

/// A space that is active on each CPU of a machine. A page stays, so that no table is unlinked.
struct World {
    sim: Sim,
    shared: SharedPaging,
    space: ManuallyDrop<Space>,
}

impl World {
    fn new(config: Config) -> World {
        let sim = Sim::new(config).unwrap();
        let shared = paging(&sim);
        let space = sim.on_cpu(0, || ManuallyDrop::new(new_space(&shared, 1).unwrap()));
        let world = World { sim, shared, space };
        (0..config.cpus).for_each(|cpu| world.on(cpu, |_| ()));
        world.on(0, |space| {
            let kept = space.mmap(0, PAGE, 3, PRIVATE).unwrap();
            store(&world.sim, space, kept, 1).unwrap();
        });
        world
    }

    fn with_cpus(cpus: usize) -> World {
        World::new(Config { cpus, ..Config::default() })
    }

    /// Runs a program on a CPU, which comes back to the space.
    fn on<T>(&self, cpu: usize, program: impl FnOnce(&Space) -> T) -> T {
        self.sim.on_cpu(cpu, || {
            // SAFETY: no other mapping is needed, and no other tables have the tag.
            unsafe { self.space.activate() };
            program(&self.space)
        })
    }

    fn map(&self, pages: usize) -> usize {
        self.on(0, |space| space.mmap(0, pages * PAGE, 3, PRIVATE).unwrap())
    }

    fn write(&self, cpu: usize, at: usize) {
        self.on(cpu, |space| store(&self.sim, space, at, at as u64).unwrap());
    }

    fn read(&self, cpu: usize, at: usize) -> Result<u64, FaultError> {
        self.on(cpu, |space| load(&self.sim, space, at))
    }

    /// The IPIs of a call on CPU 0.
    fn ipis(&self, call: impl FnOnce(&Space)) -> u64 {
        let before = self.sim.stats().ipis_sent;
        self.on(0, call);
        self.sim.stats().ipis_sent - before
    }

    fn unmap(&self, at: usize, pages: usize) -> u64 {
        let ipis = self.ipis(|space| space.munmap(at, pages * PAGE).unwrap());
        for cpu in 0..self.sim.config().cpus {
            let old = self.read(cpu, at);
            assert_eq!(old, Err(FaultError::Unmapped(VirtAddr::new(at as u64))), "CPU {cpu}");
        }
        ipis
    }

    fn end(self) {
        let World { sim, shared, space } = self;
        sim.on_cpu(0, || drop(ManuallyDrop::into_inner(space)));
        all_given_back(&sim, &shared).unwrap();
    }
}

#[test]
fn threads_that_map_touch_and_unmap_interrupt_no_other_cpu() {
    for cpus in [2, 4, 8] {
        for (preloads, expected) in [(true, 0), (false, cpus as u64 - 1)] {
            let world = World::new(Config { cpus, preloads, ..Config::default() });
            for cpu in 0..cpus {
                let before = world.sim.stats().ipis_sent;
                world.on(cpu, |space| {
                    // As malloc1 of will-it-scale: all pages are written.
                    for pages in [1, 16] {
                        let at = space.mmap(0, pages * PAGE, 3, PRIVATE).unwrap();
                        for page in (0..pages).map(|page| at + page * PAGE) {
                            store(&world.sim, space, page, 1).unwrap();
                            assert_eq!(load(&world.sim, space, page), Ok(1));
                        }
                        space.munmap(at, pages * PAGE).unwrap();
                    }
                });
                assert_eq!(world.sim.stats().ipis_sent - before, 2 * expected, "CPU {cpu}");
            }
            world.end();
        }
    }
}

#[test]
fn a_cpu_that_has_read_a_page_is_interrupted() {
    let world = World::with_cpus(4);
    let at = world.map(2);
    world.write(0, at);
    assert_eq!(world.read(1, at), Ok(at as u64));
    world.write(0, at + PAGE);
    // The accessed bit does not say which CPU it was.
    assert_eq!(world.unmap(at, 2), 3);
    world.end();
}

#[test]
fn another_holder_alone_is_interrupted() {
    let world = World::with_cpus(4);
    let at = world.map(2);
    world.write(2, at);
    assert_eq!(world.unmap(at, 2), 1);
    // A thread that has moved from CPU 2 to CPU 3.
    let at = world.map(2);
    world.write(2, at);
    world.write(3, at + PAGE);
    assert_eq!(world.unmap(at, 2), 2);
    world.end();
}

#[test]
fn a_page_that_a_cpu_of_another_space_brings_in_is_cached_nowhere() {
    let world = World::with_cpus(2);
    let at = world.map(1);
    world.sim.on_cpu(1, || {
        let other = new_space(&world.shared, 2).unwrap();
        // SAFETY: as in `on`.
        unsafe { other.activate() };
        world.space.handle_fault(VirtAddr::new(at as u64), Access::Write).unwrap();
        // SAFETY: as in `on`.
        unsafe { world.space.activate() };
        drop(other);
    });
    assert_eq!(world.unmap(at, 1), 0);
    world.end();
}

#[test]
fn changes_of_a_held_page_forget_its_holder() {
    type Change = fn(&Space, usize);
    let changes: [(&str, Change); 4] = [
        ("protect", |space, at| space.mprotect(at, PAGE, 1, None).unwrap()),
        ("clear references", |space, _| space.clear_referenced().unwrap()),
        ("soft-dirty", |space, _| space.clear_soft_dirty().unwrap()),
        ("fork", |space, _| drop(space.fork(machine::Asid(3)).unwrap())),
    ];
    for (name, change) in changes {
        let world = World::with_cpus(2);
        let at = world.map(1);
        world.write(0, at);
        world.on(0, |space| change(space, at));
        assert_eq!(world.read(1, at), Ok(at as u64), "{name}");
        assert_eq!(world.unmap(at, 1), 1, "{name}");
        world.end();
    }
}

#[test]
fn a_page_that_was_aged_is_flushed_on_all_cpus_that_use_it() {
    let world = World::with_cpus(2);
    let at = world.map(1);
    world.write(0, at);
    assert_eq!(world.read(1, at), Ok(at as u64));
    // Now the accessed bit is clear, and CPU 1 has the translation.
    world.on(0, |space| space.clear_referenced().unwrap());
    assert_eq!(world.unmap(at, 1), 1);
    world.end();
}

#[test]
fn an_unlinked_table_is_flushed_on_all_cpus() {
    let world = World::with_cpus(2);
    let far = BASE - (1 << 30);
    let map = |at| world.on(0, |space| space.mmap(at, PAGE, 3, FIXED).unwrap());
    assert_eq!(map(far), far);
    map(far + PAGE);
    world.write(0, far);
    assert_eq!(world.read(1, far), Ok(far as u64));
    world.write(0, far + PAGE);
    assert_eq!(world.unmap(far, 1), 1);
    // CPU 1 has never used the last page, but may walk its table.
    assert_eq!(world.unmap(far + PAGE, 1), 1);
    world.end();
}

#[test]
fn a_page_that_moves_is_flushed_where_it_is_used() {
    let world = World::with_cpus(2);
    let at = world.map(1);
    let to = BASE - 64 * PAGE;
    world.write(0, at);
    let ipis = world.ipis(|space| {
        let (addr, old_len, new_len) = (at, PAGE, PAGE);
        let (may_move, fixed, dont_unmap) = (true, Some(to), None);
        let request = RemapRequest { addr, old_len, new_len, may_move, fixed, dont_unmap };
        assert_eq!(space.mremap(request).unwrap(), to);
    });
    assert_eq!(ipis, 1);
    assert_eq!(world.read(1, to), Ok(at as u64));
    assert_eq!(world.unmap(to, 1), 1);
    world.end();
}
