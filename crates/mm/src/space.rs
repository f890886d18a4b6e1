//! An address space: its VMAs in a range tree, its limits and its heap, and the lock that serialises changes.
//!
//! Whoever changes VMAs takes [`AddressSpace::write`] and makes its calls on the [`Writer`]; each is all or
//! nothing (I7) except where Linux itself stops half-way, which the call then says.

use crate::{Area, Error, MappedFile, Profile, VmFlags, tree::VmaTree};
use core::marker::PhantomData;

/// Where the parts of a program lie, in bytes; fixed by execve.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Layout {
    /// Where the heap starts.
    pub start_brk: usize,
    /// Where the heap ends now.
    pub brk: usize,
    /// An address inside the main stack.
    pub start_stack: usize,
    /// Where the downward search for free addresses begins.
    pub mmap_base: usize,
}

/// What changes under the lock besides the VMAs.
#[derive(Clone, Debug)]
pub(crate) struct State {
    pub(crate) layout: Layout,
    /// Flags that every new VMA gets (mlockall's future ones).
    pub(crate) default_flags: VmFlags,
    /// PR_SET_MEMORY_MERGE: new VMAs that qualify are mergeable by content.
    pub(crate) merge_any: bool,
}

/// interim
pub struct AddressSpace<F, R> {
    pub(crate) profile: Profile,
    inner: spin::Mutex<(VmaTree<F>, State)>,
    _r: PhantomData<R>,
}

/// interim
pub struct Writer<'a, F, R> {
    pub(crate) profile: &'a Profile,
    inner: spin::MutexGuard<'a, (VmaTree<F>, State)>,
    _r: PhantomData<R>,
}

impl<F: MappedFile, R: grace::Reclaim> AddressSpace<F, R> {
    /// An empty address space.
    pub fn new(profile: Profile, layout: Layout) -> Self {
        let state = State { layout, default_flags: VmFlags::empty(), merge_any: false };
        Self::with_state(profile, state)
    }

    pub(crate) fn with_state(profile: Profile, state: State) -> Self {
        AddressSpace { profile, inner: spin::Mutex::new((VmaTree::new(), state)), _r: PhantomData }
    }

    /// write
    pub fn write(&self) -> Writer<'_, F, R> {
        Writer { profile: &self.profile, inner: self.inner.lock(), _r: PhantomData }
    }
}

impl<F: MappedFile, R: grace::Reclaim> Writer<'_, F, R> {
    pub(crate) fn tree(&self) -> &VmaTree<F> {
        &self.inner.0
    }
    pub(crate) fn tree_mut(&mut self) -> &mut VmaTree<F> {
        &mut self.inner.0
    }
    pub(crate) fn state(&self) -> &State {
        &self.inner.1
    }
    pub(crate) fn state_mut(&mut self) -> &mut State {
        &mut self.inner.1
    }

    /// The first VMA with a part in `at..end`.
    pub(crate) fn part(&self, at: usize, end: usize) -> Option<Area<F>> {
        if at >= end {
            return None;
        }
        self.tree().at_or_after(at).filter(|area| area.start < end)
    }

    /// Room for so many more VMAs?
    pub(crate) fn room_for(&self, more: usize) -> Result<(), Error> {
        if more > 0 && self.tree().count() + more > self.profile.max_map_count {
            return Err(Error::TooManyMaps);
        }
        Ok(())
    }
}

impl<F: MappedFile, R: grace::Reclaim> Writer<'_, F, R> {
    /// All VMAs in order.
    pub fn areas(&self) -> impl Iterator<Item = Area<F>> + '_ {
        self.areas_from(0)
    }

    /// The VMA that contains `addr`.
    pub fn area_at(&self, addr: usize) -> Option<Area<F>> {
        self.tree().covering(addr)
    }

    /// How many VMAs there are.
    pub fn count(&self) -> usize {
        self.tree().count()
    }

    /// The VMAs in order, from the first that ends above `addr`.
    pub fn areas_from(&self, addr: usize) -> impl Iterator<Item = Area<F>> + '_ {
        let mut at = addr;
        core::iter::from_fn(move || {
            let area = self.tree().at_or_after(at)?;
            at = area.end;
            Some(area)
        })
    }

    /// layout
    pub fn layout(&self) -> Layout {
        self.state().layout
    }

    /// Sets the layout (PR_SET_MM).
    pub fn set_layout(&mut self, layout: Layout) {
        self.state_mut().layout = layout;
    }

    /// Writes the listing.
    pub fn write_maps(&self, out: &mut dyn core::fmt::Write) -> core::fmt::Result {
        self.areas().try_for_each(|area| crate::maps::write_line(out, &area, &self.layout()))
    }
}
