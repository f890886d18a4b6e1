//! Loom models of unmapping by TLB grace periods: ranges that wait, while CPUs use them, claim its
//! addresses, and fault. They run with those of [`crate::loom_tests`].

use alloc::sync::Arc;

use grace::Reclaim;
use machine::VirtAddr;
use paging::TlbGrace;
use sim::{Model, ModelGrace, model};
use vma::MapFlags;

use crate::{
    Access, FaultError, UnmapPolicy,
    loom_tests::{AT, FIXED, LEVELS, PAGE, Space, load, run, space_with, store},
};

/// A page in another table than that of [`AT`].
const FAR: usize = 2 * AT;

/// A space whose munmap waits, and which CPUs 0 and 1 use. The first page at [`AT`] is written.
struct World {
    space: Arc<Space>,
    periods: Arc<TlbGrace<Model>>,
}

impl World {
    fn new(model: &Model) -> World {
        let space = space_with(model, None);
        let periods = TlbGrace::try_new(model.clone()).unwrap();
        let policy = UnmapPolicy::Grace(Arc::clone(&periods));
        // SAFETY: the machine's periods; each CPU takes part from here on.
        unsafe { space.set_unmap_policy(policy) }.unwrap();
        for cpu in [1, 0] {
            model.as_cpu(cpu, || {
                periods.idle_exit();
                run(&space);
            });
        }
        store(model, &space, 0, 1);
        World { space, periods }
    }

    /// Ends the period that runs.
    fn ticks(&self, model: &Model) {
        for cpu in [0, 1, 0] {
            model.as_cpu(cpu, || self.periods.tick());
        }
    }

    fn end(self) {
        self.space.munmap(AT, 2 * PAGE).unwrap();
        self.space.munmap(FAR, PAGE).unwrap();
        self.space.purge();
    }
}

fn at() -> VirtAddr {
    VirtAddr::new(AT as u64)
}

/// A CPU uses a page, and ticks, while it is unmapped. When nothing waits, the CPU has no
/// translation of the page.
#[test]
fn a_page_waits_for_the_flush_of_each_cpu() {
    model("use, tick, munmap that waits", LEVELS, Some(3), |model| {
        let world = World::new(model);
        let (machine, periods) = (model.clone(), Arc::clone(&world.periods));
        let other = model.spawn(1, move || {
            for _ in 0..2 {
                periods.tick();
                let found = machine.access(at(), false, |frame| machine.load(frame, 0));
                assert!(found.is_none_or(|found| found == 1), "{found:?}");
            }
        });
        world.space.munmap(AT, PAGE).unwrap();
        for _ in 0..2 {
            world.periods.tick();
            world.space.poll();
            let waits = world.space.waiting() > 0;
            assert!(waits || !model.is_cached(1, at(), |_| true), "a CPU uses a page that is free");
        }
        other.join().unwrap();
        world.end();
    });
}

/// A CPU maps the addresses anew as soon as they are a hole. No CPU has the old page then.
#[test]
fn a_map_claims_what_waits() {
    model("munmap that waits, mmap", LEVELS, Some(2), |model| {
        let world = World::new(model);
        model.as_cpu(1, || load(model, &world.space, 0));
        let (machine, space) = (model.clone(), Arc::clone(&world.space));
        let other = model.spawn(2, move || {
            let flags = FIXED | MapFlags::FIXED_NOREPLACE;
            if space.mmap(AT, PAGE, 3, flags) == Ok(AT) {
                assert!(!machine.is_cached(1, at(), |_| true), "a CPU uses the old page");
            }
        });
        world.space.munmap(AT, PAGE).unwrap();
        other.join().unwrap();
        world.end();
    });
}

/// A fault during a munmap that waits: no page is left in the hole, and the tables stay
/// as the later faults need them.
#[test]
fn a_fault_during_an_unmapping_that_waits() {
    model("fault, munmap that waits", LEVELS, Some(2), |model| {
        let world = World::new(model);
        let (here, second) = (Arc::clone(&world.space), VirtAddr::new((AT + PAGE) as u64));
        let other = model.spawn(1, move || here.handle_fault(second, Access::Write));
        world.space.munmap(AT + PAGE, PAGE).unwrap();
        let done = other.join().unwrap();
        assert!(done.is_ok() || done == Err(FaultError::Unmapped(second)), "{done:?}");
        let page = world.space.walk(&ModelGrace::pin()).get(second);
        assert!(page.is_none(), "a page is left in a hole");
        assert_eq!(load(model, &world.space, 0), 1);
        world.end();
    });
}

/// A munmap has left an empty table, which is unlinked when its addresses were free for a period:
/// during the first fault of a new map there. The page of the fault stays.
#[test]
fn a_fault_during_the_end_of_an_empty_table() {
    model("fault, empty table", LEVELS, Some(3), |model| {
        let world = World::new(model);
        let space = &world.space;
        space.mmap(FAR, PAGE, 3, FIXED).unwrap();
        space.handle_fault(VirtAddr::new(FAR as u64), Access::Write).unwrap();
        space.munmap(AT, 2 * PAGE).unwrap();
        world.ticks(model);
        space.poll();
        assert_eq!(space.waiting(), 0);
        space.mmap(AT, 2 * PAGE, 3, FIXED).unwrap();
        space.munmap(FAR, PAGE).unwrap();
        world.ticks(model);
        let (machine, here) = (model.clone(), Arc::clone(space));
        let other = model.spawn(1, move || {
            store(&machine, &here, 0, 7);
        });
        space.poll();
        other.join().unwrap();
        assert_eq!(load(model, space, 0), 7, "a page is lost with its table");
        world.end();
    });
}
