//! [`Tags`] under loom: a CPU activates a space, while others begin a generation and flush.
//!
//! The tags and the set of CPUs are the real ones. The entry is one word. A CPU's cached entry is a
//! value of the model. A page is used by a CPU that has cached it, and reused by the CPU that has
//! removed it, if no other must flush. Loom checks that the two do not meet.

use super::{Assigned, Tagged, Tags};
use loom::cell::UnsafeCell;
use loom::sync::atomic::AtomicU64;
use loom::sync::atomic::Ordering::{Acquire, Release};
use loom::thread;
use machine::{Asid, AtomicCpuSet, CpuId, CpuSet, Cpus, Flush, Frame, Step, Tlb};
// Not loom's `Arc`, which cannot be dropped after a model has failed.
use std::sync::Arc;

/// Two CPUs; the model passes them on, and flushes by itself.
struct Two;

// SAFETY: the models ask for none of it.
unsafe impl Cpus for Two {
    fn count(&self) -> usize {
        2
    }
    fn current(&self) -> CpuId {
        CpuId::default()
    }
    fn online(&self) -> CpuSet {
        CpuSet::first(2)
    }
}

// SAFETY: it lets other threads run.
unsafe impl Step for Two {
    fn relax(&self) {
        thread::yield_now();
    }
}

// SAFETY: as above.
unsafe impl Tlb for Two {
    fn flush(&self, _: Flush) {}
    fn flush_on(&self, _: &CpuSet, _: Flush) {}
    fn tags(&self) -> u32 {
        5
    }
    unsafe fn activate(&self, _: Frame, _: Asid, _: bool) {}
    fn active(&self) -> Option<(Frame, Asid)> {
        None
    }
}

const MAPPED: u64 = 5;

struct World {
    tags: Tags,
    space: Assigned,
    cpus: AtomicCpuSet,
    entry: AtomicU64,
    /// The page behind the entry.
    page: UnsafeCell<u64>,
}

fn cpu(index: usize) -> CpuId {
    CpuId::new(index).unwrap()
}

impl World {
    /// CPU 0 has had the space active, and has cached the page.
    fn new() -> Arc<World> {
        let tags = Tags::try_new(5, 2).unwrap();
        let Some(Tagged::Own(space)) = tags.open(&Two) else { panic!("there are tags enough") };
        let (entry, page) = (AtomicU64::new(MAPPED), UnsafeCell::new(0));
        let world = World { tags, space, cpus: AtomicCpuSet::new(), entry, page };
        let (_, slot) = world.tags.hold(&Two, cpu(0), &world.space, &world.cpus);
        world.cpus.insert(cpu(0));
        world.tags.activated(cpu(0), Some(slot));
        world.tags.activated(cpu(0), None);
        Arc::new(world)
    }

    /// CPU 0 activates the space, uses the page, and leaves for the kernel's tables.
    fn run(&self) {
        let (_, slot) = self.tags.hold(&Two, cpu(0), &self.space, &self.cpus);
        let keeps = self.cpus.insert(cpu(0));
        // With `keeps` by what it has cached, else by a walk.
        if keeps || self.entry.load(Acquire) == MAPPED {
            // SAFETY: mapped or cached. Loom checks that it is not reused.
            self.page.with(|page| assert_eq!(unsafe { *page }, 0));
        }
        self.tags.activated(cpu(0), Some(slot));
        self.tags.activated(cpu(0), None);
    }

    /// Removes the page, and reuses it if no CPU must flush.
    fn remove(&self) {
        self.entry.store(0, Release);
        let targets = self.cpus.load();
        if self.tags.get(&self.space).is_none() || !targets.contains(cpu(0)) {
            // SAFETY: no CPU uses it. Loom checks that.
            self.page.with_mut(|page| unsafe { *page = 1 });
        }
    }

    fn begin_generation(&self) {
        let _locked = self.tags.lock(&Two);
        self.tags.begin_generation(&Two);
    }
}

fn model(run: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(run);
}

#[test]
fn loom_a_flush_reaches_each_cpu_that_uses_the_tag() {
    model(|| {
        let world = World::new();
        let user = thread::spawn({
            let world = Arc::clone(&world);
            move || world.run()
        });
        let taker = thread::spawn({
            let world = Arc::clone(&world);
            move || world.begin_generation()
        });
        world.remove();
        user.join().unwrap();
        taker.join().unwrap();
    });
}

#[test]
fn loom_a_cpu_drops_what_it_has_cached_under_a_lost_tag() {
    model(|| {
        let world = World::new();
        let user = thread::spawn({
            let world = Arc::clone(&world);
            move || world.run()
        });
        world.begin_generation();
        world.remove();
        // The space gets another tag on another CPU.
        let (_, slot) = world.tags.hold(&Two, cpu(1), &world.space, &world.cpus);
        world.cpus.insert(cpu(1));
        world.tags.activated(cpu(1), Some(slot));
        user.join().unwrap();
    });
}

#[test]
fn loom_a_flush_misses_no_cpu_while_the_tag_changes() {
    model(|| {
        let world = World::new();
        world.run();
        let taker = thread::spawn({
            let world = Arc::clone(&world);
            move || {
                world.begin_generation();
                world.tags.hold(&Two, cpu(1), &world.space, &world.cpus);
                world.cpus.insert(cpu(1));
                if world.entry.load(Acquire) == MAPPED {
                    // SAFETY: mapped. Loom checks that it is not reused.
                    world.page.with(|page| assert_eq!(unsafe { *page }, 0));
                }
            }
        });
        world.entry.store(0, Release);
        let targets = world.cpus.load();
        if world.tags.get(&world.space).is_none() || targets.is_empty() {
            // SAFETY: no CPU uses it. Loom checks that.
            world.page.with_mut(|page| unsafe { *page = 1 });
        }
        taker.join().unwrap();
    });
}
