//! The changes of entries and pages that a caller asks for.

use crate::format::Attrs;
use machine::Frame;

/// The change of an entry; returned by the closure of
/// [`PageTables::with_entry`](crate::PageTables::with_entry).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum EntryChange {
    /// The entry stays as it is.
    Keep,
    /// An absent entry maps this frame with these attributes. A present entry gets the attributes:
    /// its frame must be this one, and its accessed and dirty bits stay, next to those of the
    /// attributes.
    Set(Frame, Attrs),
    /// A present entry maps this frame with these attributes instead of its own. CPUs may use the
    /// old frame until the flush is done, so the new one has the same contents and no right to
    /// write until then. An absent entry stays. Where a swap entry is replaced, no flush follows:
    /// the one for the page that was there before is done.
    Replace(Frame, Attrs),
    /// The entry becomes absent.
    Clear,
}

/// The change of a page; returned by the closure of
/// [`PageTables::sweep`](crate::PageTables::sweep).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum SweepChange {
    /// The page stays as it is.
    Keep,
    /// The page is unmapped.
    Clear,
    /// The page gets these attributes. It keeps its frame, and its accessed and dirty bits, next to
    /// those of the attributes.
    Set(Attrs),
    /// The page loses its accessed bit. No flush is pending: a CPU that has cached the translation
    /// does not set the bit again until it loads the entry anew.
    Age,
    /// The page loses its dirty bit, if the sweep has reported it. A bit that hardware sets later
    /// stays.
    Clean,
    /// The page's entry maps this frame with these attributes instead, as with
    /// [`EntryChange::Replace`].
    Replace(Frame, Attrs),
    /// The page stays, and the sweep ends before it.
    Stop,
}
