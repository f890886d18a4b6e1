//! CPUs that use the pages of a block while another one changes their entries.

use super::*;
use grace::Reclaim;
use sim::Program;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Pages that are there throughout, from an address on, and their first frame.
pub(crate) struct PagesInUse<'a, F: Format> {
    pub(crate) sim: &'a Sim,
    pub(crate) tables: &'a PageTables<Sim, F, Grace>,
    pub(crate) start: VirtAddr,
    pub(crate) first: Frame,
    /// The change is over.
    pub(crate) done: &'a AtomicBool,
}

impl<'a, F: Format> PagesInUse<'a, F> {
    fn at(&self, page: u64) -> VirtAddr {
        virt(self.start.get() + page * F::PAGE.bytes())
    }

    pub(crate) fn frame(&self, page: u64) -> Frame {
        self.first.checked_add(page * F::PAGE.frames()).unwrap()
    }

    /// Stores to four pages, from this one on. The page may fault while its entry is broken.
    pub(crate) fn storer(&'a self, page: u64, seed: u64) -> Program<'a> {
        Box::new(move || {
            self.tables.activate_own();
            for number in (0..2000).take_while(|_| !self.done.load(Relaxed)) {
                let at = self.at(page + (seed + number) % 4);
                let mut tries = 0;
                while let Err(fault) = self.sim.store_own(at, number) {
                    let broken =
                        matches!(fault.kind, FaultKind::NotPresent | FaultKind::Protection);
                    assert!(broken && tries < 1000, "{fault}");
                    tries += 1;
                    // As the handler of a page fault.
                    self.sim.published(self.tables.space(), VirtRange::new(at, 8).unwrap());
                    self.sim.relax();
                }
            }
        })
    }

    /// Walks to a page, and pins it.
    pub(crate) fn looker(&'a self, page: u64) -> Program<'a> {
        Box::new(move || {
            self.tables.activate_own();
            let (at, right) = (self.at(page), self.frame(page));
            for _ in (0..2000).take_while(|_| !self.done.load(Relaxed)) {
                let found = self.tables.walk(&Grace::pin()).get(at);
                assert_eq!(found.expect("the page is always there").frame_of(at), Some(right));
                let mut frames = [self.first];
                let pins = self.tables.get_user_pages_fast(at, true, &mut frames, |_, _| {
                    self.sim.relax();
                    true
                });
                assert_eq!(pins.expect("the page is always there").frames(), [right]);
            }
        })
    }
}
