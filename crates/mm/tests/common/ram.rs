//! Swap in the memory of a test.
#![allow(dead_code, reason = "each test uses some of it")]

use std::{
    collections::HashMap,
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use paging::Swap;

const PAGE: usize = 4096;

/// Each slot with its count.
type Slots = HashMap<u64, (u32, Box<[u8; PAGE]>)>;

#[derive(Default)]
pub(crate) struct Ram {
    slots: Mutex<Slots>,
    next: AtomicU64,
    /// No page is taken.
    pub(crate) is_full: AtomicBool,
    /// No page can be read.
    pub(crate) is_broken: AtomicBool,
}

impl Ram {
    /// The slots in use.
    pub(crate) fn used(&self) -> usize {
        self.slots.lock().unwrap().len()
    }
}

impl Swap for Ram {
    fn write(&self, page: &[u8; PAGE]) -> Option<u64> {
        if self.is_full.load(Ordering::Relaxed) {
            return None;
        }
        // Relaxed: only the number.
        let slot = self.next.fetch_add(1, Ordering::Relaxed);
        self.slots.lock().unwrap().insert(slot, (1, Box::new(*page)));
        Some(slot)
    }

    fn read(&self, slot: u64, page: &mut [u8; PAGE]) -> bool {
        *page = *self.slots.lock().unwrap()[&slot].1;
        !self.is_broken.load(Ordering::Relaxed)
    }

    fn hold(&self, slot: u64) -> bool {
        self.slots.lock().unwrap().get_mut(&slot).map(|slot| slot.0 += 1).is_some()
    }

    fn release(&self, slot: u64) {
        let mut slots = self.slots.lock().unwrap();
        let count = &mut slots.get_mut(&slot).unwrap().0;
        *count -= 1;
        if *count == 0 {
            slots.remove(&slot);
        }
    }
}
