//! Marks in the entries of pages, and the entries that stand for no page.
//!
//! A mark is a software bit of an entry. An entry that leads to the frame of guard pages has no
//! rights, and stands for one of three, by its marks:
//!
//! | marks | the entry stands for |
//! |---|---|
//! | none | a guard page (`change/guard_pages`) |
//! | [`POISON`] | a page whose contents are lost (UFFDIO_POISON) |
//! | [`WP`] | an absent page that was write-protected (`monitor/wp_unpopulated`) |

use machine::{Frame, PageSize};
use paging::{Attrs, EntryChange, Flags, Mapping, Share, SweepChange};

/// The page is write-protected.
pub(crate) const WP: u16 = 4;
/// The page was not written since soft-dirty was cleared.
pub(crate) const CLEAN: u16 = 8;
/// The page is on its way to swap ([`crate::AddressSpace::reclaim`]).
pub(crate) const AWAY: u16 = 16;
/// The marks that take the right to write.
pub(crate) const MARKS: u16 = WP | CLEAN | AWAY;
/// A guard page that stands for lost contents (`guard_pages`). The same bit as `AWAY`: a guard page
/// does not go to swap.
pub(crate) const POISON: u16 = 16;

/// Whether a guard page stands for lost contents.
pub(crate) fn is_poison(attrs: Attrs) -> bool {
    attrs.soft & POISON != 0
}

/// The attributes with these marks.
pub(crate) fn marked(attrs: Attrs, marks: u16) -> Attrs {
    let marks = marks & MARKS;
    let lost = if marks == 0 { Flags::empty() } else { Flags::WRITE };
    Attrs { flags: attrs.flags - lost, soft: attrs.soft | marks, ..attrs }
}

/// The attributes of a guard page.
pub(crate) fn guard_attrs() -> Attrs {
    Attrs::new(Flags::empty()).with_share(Share::CopyOnWrite)
}

/// Whether the page is a guard page, whose frame is `guard`; not a poisoned one, nor an absent one
/// with a mark.
pub(crate) fn is_guard(page: &Mapping, guard: Frame) -> bool {
    page.frame == guard && page.attrs.soft & (WP | POISON) == 0
}

/// Whether the entry of a guard page is that of an absent page with a mark.
pub(crate) fn is_mark(attrs: Attrs) -> bool {
    attrs.soft & (WP | POISON) == WP
}

/// The attributes of an absent page with a mark.
pub(crate) fn absent_mark() -> Attrs {
    let attrs = guard_attrs();
    Attrs { soft: attrs.soft | WP, ..attrs }
}

/// The change that takes a page from a map of an object. A write-protected page leaves its mark.
/// The frame of guards exists as soon as memory is registered for write-protection.
pub(crate) fn clear_of_object(page: &Mapping, guard: Option<Frame>) -> SweepChange {
    let leaves = page.attrs.soft & WP != 0 && page.size == PageSize::Size4K;
    guard
        .filter(|_| leaves)
        .map_or(SweepChange::Clear, |guard| SweepChange::Replace(guard, absent_mark()))
}

/// The change of an absent entry, where the entry has a mark. The page that comes in keeps the mark
/// if `keeps`.
pub(crate) fn over_mark(change: EntryChange, keeps: bool) -> EntryChange {
    match change {
        EntryChange::Set(frame, attrs) => {
            EntryChange::Replace(frame, marked(attrs, if keeps { WP } else { 0 }))
        }
        change => change,
    }
}
