//! Words of leaves: pointers to entries, as cells hold them.

use super::simd::MOVES_WORDS;
use core::ptr;

/// Prepares a word for a leaf. Takes no instruction.
#[inline(always)]
pub(crate) fn put_in(word: *mut ()) -> *mut () {
    if MOVES_WORDS {
        word.expose_provenance();
    }
    word
}

/// Converts a word read from a leaf: regains the provenance that [`put_in`] exposed. Takes no
/// instruction.
#[inline(always)]
pub(crate) fn taken_out(word: *mut ()) -> *mut () {
    if MOVES_WORDS { ptr::with_exposed_provenance_mut(word.addr()) } else { word }
}
