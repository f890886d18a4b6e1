//! Words of leaves: pointers to entries, as cells hold them.

use core::ptr;

/// Whether vectors move words, as integers, which carry no provenance. Then the provenance of a
/// word is exposed while the word is in a leaf. Each implementation in `simd` asserts its own.
pub(super) const MOVES_WORDS: bool = cfg!(all(
    not(any(miri, loom, fuzzing, samara_small_nodes, feature = "small")),
    target_arch = "x86_64",
    any(feature = "std", target_feature = "avx2"),
));

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
