//! The constructed state of pages on quicklists (I6).
//!
//! A page must enter and leave its list bit for bit as it was constructed. The code under test
//! reports each page that it has constructed ([`machine::Checker::note_constructed`]), and the
//! machine keeps a copy of its nonzero words. So nothing needs to be set up. A test can also state
//! the contents of a list's pages ([`Sim::constructed`](crate::Sim::constructed)). That takes
//! precedence, and also detects a wrong constructor. Otherwise a page must be all zeros.

use crate::arena::Arena;
use crate::lock::locked;
use crate::report::Violation;
use machine::Frame;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

/// The contents of a page on a quicklist, by the index of the word.
pub(crate) type Image = Arc<dyn Fn(usize) -> u64 + Send + Sync>;

/// The known constructed states.
#[derive(Default)]
pub(crate) struct Constructed(Mutex<Known>);

#[derive(Default)]
struct Known {
    /// By list: as stated by a test.
    stated: BTreeMap<u8, Image>,
    /// By frame: its list, and its nonzero words.
    learned: BTreeMap<Frame, (u8, Vec<(usize, u64)>)>,
}

impl Constructed {
    /// As [`Sim::constructed`](crate::Sim::constructed).
    pub(crate) fn state(&self, list: u8, image: Image) {
        locked(&self.0).stated.insert(list, image);
    }

    /// Remembers the current contents of a page of `len` words.
    pub(crate) fn learn(&self, arena: &Arena, frame: Frame, len: usize, list: u8) {
        let words = (0..len).filter_map(|index| {
            let word = arena.load(frame, index)?;
            (word != 0).then_some((index, word))
        });
        let learned = (list, words.collect());
        locked(&self.0).learned.insert(frame, learned);
    }

    /// Called when the frame is freed: it will be constructed anew.
    pub(crate) fn forget(&self, frame: Frame) {
        locked(&self.0).learned.remove(&frame);
    }

    /// Checks I6 for a page of `len` words that enters or leaves a quicklist.
    pub(crate) fn check(
        &self,
        arena: &Arena,
        frame: Frame,
        len: usize,
        list: u8,
        entering: bool,
    ) -> Result<(), Violation> {
        let (image, learned) = {
            let known = locked(&self.0);
            (known.stated.get(&list).cloned(), known.learned.get(&frame).cloned())
        };
        if let Some((made_for, _)) = learned
            && made_for != list
        {
            return Err(Violation::OtherList { frame, list, made_for });
        }
        let mut words = vec![0; len];
        for (index, word) in learned.into_iter().flat_map(|(_, words)| words) {
            words[index] = word;
        }
        for (index, word) in words.into_iter().enumerate() {
            let Some(found) = arena.load(frame, index) else { break };
            let expected = image.as_ref().map_or(word, |image| image(index));
            if found != expected {
                return Err(Violation::NotConstructed {
                    frame,
                    list,
                    entering,
                    index,
                    found,
                    expected,
                });
            }
        }
        Ok(())
    }
}
