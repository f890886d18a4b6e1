//! A frame that a fault may need: of zeros, or a copy of the page that it replaces.

use core::cell::Cell;

use machine::{Frame, Machine, PageSize};
use paging::{Format, Paging, Swap};

use crate::{
    FrameGroup,
    fault::frame_contents::{copy, read_slot},
    fault::frame_ref::{NoFrame, Reference, hold, is_counted},
    fault::zero_page::{zero, zero_block},
};

/// The contents that the frame is to get.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum NewContents {
    Zeros,
    /// The contents of this frame, to which a reference is held.
    CopyOf(CopySource),
    /// The page in this slot of swap, to which a reference is held.
    Slot(u64),
}

/// The frame of a page that is copied.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct CopySource {
    pub(crate) frame: Frame,
    /// Whether entries that lead to it hold references.
    counted: bool,
}

/// Why a frame could not be prepared.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Unready {
    NoFrame(NoFrame),
    /// The host could not read the page from swap.
    Lost,
}

impl<E: Into<NoFrame>> From<E> for Unready {
    fn from(error: E) -> Self {
        Unready::NoFrame(error.into())
    }
}

/// A huge page that may be needed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum NewHuge {
    /// Not asked for yet.
    No,
    /// A block of zeros.
    Ready(Frame),
    /// There is no block, or small pages came first.
    Denied,
}

/// A frame for a page that may be needed. It is given back if it is not.
pub(crate) struct NewFrame<'m, M: Machine> {
    machine: &'m M,
    swap: Option<&'m dyn Swap>,
    group: Option<&'m FrameGroup<M>>,
    frame: Cell<Option<Frame>>,
    /// The contents of `frame`, now or later.
    wanted: Cell<NewContents>,
    ready: Cell<bool>,
    huge: Cell<NewHuge>,
    /// The fault has let the object bring its page in.
    pub(crate) brought_in: Cell<bool>,
    /// How often the swap has refused a reference to a slot.
    pub(crate) refusals: Cell<usize>,
}

impl<'m, M: Machine> NewFrame<'m, M> {
    pub(crate) fn new<F: Format>(
        paging: &'m Paging<M, F>,
        group: Option<&'m FrameGroup<M>>,
    ) -> Self {
        NewFrame {
            machine: paging.machine(),
            swap: paging.swap().map(|swap| &**swap),
            group,
            frame: Cell::new(None),
            wanted: Cell::new(NewContents::Zeros),
            ready: Cell::new(false),
            huge: Cell::new(NewHuge::No),
            brought_in: Cell::new(false),
            refusals: Cell::new(0),
        }
    }

    /// Whether the frame holds what is wanted.
    pub(crate) fn is_ready(&self) -> bool {
        self.ready.get()
    }

    /// The frame, if it holds zeros.
    pub(crate) fn zeros(&self) -> Option<Frame> {
        (self.ready.get() && self.wanted.get() == NewContents::Zeros).then(|| self.frame.get())?
    }

    /// The frame, if it holds a copy of `frame`.
    pub(crate) fn copy_of(&self, frame: Frame) -> Option<Frame> {
        match self.wanted.get() {
            NewContents::CopyOf(source) if source.frame == frame && self.ready.get() => {
                self.frame.get()
            }
            _ => None,
        }
    }

    /// From now on zeros are wanted.
    pub(crate) fn want_zeros(&self) {
        if self.wanted.get() != NewContents::Zeros {
            self.drop_source();
            self.ready.set(false);
        }
    }

    /// From now on a copy of `frame` is wanted. Returns whether the frame is still allocated. The
    /// caller has it from an entry, and reads the entry again: if it still leads there, the
    /// contents do not change as long as the entry stays shared for copying.
    pub(crate) fn want_copy(&self, frame: Frame) -> bool {
        if matches!(self.wanted.get(), NewContents::CopyOf(source) if source.frame == frame) {
            return true;
        }
        self.want_zeros();
        let counted = is_counted(self.machine, frame);
        if counted && !hold(self.machine, frame) {
            return false;
        }
        self.wanted.set(NewContents::CopyOf(CopySource { frame, counted }));
        self.ready.set(false);
        true
    }

    /// The frame, if it holds the page of a slot.
    pub(crate) fn page_of(&self, slot: u64) -> Option<Frame> {
        (self.ready.get() && self.wanted.get() == NewContents::Slot(slot))
            .then(|| self.frame.get())?
    }

    /// From now on the page in a slot is wanted. Returns whether the slot is in use. The caller has
    /// it from an entry, and reads the entry again.
    pub(crate) fn want_slot(&self, slot: u64) -> bool {
        if self.wanted.get() == NewContents::Slot(slot) {
            return true;
        }
        self.want_zeros();
        let held = self.swap.is_some_and(|swap| swap.hold(slot));
        if held {
            self.wanted.set(NewContents::Slot(slot));
            self.ready.set(false);
        }
        held
    }

    /// Makes sure that the frame holds what is wanted. It is prepared whole or not at all.
    pub(crate) fn prepare(&self) -> Result<(), Unready> {
        if self.ready.get() {
            return Ok(());
        }
        if self.frame.get().is_none() {
            let frame = Reference::alloc_page(self.machine, self.group, 0)?.keep();
            self.frame.set(Some(frame));
        }
        let Some(frame) = self.frame.get() else { return Ok(()) };
        match self.wanted.get() {
            NewContents::Zeros => zero(self.machine, frame)?,
            NewContents::CopyOf(source) => copy(self.machine, source.frame, frame)?,
            NewContents::Slot(slot) if read_slot(self.machine, self.swap, slot, frame) => {}
            NewContents::Slot(_) => return Err(Unready::Lost),
        }
        self.ready.set(true);
        Ok(())
    }

    /// The huge page.
    pub(crate) fn huge(&self) -> NewHuge {
        self.huge.get()
    }

    /// Prepares a huge page, if there is one to be had.
    #[cold]
    pub(crate) fn prepare_huge(&self) {
        let order = PageSize::Size2M.order();
        let new = Reference::alloc_page(self.machine, self.group, order)
            .ok()
            .filter(|new| zero_block(self.machine, new.frame(), order).is_ok());
        self.drop_huge(new.map_or(NewHuge::Denied, |new| NewHuge::Ready(new.keep())));
    }

    /// Small pages must do.
    pub(crate) fn deny_huge(&self) {
        self.drop_huge(NewHuge::Denied);
    }

    /// The huge page was mapped.
    pub(crate) fn huge_mapped(&self) {
        self.huge.set(NewHuge::No);
    }

    fn drop_huge(&self, now: NewHuge) {
        if let NewHuge::Ready(frame) = self.huge.replace(now) {
            // SAFETY: the block is ours alone.
            drop(unsafe { Reference::new(self.machine, frame) });
        }
    }

    /// The frame was mapped: it belongs to the page.
    pub(crate) fn mapped(&self) {
        self.frame.set(None);
        self.want_zeros();
        self.ready.set(false);
    }

    /// Gives up the reference to the frame that was to be copied.
    fn drop_source(&self) {
        match self.wanted.replace(NewContents::Zeros) {
            NewContents::CopyOf(CopySource { frame, counted: true }) => {
                // SAFETY: `want_copy` took the reference.
                drop(unsafe { Reference::new(self.machine, frame) });
            }
            NewContents::Slot(slot) => {
                self.swap.inspect(|swap| swap.release(slot));
            }
            NewContents::CopyOf(_) | NewContents::Zeros => {}
        }
    }
}

impl<M: Machine> Drop for NewFrame<'_, M> {
    fn drop(&mut self) {
        self.drop_source();
        self.drop_huge(NewHuge::No);
        if let Some(frame) = self.frame.get() {
            // SAFETY: the frame is ours alone.
            drop(unsafe { Reference::new(self.machine, frame) });
        }
    }
}
