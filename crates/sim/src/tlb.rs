//! A CPU's caches: translations of pages, and upper-level entries.
//!
//! Both keep an entry until it is flushed or evicted; changes in memory do not affect them. So an
//! entry that a flush has missed stays here and is used, which is the purpose of this machine.

use crate::format::{Format, Rights};
use machine::{Asid, Flush, Frame, PageSize, VirtAddr, VirtRange};

/// A cached translation of a page.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Translation {
    pub(crate) page: VirtAddr,
    pub(crate) size: PageSize,
    /// `None` if it is global.
    pub(crate) space: Option<Asid>,
    /// The top-level table of the walk.
    pub(crate) root: Frame,
    /// For a global one: the table that the top-level entry led to.
    pub(crate) top: Option<Frame>,
    pub(crate) frame: Frame,
    pub(crate) rights: Rights,
    /// Whether the dirty bit in memory was set when it was cached.
    pub(crate) dirty: bool,
    /// Its memory type, if the architecture's break-before-make regards it.
    pub(crate) memory: u8,
    /// The entry of the page: its table and index.
    pub(crate) place: (Frame, usize),
    /// Whether the page is in a group.
    pub(crate) group: bool,
    /// When it was cached.
    pub(crate) since: u64,
}

impl Translation {
    fn covers(&self, at: VirtAddr) -> bool {
        at.align_down(self.size) == self.page
    }

    pub(crate) fn range(&self) -> Option<VirtRange> {
        VirtRange::new(self.page, self.size.bytes())
    }

    pub(crate) fn overlaps(&self, range: &VirtRange) -> bool {
        self.range().is_some_and(|page| page.overlaps(range))
    }

    /// Whether a flush of `range` in steps of `stride` drops it.
    fn is_met(&self, range: &VirtRange, stride: PageSize) -> bool {
        if self.size >= stride {
            return self.overlaps(range);
        }
        // The flush is of multiples of the stride. In a smaller page only its start can be one.
        let first = range.start().align_down(stride);
        self.page.is_aligned(stride) && self.page >= first && Some(self.page) <= range.last()
    }
}

/// A TLB of limited size: sets of several ways, by page number.
pub(crate) struct Tlb {
    ways: usize,
    sets: Vec<TlbSet>,
    /// The number of translations of each size that it holds; a lookup skips sizes with none.
    sizes: [usize; SIZES],
}

#[derive(Clone, Default)]
struct TlbSet {
    places: Vec<Translation>,
    next: usize,
}

const WAYS: usize = 8;
/// Sizes are counted by their numbers.
const SIZES: usize = PageSize::Size1G as usize + 1;

impl Tlb {
    pub(crate) fn new(entries: usize) -> Tlb {
        let ways = entries.min(WAYS);
        Tlb { ways, sets: vec![TlbSet::default(); (entries / ways).max(1)], sizes: [0; SIZES] }
    }

    fn set(&self, at: VirtAddr, size: PageSize) -> usize {
        ((at.get() >> size.shift()) % self.sets.len() as u64) as usize
    }

    /// The translation of an address. If there are several, of different sizes, hardware may use
    /// any. This returns the oldest: a missed flush leaves that one.
    #[inline]
    pub(crate) fn find(&self, space: Asid, at: VirtAddr) -> Option<Translation> {
        let of_size = |size: PageSize| {
            let set = &self.sets[self.set(at, size)];
            let fits = |held: &&Translation| {
                held.size == size && held.covers(at) && held.space.is_none_or(|held| held == space)
            };
            set.places.iter().find(fits)
        };
        let sizes = PageSize::ALL.into_iter().filter(|size| self.sizes[*size as usize] != 0);
        sizes.filter_map(of_size).min_by_key(|held| held.since).copied()
    }

    /// Caches a translation, and evicts an older one if its set is full.
    pub(crate) fn insert(&mut self, new: Translation) {
        let set = self.set(new.page, new.size);
        let set = &mut self.sets[set];
        self.sizes[new.size as usize] += 1;
        let same = |held: &Translation| {
            held.size == new.size && held.page == new.page && held.space == new.space
        };
        if let Some(place) = set.places.iter_mut().find(|held| same(held)) {
            self.sizes[new.size as usize] -= 1;
            *place = new;
        } else if set.places.len() < self.ways {
            set.places.push(new);
        } else {
            let place = &mut set.places[set.next];
            self.sizes[place.size as usize] -= 1;
            *place = new;
            set.next = (set.next + 1) % set.places.len();
        }
    }

    /// Keeps the translations for which `stay` is true; returns how many were dropped.
    fn retain(&mut self, stay: impl Fn(&Translation) -> bool) -> usize {
        let mut dropped = 0;
        for set in &mut self.sets {
            let before = set.places.len();
            let sizes = &mut self.sizes;
            set.places.retain(|held| {
                let stays = stay(held);
                sizes[held.size as usize] -= usize::from(!stays);
                stays
            });
            dropped += before - set.places.len();
            set.next = 0;
        }
        dropped
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Translation> {
        self.sets.iter().flat_map(|set| &set.places)
    }
}

/// A cached upper-level entry: the location of the table of the next level.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Upper {
    /// The level of the table that it leads to.
    pub(crate) level: u8,
    /// The first address that it covers.
    pub(crate) start: VirtAddr,
    /// The base-2 logarithm of the bytes that it covers.
    pub(crate) bits: u32,
    pub(crate) space: Asid,
    /// The top-level table of the walk.
    pub(crate) root: Frame,
    pub(crate) table: Frame,
    pub(crate) rights: Rights,
    /// The entry that leads there: its table and index.
    pub(crate) place: (Frame, usize),
    pub(crate) since: u64,
}

impl Upper {
    pub(crate) fn overlaps(&self, range: &VirtRange) -> bool {
        VirtRange::new(self.start, 1 << self.bits).is_some_and(|span| span.overlaps(range))
    }
}

fn start_of(at: VirtAddr, bits: u32) -> VirtAddr {
    VirtAddr::new(at.get() >> bits << bits)
}

/// The caches of upper-level entries, one for each level.
pub(crate) struct Uppers {
    levels: Vec<Vec<Upper>>,
    format: Format,
    entries: usize,
    next: usize,
}

impl Uppers {
    pub(crate) fn new(format: Format, entries: usize) -> Uppers {
        // The top-level table is in a register, so one less.
        let levels = vec![Vec::new(); usize::from(format.levels) - 1];
        Uppers { levels, format, entries, next: 0 }
    }

    /// The entry that leads furthest down towards `at`.
    pub(crate) fn find(&self, space: Asid, at: VirtAddr) -> Option<Upper> {
        self.levels.iter().zip(0..).find_map(|(held, level)| {
            let start = start_of(at, self.format.shift(level + 1));
            held.iter().find(|held| held.start == start && held.space == space).copied()
        })
    }

    pub(crate) fn insert(&mut self, at: VirtAddr, mut new: Upper) {
        if self.entries == 0 {
            return;
        }
        new.bits = self.format.shift(new.level + 1);
        new.start = start_of(at, new.bits);
        let held = &mut self.levels[usize::from(new.level)];
        let same = |held: &Upper| held.start == new.start && held.space == new.space;
        if let Some(place) = held.iter_mut().find(|held| same(held)) {
            *place = new;
        } else if held.len() < self.entries {
            held.push(new);
        } else {
            held[self.next % self.entries] = new;
            self.next += 1;
        }
    }

    fn retain(&mut self, stay: impl Fn(&Upper) -> bool) {
        self.levels.iter_mut().for_each(|held| held.retain(&stay));
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Upper> {
        self.levels.iter().flatten()
    }
}

/// Performs a flush, and drops no more than it must. Returns how many translations were dropped.
pub(crate) fn flush(tlb: &mut Tlb, uppers: &mut Uppers, what: Flush) -> usize {
    match what {
        Flush::Range { space, range, stride, tables } => {
            // A global translation belongs to every space, but a flush of one space need not drop
            // it.
            let ours = |held: Option<Asid>| space.is_none() || held == space;
            if tables {
                uppers.retain(|held| !(ours(Some(held.space)) && held.overlaps(&range)));
            }
            tlb.retain(|held| !(ours(held.space) && held.is_met(&range, stride)))
        }
        Flush::Space(space) => {
            uppers.retain(|held| held.space != space);
            tlb.retain(|held| held.space != Some(space))
        }
        Flush::All => {
            uppers.retain(|_| false);
            tlb.retain(|_| false)
        }
    }
}

#[cfg(test)]
mod tests;
