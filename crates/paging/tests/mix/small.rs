//! Small pages are mapped, unmapped, protected, and mapped again.

use crate::change;
use crate::common::OnSim;
use crate::space::{Claim, LiveSpace, Page, Tag};
use crate::world::Cpu;
use machine::*;
use paging::*;
use sim::Want;

impl<F: OnSim> Cpu<'_, F> {
    /// One change of user pages, most often of the active space.
    pub(crate) fn change_small(&mut self) {
        let other = self.rng.chance(3).then(|| self.world.home(&mut self.rng)).flatten();
        let live = other.unwrap_or_else(|| self.current.clone());
        self.change(&live);
    }

    pub(crate) fn change_kernel(&mut self) {
        let kernel = self.world.kernel.clone();
        if self.rng.chance(6) { self.prune(&kernel) } else { self.change(&kernel) }
    }

    /// Unmaps user pages and maps them again; where there are none, maps some first.
    pub(crate) fn again(&mut self) {
        let Some(live) = self.world.home(&mut self.rng) else { return };
        while let Some((claim, _)) = live.claim(&mut self.rng, 1, |page| page.is_none()) {
            let mapped = self.map(&live, claim);
            live.unclaim(claim);
            if !mapped {
                break;
            }
        }
        self.map_again(&live);
    }

    /// Empties a region, so that its tables are unlinked, also while other CPUs have claimed holes
    /// in it.
    pub(crate) fn empty(&mut self) {
        let Some(live) = self.world.home(&mut self.rng) else { return };
        self.empty_region(&live);
        while let Some((claim, pages)) = live.claim(&mut self.rng, 1, |page| page.is_some()) {
            let frames = self.unmap(&live, claim, &pages);
            self.release_all(frames);
            live.unclaim(claim);
        }
        sim::Grace::reclaim(usize::MAX);
    }

    fn change(&mut self, live: &LiveSpace<F>) {
        match self.rng.below(12) {
            0..3 => {
                if let Some((claim, _)) =
                    live.claim(&mut self.rng, self.world.regions, |page| page.is_none())
                {
                    self.map(live, claim);
                    live.unclaim(claim);
                }
            }
            3 => {
                if let Some((claim, pages)) =
                    live.claim(&mut self.rng, self.world.regions, |_| true)
                {
                    let frames = self.unmap(live, claim, &pages);
                    self.release_all(frames);
                    live.unclaim(claim);
                }
            }
            4..6 => self.empty_region(live),
            6..11 => self.map_again(live),
            _ => {
                if let Some((claim, pages)) =
                    live.claim(&mut self.rng, self.world.regions, |_| true)
                {
                    self.protect(live, claim, pages);
                    live.unclaim(claim);
                }
            }
        }
    }

    /// Unmaps a whole region, so that its tables are unlinked; and often maps there again.
    fn empty_region(&mut self, live: &LiveSpace<F>) {
        let region = self.rng.below(self.world.regions);
        let Some((claim, pages)) = live.claim_region(region) else { return };
        let frames = self.unmap(live, claim, &pages);
        self.release_all(frames);
        if self.rng.chance(2) {
            // The unlinked tables come back, and may be reused.
            sim::Grace::reclaim(usize::MAX);
            let some = Claim { len: 1 + self.rng.below(claim.len), ..claim };
            self.map(live, some);
        }
        live.unclaim(claim);
    }

    /// Unmaps pages and maps them again at once. The frames freed first are allocated first, so
    /// neighbours swap their frames.
    fn map_again(&mut self, live: &LiveSpace<F>) {
        let Some((claim, pages)) =
            live.claim(&mut self.rng, self.world.regions, |page| page.is_some())
        else {
            return;
        };
        let frames = self.unmap(live, claim, &pages);
        self.release_all(frames);
        self.map(live, claim);
        live.unclaim(claim);
    }

    fn release_all(&mut self, mut frames: Vec<Frame>) {
        if self.rng.chance(2) {
            frames.reverse();
        }
        frames.into_iter().for_each(|frame| self.world.release(frame));
    }

    fn new_frame(&mut self, tag: u64) -> Option<Frame> {
        let sim = &self.world.sim;
        let node = NodeId(self.rng.below(sim.config().nodes) as u8);
        let place = if self.rng.chance(3) { NodePolicy::Prefer(node) } else { NodePolicy::Local };
        let frame = sim.alloc(F::PAGE.order(), place).ok()?;
        // SAFETY: it is ours.
        unsafe { sim.set_owner(frame, Owner::User) }.unwrap();
        Tag::set(sim, frame, tag);
        self.world.written.lock().unwrap().remove(&frame);
        Some(frame)
    }

    fn rights(&mut self, live: &LiveSpace<F>) -> Flags {
        let user = if live.is_kernel() { Flags::empty() } else { Flags::USER };
        match self.rng.below(5) {
            0 => Flags::READ | user,
            1 => Flags::READ | Flags::EXECUTE | user,
            _ => Flags::READ | Flags::WRITE | user,
        }
    }

    /// Maps new frames to claimed pages. Returns whether there were frames.
    fn map(&mut self, live: &LiveSpace<F>, claim: Claim) -> bool {
        let world = self.world;
        let mut frames = Vec::new();
        for page in claim.first..claim.first + claim.len {
            match self.new_frame(live.tag(claim.region, page)) {
                Some(frame) => frames.push(frame),
                None => {
                    self.release_all(frames);
                    return false;
                }
            }
        }
        let range = live.range(claim);
        world.check_reuse(live, range);
        let rights = self.rights(live);
        // A kernel page may be global; a user page may not.
        let global = live.is_kernel() && self.rng.chance(2);
        let attrs = Attrs::new(if global { rights | Flags::GLOBAL } else { rights });
        match change::map_each(live, range, &frames, attrs, self.rng.chance(2)) {
            Ok(()) => {
                let pages: Vec<_> =
                    frames.iter().map(|frame| Some(Page { frame: *frame, rights })).collect();
                live.set(claim, &pages);
                // The kernel tolerates no spurious fault where it has just mapped.
                self.use_own(live, claim, &pages, if live.is_kernel() { 0 } else { 1 });
                true
            }
            Err(Error::Frames(_)) => {
                world.flushed(live, range);
                self.release_all(frames);
                false
            }
            Err(error) => panic!("{error}"),
        }
    }

    /// Unmaps claimed pages, flushes, and returns their frames, to which no translation is left.
    fn unmap(&mut self, live: &LiveSpace<F>, claim: Claim, pages: &[Option<Page>]) -> Vec<Frame> {
        let world = self.world;
        let range = live.range(claim);
        let mut gone = Vec::new();
        let how = self.rng.below(5);
        if how == 4 && live.is_kernel() {
            change::unmap_lazily(&world.sim, live, range, |frame| gone.push(frame));
        } else if how == 4 && claim.len > 1 {
            // Two changes, with one flush for both.
            let left = live.range(Claim { len: 1, ..claim });
            let right = live.range(Claim { first: claim.first + 1, len: claim.len - 1, ..claim });
            let mut deferred = live.tables.deferred_flush();
            for part in [right, left] {
                change::unmap(live, part, |page| gone.push(self.gone(live, page)))
                    .defer_to(&mut deferred);
            }
            gone.sort_by_key(|frame| pages.iter().position(|page| holds(page, *frame)));
            live.tables.flush_deferred(deferred);
        } else {
            let pending = change::unmap(live, range, |page| gone.push(self.gone(live, page)));
            change::flush(&live.tables, pending, how);
        }
        let known: Vec<_> = pages.iter().flatten().map(|page| page.frame).collect();
        assert_eq!(gone, known, "the unmapped frames are not the mapped ones");
        live.set(claim, &vec![None; claim.len]);
        world.flushed(live, range);
        gone
    }

    /// Called with an unmapped page: checks its dirty bit against the known writes.
    pub(crate) fn gone(&self, live: &LiveSpace<F>, page: Mapping) -> Frame {
        let written = self.world.written.lock().unwrap().contains(&page.frame);
        let dirty = page.attrs.flags.contains(Flags::DIRTY);
        assert!(
            dirty || !written,
            "a dirty bit of {} was lost, of space {:?}",
            page.page,
            live.tables.space()
        );
        page.frame
    }

    fn protect(&mut self, live: &LiveSpace<F>, claim: Claim, mut pages: Vec<Option<Page>>) {
        let range = live.range(claim);
        let no_rights = Flags::USER & self.rights(live);
        let rights = if self.rng.chance(4) { no_rights } else { self.rights(live) };
        let pending = change::protect(live, range, rights);
        change::flush(&live.tables, pending, self.rng.below(4));
        pages.iter_mut().flatten().for_each(|page| page.rights = rights);
        live.set(claim, &pages);
        self.world.flushed(live, range);
        self.use_own(live, claim, &pages, 1);
    }

    /// Uses claimed pages, which no other CPU changes: their rights are known, after at most
    /// `spurious` spurious faults.
    fn use_own(
        &mut self,
        live: &LiveSpace<F>,
        claim: Claim,
        pages: &[Option<Page>],
        spurious: usize,
    ) {
        if !live.is_kernel() && !std::ptr::eq(&*self.current, live) {
            return;
        }
        let sim = &self.world.sim;
        for (page, number) in pages.iter().zip(claim.first..) {
            let at = live.at(claim.region, number);
            let want = Want { write: self.rng.chance(2), ..Want::default() };
            let first = sim.translate(at, want);
            let again = |_| {
                // As the handler of a page fault.
                if !live.is_kernel() {
                    sim.published(live.tables.space(), VirtRange::new(at, 1).unwrap());
                }
                sim.translate(at, want)
            };
            let found = (0..spurious).fold(first, |found, _| found.or_else(again));
            let allowed = page.is_some_and(|page| {
                let needed = if want.write { Flags::WRITE } else { Flags::RWX };
                page.rights.intersects(needed)
            });
            assert_eq!(found.is_ok(), allowed, "{want:?} of {at}: {first:?}, then {found:?}");
            if let (Ok(into), Some(page)) = (found, page) {
                assert_eq!(Frame::containing(into), page.frame);
                if want.write {
                    self.world.written.lock().unwrap().insert(page.frame);
                }
            }
        }
    }

    /// Prunes the kernel's tables for a region, after unmapping its pages.
    fn prune(&mut self, kernel: &LiveSpace<F>) {
        let region = self.rng.below(self.world.regions);
        let Some((claim, pages)) = kernel.claim_region(region) else { return };
        let frames = self.unmap(kernel, claim, &pages);
        self.release_all(frames);
        let range = kernel.region(region);
        let large = F::LARGE;
        let start = range.start().align_down(large);
        let tables = VirtRange::new(start, 2 * large.bytes()).unwrap();
        let pending = change::prune(kernel, tables);
        change::flush(&kernel.tables, pending, self.rng.below(4));
        self.world.sim.check_upper_flushed(kernel.tables.root(), None, range);
        kernel.unclaim(claim);
    }
}

fn holds(page: &Option<Page>, frame: Frame) -> bool {
    page.is_some_and(|page| page.frame == frame)
}
