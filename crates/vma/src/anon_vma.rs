//! Which anonymous pages two VMAs may share: the anon_vma.
//!
//! A VMA gets an anon_vma with its first private page. After a split, pages of one anon_vma lie in
//! several VMAs, and these may merge again. After a fork, pages that are older than the fork lie in
//! the child's VMA, too, so the child's VMA must not merge with memory that is younger. That is why
//! the anon_vma decides merges although no listing shows it (rules 2 and 3 of RULES.md).
//!
//! # Why a number is enough
//!
//! Linux links each VMA to a chain of anon_vmas, with which it finds the VMAs of a page. Merging
//! asks only two questions of a chain: do two VMAs have the same anon_vma as their own, and is the
//! chain longer than one, because the VMA came by a fork? So an [`Anon`] keeps a number for the
//! first question and a flag for the second.
//!
//! fork gives each faulted VMA of the child an anon_vma of its own. Linux may reuse an idle one of
//! an ancestor for that, but never one that any VMA has, so the child's VMAs differ from each other
//! in any case; and the chain always holds the parent's anon_vma, too. So reuse answers neither
//! question differently.
//!
//! # Why fork walks no VMAs
//!
//! An [`Anon`] also says in which [`Generation`] its number was given: an address space is one
//! generation younger than the parent that it was forked from. A VMA whose generation is not that
//! of its address space was inherited and has not been split since. Its anon_vma is implied: it is
//! of its own kind, equal to that of no other VMA here. Before such a VMA is split, or part of it
//! changes, it gets a number of this generation ([`Anon::inherited`]), so that its parts are equal
//! to each other afterwards. So fork need not touch it.
//!
//! # First writes during calls
//!
//! A page fault gives a VMA its anon_vma without the mmap lock ([`AnonSlot::fill`]): a VMA does not
//! change otherwise once it is in the tree, so this is one compare-exchange. A call that decides by
//! the absence of an anon_vma must not be overtaken by that, so it *closes* the empty slot first
//! ([`AnonSlot::close`]): then a fault needs the mmap lock, too. Calls close the slot of a VMA
//!
//! - that might merge with another one, if nothing but the anon_vma is left to decide it;
//! - that they cut in two: the parts are one object, and a fault in one must not mark both;
//! - that they copy to change it: a first write after the copy would be lost. `clone` closes it.
//!
//! A closed slot stays closed until the VMA is replaced. That is never wrong, only slower, and once
//! a VMA.
//!
//! # Untouched VMAs
//!
//! The slot also says whether a page of the VMA may ever have been there. A fault that brings in a
//! page either fills the slot, or *touches* it ([`AnonSlot::touch`]), before its second look. A
//! call that unmaps a VMA closes the slot first. If the slot was untouched then, no page is there,
//! and none can appear: a fault that comes later finds the slot closed, takes the mmap lock, and
//! looks at the VMAs again. So the call has no pages to remove. One word decides, so no fence is
//! needed.
//!
//! A part of the VMA may stay, and be touched later, with the mmap lock. A fault that looked
//! another part up long ago would take that for a mark of its own. So a slot that is closed *and*
//! touched says nothing about a range: the fault looks the VMA up again, after its mark, in the
//! tree ([`TouchMark::LookAgain`]). That mark releases what calls have stored before, and
//! [`AnonSlot::touch`] acquires it. A slot that is filled, or touched and open, was so before any
//! call closed it; calls have seen that.
//!
//! After a fork, two spaces have the VMA, and each marks it without the other's mmap lock. So a
//! slot that was not made since the last fork counts as touched, and so do its copies.
//!
//! An untouched VMA may take in a touched one, in a merge. Then it counts as touched. A copy has
//! the mark of its source, which is closed. So a mark may be set without need, but none is missing.
//!
//! # Forks
//!
//! fork shares the VMAs between parent and child. A first write must not mark the other's VMA, so a
//! slot is filled only at the [`Moment`] of its address space at which it was made, and each fork
//! begins a new moment in both. A fault that has seen the old moment may still fill the slot after
//! the fork: then the child has inherited a VMA that was written first just before the fork and has
//! no page yet, as when a fault in Linux prepares the anon_vma and is repeated.

use core::sync::atomic::{
    AtomicUsize,
    Ordering::{AcqRel, Acquire, Relaxed},
};

/// The number of forks from the first address space of a line of descent to this one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Generation(u64);

impl Generation {
    /// The generation of a forked child. It cannot overflow: a line of descent does not get that
    /// long.
    pub(crate) fn next(self) -> Generation {
        Generation(self.0 + 1)
    }
}

/// A VMA's anon_vma, or none.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Anon {
    /// Equal for the VMAs of one address space that have the same anon_vma. 0: none.
    number: usize,
    /// The generation of the address space that gave the number.
    generation: Generation,
    /// Whether an ancestor's anon_vma may hold pages of the VMA, although the number is younger.
    inherited: bool,
}

impl Anon {
    /// For a first write fault without a neighbour to share with. The number is not 0, and no other
    /// anon_vma of this generation of the address space has it.
    pub(crate) fn new(number: usize, here: Generation) -> Anon {
        debug_assert!(number != EMPTY && number < CLOSED_TOUCHED);
        Anon { number, generation: here, inherited: false }
    }

    /// For an inherited VMA that is about to be split. The number is as for [`new`](Self::new).
    pub(crate) fn inherited(number: usize, here: Generation) -> Anon {
        Anon { inherited: true, ..Anon::new(number, here) }
    }

    /// The number to share with another VMA.
    pub(crate) fn number(self) -> usize {
        self.number
    }

    /// Whether the VMA has had a private page.
    pub(crate) fn is_faulted(self) -> bool {
        self.number != 0
    }

    /// Whether it came by a fork, so that the VMA may hold pages of an ancestor.
    pub(crate) fn is_inherited(self, here: Generation) -> bool {
        self.is_faulted() && (self.inherited || self.generation != here)
    }

    /// If it was inherited and then got a number, the same anon_vma without the mark.
    pub(crate) fn not_inherited(self) -> Option<Anon> {
        self.inherited.then_some(Anon { inherited: false, ..self })
    }

    /// Whether a VMA next to it may use it for its first write.
    pub(crate) fn lends(self, here: Generation) -> bool {
        self.is_faulted() && !self.is_inherited(here)
    }

    /// Whether it is only implied: it needs a number before the VMA is split.
    pub(crate) fn is_implied(self, here: Generation) -> bool {
        self.is_faulted() && self.generation != here
    }

    /// Whether two different VMAs have the same anon_vma as their own, or both have none.
    pub(crate) fn same_owner(self, other: Anon, here: Generation) -> bool {
        let own = |anon: Anon| !anon.is_implied(here);
        self.number == other.number && own(self) && own(other)
    }
}

/// A time in the life of an address space: from one fork to the next.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Moment {
    pub(crate) generation: Generation,
    /// The children so far.
    pub(crate) forks: usize,
}

/// Values of a slot without an anon_vma: as it was made, with a page that a read brought in, and
/// both of them closed. Numbers of anon_vmas are smaller than all but the first.
const EMPTY: usize = 0;
const CLOSED: usize = usize::MAX;
const TOUCHED: usize = usize::MAX - 1;
const CLOSED_TOUCHED: usize = usize::MAX - 2;

/// The same value, closed.
fn closed(value: usize) -> usize {
    match value {
        EMPTY => CLOSED,
        TOUCHED => CLOSED_TOUCHED,
        other => other,
    }
}

/// The answer to a fault that marks a VMA ([`Vma::mark_touched`](crate::Vma::mark_touched)).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TouchMark {
    /// The VMA is marked. Calls that unmap it remove its pages.
    Marked,
    /// The VMA is marked, but a call may have taken a part of it away since it was looked up. The
    /// caller looks it up again before it maps the page, also if it knows of no change.
    LookAgain,
    /// A call has decided that no page of the VMA is there. The caller takes the mmap lock, looks
    /// the VMA up again, and calls
    /// [`Vma::mark_touched_for_call`](crate::Vma::mark_touched_for_call).
    NeedsLock,
}

/// The place in a VMA for its anon_vma: empty, closed while empty, or filled for good. While it is
/// empty, it says whether a page of the VMA may be there.
#[derive(Debug, Default)]
pub(crate) struct AnonSlot {
    /// The number of the anon_vma, or one of the values above.
    number: AtomicUsize,
    /// When the slot was made. Its generation is that of the number.
    made: Moment,
    inherited: bool,
}

impl AnonSlot {
    /// An empty slot.
    pub(crate) fn empty(now: Moment) -> AnonSlot {
        AnonSlot { number: AtomicUsize::new(EMPTY), made: now, inherited: false }
    }

    pub(crate) fn filled(anon: Anon) -> AnonSlot {
        let Anon { number, generation, inherited } = anon;
        let made = Moment { generation, forks: 0 };
        AnonSlot { number: AtomicUsize::new(number), made, inherited }
    }

    /// Lets a fault of the moment `now` fill it, if it is empty. The slot is that of a copy.
    pub(crate) fn open(&mut self, now: Moment) {
        let is_ours = self.made == now;
        let number = self.number.get_mut();
        if matches!(*number, EMPTY | CLOSED_TOUCHED..) {
            let touched = !is_ours || !matches!(*number, EMPTY | CLOSED);
            *number = if touched { TOUCHED } else { EMPTY };
            self.made = now;
            self.inherited = false;
        }
    }

    fn anon(&self, number: usize) -> Anon {
        match number {
            EMPTY | CLOSED_TOUCHED.. => Anon::default(),
            _ => Anon { number, generation: self.made.generation, inherited: self.inherited },
        }
    }

    /// Its value now. A fault may fill it right after that.
    pub(crate) fn get(&self) -> Anon {
        // Relaxed, here and below: the number publishes no other memory, and a call's decision by
        // it depends on this word alone. Only touches order more (`update`).
        self.anon(self.number.load(Relaxed))
    }

    /// Whether it holds an anon_vma.
    pub(crate) fn is_filled(&self) -> bool {
        !matches!(self.number.load(Relaxed), EMPTY | CLOSED_TOUCHED..)
    }

    /// Changes the value until `change` leaves it as it is. Returns the last value.
    fn update(&self, change: impl Fn(usize) -> usize) -> usize {
        // Acquire, here and below: pairs with the Release of `touch_for_call`, for `touch`.
        let mut now = self.number.load(Acquire);
        loop {
            // No locked instruction where nothing changes: a value that is final stays.
            let next = change(now);
            if next == now {
                return now;
            }
            // Release: a touch by a call comes after earlier stores of calls.
            match self.number.compare_exchange(now, next, AcqRel, Acquire) {
                Ok(_) => return next,
                Err(other) => now = other,
            }
        }
    }

    /// Closes it if it is empty. Returns its value from now on.
    pub(crate) fn close(&self) -> Anon {
        self.anon(self.update(closed))
    }

    /// Closes it if it is empty. Returns whether a page of the VMA may be there. If not, none will
    /// appear by a fault that does not hold the mmap lock. `now` is the moment of the address
    /// space.
    pub(crate) fn close_touched(&self, now: Moment) -> bool {
        self.update(closed) != CLOSED || self.made != now
    }

    /// A page is about to appear, not by a first write. Without the mmap lock.
    pub(crate) fn touch(&self) -> TouchMark {
        match self.update(|value| if value == EMPTY { TOUCHED } else { value }) {
            CLOSED => TouchMark::NeedsLock,
            CLOSED_TOUCHED => TouchMark::LookAgain,
            _ => TouchMark::Marked,
        }
    }

    /// As [`touch`](Self::touch), with the mmap lock, so also if it is closed.
    pub(crate) fn touch_for_call(&self) {
        self.update(|value| match value {
            EMPTY => TOUCHED,
            CLOSED => CLOSED_TOUCHED,
            other => other,
        });
    }

    /// Fills it at a first write, without the mmap lock. Returns whether it is filled now: not if
    /// it is closed, or of another moment than `now`. `choose` chooses the number.
    pub(crate) fn fill(&self, now: Moment, choose: impl FnOnce() -> usize) -> bool {
        match self.number.load(Relaxed) {
            CLOSED | CLOSED_TOUCHED => return false,
            EMPTY | TOUCHED if self.made != now => return false,
            _ => {}
        }
        let number = choose();
        let filled = |value| if matches!(value, EMPTY | TOUCHED) { number } else { value };
        !matches!(self.update(filled), CLOSED | CLOSED_TOUCHED)
    }
}

/// Closes the source, see the module's head. The copy is empty if the source is, and touched if the
/// source is.
impl Clone for AnonSlot {
    fn clone(&self) -> AnonSlot {
        match self.update(closed) {
            CLOSED => AnonSlot::empty(self.made),
            CLOSED_TOUCHED => {
                AnonSlot { number: AtomicUsize::new(TOUCHED), ..AnonSlot::empty(self.made) }
            }
            number => AnonSlot::filled(self.anon(number)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_shares_no_anon_vma_until_it_splits() {
        let (parent, child) = (Generation::default(), Generation::default().next());
        let anon = Anon::new(1, parent);
        assert!(anon.same_owner(anon, parent) && !anon.is_inherited(parent));
        assert!(!anon.same_owner(anon, child) && anon.is_inherited(child));
        let split = Anon::inherited(1, child);
        assert!(split.same_owner(split, child) && split.is_inherited(child));
        assert!(!split.is_implied(child) && split.is_implied(child.next()));
        assert!(!split.same_owner(Anon::new(2, child), child));
    }

    #[test]
    fn a_closed_slot_is_not_filled_and_its_copy_is() {
        let now = Moment { generation: Generation::default(), forks: 2 };
        let slot = AnonSlot::empty(now);
        assert!(!slot.fill(Moment::default(), || 5) && !slot.get().is_faulted());
        let copy = slot.clone();
        assert!(!slot.fill(now, || 5) && !slot.close().is_faulted());
        assert!(copy.fill(now, || 6) && copy.fill(Moment::default(), || 7));
        assert_eq!((copy.get().number, copy.clone().close().number), (6, 6));
    }

    #[test]
    fn a_touch_comes_before_a_close_or_finds_it() {
        let now = Moment::default();
        let slot = AnonSlot::default();
        assert!(slot.touch() == TouchMark::Marked && slot.close_touched(now));
        // A touched slot stays open to no first write, and to every read.
        assert!(slot.touch() == TouchMark::LookAgain && !slot.fill(now, || 5));
        let copy = slot.clone();
        assert!(copy.fill(now, || 5) && copy.close_touched(now));
        assert_eq!(copy.touch(), TouchMark::Marked);

        let slot = AnonSlot::default();
        assert!(!slot.close_touched(now) && slot.touch() == TouchMark::NeedsLock);
        assert!(!slot.clone().close_touched(now), "a copy of an untouched slot is untouched");
        slot.touch_for_call();
        assert!(slot.touch() == TouchMark::LookAgain && slot.close_touched(now));
        assert!(slot.clone().close_touched(now));
    }

    #[test]
    fn a_slot_that_was_copied_takes_no_first_write() {
        let slot = AnonSlot::default();
        let copy = slot.clone();
        assert!(!slot.fill(Moment::default(), || 5) && copy.fill(Moment::default(), || 5));
    }

    #[test]
    fn a_slot_from_before_a_fork_counts_as_touched() {
        let now = Moment { generation: Generation::default(), forks: 1 };
        let slot = AnonSlot::default();
        assert!(slot.close_touched(now));
        let mut copy = slot.clone();
        copy.open(now);
        assert!(copy.close_touched(now), "the other space may touch its source");
        assert!(!AnonSlot::empty(now).close_touched(now));
    }

    #[test]
    fn memory_without_private_pages_is_alike_in_every_generation() {
        let none = Anon::default();
        for here in [Generation::default(), Generation::default().next()] {
            assert!(none.same_owner(none, here));
            assert!(!none.is_inherited(here) && !none.is_implied(here));
            assert!(!none.same_owner(Anon::new(1, here), here));
        }
    }
}
