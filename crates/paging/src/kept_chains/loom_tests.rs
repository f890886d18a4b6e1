//! [`KeptChains`] under loom: the shared state stays until the last chain is back, and then goes.

use super::KeptChains;
use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::thread;
// Not loom's `Arc`, which cannot be dropped after a model has failed.
use std::sync::Arc;

/// The state that chains need, with its reference count, as in an `Arc`.
struct Shared {
    kept: KeptChains,
    refs: AtomicUsize,
    /// Read by each chain; written when the last reference goes.
    gone: UnsafeCell<bool>,
}

impl Shared {
    fn keep(&self) {
        if self.kept.add() {
            // Relaxed: the caller has a reference.
            self.refs.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn release(&self) {
        // SAFETY: a chain is kept. Loom checks that there is no writer.
        self.gone.with(|gone| assert!(!unsafe { *gone }, "it went while a chain was kept"));
        if self.kept.sub() {
            self.drop_one();
        }
    }

    fn drop_one(&self) {
        // AcqRel: as in `Arc`.
        if self.refs.fetch_sub(1, Ordering::AcqRel) == 1 {
            // SAFETY: this was the last reference. Loom checks that there is no reader.
            self.gone.with_mut(|gone| assert!(!unsafe { gone.replace(true) }, "it went twice"));
        }
    }
}

/// A CPU keeps three chains. Two other CPUs take one away each, while it takes the third away and
/// drops its own reference.
#[test]
fn loom_the_state_stays_until_the_last_chain_is_back() {
    loom::model(|| {
        let shared = Arc::new(Shared {
            kept: KeptChains::default(),
            refs: AtomicUsize::new(1),
            gone: UnsafeCell::new(false),
        });
        let back = || {
            shared.keep();
            let shared = Arc::clone(&shared);
            thread::spawn(move || shared.release())
        };
        let others = [back(), back()];
        shared.keep();
        shared.release();
        shared.drop_one();
        others.into_iter().for_each(|other| other.join().unwrap());
        // SAFETY: the other threads have ended.
        shared.gone.with(|gone| assert!(unsafe { *gone }, "it is never freed"));
    });
}
