//! The quicklists of a [`Paging`](crate::Paging), as other crates may use them.

use super::{QuickLists, QuickStats};
use machine::{CpuSet, Frame, FrameError, Machine};

/// The quicklists of a [`Paging`](crate::Paging); see [`Paging::quick`](crate::Paging::quick). The
/// calls are those of [`QuickLists`].
///
/// Taking a page is unsafe here: a top-level table is constructed from the kernel's, which must not
/// be dropped meanwhile.
///
/// ```compile_fail,E0133
/// # use machine::PageSize;
/// # use paging::{Paging, QUICK_ROOT, X86_64L4};
/// # use sim::{Config, Sim};
/// # let sim = Sim::new(Config::default()).unwrap();
/// # let paging = Paging::<Sim, X86_64L4>::try_new(sim, PageSize::Size1G).unwrap();
/// paging.quick().alloc(QUICK_ROOT);
/// ```
#[derive(Debug)]
pub struct TableLists<'p, M: Machine>(&'p QuickLists<M>);

impl<M: Machine> Clone for TableLists<'_, M> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<M: Machine> Copy for TableLists<'_, M> {}

impl<'p, M: Machine> TableLists<'p, M> {
    pub(crate) fn new(lists: &'p QuickLists<M>) -> Self {
        TableLists(lists)
    }

    /// As [`QuickLists::alloc`].
    ///
    /// # Errors
    /// As for [`QuickLists::alloc`].
    ///
    /// # Panics
    /// There is no such list.
    ///
    /// # Safety
    /// For [`QUICK_ROOT`](crate::QUICK_ROOT): the kernel's tables, if there are any, are not
    /// dropped before it returns. From now on they get no top-level entry, as after the first user
    /// space: this page would lack it, also when it comes from the list again.
    #[inline(always)]
    pub unsafe fn alloc(self, list: u8) -> Result<Frame, FrameError> {
        self.0.alloc(list)
    }

    /// As [`QuickLists::free`].
    ///
    /// # Errors
    /// As for [`QuickLists::free`].
    ///
    /// # Panics
    /// There is no such list.
    ///
    /// # Safety
    /// As for [`QuickLists::free`].
    #[inline(always)]
    pub unsafe fn free(self, list: u8, frame: Frame) -> Result<(), FrameError> {
        // SAFETY: passed on.
        unsafe { self.0.free(list, frame) }
    }

    /// As [`QuickLists::trim`].
    ///
    /// # Panics
    /// There is no such list.
    pub fn trim(self, list: u8, least: usize, most: usize) -> usize {
        self.0.trim(list, least, most)
    }

    /// As [`QuickLists::tick`].
    pub fn tick(self) -> usize {
        self.0.tick()
    }

    /// As [`QuickLists::shortage`].
    pub fn shortage(self) -> CpuSet {
        self.0.shortage()
    }

    /// As [`QuickLists::drain`].
    pub fn drain(self) -> usize {
        self.0.drain()
    }

    /// As [`QuickLists::len`].
    ///
    /// # Panics
    /// There is no such list.
    pub fn len(self, list: u8) -> usize {
        self.0.len(list)
    }

    /// As [`QuickLists::is_empty`].
    pub fn is_empty(self) -> bool {
        self.0.is_empty()
    }

    /// As [`QuickLists::stats`].
    ///
    /// # Panics
    /// There is no such list.
    pub fn stats(self, list: u8) -> QuickStats {
        self.0.stats(list)
    }
}
