//! Groups of spaces: the limit holds, and each frame counts until it is free.

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::common::*;
use machine::{Asid, Frame, Memory, VirtAddr};
use mm::*;
use sim::{Config, Failure, Program, Sim, seeded};

const SEEDS: u64 = if cfg!(debug_assertions) { 100 } else { 1_000 };

fn group(sim: &Sim, limit: usize) -> mm::Shared<FrameGroup<Sim>> {
    FrameGroup::try_new(sim, limit, Box::new(())).unwrap()
}

fn grouped(shared: &SharedPaging, asid: u16, group: &mm::Shared<FrameGroup<Sim>>) -> Space {
    let mut space = new_space(shared, asid).unwrap();
    space.set_group(group).unwrap();
    space
}

#[test]
fn each_frame_counts_until_it_is_free() {
    with_space(256, |sim, shared, _| {
        let group = group(sim, 100);
        let space = grouped(shared, 2, &group);
        let at = space.mmap(0, 8 * PAGE, 3, PRIVATE).unwrap();
        space.write(at, &[1; 4 * PAGE]).unwrap();
        assert_eq!(group.used(), 4);
        let mut byte = [0];
        space.read(at + 5 * PAGE, &mut byte).unwrap();
        assert_eq!(group.used(), 4, "the zero frame is nobody's");
        let child = space.fork(Asid(3)).unwrap();
        assert_eq!(group.used(), 4);
        child.write(at, &[2; 2 * PAGE]).unwrap();
        assert_eq!(group.used(), 6, "the child's copies count in the parent's group");
        let mut frames = [Frame::default(); 1];
        let pins = space.pin_pages(at + 3 * PAGE, Access::Write, &mut frames).unwrap();
        drop(child);
        space.munmap(at, 8 * PAGE).unwrap();
        assert_eq!(group.used(), 1, "a pinned frame is in use");
        drop(pins);
        assert_eq!(group.used(), 0);
    });
}

/// The same for a huge page.
#[test]
fn a_fork_copies_no_pinned_huge_page_that_the_child_does_not_have() {
    for advice in [Advice::DontFork, Advice::WipeOnFork] {
        with_space(2048, |_, _, space| {
            space.set_huge_pages(HugePages::Always).unwrap();
            let at = 1 << 30;
            space.mmap(at, HUGE, 3, FIXED).unwrap();
            space.write(at, &[1]).unwrap();
            assert_eq!(space.usage(at..at + HUGE).huge, HUGE);
            space.madvise(at, HUGE, advice).unwrap();
            let mut frame = [Frame::default()];
            let pins = space.pin_pages(at + 3 * PAGE, Access::Write, &mut frame).unwrap();
            let child = space.fork(Asid(3)).unwrap();
            assert_eq!(child.resident(at..at + HUGE), 0);
            drop(pins);
        });
    }
}

/// The child has no such pages, so they need no copies, pinned or not.
#[test]
fn a_fork_copies_no_pinned_page_that_the_child_does_not_have() {
    for advice in [Advice::DontFork, Advice::WipeOnFork] {
        with_space(256, |sim, shared, _| {
            let group = group(sim, 3);
            let space = grouped(shared, 2, &group);
            let at = space.mmap(0, 3 * PAGE, 3, PRIVATE).unwrap();
            space.write(at, &[1; 3 * PAGE]).unwrap();
            space.madvise(at, 2 * PAGE, advice).unwrap();
            let mut frames = [Frame::default(); 2];
            let pins = space.pin_pages(at, Access::Write, &mut frames).unwrap();
            let child = space.fork(Asid(3)).unwrap();
            assert_eq!(group.used(), 3);
            // The pages stay the parent's own, and the pins show what it writes.
            space.write(at, &[2; 2 * PAGE]).unwrap();
            assert_eq!(group.used(), 3);
            for frame in pins.frames() {
                // SAFETY: the pin keeps the frame; no other code runs.
                assert_eq!(unsafe { sim.frame_ptr(*frame).unwrap().read() }, 2);
            }
            let mut byte = [9];
            let wiped = child.read(at, &mut byte).map(|()| byte[0]);
            match advice {
                Advice::DontFork => assert!(wiped.is_err()),
                _ => assert_eq!(wiped, Ok(0)),
            }
            assert_eq!(child.read(at + 2 * PAGE, &mut byte).map(|()| byte[0]), Ok(1));
        });
    }
}

#[test]
fn objects_count_for_their_group() {
    with_space(256, |sim, shared, space| {
        let group = group(sim, 3);
        let memory = Shmem::memfd(shared, "name", 1).unwrap();
        memory.set_group(&group).unwrap();
        memory.set_size(8 * PAGE as u64).unwrap();
        let at = space.mmap_object(0, 8 * PAGE, 3, MapFlags::SHARED, opened(&memory), 0).unwrap();
        assert_eq!(space.write(at, &[1; 4 * PAGE]).unwrap_err().error, FaultError::GroupLimit);
        assert_eq!(memory.write(4 * PAGE as u64, b"x"), Err(ObjectError::GroupLimit));
        assert_eq!(group.used(), 3);
        memory.set_size(PAGE as u64).unwrap();
        assert_eq!(group.used(), 1);
        space.munmap(at, 8 * PAGE).unwrap();
        drop(memory);
        assert!(sim.settle());
        assert_eq!(group.used(), 0, "the object is gone");
        // Shared memory of a space counts as its pages do.
        let space = grouped(shared, 2, &group);
        let shared = MapFlags::SHARED | MapFlags::ANONYMOUS;
        let at = space.mmap(0, 4 * PAGE, 3, shared).unwrap();
        assert_eq!(space.write(at, &[1; 4 * PAGE]).unwrap_err().copied, 3 * PAGE);
    });
}

/// Raises the limit a page at a time.
struct Raise(AtomicUsize);

impl OnLimit for Raise {
    fn make_room(&self, needed: usize) -> bool {
        assert_eq!(needed, 1);
        self.0.fetch_add(1, Ordering::Relaxed) < 2
    }
}

#[test]
fn the_host_may_make_room() {
    with_space(256, |sim, shared, _| {
        let group = FrameGroup::try_new(sim, 1, Box::new(Raise(AtomicUsize::new(0)))).unwrap();
        let space = grouped(shared, 2, &group);
        let at = space.mmap(0, 4 * PAGE, 3, PRIVATE).unwrap();
        space.write(at, &[1]).unwrap();
        // Asked three times: the third time the host gives up, and nothing has changed.
        assert_eq!(store(sim, &space, at + PAGE, 1), Err(FaultError::GroupLimit));
        assert_eq!((group.used(), space.resident(at..at + 4 * PAGE)), (1, 1));
        group.set_limit(2);
        space.write(at + PAGE, &[1]).unwrap();
        // A page that was freed is room for another.
        space.munmap(at, PAGE).unwrap();
        space.write(at + 2 * PAGE, &[1]).unwrap();
        assert_eq!(group.used(), 2);
        let error = space.madvise(at + 3 * PAGE, PAGE, Advice::PopulateWrite).unwrap_err();
        assert_eq!(error.errno(), 12);
    });
}

#[test]
fn a_fault_without_memory_does_not_count() {
    with_space(256, |sim, shared, _| {
        let group = group(sim, 100);
        let space = grouped(shared, 2, &group);
        let at = space.mmap(0, 4 * PAGE, 3, PRIVATE).unwrap();
        space.write(at, &[1]).unwrap();
        for nth in 1..4 {
            let page = VirtAddr::new((at + PAGE) as u64);
            let fault = || space.handle_fault(page, Access::Write);
            let (done, _) = without_frames(sim, nth, true, fault);
            assert_eq!(group.used(), 1 + usize::from(done.is_ok()));
            space.madvise(at + PAGE, PAGE, Advice::DontNeed).unwrap();
        }
    });
}

/// Another CPU gets the frames in a CPU's stock before the limit refuses a page.
#[test]
fn stocks_are_collected_at_the_limit() {
    let sim = Sim::new(Config { cpus: 2, frames: 256, ..Config::default() }).unwrap();
    let shared = paging(&sim);
    let group = group(&sim, 40);
    let space = sim.on_cpu(0, || grouped(&shared, 1, &group));
    let at = sim.on_cpu(0, || space.mmap(0, 64 * PAGE, 3, PRIVATE).unwrap());
    sim.on_cpu(0, || space.write(at, &[1])).unwrap();
    let written = sim.on_cpu(1, || space.write(at, &[1; 64 * PAGE]));
    assert_eq!(written.unwrap_err().copied, 40 * PAGE);
    sim.on_cpu(1, || drop(space));
    sim.on_cpu(0, || assert_eq!(group.used(), 0));
}

#[test]
fn there_are_as_many_groups_as_accounts() {
    with_space(64, |sim, _, _| {
        let all: Vec<_> = (0..machine::MAX_ACCOUNTS).map(|_| group(sim, 1)).collect();
        let more = FrameGroup::try_new(sim, 1, Box::new(()));
        assert_eq!(more.err(), Some(GroupError::TooMany));
        drop(all);
        group(sim, 1);
    });
}

/// Three CPUs bring pages in, discard them and fork, concurrently. The limit holds at each
/// moment, and at the end nothing is left.
fn during_each_other(seed: u64) -> Result<(), Failure> {
    const LIMIT: usize = 70;
    let (race, (group, at)) = Race::with(racing(3, 2048), None, |shared, space| {
        let group = group(shared.machine(), LIMIT);
        space.set_group(&group).unwrap();
        (group, space.mmap(0, 150 * PAGE, 3, PRIVATE).unwrap())
    });
    let (space, group) = (&*race.space, &group);
    let program = |cpu: usize| -> Program<'_> {
        let mut random = random(seed, cpu);
        Box::new(move || {
            for _ in 0..60 {
                let page = at + random(150) * PAGE;
                match random(8) {
                    0 => space.madvise(page, PAGE, Advice::DontNeed).unwrap(),
                    1 if cpu == 0 => drop(space.fork(Asid(2))),
                    _ => {
                        let page = VirtAddr::new(page as u64);
                        let done = space.handle_fault(page, Access::Write);
                        assert!(matches!(done, Ok(_) | Err(FaultError::GroupLimit)), "{done:?}");
                    }
                }
                // Seldom: it collects the stocks.
                if random(16) == 0 {
                    assert!(group.used() <= LIMIT);
                }
            }
        })
    };
    seeded(&race.sim, seed, (0..3).map(program).collect())?;
    race.sim.on_cpu(0, || {
        assert!(race.sim.settle());
        assert_eq!(group.used(), space.resident(at..at + 150 * PAGE));
    });
    let sim = race.sim.clone();
    race.end(())?;
    sim.on_cpu(0, || assert_eq!(group.used(), 0));
    Ok(())
}

#[test]
fn the_limit_holds_during_other_cpus() {
    each_seed(SEEDS, during_each_other);
}
