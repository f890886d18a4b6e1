//! Words of leaves: pointers to entries, as cells hold them.

use core::ptr;

/// Whether vectors move words, as integers, which carry no provenance. Then the provenance of a
/// word is exposed while the word is in a leaf.
const EXPOSES: bool = cfg!(all(
    target_arch = "x86_64",
    not(any(miri, loom, fuzzing, samara_small_nodes)),
    any(feature = "std", target_feature = "avx2"),
));

/// Prepares a word for a leaf. Takes no instruction.
#[inline(always)]
pub(crate) fn put_in(word: *mut ()) -> *mut () {
    if EXPOSES {
        word.expose_provenance();
    }
    word
}

/// Converts a word read from a leaf: regains the provenance that [`put_in`] exposed. Takes no
/// instruction.
#[inline(always)]
pub(crate) fn taken_out(word: *mut ()) -> *mut () {
    if EXPOSES { ptr::with_exposed_provenance_mut(word.addr()) } else { word }
}
