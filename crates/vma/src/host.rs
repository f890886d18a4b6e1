//! The host of an address space, to which a step gives its work on pages.
//!
//! `vma` knows no pages. It decides what happens to them, and a [`Host`] does it. The order of both
//! is that of a [`CallStep`].

use core::ops::Range;

use grace::Reclaim;

use crate::{
    AddressSpace, CallStep, EnteredRange, Error, MappedFile, Vma, space::Writer,
    space_state::SpaceState,
};

/// A host of an address space: the crate that manages the pages behind its VMAs.
///
/// ```
/// # use core::ops::Range;
/// # use vma::*;
/// /// Writes down what is unmapped.
/// #[derive(Default)]
/// struct Log(Vec<Range<usize>>);
///
/// impl<F: MappedFile, R: grace::Reclaim> Host<F, R> for Log {
///     fn apply(&mut self, mut step: CallStep<'_, '_, F, R>) -> Result<(), Error> {
///         step.hold()?;
///         step.close(false)?;
///         if let Work::Unmap { range, .. } = step.work() {
///             self.0.push(range.clone());
///         }
///         step.open();
///         Ok(())
///     }
/// }
/// # let layout = Layout { mmap_base: 0x7fff_0000_0000, ..Layout::default() };
/// # let mut space = AddressSpace::<NoFile, grace::Single>::new(Profile::LINUX_6_18, layout);
/// let mut log = Log::default();
/// let mut writer = space.get_mut().with_host(&mut log);
/// let at = writer.mmap(MapRequest::anonymous(0x4000, 3))?;
/// writer.munmap(at + 0x1000, 0x1000)?;
/// drop(writer);
/// assert_eq!(log.0, [at + 0x1000..at + 0x2000]);
/// # Ok::<(), vma::Error>(())
/// ```
pub trait Host<F: MappedFile, R: Reclaim> {
    /// Whether there are pages.
    const PAGES: bool = true;

    /// Whether the host marks a VMA before each page that it brings in
    /// ([`Vma::mark_touched`](crate::Vma::mark_touched)). Then unmapping a VMA without the mark is
    /// [`Work::Nothing`](crate::Work).
    const MARKS_TOUCHED: bool = false;

    /// Whether the host brings in the pages of a call that populates, after the call: its faults
    /// are the first writes of the VMAs, and may end early. Otherwise the call counts as the first
    /// write.
    const BRINGS_IN: bool = true;

    /// A step of a call on `space` is about to be made, which may still fail. A host that has the
    /// pages of one space refuses the others: safe code may give its host to a copy
    /// ([`Writer::duplicate`]). Memory for `growth` more bytes must be promised
    /// (`VmFlags::ACCOUNT`); when the call has ended, the host gives back the promised bytes that
    /// the call did not need ([`Sizes`](crate::Sizes)). If a range gets a VMA ([`EnteredRange`]),
    /// `vma` has its contents, if they are not those of its neighbour: nothing waits in the range
    /// when this returns. By default it does nothing.
    ///
    /// # Errors
    /// [`Error::Overcommit`], [`Error::OutOfMemory`], those of a file that refuses a map,
    /// [`Error::NotHere`]: nothing has changed.
    fn admit(
        &mut self,
        space: SpaceId,
        growth: isize,
        enters: Option<&EnteredRange>,
        vma: Option<&Vma<F>>,
    ) -> Result<(), Error> {
        let _ = (space, growth, enters, vma);
        Ok(())
    }

    /// Applies a step with work on pages, in the order that [`CallStep`] explains.
    ///
    /// # Errors
    /// Those of the step: nothing has changed. Those of an advice: some pages may have.
    fn apply(&mut self, step: CallStep<'_, '_, F, R>) -> Result<(), Error>;

    /// A range that overlaps this one and waits: some CPU may have a translation of a page that was
    /// unmapped there. `None` if none does. The answer may be longer than the waiting range. Maps
    /// without an address are placed elsewhere. By default nothing waits.
    fn waiting(&self, range: Range<usize>) -> Option<Range<usize>> {
        let _none = range;
        None
    }

    /// A map has found no place: nothing waits any more when this returns. Returns whether anything
    /// has waited.
    fn end_wait(&mut self) -> bool {
        false
    }
}

/// No pages.
impl<F: MappedFile, R: Reclaim> Host<F, R> for () {
    const PAGES: bool = false;
    const BRINGS_IN: bool = false;

    #[inline]
    fn apply(&mut self, step: CallStep<'_, '_, F, R>) -> Result<(), Error> {
        step.store()
    }
}

impl<F: MappedFile, R: Reclaim, H: Host<F, R>> Host<F, R> for &mut H {
    const PAGES: bool = H::PAGES;
    const MARKS_TOUCHED: bool = H::MARKS_TOUCHED;
    const BRINGS_IN: bool = H::BRINGS_IN;

    #[cfg_attr(not(feature = "small"), inline(always))]
    fn admit(
        &mut self,
        space: SpaceId,
        growth: isize,
        enters: Option<&EnteredRange>,
        vma: Option<&Vma<F>>,
    ) -> Result<(), Error> {
        H::admit(self, space, growth, enters, vma)
    }

    #[inline]
    fn apply(&mut self, step: CallStep<'_, '_, F, R>) -> Result<(), Error> {
        H::apply(self, step)
    }

    #[inline]
    fn waiting(&self, range: Range<usize>) -> Option<Range<usize>> {
        H::waiting(self, range)
    }

    fn end_wait(&mut self) -> bool {
        H::end_wait(self)
    }
}

/// Which address space a step is of. Valid while the space stays where it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SpaceId(*const ());

impl SpaceId {
    pub(crate) fn new(state: &SpaceState) -> SpaceId {
        SpaceId(core::ptr::from_ref(state).cast())
    }
}

impl<F: MappedFile, R: Reclaim> AddressSpace<F, R> {
    /// Which one it is: as in [`Host::admit`].
    #[inline]
    pub fn id(&self) -> SpaceId {
        SpaceId::new(self.state())
    }
}

impl<'a, F: MappedFile, R: Reclaim> Writer<'a, F, R> {
    /// From now on, each step of a call goes through this host.
    #[must_use]
    pub fn with_host<H: Host<F, R>>(self, host: H) -> Writer<'a, F, R, H> {
        Writer { vmas: self.vmas, host }
    }
}

impl<F: MappedFile, R: Reclaim, H: Host<F, R>> Writer<'_, F, R, H> {
    /// The host, between two calls.
    pub fn host(&mut self) -> &mut H {
        &mut self.host
    }

    /// Makes nothing wait any more, because a map has found no place.
    ///
    /// # Errors
    /// [`Error::NoSpace`] if nothing has waited.
    pub(crate) fn end_wait(&mut self) -> Result<(), Error> {
        if self.host.end_wait() { Ok(()) } else { Err(Error::NoSpace) }
    }
}
