//! The constructed state of pages on quicklists (I6).
//!
//! A page must enter and leave its list bit for bit as it was constructed. The code under test
//! reports each page that it has constructed ([`machine::Checker::note_constructed`]), and the
//! machine keeps a copy of its nonzero words. So nothing needs to be set up. A test can also state
//! the contents of a list's pages ([`Sim::constructed`]). That takes precedence, and also detects a
//! wrong constructor. Otherwise a page must be all zeros.

use crate::lock::locked;
use crate::report::Violation;
use crate::sim::Sim;
use machine::{ENTRIES, Frame};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The contents of a page on a quicklist, by the index of the word.
type Image = Arc<dyn Fn(usize) -> u64 + Send + Sync>;

/// The known constructed states.
#[derive(Default)]
pub(crate) struct Constructed {
    /// By list: as stated by a test.
    stated: BTreeMap<u8, Image>,
    /// By frame: its list, and its nonzero words.
    learned: BTreeMap<Frame, (u8, Vec<(usize, u64)>)>,
}

impl Sim {
    /// States the contents of a page on quicklist `list`, word by word.
    ///
    /// Not needed for lists of the crate `paging`: without it, a page must be as it was when
    /// constructed.
    pub fn constructed(&self, list: u8, image: impl Fn(usize) -> u64 + Send + Sync + 'static) {
        locked(&self.0.constructed).stated.insert(list, Arc::new(image));
    }

    /// Remembers the current contents of the page.
    pub(crate) fn learn_constructed(&self, frame: Frame, list: u8) {
        let words = (0..self.words_of(frame)).filter_map(|index| {
            let word = self.0.arena.load(frame, index)?;
            (word != 0).then_some((index, word))
        });
        let learned = (list, words.collect());
        locked(&self.0.constructed).learned.insert(frame, learned);
    }

    /// Called when the frame is freed: it will be constructed anew.
    pub(crate) fn forget_constructed(&self, frame: Frame) {
        locked(&self.0.constructed).learned.remove(&frame);
    }

    /// The words of a page that begins at a frame: those of its block.
    fn words_of(&self, frame: Frame) -> usize {
        self.0.frames.info(frame).map_or(0, |info| ENTRIES << info.order())
    }

    /// Checks I6 for a page that enters or leaves a quicklist.
    pub(crate) fn check_constructed(&self, frame: Frame, list: u8, entering: bool) {
        if !self.0.config.checks.constructed {
            return;
        }
        let (image, learned) = {
            let known = locked(&self.0.constructed);
            (known.stated.get(&list).cloned(), known.learned.get(&frame).cloned())
        };
        if let Some((made_for, _)) = learned
            && made_for != list
        {
            let found = Violation::OtherList { frame, list, made_for };
            self.violation(found, self.history_of(frame));
        }
        let mut words = vec![0; self.words_of(frame)];
        for (index, word) in learned.into_iter().flat_map(|(_, words)| words) {
            words[index] = word;
        }
        for (index, word) in words.into_iter().enumerate() {
            let Some(found) = self.0.arena.load(frame, index) else { return };
            let expected = image.as_ref().map_or(word, |image| image(index));
            if found != expected {
                let found =
                    Violation::NotConstructed { frame, list, entering, index, found, expected };
                self.violation(found, self.history_of_place(frame, index));
            }
        }
    }
}
