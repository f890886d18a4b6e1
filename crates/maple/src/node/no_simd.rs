//! No vectors here: searches count by conditional moves.

use super::change::Way;
use super::inner::Seps;
use super::leaf::Body;
use super::load::{Job, Search};

/// Vectors that are not there.
#[derive(Clone, Copy)]
pub(super) enum Vectors {}

impl Vectors {
    #[inline(always)]
    pub(super) fn get() -> Option<Vectors> {
        None
    }

    pub(super) fn run<J: Job>(self, _: J) -> J::Out {
        match self {}
    }
}

impl Way for Vectors {}

impl Search for Vectors {
    fn below(self, _: &Body, _: usize) -> u32 {
        match self {}
    }

    fn inner(self, _: &Seps, _: usize) -> usize {
        match self {}
    }
}

/// Lets a word into a leaf: without vectors it is moved as a pointer, and nothing is to be done.
#[inline(always)]
pub(super) fn put_in(word: *mut ()) -> *mut () {
    word
}

/// A word as it is read out of a leaf.
#[inline(always)]
pub(super) fn taken_out(word: *mut ()) -> *mut () {
    word
}
