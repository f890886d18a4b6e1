//! Accesses by the kernel for a program: copies and pins; and PAGEMAP_SCAN.

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use crate::{
    apply::Hand,
    ops::*,
    out::{OpResult, done},
};
use machine::{Frame, Memory};
use mm::*;

impl<'w> Hand<'w> {
    pub(crate) fn scan(&self, page: u8, pages: u8, wp_matching: bool) -> OpResult {
        let what = Scan {
            category_mask: PageCategories::WRITTEN,
            return_mask: PageCategories::WRITTEN,
            wp_matching,
            ..Scan::default()
        };
        match self.space().scan(at(page)..end(page + pages - 1), &what) {
            Ok(found) => {
                // The pages one by one: a scan of two pages is one of each.
                let within = |page: u8| {
                    let found = found
                        .regions
                        .iter()
                        .any(|region| (region.start..region.end).contains(&at(page)));
                    u64::from(found)
                };
                OpResult::words((page..page + pages).map(within))
            }
            Err(error) => error.into(),
        }
    }

    pub(crate) fn pin(&mut self, op: Op, page: u8) -> OpResult {
        self.pin = None;
        // A pin lives as long as the world, so its frames do, too. The run is short.
        let frames = Box::leak(Box::new([Frame::default()]));
        let space = self.space();
        let pins = match op {
            Op::Pin(_) => space.pin_pages(at(page), Access::Write, frames),
            Op::PinRead(_) => space.pin_pages(at(page), Access::Read, frames),
            _ => space.pin_pages_long_term(at(page), frames),
        };
        match pins {
            Ok(pins) => {
                self.pin = Some((pins, matches!(op, Op::Pin(_))));
                OpResult::default()
            }
            Err(error) => error.into(),
        }
    }

    pub(crate) fn pinned(&self, op: Op, value: u64) -> OpResult {
        let Some((pins, writes)) = &self.pin else { return OpResult::default() };
        let memory = self.world.sim.frame_ptr(pins.frames()[0]).unwrap();
        // SAFETY: the frame is pinned, and its words are accessed by atomic instructions.
        let word = unsafe { memory.cast::<AtomicU64>().as_ref() };
        // SeqCst: the driver runs one CPU at a time.
        match op {
            Op::PinnedStore if *writes => {
                word.store(value, SeqCst);
                OpResult::default()
            }
            Op::PinnedStore => OpResult::default(),
            _ => OpResult::words([word.load(SeqCst)]),
        }
    }

    pub(crate) fn read(&self, page: u8, pages: u8) -> OpResult {
        let mut found = vec![0; len(page, pages)];
        let read = self.space().read(at(page), &mut found);
        let copied = read.map_or_else(|error| error.copied, |()| found.len());
        let words = (page..page + pages).map(|each| at(each) - at(page)).filter(|at| *at < copied);
        let word = |at: usize| u64::from_le_bytes(found[at..at + 8].try_into().unwrap());
        OpResult { words: words.map(word).collect(), error: done(read).error }
    }

    /// Writes a word to each page. A copy between would need what it does not change.
    pub(crate) fn write(&self, page: u8, pages: u8, value: u64) -> OpResult {
        let mut out = OpResult::default();
        for page in page..page + pages {
            if !out.then(done(self.space().write(at(page), &value.to_le_bytes())), Join::Stop) {
                break;
            }
        }
        out
    }
}
