//! The constructed state of pages on quicklists (I6).
//!
//! A page must enter and leave its list bit for bit as it was constructed. The code under test says
//! when it has constructed a page ([`machine::FrameSource::note_constructed`]), and the machine
//! keeps a copy of the words that are not 0. So nothing needs to be set up. A test that knows the
//! state of a list's pages can state it too ([`Sim::constructed`]); that takes precedence, and also
//! catches a constructor that is wrong. A page that neither speaks for is all zeros.

use crate::report::Violation;
use crate::sim::{Sim, locked};
use machine::{ENTRIES, Frame};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// What each word of a page on a quicklist must be.
type Image = Arc<dyn Fn(usize) -> u64 + Send + Sync>;

/// What is known of constructed states.
#[derive(Default)]
pub(crate) struct Constructed {
    /// By list: what a test has stated.
    stated: BTreeMap<u8, Image>,
    /// By frame: its list, and its words that are not 0.
    learned: BTreeMap<Frame, (u8, Vec<(usize, u64)>)>,
}

impl Sim {
    /// States what a page on quicklist `list` must look like, word by word.
    ///
    /// Not needed for lists of the crate `paging`: without it, a page must look as it did when it
    /// was constructed.
    pub fn constructed(&self, list: u8, image: impl Fn(usize) -> u64 + Send + Sync + 'static) {
        locked(&self.0.constructed).stated.insert(list, Arc::new(image));
    }

    /// Remembers what the page looks like now.
    pub(crate) fn learn_constructed(&self, frame: Frame, list: u8) {
        let words = (0..ENTRIES).filter_map(|index| {
            let word = self.word_now(frame, index)?;
            (word != 0).then_some((index, word))
        });
        let learned = (list, words.collect());
        locked(&self.0.constructed).learned.insert(frame, learned);
    }

    /// The frame is freed: it will be constructed anew.
    pub(crate) fn forget_constructed(&self, frame: Frame) {
        locked(&self.0.constructed).learned.remove(&frame);
    }

    fn word_now(&self, frame: Frame, index: usize) -> Option<u64> {
        // Acquire: pairs with the Release of the CPU that wrote the entry.
        self.0.arena.word(frame, index).map(|word| word.load(Ordering::Acquire))
    }

    /// I6: a page enters or leaves a quicklist.
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
        let mut words = vec![0; ENTRIES];
        for (index, word) in learned.into_iter().flat_map(|(_, words)| words) {
            words[index] = word;
        }
        for (index, word) in words.into_iter().enumerate() {
            let Some(found) = self.word_now(frame, index) else { return };
            let expected = image.as_ref().map_or(word, |image| image(index));
            if found != expected {
                let found =
                    Violation::NotConstructed { frame, list, entering, index, found, expected };
                let mut history = self.history_of(frame);
                history.extend(self.history_of_entry(frame, index));
                self.violation(found, history);
            }
        }
    }
}
