//! No vectors here: searches count by conditional moves.

use super::inner::Seps;
use super::leaf::Body;
use super::{Link, load::Search};

/// Vectors that are not there.
#[derive(Clone, Copy)]
pub(super) enum Vectors {}

impl Vectors {
    #[inline(always)]
    pub(super) fn get() -> Option<Vectors> {
        None
    }

    /// # Safety
    /// Never called.
    pub(super) unsafe fn load(self, _: Link, _: usize) -> *mut () {
        match self {}
    }
}

impl Search for Vectors {
    fn leaf(self, _: &Body, _: usize) -> usize {
        match self {}
    }

    fn inner(self, _: &Seps, _: usize) -> usize {
        match self {}
    }
}
