//! Every order of the accesses of a reader, a writer and a thread that ends.

use super::*;
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;
use std::boxed::Box;

/// An object that readers reach by the link, until it is unlinked; freeing it is a write.
struct Place {
    domain: Domain,
    linked: AtomicBool,
    object: UnsafeCell<u32>,
}

impl Place {
    fn new() -> Arc<Place> {
        Arc::new(Place {
            domain: Domain::new(),
            linked: AtomicBool::new(true),
            object: UnsafeCell::new(7),
        })
    }

    fn read(&self, record: &Record) {
        assert!(record.enter(&self.domain));
        // Acquire: as readers of a tree load the root.
        if self.linked.load(Ordering::Acquire) {
            // SAFETY: loom checks that no write comes at the same time.
            self.object.with(|object| assert_eq!(unsafe { *object }, 7));
        }
        assert!(record.leave());
    }

    /// Unlinks the object, and frees it if the grace period is over at the first look.
    fn remove(&self) {
        // Release: as writers of a tree store the root.
        self.linked.store(false, Ordering::Release);
        let target = self.domain.target();
        self.free_after(target);
    }

    fn free_after(&self, target: u64) {
        if self.domain.is_over(target) {
            // SAFETY: loom checks that no read comes at the same time.
            self.object.with_mut(|object| unsafe { *object = 0 });
        }
    }
}

fn record(domain: &Domain) -> &'static Record {
    let record = Box::leak(Box::new(Record::new()));
    domain.add(record);
    record
}

#[test]
fn a_reader_beside_a_writer() {
    loom::model(|| {
        let place = Place::new();
        let record = record(&place.domain);
        let reader = thread::spawn({
            let place = Arc::clone(&place);
            move || {
                place.read(record);
                place.read(record);
            }
        });
        place.remove();
        reader.join().unwrap();
    });
}

/// A second writer raises the epoch in between. One writer relies on a target that the other has
/// found over.
#[test]
fn a_writer_relies_on_the_scan_of_another() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let place = Place::new();
        let record = record(&place.domain);
        assert!(record.enter(&place.domain));
        let [remover, other] = [true, false].map(|removes| {
            let place = Arc::clone(&place);
            thread::spawn(move || {
                if removes {
                    place.remove();
                } else {
                    // Without a look at `done`: loom considers only the last access before the
                    // one that raises it.
                    place.domain.scan(place.domain.target());
                }
            })
        });
        if place.linked.load(Ordering::Acquire) {
            // SAFETY: loom checks that no write comes at the same time.
            place.object.with(|object| assert_eq!(unsafe { *object }, 7));
        }
        assert!(record.leave());
        remover.join().unwrap();
        other.join().unwrap();
    });
}

/// A thread registers while a writer looks, reads, and gives its record up to another.
#[test]
fn records_come_and_go() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(2);
    model.check(|| {
        let place = Place::new();
        let reader = thread::spawn({
            let place = Arc::clone(&place);
            move || {
                let record = record(&place.domain);
                place.read(record);
                assert!(!record.give_up());
            }
        });
        let other = thread::spawn({
            let place = Arc::clone(&place);
            move || {
                if let Some(record) = place.domain.reuse() {
                    place.read(record);
                }
            }
        });
        place.remove();
        reader.join().unwrap();
        other.join().unwrap();
    });
}
