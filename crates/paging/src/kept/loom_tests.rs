//! [`Kept`] under loom: what a chain needs stays until the last chain is back, and then goes.

use super::Kept;
use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::thread;
// Not loom's, which cannot be dropped when a model has failed.
use std::sync::Arc;

/// What chains need, with the count of its references, as an `Arc` has it.
struct Shared {
    kept: Kept,
    refs: AtomicUsize,
    /// What chains look at; written when the last reference goes.
    gone: UnsafeCell<bool>,
}

impl Shared {
    fn keep(&self) {
        if self.kept.add() {
            // Relaxed: the caller has one.
            self.refs.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn let_go(&self) {
        // SAFETY: a chain is kept: loom checks that nobody writes.
        self.gone.with(|gone| assert!(!unsafe { *gone }, "it went while a chain was kept"));
        if self.kept.sub() {
            self.drop_one();
        }
    }

    fn drop_one(&self) {
        // AcqRel: as an `Arc` does.
        if self.refs.fetch_sub(1, Ordering::AcqRel) == 1 {
            // SAFETY: this was the last: loom checks that nobody looks.
            self.gone.with_mut(|gone| assert!(!unsafe { gone.replace(true) }, "it went twice"));
        }
    }
}

/// A CPU keeps three chains. Two other CPUs take one away each, while it takes away the third and
/// drops its own reference.
#[test]
fn loom_what_is_kept_stays_until_the_last_is_back() {
    loom::model(|| {
        let shared = Arc::new(Shared {
            kept: Kept::default(),
            refs: AtomicUsize::new(1),
            gone: UnsafeCell::new(false),
        });
        let back = || {
            shared.keep();
            let shared = Arc::clone(&shared);
            thread::spawn(move || shared.let_go())
        };
        let others = [back(), back()];
        shared.keep();
        shared.let_go();
        shared.drop_one();
        others.into_iter().for_each(|other| other.join().unwrap());
        // SAFETY: the others have ended.
        shared.gone.with(|gone| assert!(unsafe { *gone }, "it is never freed"));
    });
}
