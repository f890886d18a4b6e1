//! Loom models of the mark of reclaim: a write, and a pin, concurrently with a page that goes to
//! swap. They run with those of [`crate::loom_tests`].

use alloc::{collections::BTreeMap, sync::Arc};

use machine::{Frame, VirtAddr};
use paging::Swap;
use sim::{Model, model};
use spin::mutex::SpinMutex;
use vma::PAGE_SIZE;

use crate::{
    Access,
    loom_tests::{AT, IDLE, LEVELS, PAGE, Space, load, run, space_with, store},
};

/// Swap in memory. Loom sees nothing of it: a slot is found by its number in an entry.
#[derive(Default)]
struct Ram(SpinMutex<BTreeMap<u64, [u8; PAGE_SIZE]>>);

impl Swap for Ram {
    fn write(&self, page: &[u8; PAGE_SIZE]) -> Option<u64> {
        let mut slots = self.0.lock();
        let slot = slots.last_key_value().map_or(0, |(last, _)| last + 1);
        slots.insert(slot, *page);
        Some(slot)
    }

    fn read(&self, slot: u64, page: &mut [u8; PAGE_SIZE]) -> bool {
        *page = self.0.lock()[&slot];
        true
    }

    // A fault that reads a slot holds it in addition to its entry.
    fn hold(&self, _: u64) -> bool {
        true
    }

    fn release(&self, _: u64) {}
}

/// CPU 0 reclaims a page that all CPUs have used, while CPU 1 does `other`. At the end its second
/// word is 7.
fn during_reclaim(
    name: &'static str,
    other: impl Fn(&Model, &Space) + Clone + Send + Sync + 'static,
) {
    model(name, LEVELS, Some(2), move |model| {
        let space = space_with(model, Some(Arc::new(Ram::default())));
        for cpu in [1, IDLE, 0] {
            model.as_cpu(cpu, || {
                run(&space);
                store(model, &space, 0, 1);
            });
        }
        let (machine, here, other) = (model.clone(), Arc::clone(&space), other.clone());
        let other = model.spawn(1, move || other(&machine, &here));
        space.reclaim(1).unwrap();
        other.join().unwrap();
        assert_eq!([0, 1].map(|word| load(model, &space, word)), [1, 7], "a write is lost");
        space.munmap(AT, 2 * PAGE).unwrap();
    });
}

/// A write, after another CPU has read. Then no CPU has another frame of the page cached: it would
/// read what was there before.
#[test]
fn a_write_during_reclaim() {
    during_reclaim("write, reclaim", |model, space| {
        model.as_cpu(IDLE, || load(model, space, 0));
        let frame = store(model, space, 1, 7);
        let stale = model.is_cached(IDLE, VirtAddr::new(AT as u64), |old| old != frame);
        assert!(!stale, "a CPU reads the old page after a write to the new one");
    });
}

/// A write through a pin, as a device does.
#[test]
fn a_write_through_a_pin_during_reclaim() {
    during_reclaim("pin, reclaim", |model, space| {
        let mut frames = [Frame::default(); 1];
        let pins = space.pin_pages(AT, Access::Write, &mut frames).unwrap();
        model.store(pins.frames()[0], 1, 7);
    });
}
