//! Swap in memory.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicUsize, Ordering};
use mm::Swap;
use spin::Mutex;

const PAGE: usize = super::PAGE;

/// Swap with so many slots, in memory that is there from the start.
pub(super) struct Store {
    slots: Mutex<Slots>,
    reads: AtomicUsize,
}

struct Slots {
    pages: Vec<(u32, Box<[u8; PAGE]>)>,
    free: Vec<usize>,
}

impl Store {
    pub(super) fn new(slots: usize) -> Store {
        let pages = (0..slots).map(|_| (0, Box::new([0; PAGE]))).collect();
        let slots = Mutex::new(Slots { pages, free: (0..slots).collect() });
        Store { slots, reads: AtomicUsize::new(0) }
    }

    /// The pages that were read back.
    pub(super) fn reads(&self) -> usize {
        // Relaxed: the CPU that reads asks.
        self.reads.load(Ordering::Relaxed)
    }
}

impl Swap for Store {
    fn write(&self, page: &[u8; PAGE]) -> Option<u64> {
        let mut slots = self.slots.lock();
        let slot = slots.free.pop()?;
        let (refs, kept) = &mut slots.pages[slot];
        *refs = 1;
        kept.copy_from_slice(page);
        Some(slot as u64)
    }

    fn read(&self, slot: u64, page: &mut [u8; PAGE]) -> bool {
        // Relaxed: as in `reads`.
        self.reads.fetch_add(1, Ordering::Relaxed);
        let slots = self.slots.lock();
        let found = slots.pages.get(slot as usize).map(|(_, kept)| page.copy_from_slice(&kept[..]));
        found.is_some()
    }

    fn hold(&self, slot: u64) -> bool {
        let mut slots = self.slots.lock();
        let found = slots.pages.get_mut(slot as usize).filter(|(refs, _)| *refs != 0);
        found.map(|(refs, _)| *refs += 1).is_some()
    }

    fn release(&self, slot: u64) {
        let mut slots = self.slots.lock();
        let Some((refs, _)) = slots.pages.get_mut(slot as usize) else { return };
        *refs -= 1;
        if *refs == 0 {
            slots.free.push(slot as usize);
        }
    }
}
