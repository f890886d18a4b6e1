//! The way back from an object to the spaces that map it.
//!
//! An object keeps its [`Mappings`]: a list of ranges of addresses, each with the [`Family`] of
//! spaces that may map the object there. A call adds the range *before* it stores the VMA, so no
//! page of the object is in a place that the list does not know. The list may know more than that:
//! a visit looks the VMAs up, and skips what is not a map of the object.
//!
//! # Families
//! A fork must not grow with the number of maps, so it adds nothing to the objects. It adds the
//! child to its parent's family. A visit goes to all members of a family, at the same addresses.
//!
//! # Why a visit misses no page
//! A visit of a space holds its mmap lock, so no fork, move or unmapping of the space runs during
//! it. The object has marked its pages before.
//! - *A new map* is added to the list with the list's lock. Either the visit finds it, or the lock
//!   orders the mark before the map, so that its faults see the mark.
//! - *A move* adds its target at the end of the list before the pages move. If the visit of the old
//!   place came before the move, the pages are gone; otherwise the visit comes to the target later.
//!   Entries of the list keep their order, and a visit goes on until the end that the list has
//!   then.
//! - *A fork* adds the child to the end of the family with the parent's mmap lock. If the visit
//!   of the parent came before, the child has inherited no page; otherwise the visit comes to the
//!   child.
//!
//! # Cost
//! A visit: one lookup for each range and each member of its family. Stale ranges are dropped when
//! the list has doubled since the last time, but not those of other spaces that a call changes.

use alloc::vec::Vec;
use core::{fmt, ops::Range};

use machine::{Frame, Step, VirtAddr, lock};
use maple::RefCounted;
use spin::mutex::SpinMutex;

use crate::space::shared::{Shared, WeakShared};

/// The pages that a visit takes from a space.
pub(crate) struct TakeBack<'a> {
    pub(crate) mappings: &'a Mappings,
    /// The addresses at which the space may map the object.
    pub(crate) addresses: Range<usize>,
    /// The pages of the object.
    pub(crate) pages: Range<u64>,
    pub(crate) what: Take<'a>,
}

/// The pages, or the right, that a visit takes.
#[derive(Clone, Copy)]
pub(crate) enum Take<'a> {
    /// The pages, with the copies that private maps have made.
    All,
    /// The pages for which the frame is the object's.
    Own(&'a dyn Fn(u64, Frame) -> bool),
    /// The right of shared maps to write.
    Write,
}

/// A space, as objects see it.
pub(crate) trait Visit: Send + Sync {
    /// Takes pages of an object, or rights to them, with the mmap lock of the space.
    fn take_back(&self, what: &TakeBack<'_>);

    /// Whether a VMA in this range maps the object. Takes no lock.
    fn maps(&self, addresses: Range<usize>, mappings: &Mappings) -> bool;

    /// Whether a call changes the space just now, and it is not the one with these tables. Tries
    /// the mmap lock.
    fn is_changing(&self, own: *const ()) -> bool;

    /// Whether a VMA in this range maps the object, shared, and may become writable. Takes the
    /// mmap lock.
    fn may_write(&self, addresses: Range<usize>, mappings: &Mappings) -> bool;

    /// The table whose entry decides about an address, if it has pages. Takes no lock.
    fn table_at(&self, at: VirtAddr) -> Option<Frame>;

    /// The frame of the page at an address. Takes no lock.
    fn frame_at(&self, at: VirtAddr) -> Option<Frame>;
}

/// A weak reference to a space, as objects see it.
pub(crate) fn weak_visit<T: Visit + 'static>(space: &Shared<T>) -> WeakShared<dyn Visit> {
    // SAFETY: it is coerced only.
    unsafe { Shared::downgrade(space).coerce(|inner| inner as *mut _) }
}

/// A list whose elements visits go through one by one, without its lock in between.
struct List<T> {
    elements: Vec<T>,
    /// Visits under way. Nothing is dropped meanwhile.
    visits: usize,
    /// The length at which stale elements are dropped next.
    full: usize,
}

impl<T> List<T> {
    const fn new() -> Self {
        List { elements: Vec::new(), visits: 0, full: 8 }
    }

    /// Adds an element at the end.
    fn push(&mut self, element: T, keep: impl FnMut(&T) -> bool) -> Result<(), vma::Error> {
        if self.elements.len() >= self.full && self.visits == 0 {
            self.elements.retain(keep);
            self.full = 2 * self.elements.len().max(4);
        }
        self.elements.try_reserve(1).map_err(|_| vma::Error::OutOfMemory)?;
        self.elements.push(element);
        Ok(())
    }
}

/// A visit of the elements of a list.
struct Elements<'a, T, S: Step> {
    list: &'a SpinMutex<List<T>>,
    step: &'a S,
    next: usize,
}

impl<'a, T, S: Step> Elements<'a, T, S> {
    fn of(list: &'a SpinMutex<List<T>>, step: &'a S) -> Self {
        lock(step, list).visits += 1;
        Elements { list, step, next: 0 }
    }
}

impl<T: Clone, S: Step> Iterator for Elements<'_, T, S> {
    type Item = T;

    fn next(&mut self) -> Option<T> {
        let element = lock(self.step, self.list).elements.get(self.next).cloned();
        self.next += 1;
        element
    }
}

impl<T, S: Step> Drop for Elements<'_, T, S> {
    fn drop(&mut self) {
        lock(self.step, self.list).visits -= 1;
    }
}

/// A space and all that were forked from it, and from those.
pub(crate) struct Family {
    members: SpinMutex<List<WeakShared<dyn Visit>>>,
}

impl Family {
    pub(crate) fn try_new() -> Result<RefCounted<Self>, vma::Error> {
        let family = Family { members: SpinMutex::new(List::new()) };
        RefCounted::new(family).map_err(|_| vma::Error::OutOfMemory)
    }

    /// Adds a space. If it is a fork, the caller holds the parent's mmap lock.
    pub(crate) fn add(
        &self,
        step: &impl Step,
        space: WeakShared<dyn Visit>,
    ) -> Result<(), vma::Error> {
        lock(step, &self.members).push(space, |space| !space.is_gone())
    }

    /// Calls `each` for each space that lives, with no lock held.
    pub(crate) fn visit(&self, step: &impl Step, each: impl FnMut(Shared<dyn Visit>)) {
        Elements::of(&self.members, step).filter_map(|space| space.upgrade()).for_each(each);
    }
}

/// A range of addresses at which the spaces of a family may map the object.
#[derive(Clone)]
struct Place {
    family: RefCounted<Family>,
    addresses: Range<usize>,
}

/// Where an object is mapped. The object holds it.
///
/// # Misuse
/// These calls, and those that cut an object, wait without end if they are made within a call on a
/// space that maps the object.
pub struct Mappings {
    places: SpinMutex<List<Place>>,
}

impl Mappings {
    /// Of an object that is mapped nowhere.
    pub const fn new() -> Self {
        Mappings { places: SpinMutex::new(List::new()) }
    }

    /// Adds a range, before a VMA is stored there. The caller has the mmap lock of the space with
    /// the tables `own`.
    ///
    /// A range that maps nothing is stale, unless its space is being changed: then a call may have
    /// added it, and not yet stored its VMA. The lock of the list orders that call's mmap lock
    /// before this look at it.
    pub(crate) fn add(
        &self,
        step: &impl Step,
        family: &RefCounted<Family>,
        own: *const (),
        addresses: Range<usize>,
    ) -> Result<(), vma::Error> {
        let is_mapped =
            |place: &Place| {
                let members = lock(step, &place.family.members);
                members.elements.iter().filter_map(WeakShared::upgrade).any(|space| {
                    space.is_changing(own) || space.maps(place.addresses.clone(), self)
                })
            };
        let place = Place { family: family.clone(), addresses };
        lock(step, &self.places).push(place, is_mapped)
    }

    /// Removes the `pages` of the object from every space. The object has marked them before: its
    /// `is_current` says no. With `copies`, the copies that private maps have made are removed,
    /// too; otherwise only the frames that `is_ours` recognises. When it returns, no CPU has a
    /// translation of what was removed.
    ///
    /// # Context
    /// With nothing held: it waits for the mmap lock of each space, and for flushes. Allocates
    /// nothing.
    pub fn take_back(
        &self,
        step: &impl Step,
        pages: Range<u64>,
        copies: bool,
        is_ours: &dyn Fn(u64, Frame) -> bool,
    ) {
        self.take(step, pages, if copies { Take::All } else { Take::Own(is_ours) });
    }

    /// Takes from all shared maps the right to write to the `pages`, so that the next write of each
    /// faults, and is told to the object ([`CachedPages::dirtied`](crate::CachedPages::dirtied)).
    /// When it returns, no CPU writes by an old right.
    ///
    /// # Context
    /// As for [`take_back`](Self::take_back).
    pub fn clean(&self, step: &impl Step, pages: Range<u64>) {
        self.take(step, pages, Take::Write);
    }

    fn take(&self, step: &impl Step, pages: Range<u64>, what: Take<'_>) {
        self.visit(step, |space, addresses| {
            space.take_back(&TakeBack { mappings: self, addresses, pages: pages.clone(), what });
            true
        });
    }

    /// Whether a shared map of the object is, or may become, writable. Waits for the mmap lock of
    /// the spaces.
    pub fn may_write(&self, step: &impl Step) -> bool {
        !self.visit(step, |space, addresses| !space.may_write(addresses, self))
    }

    /// Calls `each` for each range and each space, until it returns `false`; returns what it
    /// returned last.
    fn visit(
        &self,
        step: &impl Step,
        mut each: impl FnMut(&dyn Visit, Range<usize>) -> bool,
    ) -> bool {
        Elements::of(&self.places, step).all(|place| {
            Elements::of(&place.family.members, step).all(|space| {
                space.upgrade().is_none_or(|space| each(&*space, place.addresses.clone()))
            })
        })
    }
}

impl Default for Mappings {
    fn default() -> Self {
        Mappings::new()
    }
}

impl fmt::Debug for Mappings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mappings").finish_non_exhaustive()
    }
}
