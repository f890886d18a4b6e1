//! A space, and the known state of its pages.

use crate::common::{OnSim, pages_of, virt};
use crate::world::{Rng, Tables, upper};
use machine::*;
use paging::*;
use sim::Sim;
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

/// Groups of pages on both sides of a border, each of another level: with a granule of 4 KiB of 1
/// GiB, of 2 MiB, and of 512 GiB. There the tables below the top change, and with four levels the
/// top-level entries. With three levels the last is another border of 1 GiB.
pub(crate) const REGIONS: usize = 3;
/// The pages of a region, half on each side.
pub(crate) const PAGES: usize = 6;
/// The number of its pieces that are used.
pub(crate) const PIECES: usize = 4;

/// The known state of a mapped page.
#[derive(Clone, Copy)]
pub(crate) struct Page {
    pub(crate) frame: Frame,
    pub(crate) rights: Flags,
}

#[derive(Clone, Copy, Default)]
struct PageSlot {
    claimed: bool,
    page: Option<Page>,
}

/// The known state of the large page.
#[derive(Clone, Copy, Default)]
pub(crate) struct LargePage {
    pub(crate) frame: Option<Frame>,
    pub(crate) split: bool,
    /// Which pieces are mapped, after the split.
    pub(crate) mapped: [bool; PIECES],
}

pub(crate) struct LiveSpace<F: OnSim> {
    pub(crate) tables: ManuallyDrop<Arc<Tables<F>>>,
    id: u64,
    base: u64,
    closing: AtomicBool,
    slots: Mutex<[[PageSlot; PAGES]; REGIONS]>,
    /// With a flag: whether it is claimed.
    large: Mutex<(bool, LargePage)>,
}

/// Pages of a region that one CPU may change.
#[derive(Clone, Copy)]
pub(crate) struct Claim {
    pub(crate) region: usize,
    pub(crate) first: usize,
    pub(crate) len: usize,
}

impl<F: OnSim> LiveSpace<F> {
    fn new(tables: Tables<F>, id: u64, base: u64) -> LiveSpace<F> {
        LiveSpace {
            // A failed run leaks them: there is no CPU on which they could be dropped.
            tables: ManuallyDrop::new(Arc::new(tables)),
            id,
            base,
            closing: AtomicBool::new(false),
            slots: Mutex::default(),
            large: Mutex::default(),
        }
    }

    pub(crate) fn kernel(tables: Tables<F>) -> LiveSpace<F> {
        LiveSpace::new(tables, 0, upper::<F>().get())
    }

    pub(crate) fn program(tables: Tables<F>, id: u64) -> LiveSpace<F> {
        LiveSpace::new(tables, id, 0)
    }

    pub(crate) fn is_kernel(&self) -> bool {
        self.base != 0
    }

    /// Announces that it will be dropped as soon as no CPU uses it.
    pub(crate) fn close(&self) {
        self.closing.store(true, Relaxed);
    }

    pub(crate) fn is_closing(&self) -> bool {
        self.closing.load(Relaxed)
    }

    /// Drops the tables.
    pub(crate) fn into_tables(self) {
        drop(
            Arc::into_inner(ManuallyDrop::into_inner(self.tables)).expect("the tables are shared"),
        );
    }

    /// All mapped frames.
    pub(crate) fn frames(&self) -> Vec<Frame> {
        let slots = self.slots.lock().unwrap();
        let small = slots.iter().flatten().filter_map(|slot| slot.page).map(|page| page.frame);
        small.chain(self.large.lock().unwrap().1.frame).collect()
    }

    pub(crate) fn at(&self, region: usize, page: usize) -> VirtAddr {
        let border = match region {
            0 => 1 << F::shift(2),
            1 => 4 << F::shift(2) | 1 << F::shift(1),
            _ if F::LEVELS == 3 => 1 << (F::LOWER_BITS - 1),
            _ => 1 << F::shift(3),
        };
        let size = F::PAGE.bytes();
        virt(self.base + border - (PAGES as u64 / 2 * size) + page as u64 * size)
    }

    pub(crate) fn region(&self, region: usize) -> VirtRange {
        pages_of::<F>(self.at(region, 0).get(), PAGES as u64)
    }

    pub(crate) fn range(&self, claim: Claim) -> VirtRange {
        pages_of::<F>(self.at(claim.region, claim.first).get(), claim.len as u64)
    }

    /// The first word of a frame that is mapped there.
    pub(crate) fn tag(&self, region: usize, page: usize) -> u64 {
        Tag::of(self.id, region, page)
    }

    pub(crate) fn large_at(&self, piece: usize) -> VirtAddr {
        virt((3 << F::shift(2)) + piece as u64 * F::PAGE.bytes())
    }

    pub(crate) fn large_tag(&self, piece: usize) -> u64 {
        Tag::of(self.id, REGIONS, piece)
    }

    /// Claims some consecutive pages that are all as `wanted`, if there are any.
    pub(crate) fn claim(
        &self,
        rng: &mut Rng,
        regions: usize,
        wanted: impl Fn(Option<Page>) -> bool,
    ) -> Option<(Claim, Vec<Option<Page>>)> {
        let region = rng.below(regions);
        let slots = &mut self.slots.lock().unwrap()[region];
        let fits = |slot: &PageSlot| !slot.claimed && wanted(slot.page);
        let start = rng.below(PAGES);
        let mut order = (0..PAGES).map(|page| (start + page) % PAGES);
        let first = order.find(|page| fits(&slots[*page]))?;
        let most = slots[first..].iter().take_while(|slot| fits(slot)).count();
        let claim = Claim { region, first, len: 1 + rng.below(most) };
        let claimed = &mut slots[first..first + claim.len];
        claimed.iter_mut().for_each(|slot| slot.claimed = true);
        Some((claim, claimed.iter().map(|slot| slot.page).collect()))
    }

    /// Claims a whole region.
    pub(crate) fn claim_region(&self, region: usize) -> Option<(Claim, Vec<Option<Page>>)> {
        let slots = &mut self.slots.lock().unwrap()[region];
        if slots.iter().any(|slot| slot.claimed) {
            return None;
        }
        slots.iter_mut().for_each(|slot| slot.claimed = true);
        let claim = Claim { region, first: 0, len: PAGES };
        Some((claim, slots.iter().map(|slot| slot.page).collect()))
    }

    /// Records the state of claimed pages.
    pub(crate) fn set(&self, claim: Claim, pages: &[Option<Page>]) {
        let slots = &mut self.slots.lock().unwrap()[claim.region];
        for (slot, page) in slots[claim.first..][..claim.len].iter_mut().zip(pages) {
            slot.page = *page;
        }
    }

    pub(crate) fn unclaim(&self, claim: Claim) {
        let slots = &mut self.slots.lock().unwrap()[claim.region];
        slots[claim.first..][..claim.len].iter_mut().for_each(|slot| slot.claimed = false);
    }

    pub(crate) fn claim_large(&self) -> Option<LargePage> {
        let (claimed, large) = &mut *self.large.lock().unwrap();
        (!std::mem::replace(claimed, true)).then_some(*large)
    }

    pub(crate) fn set_large(&self, large: LargePage) {
        self.large.lock().unwrap().1 = large;
    }

    pub(crate) fn unclaim_large(&self) {
        self.large.lock().unwrap().0 = false;
    }
}

/// The first word of a frame: the page for which it was mapped last.
pub(crate) struct Tag;

impl Tag {
    fn of(id: u64, region: usize, page: usize) -> u64 {
        0x7a6 << 32 | id << 16 | (region as u64) << 8 | page as u64
    }

    fn word(sim: &Sim, frame: Frame) -> &AtomicU64 {
        let word = sim.frame_ptr(frame).expect("a frame beyond the machine's memory").cast();
        // SAFETY: the tests access this word atomically only.
        unsafe { word.as_ref() }
    }

    pub(crate) fn set(sim: &Sim, frame: Frame, tag: u64) {
        Tag::word(sim, frame).store(tag, Relaxed);
    }

    /// Checks that the frame is the one that was mapped for this page.
    #[track_caller]
    pub(crate) fn check(sim: &Sim, frame: Frame, tag: u64, who: &str) {
        let found = Tag::word(sim, frame).load(Relaxed);
        assert_eq!(found, tag, "{who}: frame {frame} belongs to another page");
    }
}
