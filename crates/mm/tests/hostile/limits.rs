//! Faults without memory; groups and promises of memory whose host panics or is another one.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::Relaxed},
};

use machine::{Asid, Frame, VirtAddr};
use mm::*;
use paging::TlbGrace;
use sim::{Config, Sim};

use super::*;

const WILD: VirtAddr = VirtAddr::new(0x1000);

/// A wild pointer is the program's error, also when no memory is left.
#[test]
fn a_fault_at_a_hole_needs_no_memory() {
    with_space(64, |sim, _, space| {
        let at = space.mmap(0, 256 * PAGE, 3, PRIVATE).unwrap();
        let full = (0..256).find_map(|page| store(sim, space, at + page * PAGE, 1).err());
        assert!(matches!(full, Some(FaultError::OutOfMemory(_))), "{full:?}");
        for access in [Access::Read, Access::Write] {
            assert_eq!(space.handle_fault(WILD, access), Err(FaultError::Unmapped(WILD)));
        }
    });
}

/// Counts how often it is asked.
struct Count(Arc<AtomicUsize>);

impl OnLimit for Count {
    fn make_room(&self, _: usize) -> bool {
        self.0.fetch_add(1, Relaxed);
        false
    }
}

/// Nor does the host kill a program of the group for the wild pointer of another one.
#[test]
fn a_fault_at_a_hole_asks_no_group() {
    on_machine(one_cpu(256), None, |sim, shared| {
        let asked = Arc::new(AtomicUsize::new(0));
        let group = FrameGroup::try_new(sim, 1, Box::new(Count(asked.clone()))).unwrap();
        let mut space = new_space(shared, 1).unwrap();
        space.set_group(&group).unwrap();
        let at = space.mmap(0, PAGE, 3, PRIVATE).unwrap();
        space.write(at, &[1]).unwrap();
        for access in [Access::Read, Access::Write] {
            assert_eq!(space.handle_fault(WILD, access), Err(FaultError::Unmapped(WILD)));
        }
        assert_eq!(asked.load(Relaxed), 0);
    });
}

/// A stack does not grow if there is no memory for the page.
#[test]
fn a_stack_does_not_grow_without_memory() {
    on_machine(one_cpu(256), None, |sim, shared| {
        let asked = Arc::new(AtomicUsize::new(0));
        let group = FrameGroup::try_new(sim, 0, Box::new(Count(asked.clone()))).unwrap();
        let mut space = new_space(shared, 1).unwrap();
        space.set_group(&group).unwrap();
        let stack = FIXED.union(MapFlags::GROWSDOWN);
        space.mmap(AT, PAGE, 3, stack).unwrap();
        let below = VirtAddr::new((AT - PAGE) as u64);
        assert_eq!(space.handle_fault(below, Access::Write), Err(FaultError::GroupLimit));
        assert_eq!((space.sizes().total, asked.load(Relaxed)), (PAGE, 1));
        group.set_limit(10);
        assert_eq!(space.handle_fault(below, Access::Write), Ok(FaultOutcome::Mapped));
    });
}

/// The copies of pinned pages that a fork makes count, too.
#[test]
fn a_fork_does_not_exceed_the_limit_of_its_group() {
    on_machine(one_cpu(256), None, |sim, shared| {
        let group = FrameGroup::try_new(sim, 5, Box::new(())).unwrap();
        let mut space = new_space(shared, 1).unwrap();
        space.set_group(&group).unwrap();
        let at = space.mmap(0, 2 * PAGE, 3, PRIVATE).unwrap();
        let mut frames = [Frame::default(); 2];
        let pins = space.pin_pages(at, Access::Write, &mut frames).unwrap();
        let child = space.fork(Asid(2)).unwrap();
        assert_eq!(group.used(), 4);
        assert_eq!(space.fork(Asid(3)).unwrap_err().errno(), 12);
        assert_eq!(group.used(), 4);
        drop(child);
        assert_eq!(group.used(), 2);
        drop(pins);
    });
}

/// A group counts frames of its machine only.
#[test]
fn a_group_of_another_machine_is_refused() {
    let other = Sim::new(Config { cpus: 1, frames: 64, ..Config::default() }).unwrap();
    let group = other.on_cpu(0, || FrameGroup::try_new(&other, 8, Box::new(())).unwrap());
    on_machine(one_cpu(256), None, |_, shared| {
        let mut space = new_space(shared, 1).unwrap();
        assert_eq!(space.set_group(&group), Err(GroupError::Foreign));
        let memory = Shmem::memfd(shared, "name", 1).unwrap();
        assert_eq!(memory.set_group(&group), Err(GroupError::Foreign));
        let at = space.mmap(0, PAGE, 3, PRIVATE).unwrap();
        space.write(at, &[1]).unwrap();
    });
    other.on_cpu(0, || drop(group));
}

/// A closure that panics leaves nothing promised that its calls have given up.
#[test]
fn a_panic_in_with_vmas_settles_what_is_promised() {
    on_machine(one_cpu(256), None, |sim, shared| {
        let commitment = Commitment::try_new(sim, Overcommit::Never { limit: 16 * PAGE }).unwrap();
        let mut space = new_space(shared, 1).unwrap();
        space.set_commitment(&commitment);
        let at = space.mmap(0, 4 * PAGE, 3, PRIVATE).unwrap();
        panics(|| {
            space.with_vmas(|calls| {
                calls.munmap(at, 3 * PAGE)?;
                (at == 0).then_some(()).ok_or(vma::Error::NoSpace).map_err(|_| panic!("the host"))
            })
        });
        assert_eq!((space.sizes().accounted, commitment.promised()), (PAGE, PAGE));
        drop(space);
        assert_eq!(commitment.promised(), 0);
    });
}

/// Nor does it keep what has waited for a grace period that is over.
#[test]
fn a_panic_in_with_vmas_gives_back_what_has_waited() {
    let sim = Sim::new(Config { cpus: 2, frames: 256, ..Config::default() }).unwrap();
    let shared = paging(&sim);
    let periods = TlbGrace::try_new(sim.clone()).unwrap();
    let space = sim.on_cpu(0, || new_space(&shared, 1).unwrap());
    // The other CPU uses the space, so that an unmapping waits.
    sim.on_cpu(1, || space.enter());
    sim.on_cpu(0, || {
        // SAFETY: these are the machine's periods, and no CPU is idle that has the space active.
        unsafe { space.set_unmap_policy(UnmapPolicy::Grace(periods.clone())) }.unwrap();
        space.enter();
        let at = space.mmap(0, 4 * PAGE, 3, PRIVATE).unwrap();
        space.write(at, &[1; 4 * PAGE]).unwrap();
        space.munmap(at, 4 * PAGE).unwrap();
        assert!(space.waiting() > 0);
        periods.broadcast();
        panics(|| space.with_vmas::<()>(|_| panic!("the host")));
        assert_eq!(space.waiting(), 0);
    });
    for cpu in 0..2 {
        sim.on_cpu(cpu, || leave(&space));
    }
    sim.on_cpu(0, || drop(space));
    all_given_back(&sim, &shared).unwrap();
}
