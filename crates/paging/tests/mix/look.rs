//! Accesses, pins and walks of pages that any CPU may change meanwhile. Each must reach the frame
//! that was mapped there.

use crate::common::OnSim;
use crate::space::{LiveSpace, PAGES, PIECES, Tag};
use crate::world::Cpu;
use grace::Reclaim;
use machine::*;
use paging::*;
use sim::{Grace, Want};

impl<F: OnSim> Cpu<'_, F> {
    /// Some accesses through the active tables.
    pub(crate) fn touch(&mut self) {
        let kernel = self.rng.chance(4);
        let live = if kernel { self.world.kernel.clone() } else { self.current.clone() };
        if self.rng.chance(4) {
            return self.touch_large();
        }
        let region = self.rng.below(self.world.regions);
        for _ in 0..1 + self.rng.below(4) {
            let page = self.rng.below(PAGES);
            self.access(live.at(region, page), live.tag(region, page));
        }
    }

    /// The same for the large page.
    pub(crate) fn touch_large(&mut self) {
        if self.current.is_kernel() {
            return;
        }
        for _ in 0..2 {
            let piece = self.rng.below(PIECES);
            self.access(self.current.large_at(piece), self.current.large_tag(piece));
        }
    }

    fn access(&mut self, at: VirtAddr, tag: u64) {
        let sim = &self.world.sim;
        let want = Want { write: self.rng.chance(2), user: self.rng.chance(4), execute: false };
        let Ok(into) = sim.translate(at, want) else { return };
        // The access is part of the same instruction.
        let frame = Frame::containing(into);
        Tag::check(sim, frame, tag, "an access");
        if want.write {
            self.world.written.lock().unwrap().insert(frame);
        }
    }

    /// Pins pages of any space.
    pub(crate) fn pin(&mut self) {
        let Some(live) = self.world.home(&mut self.rng) else { return };
        let mut into = [Frame::default(); PAGES * 16];
        // Pins are of frames of 4 KiB. The first of each page has the tag.
        let each = F::PAGE.frames() as usize;
        let tags: Vec<u64>;
        let start;
        if self.rng.chance(5) {
            let first = self.rng.below(PIECES);
            start = live.large_at(first);
            tags = (first..PIECES).map(|piece| live.large_tag(piece)).collect();
        } else {
            let (region, first) = (self.rng.below(self.world.regions), self.rng.below(PAGES));
            start = live.at(region, first);
            tags = (first..PAGES).map(|page| live.tag(region, page)).collect();
        }
        let into = &mut into[..tags.len() * each];
        let write = self.rng.chance(2);
        let tables: &PageTables<_, _, _> = &live.tables;
        let pins = match self.rng.below(5) {
            0 => tables.get_user_pages(start, write, into, |_, _| false),
            1 => tables.get_user_pages_fast_only(start, write, into),
            _ => tables.get_user_pages_fast(start, write, into, |_, _| false),
        };
        let pins = match pins {
            Ok(pins) => pins,
            Err(error) => return assert_eq!(error, GupError::Hole(start)),
        };
        for _ in 0..1 + self.rng.below(3) {
            for (frame, tag) in pins.frames().iter().step_by(each).zip(&tags) {
                Tag::check(&self.world.sim, *frame, *tag, "a pin");
                self.world.sim.step(SharedAccess::Other);
            }
        }
    }

    /// Walks in software, in tables that come and go.
    pub(crate) fn walk(&mut self) {
        let live = match self.world.home(&mut self.rng) {
            Some(live) if !self.rng.chance(4) => live,
            _ => self.world.kernel.clone(),
        };
        let region = self.rng.below(self.world.regions);
        let guard = Grace::pin();
        for _ in 0..3 {
            let page = self.rng.below(PAGES);
            self.look(&live, &guard, region, page);
        }
        let mut next = live.at(region, 0);
        for page in live.tables.walk(&guard).pages(live.region(region)) {
            assert!(page.page >= next, "{} comes twice", page.page);
            next = page.page.checked_add(F::PAGE.bytes()).unwrap();
        }
    }

    fn look(
        &self,
        live: &LiveSpace<F>,
        guard: &<Grace as Reclaim>::Guard,
        region: usize,
        page: usize,
    ) {
        let at = live.at(region, page);
        if let Some(found) = live.tables.walk(guard).get(at) {
            // There is no step in between, so it is mapped at this moment.
            assert_eq!((found.page, found.size), (at, F::PAGE));
            Tag::check(&self.world.sim, found.frame, live.tag(region, page), "a walk");
        }
    }
}
