//! Leaves in another form: a leaf whose form does not fit a new bound, a half of a wide leaf that
//! can be narrow, and two leaves of different forms in one.
//!
//! Cost: a few instructions for each bound and each word, some three hundred for a leaf. These
//! writes are rare, and the general plan would take ten times as long.

use super::leaf::Body;
use super::pack::narrow_form;
use crate::Index;

/// A half of a wide leaf with fewer bounds than this stays wide.
const FEW: usize = 4;

impl Body {
    /// Whether a narrow leaf could have these bounds, too.
    pub(crate) fn can_be_narrow_with(&self, more: [Option<Index>; 2]) -> bool {
        self.form_with(more).is_some()
    }

    fn form_with(&self, more: [Option<Index>; 2]) -> Option<(Index, u8)> {
        narrow_form(self.bounds().chain(more.into_iter().flatten()))
    }

    /// The same slots in a form that fits more bounds; `None` if a leaf of that form has no room
    /// for the slots.
    pub(crate) fn reformed(&self, more: [Option<Index>; 2]) -> Option<Body> {
        let mut other = Body::EMPTY;
        match self.form_with(more) {
            Some((base, shift)) => (other.base, other.shift) = (base, shift),
            None => other.wide = true,
        }
        other.has_room_for(self.len(), self.count()).then(|| self.in_form_of(other))
    }

    /// The same slots as a narrow leaf, with room for bounds on either side; `None` if they need a
    /// wide one. So do the few bounds of a wide leaf: with their next neighbours they would be wide
    /// again.
    pub(crate) fn narrowed(&self) -> Option<Body> {
        if self.wide && self.len() <= FEW {
            return None;
        }
        let (base, shift) = narrow_form(self.bounds())?;
        let mut narrow = Body::EMPTY;
        (narrow.base, narrow.shift) = (base, shift);
        Some(self.in_form_of(narrow))
    }

    /// The slots of two neighbouring leaves in one; `end` is the last index of the left one. `None`
    /// if one leaf does not hold them.
    pub(crate) fn joined(left: &Body, right: &Body, end: Index) -> Option<Body> {
        let bounds = || left.bounds().chain([end]).chain(right.bounds());
        let mut body = Body::EMPTY;
        match narrow_form(bounds()) {
            Some((base, shift)) => (body.base, body.shift) = (base, shift),
            None => body.wide = true,
        }
        let (len, count) = (left.len() + right.len(), left.count() + right.count());
        if !body.has_room_for(len, count) {
            return None;
        }
        bounds().enumerate().for_each(|(slot, end)| body.put_bound(slot, end));
        let words = left.words().chain(right.words());
        words.enumerate().for_each(|(rank, word)| body.put_word(rank, word));
        body.set_slots(len, left.mask | right.mask << left.len(), count);
        Some(body)
    }

    /// The stored bounds.
    fn bounds(&self) -> impl Iterator<Item = Index> {
        (0..self.len() - 1).map(|slot| self.bound(slot))
    }

    /// The words of the entries.
    fn words(&self) -> impl Iterator<Item = *mut ()> {
        (0..self.count()).map(|rank| self.word_of_rank(rank))
    }

    /// The slots of this leaf, in the form of another one, which holds them.
    fn in_form_of(&self, mut other: Body) -> Body {
        self.bounds().enumerate().for_each(|(slot, end)| other.put_bound(slot, end));
        self.words().enumerate().for_each(|(rank, word)| other.put_word(rank, word));
        other.set_slots(self.len(), self.mask, self.count());
        other
    }
}
