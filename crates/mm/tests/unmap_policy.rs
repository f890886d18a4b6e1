//! munmap by TLB grace periods, step by step: what waits, what flushes, and what other CPUs see.

mod common;

use std::{iter::from_fn, mem::ManuallyDrop, ops::Range, sync::Arc};

use common::*;
use machine::{Asid, Frame, FrameSource, Owner, Place, Tlb, VirtAddr, VirtRange};
use mm::*;
use paging::{TlbGrace, X86_64L4};
use sim::{Checks, Config, Grace, Leaked, Sim};

type Periods = Arc<TlbGrace<Sim>>;

const FAR: usize = 0x1234_5000;

/// A machine of two CPUs that both use a space under the policy. CPU 1 has pages cached.
struct World {
    sim: Sim,
    shared: Shared,
    periods: Periods,
    /// Leaked by a failed test: there is no CPU on which it could be dropped.
    space: ManuallyDrop<Space>,
}

impl World {
    fn new(frames: u64, policy: bool) -> World {
        // Frames are freed only when no TLB translates to them.
        let checks = Checks { freed_cached: true, ..RACING };
        let sim = Sim::new(Config { cpus: 2, frames, checks, ..Config::default() }).unwrap();
        let shared = paging(&sim);
        let periods = TlbGrace::try_new(sim.clone()).unwrap();
        let space = sim.on_cpu(0, || new_space(&shared, 1).unwrap());
        if policy {
            // SAFETY: the machine's periods; no CPU has the space active, and none goes idle while
            // it has.
            sim.on_cpu(0, || unsafe {
                space.set_unmap_policy(UnmapPolicy::Grace(periods.clone()))
            })
            .unwrap();
        }
        World { sim, shared, periods, space: ManuallyDrop::new(space) }
    }

    fn space(&self) -> &Space {
        &self.space
    }

    /// Runs `f` on a CPU that has the space active.
    fn on<T>(&self, cpu: usize, f: impl FnOnce(&Space) -> T) -> T {
        self.sim.on_cpu(cpu, || {
            // SAFETY: no other mapping is needed, and no other tables have the tag.
            unsafe { self.space().activate() };
            f(self.space())
        })
    }

    /// The page tables that are in use or wait, once guards have let go of what does not.
    fn tables(&self) -> usize {
        (0..2).for_each(|cpu| self.sim.on_cpu(cpu, || assert!(self.sim.settle())));
        let is_table = |leaked: &&Leaked| matches!(leaked.owner, Owner::Table(_));
        self.sim.allocated().iter().filter(is_table).count()
    }

    fn map(&self, pages: usize) -> usize {
        self.on(0, |space| space.mmap(0, pages * PAGE, 3, PRIVATE).unwrap())
    }

    /// Maps pages, writes `value` to each on CPU 0, and lets CPU 1 cache them.
    fn cached(&self, pages: usize, value: u64) -> usize {
        self.cached_at(self.map(pages), pages, value)
    }

    fn cached_at(&self, at: usize, pages: usize, value: u64) -> usize {
        self.write(at..at + pages * PAGE, value);
        self.read_all(at, pages, value);
        at
    }

    fn write(&self, range: Range<usize>, value: u64) {
        self.on(0, |space| {
            range.step_by(PAGE).for_each(|at| store(&self.sim, space, at, value).unwrap());
        });
    }

    fn read_all(&self, at: usize, pages: usize, value: u64) {
        let all = (0..pages).map(|page| at + page * PAGE);
        all.for_each(|at| assert_eq!(self.read(at), Ok(value), "at {at:#x}"));
    }

    /// Reads on CPU 1.
    fn read(&self, at: usize) -> Result<u64, FaultError> {
        self.on(1, |space| load(&self.sim, space, at))
    }

    fn unmap(&self, at: usize, pages: usize) {
        self.on(0, |space| space.munmap(at, pages * PAGE).unwrap());
    }

    fn ipis(&self) -> u64 {
        self.sim.stats().ipis_sent
    }

    /// Both CPUs tick until a period that begins now has ended.
    fn tick(&self) {
        for _ in 0..3 {
            (0..2).for_each(|cpu| self.sim.on_cpu(cpu, || self.periods.tick()));
        }
    }

    /// The same, called on CPU 0.
    fn tick_others(&self) {
        for _ in 0..3 {
            self.periods.tick();
            self.sim.on_cpu(1, || self.periods.tick());
        }
    }

    /// Checks that no TLB translates addresses of the space.
    fn nothing_cached(&self, range: Range<usize>) {
        let range = VirtRange::new(VirtAddr::new(range.start as u64), range.len() as u64).unwrap();
        self.sim.on_cpu(0, || self.sim.check_reuse(Some(Asid(1)), range));
    }

    fn end(self) {
        let World { sim, shared, space, .. } = self;
        sim.on_cpu(0, || drop(ManuallyDrop::into_inner(space)));
        all_given_back(&sim, &shared).unwrap();
    }
}

fn invisible(space: &Space, at: usize, pages: usize) {
    let end = at + pages * PAGE;
    let mut maps = String::new();
    space.write_maps(&mut maps).unwrap();
    assert!(!maps.contains(&format!("{at:x}-")), "{maps}");
    let mut smaps = String::new();
    space.write_smaps(&mut smaps).unwrap();
    assert!(!smaps.contains(&format!("{at:x}-")), "{smaps}");
    assert_eq!(space.resident(at..end), 0);
    assert!(space.mincore(at, &mut [0]).is_err());
    assert_eq!(space.usage(at..end), Usage::default());
    let fault = space.handle_fault(VirtAddr::new(at as u64), Access::Read);
    assert_eq!(fault, Err(FaultError::Unmapped(VirtAddr::new(at as u64))));
}

#[test]
fn munmap_interrupts_no_cpu() {
    for policy in [false, true] {
        let world = World::new(512, policy);
        let at = world.cached(3, 7);
        let before = world.ipis();
        world.unmap(at, 3);
        assert_eq!(world.ipis() == before, policy);
        world.on(0, |space| invisible(space, at, 3));
        if policy {
            assert!(world.space().waiting() >= 3);
            // A racing program may still read, and reads its own memory.
            world.read_all(at, 3, 7);
            world.tick();
            world.on(0, |space| space.mmap(FAR, PAGE, 3, FIXED).unwrap());
            assert_eq!((world.space().waiting(), world.ipis()), (0, before));
        }
        world.nothing_cached(at..at + 3 * PAGE);
        let at = VirtAddr::new(at as u64);
        assert_eq!(world.read(at.get() as usize), Err(FaultError::Unmapped(at)));
        world.end();
    }
}

#[test]
fn maps_are_placed_beside_what_waits() {
    let world = World::new(512, true);
    let first = world.cached(2, 1);
    let (before, top) = (world.ipis(), first + 2 * PAGE);
    for round in 1..=5 {
        world.unmap(first - (round - 1) * 2 * PAGE, 2);
        let next = world.cached(2, round as u64);
        assert_eq!(next, first - round * 2 * PAGE, "the highest place that does not wait");
    }
    // It fits into no hole above what waits. Aligned places are beside it, too.
    let huge = world.on(0, |space| space.mmap(0, 4 << 20, 3, PRIVATE).unwrap());
    assert!(huge + (4 << 20) <= first - 10 * PAGE);
    let low = world.on(0, |space| space.mmap(0, PAGE, 3, PRIVATE | MapFlags::BIT32).unwrap());
    assert!(low < first);
    assert_eq!(world.ipis(), before);
    world.unmap(first - 10 * PAGE, 2);
    world.tick();
    assert_eq!(world.map(2), top - 2 * PAGE, "the period has ended");
    world.end();
}

#[test]
fn a_map_that_finds_no_other_place_flushes() {
    let world = World::new(512, true);
    let at = world.cached(1, 9);
    world.unmap(at, 1);
    // All of the addresses below `at` are in use; above, only the bottom-up search looks.
    let all = world.on(0, |space| {
        space.mmap(0, PAGE, 3, PRIVATE).unwrap();
        let taken = space.mmap(0x1_0000, at - PAGE - 0x1_0000, 0, FIXED);
        taken.unwrap();
        let above = (1 << 47) - PAGE - BASE;
        space.mmap(BASE, above, 0, FIXED).unwrap()
    });
    assert_eq!(all, BASE);
    let before = world.ipis();
    assert_eq!(world.map(1), at, "the only place");
    assert_eq!((world.space().waiting(), world.ipis()), (0, before + 1));
    assert_eq!(world.read(at), Ok(0));
    world.end();
}

/// Each call that maps at a given address.
#[test]
fn a_map_at_a_waiting_address_flushes_first() {
    type Call = fn(&World, usize);
    let calls: [(&str, Call); 7] = [
        ("fixed", |world, at| {
            world.on(0, |space| assert_eq!(space.mmap(at, 2 * PAGE, 3, FIXED), Ok(at)));
        }),
        ("noreplace", |world, at| {
            let flags = PRIVATE | MapFlags::FIXED_NOREPLACE;
            world.on(0, |space| assert_eq!(space.mmap(at, PAGE, 3, flags), Ok(at)));
        }),
        ("hint", |world, at| {
            world.on(0, |space| assert_eq!(space.mmap(at, PAGE, 3, PRIVATE), Ok(at)));
        }),
        ("move", |world, at| {
            world.on(0, |space| {
                space.mmap(FAR, PAGE, 3, FIXED).unwrap();
                let fixed = Some(at);
                let request = RemapRequest {
                    addr: FAR,
                    old_len: PAGE,
                    new_len: PAGE,
                    may_move: true,
                    fixed,
                    dont_unmap: None,
                };
                assert_eq!(space.mremap(request), Ok(at));
            });
        }),
        ("growth", |world, at| {
            world.on(0, |space| {
                space.mmap(at - PAGE, PAGE, 3, FIXED).unwrap();
                let request = RemapRequest {
                    addr: at - PAGE,
                    old_len: PAGE,
                    new_len: 2 * PAGE,
                    may_move: false,
                    fixed: None,
                    dont_unmap: None,
                };
                assert_eq!(space.mremap(request), Ok(at - PAGE));
            });
        }),
        ("stack", |world, at| {
            world.on(0, |space| {
                let flags = FIXED | MapFlags::GROWSDOWN;
                space.mmap(at + PAGE, PAGE, 3, flags).unwrap();
                store(&world.sim, space, at, 0).unwrap();
            });
        }),
        ("shmat", |world, at| {
            world.on(0, |space| {
                let kind = ShmemKind {
                    path: "/SYSV00000000 (deleted)".into(),
                    inode: 7,
                    device: (0, 1),
                    segment: true,
                };
                let segment = Shmem::new(&world.shared, kind);
                segment.set_size(PAGE as u64).unwrap();
                let request = AttachRequest {
                    segment: Backing::open(segment, true),
                    len: PAGE,
                    addr: Some(at),
                    read_only: false,
                    exec: false,
                    replace: false,
                    round: false,
                };
                assert_eq!(space.shmat(request), Ok(at));
            });
        }),
    ];
    for (name, call) in calls {
        let world = World::new(512, true);
        let at = world.cached(2, 5);
        world.unmap(at, 2);
        let before = world.ipis();
        world.read_all(at, 2, 5);
        call(&world, at);
        assert_eq!((world.space().waiting(), world.ipis()), (0, before + 1), "{name}");
        assert_eq!(world.read(at), Ok(0), "{name}: the old page is read");
        world.end();
    }
}

#[test]
fn the_heap_grows_where_nothing_waits() {
    let world = World::new(512, true);
    world.on(0, |space| space.brk(HEAP + PAGE).unwrap());
    world.write(HEAP..HEAP + PAGE, 1);
    // Unmapped by munmap, not by brk, which flushes at once.
    world.on(0, |space| assert_eq!(space.brk(HEAP + 2 * PAGE), Ok(HEAP + 2 * PAGE)));
    world.write(HEAP + PAGE..HEAP + 2 * PAGE, 6);
    world.read_all(HEAP + PAGE, 1, 6);
    let before = world.ipis();
    world.on(0, |space| space.munmap(HEAP + PAGE, PAGE).unwrap());
    assert_eq!(world.ipis(), before);
    world.on(0, |space| space.mmap(HEAP + PAGE, PAGE, 3, FIXED).unwrap());
    assert_eq!((world.read(HEAP + PAGE), world.ipis()), (Ok(0), before + 1));
    world.write(HEAP + PAGE..HEAP + 2 * PAGE, 6);
    world.read_all(HEAP + PAGE, 1, 6);
    let before = world.ipis();
    world.on(0, |space| assert_eq!(space.brk(HEAP + PAGE), Ok(HEAP + PAGE)));
    assert_eq!((world.space().waiting(), world.ipis()), (0, before + 1), "brk does not wait");
    // What munmap lets wait beyond the end, the heap claims, by an end that moves.
    world.on(0, |space| space.mmap(HEAP + PAGE, PAGE, 3, FIXED).unwrap());
    world.write(HEAP + PAGE..HEAP + 2 * PAGE, 8);
    world.read_all(HEAP + PAGE, 1, 8);
    world.on(0, |space| space.munmap(HEAP + PAGE, PAGE).unwrap());
    let before = world.ipis();
    world.on(0, |space| assert_eq!(space.brk(HEAP + 2 * PAGE), Ok(HEAP + 2 * PAGE)));
    assert_eq!((world.read(HEAP + PAGE), world.ipis()), (Ok(0), before + 1));
    world.end();
}

/// Calls that promise an effect at their return, under the policy.
#[test]
fn other_calls_flush_at_once() {
    let world = World::new(512, true);
    let at = world.cached(1, 4);
    world.on(0, |space| space.madvise(at, PAGE, Advice::DontNeed).unwrap());
    assert_eq!(world.read(at), Ok(0), "MADV_DONTNEED has returned");
    world.write(at..at + PAGE, 5);
    world.read_all(at, 1, 5);
    world.on(0, |space| space.mprotect(at, PAGE, 0, None).unwrap());
    assert!(matches!(world.read(at), Err(FaultError::Denied(..))));
    world.on(0, |space| space.mprotect(at, PAGE, 3, None).unwrap());
    world.read_all(at, 1, 5);
    world.on(0, |space| space.mmap(at, PAGE, 3, FIXED).unwrap());
    assert_eq!(world.read(at), Ok(0), "the map over it");
    world.write(at..at + PAGE, 6);
    world.read_all(at, 1, 6);
    let far = RemapRequest {
        addr: at,
        old_len: PAGE,
        new_len: PAGE,
        may_move: true,
        fixed: Some(FAR),
        dont_unmap: None,
    };
    world.on(0, |space| space.mremap(far).unwrap());
    assert!(world.read(at).is_err(), "mremap has returned");
    assert_eq!(world.space().waiting(), 0);
    // An object's pages do not wait: it may write them back, or be truncated.
    let flags = MapFlags::SHARED | MapFlags::ANONYMOUS;
    let at = world.on(0, |space| space.mmap(0, PAGE, 3, flags).unwrap());
    world.write(at..at + PAGE, 6);
    world.read_all(at, 1, 6);
    let before = world.ipis();
    world.unmap(at, 1);
    assert_eq!((world.space().waiting(), world.ipis()), (0, before + 1));
    world.end();
}

#[test]
fn exec_and_the_end_leave_nothing_waiting() {
    let world = World::new(512, true);
    let at = world.cached(2, 3);
    world.unmap(at, 2);
    world.read_all(at, 2, 3);
    world.on(0, |space| space.exec(Layout { mmap_base: BASE, ..Layout::default() }).unwrap());
    assert_eq!(world.space().waiting(), 0);
    world.nothing_cached(at..at + 2 * PAGE);
    let at = world.cached(2, 3);
    world.unmap(at, 2);
    assert!(world.space().waiting() > 0);
    world.end();
}

/// A child shares the tables that what waits was removed from.
#[test]
fn a_child_does_not_find_what_waits() {
    let world = World::new(512, true);
    let at = world.cached(4, 2);
    let before = world.ipis();
    world.unmap(at, 2);
    let child = world.on(0, |space| ManuallyDrop::new(space.fork(Asid(2)).unwrap()));
    assert_eq!(child.waiting(), 0);
    assert!(world.space().waiting() > 0);
    world.sim.on_cpu(0, || {
        // SAFETY: as in `World::on`.
        unsafe { child.activate() };
        assert!(load(&world.sim, &child, at).is_err());
        // It may map there at once, and has the policy.
        child.mmap(at, PAGE, 3, FIXED).unwrap();
        assert_eq!(load(&world.sim, &child, at), Ok(0));
        assert_eq!(load(&world.sim, &child, at + 2 * PAGE), Ok(2));
    });
    // fork flushes for the pages that it shares.
    assert_eq!(world.ipis(), before + 1);
    world.sim.on_cpu(1, || {
        // SAFETY: as above.
        unsafe { child.activate() };
        assert_eq!(load(&world.sim, &child, at + 3 * PAGE), Ok(2));
    });
    world.sim.on_cpu(0, || {
        // SAFETY: as above.
        unsafe { child.activate() };
        store(&world.sim, &child, at + 3 * PAGE, 8).unwrap();
        child.munmap(at + 3 * PAGE, PAGE).unwrap();
        assert!(child.waiting() > 0, "the child has the policy");
    });
    world.sim.on_cpu(0, || drop(ManuallyDrop::into_inner(child)));
    world.end();
}

/// A frame that waits keeps its reference: a sibling does not take it over, and its group pays.
#[test]
fn a_waiting_frame_counts() {
    let mut world = World::new(512, true);
    let group = FrameGroup::try_new(&world.sim, 3, Box::new(())).unwrap();
    world.space.set_group(&group);
    let at = world.cached(3, 1);
    world.unmap(at, 3);
    let used = world.on(0, |_| group.used());
    assert_eq!(used, 3);
    // The limit is reached: the fault gives back what waits.
    let before = world.ipis();
    let at = world.cached(3, 2);
    assert_eq!((world.space().waiting(), world.ipis()), (0, before + 1));
    let child = world.on(0, |space| ManuallyDrop::new(space.fork(Asid(2)).unwrap()));
    world.read_all(at, 1, 2);
    world.unmap(at, 1);
    world.sim.on_cpu(0, || {
        // SAFETY: as in `World::on`.
        unsafe { child.activate() };
        // The limit is reached again, by a page that only the child maps, and one that waits.
        let written = store(&world.sim, &child, at, 9);
        assert_eq!(written, Err(FaultError::GroupLimit), "it copies, and does not take over");
    });
    assert!(world.space().waiting() > 0);
    world.sim.on_cpu(0, || drop(ManuallyDrop::into_inner(child)));
    world.end();
    drop(group);
}

#[test]
fn memory_that_is_short_ends_the_wait() {
    let world = World::new(64, true);
    let at = world.cached(32, 1);
    world.unmap(at, 32);
    assert!(world.space().waiting() >= 32);
    let before = world.ipis();
    let at = world.cached(32, 2);
    assert_eq!((world.space().waiting(), world.ipis()), (0, before + 1));
    world.unmap(at, 32);
    let reclaimed = world.on(0, |space| space.reclaim(8).unwrap());
    assert!(reclaimed.purged >= 32 && reclaimed.taken() >= 32, "{reclaimed:?}");
    // Calls that need tables: a fork, a move, and a cut of tables that a fork shares.
    for what in 0..3 {
        let at = world.cached(8, 3);
        let far = world.map(1);
        world.write(far..far + PAGE, 4);
        world.unmap(at, 8);
        assert!(world.space().waiting() > 0);
        let forks = || world.on(0, |space| ManuallyDrop::new(space.fork(Asid(2)).unwrap()));
        let child = (what == 2).then(forks);
        // All other frames are taken.
        let taken: Vec<_> = world.sim.on_cpu(0, || {
            assert!(world.sim.settle());
            world.shared.quick().drain();
            from_fn(|| world.sim.alloc(0, Place::Local).ok()).collect()
        });
        let request = RemapRequest {
            addr: far,
            old_len: PAGE,
            new_len: PAGE,
            may_move: true,
            fixed: Some(FAR),
            dont_unmap: None,
        };
        world.on(0, |space| {
            match what {
                0 => {
                    let child = space.fork(Asid(3));
                    drop(child.unwrap());
                }
                1 => assert_eq!(space.mremap(request), Ok(FAR)),
                _ => space.mprotect(far, PAGE, 1, None).unwrap(),
            }
            assert_eq!(space.waiting(), 0, "{what}");
        });
        world.sim.on_cpu(0, || {
            for frame in taken {
                // SAFETY: no other code has it.
                unsafe { world.sim.free(frame) }.unwrap();
            }
            drop(child.map(ManuallyDrop::into_inner));
        });
        world.on(0, |space| {
            for (at, pages) in [(at, 8), (far, 1), (FAR, 1)] {
                space.munmap(at, pages * PAGE).unwrap();
            }
            space.purge()
        });
    }
    world.end();
}

/// A CPU that never ticks: the bounds of pages and of ranges.
#[test]
fn the_bounds_force_a_flush() {
    let world = World::new(20_000, true);
    let before = world.ipis();
    let mut most = 0;
    for _ in 0..20 {
        let at = world.cached(1024, 1);
        world.unmap(at, 1024);
        most = most.max(world.space().waiting());
    }
    // 20,480 pages.
    assert_eq!(world.ipis(), before + 2);
    assert!((7000..=8192).contains(&most), "{most} pages have waited");
    world.on(0, |space| space.purge());
    let before = world.ipis();
    let at = world.cached(1200, 3);
    for page in (0..600).step_by(2) {
        world.unmap(at + page * PAGE, 1);
    }
    assert_eq!(world.ipis(), before + 1, "too many ranges");
    // Maps go beside them, or below, without a flush.
    let before = world.ipis();
    let waiting = world.space().waiting();
    for _ in 0..300 {
        world.cached(1, 4);
    }
    assert_eq!(world.space().waiting(), waiting);
    assert_eq!(world.ipis(), before);
    world.end();
}

#[test]
fn a_period_that_ticks_end_gives_back_at_the_bound() {
    let world = World::new(20_000, true);
    let before = world.ipis();
    for _ in 0..20 {
        let at = world.cached(1024, 1);
        world.unmap(at, 1024);
        (0..2).for_each(|cpu| world.sim.on_cpu(cpu, || world.periods.tick()));
    }
    assert_eq!(world.ipis(), before);
    world.end();
}

#[test]
fn poll_gives_back_without_a_call() {
    let world = World::new(512, true);
    let at = world.cached(3, 1);
    world.unmap(at, 3);
    let before = world.ipis();
    for _ in 0..3 {
        world.on(0, Space::poll);
        (0..2).for_each(|cpu| world.sim.on_cpu(cpu, || world.periods.tick()));
    }
    world.on(0, Space::poll);
    assert_eq!((world.space().waiting(), world.ipis()), (0, before));
    world.end();
}

#[test]
fn one_cpu_does_not_wait() {
    let world = World::new(512, true);
    let at = world.map(2);
    world.write(at..at + 2 * PAGE, 1);
    world.unmap(at, 2);
    assert_eq!((world.space().waiting(), world.ipis()), (0, 0));
    assert_eq!(world.map(2), at);
    world.end();
}

#[test]
fn the_policy_can_be_taken_back() {
    let world = World::new(512, true);
    let at = world.cached(1, 1);
    world.unmap(at, 1);
    let before = world.ipis();
    world.on(0, |space| {
        // SAFETY: there is nothing to promise.
        unsafe { space.set_unmap_policy(UnmapPolicy::Immediate) }.unwrap();
        assert_eq!(space.waiting(), 0);
    });
    assert_eq!(world.ipis(), before + 1);
    let at = world.cached(1, 1);
    world.unmap(at, 1);
    assert_eq!((world.space().waiting(), world.ipis()), (0, before + 2));
    let other = TlbGrace::try_new(world.sim.clone()).unwrap();
    world.on(0, |space| {
        // SAFETY: it is refused.
        let refused = unsafe { space.set_unmap_policy(UnmapPolicy::Grace(other)) };
        assert!(matches!(refused, Err(Error::NotSupported(_))));
    });
    world.end();
}

/// A pinned page is pinned also while it waits, and afterwards.
#[test]
fn pins_outlive_the_wait() {
    let world = World::new(512, true);
    let at = world.cached(2, 7);
    world.on(0, |space| {
        let mut frames = [Frame::default(); 2];
        let pins = space.pin_pages(at, Access::Write, &mut frames).unwrap();
        space.munmap(at, 2 * PAGE).unwrap();
        assert!(space.waiting() >= 2);
        world.tick_others();
        space.poll();
        assert_eq!(space.waiting(), 0);
        drop(pins);
    });
    world.end();
}

#[test]
fn a_huge_page_waits() {
    let sim_frames = 4096;
    let mut world = World::new(sim_frames, true);
    world.space.set_huge_pages(HugePages::Always).unwrap();
    let at = world.on(0, |space| space.mmap(0, 2 << 20, 3, PRIVATE).unwrap());
    world.write(at..at + PAGE, 3);
    world.read_all(at, 1, 3);
    let before = world.ipis();
    world.unmap(at, 512);
    assert!(world.space().waiting() >= 512, "{} pages wait", world.space().waiting());
    world.read_all(at, 1, 3);
    world.tick();
    world.on(0, Space::poll);
    assert_eq!((world.space().waiting(), world.ipis()), (0, before));
    // A part of one is split off at once, and does wait.
    let at = world.on(0, |space| space.mmap(0, 2 << 20, 3, PRIVATE).unwrap());
    world.write(at..at + 2 * PAGE, 3);
    world.read_all(at, 2, 3);
    world.unmap(at, 1);
    assert_eq!(world.read(at + PAGE), Ok(3));
    world.end();
}

#[test]
fn empty_tables_stay_for_the_next_maps() {
    let world = World::new(512, true);
    let root = world.tables();
    let mut at = world.cached(1, 1);
    let all = world.tables();
    assert!(all > root);
    for round in 0..6 {
        world.unmap(at, 1);
        assert_eq!(world.space().waiting(), 1 + round % 2, "no table waits");
        if round % 2 == 1 {
            world.tick();
        }
        at = world.cached(1, 1);
        assert_eq!(world.tables(), all);
    }
    world.unmap(at, 1);
    world.tick();
    // Elsewhere: what was used before stays empty for a period, and then its tables wait, too.
    for round in 0..3 {
        world.on(0, |space| space.mmap(FAR, PAGE, 3, FIXED).unwrap());
        world.cached_at(FAR, 1, 2);
        world.unmap(FAR, 1);
        let waiting = [1, 3, 1][round];
        assert_eq!(world.space().waiting(), waiting, "in round {round}");
        world.tick();
    }
    world.on(0, Space::poll);
    // The way to the other place is as long.
    assert_eq!(world.tables(), all);
    world.on(0, |space| space.purge());
    assert_eq!(world.tables(), root, "a flush unlinks all");
    world.end();
}

#[test]
fn no_table_stays_empty_that_a_fork_shares() {
    let world = World::new(512, true);
    let root = world.tables();
    let at = world.cached(1, 1);
    world.unmap(at, 1);
    let child = world.on(0, |space| ManuallyDrop::new(space.fork(Asid(2)).unwrap()));
    world.on(0, |space| space.purge());
    assert_eq!(world.tables(), 2 * root, "the empty tables were unlinked before the fork");
    let at = world.cached(1, 1);
    world.unmap(at, 1);
    assert!(world.space().waiting() > 1, "a table waits");
    world.on(0, |space| space.purge());
    assert_eq!(world.tables(), 2 * root);
    world.sim.on_cpu(0, || drop(ManuallyDrop::into_inner(child)));
    world.end();
}

/// The type is part of the interface.
#[test]
fn it_is_shared_between_threads() {
    fn is_shared<T: Send + Sync>() {}
    is_shared::<AddressSpace<Sim, X86_64L4, Grace>>();
    is_shared::<UnmapPolicy<Sim>>();
}
