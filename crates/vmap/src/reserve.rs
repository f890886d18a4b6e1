//! `reserve` and `unreserve`: addresses without pages.
//!
//! The holder of a reservation may map pages there itself, through the page tables. A reserved area
//! is in use like any other: no area gets its addresses, and no page-table page that covers them is
//! pruned.

use crate::PAGE;
use crate::area::{AreaRecord, AreaState, Made};
use crate::create::SMALL;
use crate::error::Error;
use crate::request::Request;
use crate::space::Vmap;
use core::panic::Location;
use grace::Concurrent;
use machine::{Machine, VirtAddr};
use paging::Format;

impl<M: Machine, F: Format, G: Concurrent> Vmap<M, F, G> {
    /// Reserves addresses, at which nothing is mapped: accesses fault, and [`vread`](Vmap::vread)
    /// finds holes. No CPU holds a translation of them. [`create`](Vmap::create) with
    /// [`Request::addresses`] also reserves at an address that the caller names, or aligned.
    ///
    /// The caller may map and unmap pages there in the page tables, but must not prune there, and
    /// must not use the guard pages.
    ///
    /// Cost: a heap allocation and two writes to the tree of this CPU's zone under its lock. Takes
    /// no frames. Not in interrupt handlers.
    ///
    /// ```
    /// # use machine::{PageSize, VirtAddr, VirtRange};
    /// # use paging::{PageTables, Paging, X86_64L4};
    /// # use sim::{Config, Grace, Sim};
    /// # use std::sync::Arc;
    /// # use vmap::{Options, TlbGrace, Vmap};
    /// # let sim = Sim::new(Config::default()).unwrap();
    /// # let paging = Paging::<Sim, X86_64L4>::try_new(sim.clone(), PageSize::Size1G).unwrap();
    /// # let tlb_grace = TlbGrace::try_new(sim.clone()).unwrap();
    /// # let tables = sim.on_cpu(0, || {
    /// # let tables = Arc::new(PageTables::<_, _, Grace>::kernel(&paging).unwrap());
    /// # let space = VirtRange::new(VirtAddr::new(0xffff_c900_0000_0000), 1 << 30).unwrap();
    /// # // SAFETY: no other code maps at these addresses.
    /// # let vmap = unsafe {
    /// #     Vmap::try_new(tables.clone(), tlb_grace.clone(), space, Options::default())
    /// # };
    /// # let vmap = vmap.unwrap();
    /// let at = vmap.reserve(64 << 20).unwrap();
    /// assert_eq!(vmap.vmalloc_to_page(at), None);
    /// // SAFETY: no code uses the addresses.
    /// unsafe { vmap.unreserve(at) }.unwrap();
    /// # drop(vmap);
    /// # tables
    /// # });
    /// # sim.on_cpu(0, || drop(tables));
    /// ```
    ///
    /// # Errors
    /// [`Error::ZeroSize`], [`Error::TooLarge`], [`Error::NoSpace`], [`Error::OutOfMemory`].
    #[track_caller]
    pub fn reserve(&self, bytes: u64) -> Result<VirtAddr, Error> {
        self.create(&Request::addresses(bytes))
    }

    /// Makes an area without pages.
    pub(crate) fn create_reserved(
        &self,
        bytes: u64,
        request: &Request<'_>,
        caller: &'static Location<'static>,
    ) -> Result<VirtAddr, Error> {
        if bytes > self.space.len() {
            return Err(Error::TooLarge(bytes));
        }
        let what = AreaRecord::new(Made::Reserved, bytes.div_ceil(PAGE) as usize, bytes, caller);
        self.make(what, request, SMALL, |_| Ok(()))
    }

    /// Gives back addresses from [`reserve`](Vmap::reserve), on any CPU. Sends no IPI.
    ///
    /// Cost: a tree lookup, a look at the page tables of the area, and the lock of the area's zone.
    /// Not in interrupt handlers.
    ///
    /// # Errors
    /// [`Error::StillMapped`] if a page is mapped there. [`Error::NotMapped`], [`Error::Twice`],
    /// [`Error::NotTheStart`], [`Error::WrongKind`]. The reservation stays as it is.
    ///
    /// # Safety
    /// No code uses the addresses any more, on any CPU, or maps at them. Each page that the caller
    /// mapped there was unmapped before this call; its flush may be left to the TLB grace period
    /// that begins afterwards ([`PageTables::unmap_lazily`](paging::PageTables::unmap_lazily)).
    pub unsafe fn unreserve(&self, at: VirtAddr) -> Result<(), Error> {
        let area = self.claim(at, |what| what.is(Made::Reserved), AreaState::Unmapping)?;
        let first = |range| self.tables.walk(&G::pin()).pages(range).next();
        if let Some(page) = area.mapped().and_then(first) {
            area.set(AreaState::Live);
            return Err(Error::StillMapped(page.page));
        }
        self.put(area);
        self.free_pending();
        Ok(())
    }
}
