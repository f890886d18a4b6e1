//! `vmalloc` and its like: areas with memory of their own.
//!
//! Frames are taken, and given back, some at a time, on the stack: an area keeps no list of them,
//! the page tables say which they are.
//!
//! # Requests that memory is too short for
//! A large request is compared with the free frames before it takes any, and again after each 16
//! MiB, as others take frames too. It must leave a part of them to others. So a request for more
//! than there is fails at once, and nobody else runs out of memory meanwhile. A small request takes
//! frames and gives them back if there are not enough. The comparison reads a line of each CPU,
//! which is too much for a small request: hence the limit.

use crate::area::{Made, Ours, State, What};
use crate::check;
use crate::error::Error;
use crate::vmap::{PAGE, Vmap};
use core::panic::Location;
use grace::Concurrent;
use machine::{ENTRIES, Frame, Machine, NodeId, Owner, PageSize, Place, VirtAddr, VirtRange};
use paging::{Attrs, Format};

/// Frames that are on their way at once.
const BATCH: usize = 64;
/// A request of fewer pages is not compared with the free frames; nor one of fewer pages for each
/// CPU than this.
const LARGE: u64 = 512;
const LARGE_PER_CPU: u64 = 16;
/// One part in so many of the free frames is left to others by a large request.
const LEFT: u64 = 32;
/// A large request is compared with the free frames again after so many bytes.
const LOOK_AGAIN: u64 = 16 << 20;

/// What memory is wanted, in full; [`Vmap::vmalloc`] and its like are short for the usual ones.
///
/// ```
/// use vmap::Request;
/// let stack = Request { guard: true, ..Request::new(16 << 10) };
/// assert_eq!(stack.bytes, 16384);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request {
    /// Bytes; whole pages are mapped.
    pub bytes: u64,
    /// What its pages are like; if `None` as the space's [`Options`](crate::Options) say.
    pub attrs: Option<Attrs>,
    /// Whether a page that is never mapped follows.
    pub guard: bool,
    /// Whether all bytes are to be 0.
    pub zero: bool,
    /// Whether pages of 2 MiB are used where they fit, if there is memory for them.
    pub huge: bool,
    /// Which memory is used.
    pub place: Place,
}

impl Request {
    /// So many bytes of memory with a guard page, from anywhere near, with whatever is in it.
    pub const fn new(bytes: u64) -> Request {
        Request { bytes, attrs: None, guard: true, zero: false, huge: false, place: Place::Local }
    }
}

impl<M: Machine, F: Format, G: Concurrent> Vmap<M, F, G> {
    /// Memory of so many bytes, whose addresses follow one another. What is in it was left there by
    /// others.
    ///
    /// Cost: as [`vmap`](Vmap::vmap), and the frames. Not for interrupts.
    ///
    /// # Errors
    /// [`Error::ZeroSize`], [`Error::TooLarge`], [`Error::NoSpace`], [`Error::OutOfMemory`],
    /// [`Error::Frames`], [`Error::FewFrames`], [`Error::Tables`]; by the attributes of a request
    /// [`Error::UserAccess`], [`Error::WritableCode`], [`Error::MemoryType`]. All memory that was
    /// taken has been given back then, page tables included, but for those that other areas may
    /// need.
    #[track_caller]
    pub fn vmalloc(&self, bytes: u64) -> Result<VirtAddr, Error> {
        self.vmalloc_with(&self.request(bytes))
    }

    /// As [`vmalloc`](Vmap::vmalloc), and all bytes are 0.
    ///
    /// # Errors
    /// As for [`vmalloc`](Vmap::vmalloc).
    #[track_caller]
    pub fn vzalloc(&self, bytes: u64) -> Result<VirtAddr, Error> {
        self.vmalloc_with(&Request { zero: true, ..self.request(bytes) })
    }

    /// As [`vmalloc`](Vmap::vmalloc), in pages of 2 MiB as far as they fit and there is memory for
    /// them. Where small pages were mapped in the place of a large one before, it broadcasts a
    /// flush, once.
    ///
    /// # Errors
    /// As for [`vmalloc`](Vmap::vmalloc).
    #[track_caller]
    pub fn vmalloc_huge(&self, bytes: u64) -> Result<VirtAddr, Error> {
        self.vmalloc_with(&Request { huge: true, ..self.request(bytes) })
    }

    /// As [`vmalloc`](Vmap::vmalloc), with memory of this node, or of another when that is full.
    ///
    /// # Errors
    /// As for [`vmalloc`](Vmap::vmalloc).
    #[track_caller]
    pub fn vmalloc_node(&self, bytes: u64, node: NodeId) -> Result<VirtAddr, Error> {
        self.vmalloc_with(&Request { place: Place::Prefer(node), ..self.request(bytes) })
    }

    fn request(&self, bytes: u64) -> Request {
        Request { guard: self.options.guard, ..Request::new(bytes) }
    }

    /// Memory as the request says.
    ///
    /// # Errors
    /// As for [`vmalloc`](Vmap::vmalloc).
    #[track_caller]
    pub fn vmalloc_with(&self, request: &Request) -> Result<VirtAddr, Error> {
        let caller = Location::caller();
        if request.bytes > self.space.len() {
            return Err(Error::TooLarge(request.bytes));
        }
        request.attrs.map_or(Ok(()), check::ram)?;
        let pages = request.bytes.div_ceil(PAGE) as usize;
        self.check_zones(pages as u64 * PAGE + if request.guard { PAGE } else { 0 })?;
        self.ask_for(pages as u64)?;
        let large = PageSize::Size2M;
        let huge = request.huge
            && pages as u64 >= large.frames()
            && self.tables.paging().largest() >= large;
        let align = if huge { large } else { PageSize::Size4K };
        let what = What::new(Made::Vmalloc, pages, request.bytes, caller);
        self.make(what, request.guard, align, |range| {
            // Large pages lie at a border of their size from where the area begins, so that it can
            // be moved as it is.
            let huge = huge && range.start().is_aligned(large);
            if huge {
                self.clear_way(range)?;
            }
            self.populate(range, &Request { huge, ..*request })
        })
    }

    /// Refuses a large request that the free frames do not suffice for.
    pub(crate) fn ask_for(&self, pages: u64) -> Result<(), Error> {
        let machine = self.machine();
        if pages < LARGE.max(LARGE_PER_CPU * machine.count() as u64) {
            return Ok(());
        }
        let tables = pages.div_ceil(ENTRIES as u64) + u64::from(F::LEVELS);
        let wanted = pages + tables;
        let free = || machine.free_frames() as u64;
        let suffice = |free: u64| wanted <= free - free / LEFT;
        if suffice(free()) {
            return Ok(());
        }
        // What was freed in interrupts is memory, too.
        self.free_pending();
        let free = free();
        if suffice(free) { Ok(()) } else { Err(Error::FewFrames { wanted, free }) }
    }

    /// Maps memory of its own to a range; all of it, or nothing.
    pub(crate) fn populate(&self, range: VirtRange, request: &Request) -> Result<(), Error> {
        let attrs = request.attrs.unwrap_or(self.options.attrs);
        let mut at = range.start();
        while let Some(rest) = rest_of(range, at) {
            match self.populate_next(rest, attrs, request) {
                Ok(bytes) => match at.checked_add(bytes) {
                    Some(next) => at = next,
                    None => break,
                },
                Err(error) => {
                    if let Some(mapped) = VirtRange::between(range.start(), at) {
                        self.depopulate(mapped);
                    }
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// The next page, if it is to be large, or the next small ones; the bytes that they are.
    fn populate_next(
        &self,
        rest: VirtRange,
        attrs: Attrs,
        request: &Request,
    ) -> Result<u64, Error> {
        let (at, large) = (rest.start(), PageSize::Size2M);
        if at.get().is_multiple_of(LOOK_AGAIN) {
            self.ask_for(rest.len() / PAGE)?;
        }
        if request.huge
            && at.is_aligned(large)
            && rest.len() >= large.bytes()
            && let Some(bytes) = self.populate_large(at, attrs, request)?
        {
            return Ok(bytes);
        }
        self.populate_some(rest, attrs, request)
    }

    /// One large page, if there is memory for it.
    fn populate_large(
        &self,
        at: VirtAddr,
        attrs: Attrs,
        request: &Request,
    ) -> Result<Option<u64>, Error> {
        let size = PageSize::Size2M;
        let Ok(frame) = self.machine().alloc(size.order(), request.place) else { return Ok(None) };
        self.prepare(frame, size, request.zero);
        let range = VirtRange::new(at, size.bytes()).ok_or(Error::TooLarge(size.bytes()))?;
        match self.map_large(range, frame, attrs) {
            Ok(()) => Ok(Some(size.bytes())),
            Err(error) => {
                self.release(&[frame]);
                Err(error)
            }
        }
    }

    /// The next small pages, up to where a large one may begin; the bytes that they are.
    fn populate_some(
        &self,
        rest: VirtRange,
        attrs: Attrs,
        request: &Request,
    ) -> Result<u64, Error> {
        let mut frames = [Frame::default(); BATCH];
        let wanted = pages_at_once(rest);
        for len in 0..wanted {
            let mut frame = self.machine().alloc(0, request.place);
            if frame.is_err() {
                // What was freed in interrupts is memory, too.
                self.free_pending();
                frame = self.machine().alloc(0, request.place);
            }
            match frame {
                Ok(frame) => {
                    self.prepare(frame, PageSize::Size4K, request.zero);
                    frames[len] = frame;
                }
                Err(error) => {
                    self.release(&frames[..len]);
                    return Err(error.into());
                }
            }
        }
        let range = VirtRange::new(rest.start(), wanted as u64 * PAGE)
            .ok_or(Error::TooLarge(rest.len()))?;
        if let Err(error) = self.map_frames(range, &frames[..wanted], attrs) {
            self.release(&frames[..wanted]);
            return Err(error);
        }
        Ok(range.len())
    }

    fn prepare(&self, frame: Frame, size: PageSize, zero: bool) {
        let machine = self.machine();
        if zero && let Some(memory) = machine.frame_ptr(frame) {
            // SAFETY: a block of this size, which was just allocated: nobody else has it.
            unsafe { memory.write_bytes(0, size.bytes() as usize) };
        }
        // SAFETY: it is ours, and it is true.
        let _ = unsafe { machine.set_owner(frame, Owner::Kernel) };
    }

    fn release(&self, frames: &[Frame]) {
        for frame in frames {
            // SAFETY: each was allocated by this area; nothing is mapped to it any more, and a
            // translation that is left is used by nobody, as its address is nobody's. It cannot
            // fail for a frame that was allocated.
            let released = unsafe { self.machine().release(*frame) };
            debug_assert!(released.is_ok(), "{released:?}");
        }
    }

    /// Unmaps memory of an area and gives it back, some pages at a time.
    pub(crate) fn depopulate(&self, range: VirtRange) {
        let mut at = range.start();
        while let Some(rest) = rest_of(range, at) {
            let bytes = pages_at_once(rest) as u64 * PAGE;
            // As many bytes as the first page has, if it is large.
            let page = if at.is_aligned(PageSize::Size2M) { self.page_size(at) } else { PAGE };
            let bytes = bytes.max(page);
            let Some(some) = VirtRange::new(at, bytes) else { break };
            let mut frames = [Frame::default(); BATCH];
            let mut len = 0;
            let each = |frame, _| {
                if let Some(slot) = frames.get_mut(len) {
                    *slot = frame;
                    len += 1;
                }
            };
            // SAFETY: the addresses are not handed out before the end of a TLB grace period that
            // begins from here on. The frames may be: until then nobody uses the addresses. If
            // somebody has scribbled on the tables, what is there is left alone.
            let gone = unsafe { self.tables.unmap_lazily(some, each) };
            debug_assert!(gone.is_ok(), "{gone:?}");
            self.release(&frames[..len]);
            match at.checked_add(bytes) {
                Some(next) => at = next,
                None => break,
            }
        }
    }

    /// The bytes of the page that `at` lies in.
    pub(crate) fn page_size(&self, at: VirtAddr) -> u64 {
        self.tables.walk(&G::pin()).get(at).map_or(PAGE, |page| page.size.bytes())
    }

    /// Gives back memory from [`vmalloc`](Vmap::vmalloc) and its like, on any CPU. Its frames are
    /// free when it returns, but for what [`vread`](Vmap::vread) holds for a moment; nobody is
    /// interrupted.
    ///
    /// Cost: as [`vunmap`](Vmap::vunmap), and the frames. Not for interrupts: see
    /// [`vfree_atomic`](Vmap::vfree_atomic).
    ///
    /// # Errors
    /// [`Error::NotMapped`], [`Error::Twice`], [`Error::NotTheStart`], [`Error::WrongKind`]: what
    /// is mapped there stays as it is.
    ///
    /// # Safety
    /// Nobody uses the memory any more.
    pub unsafe fn vfree(&self, at: VirtAddr) -> Result<(), Error> {
        self.free_claimed(self.claim(at, is_vmalloc, State::Unmapping)?);
        self.free_pending();
        Ok(())
    }

    /// As [`vfree`](Vmap::vfree), from any context, interrupts too: the memory is given back when
    /// this CPU next calls [`vfree`](Vmap::vfree), [`vunmap`](Vmap::vunmap) or
    /// [`poll`](Vmap::poll), or lacks memory or space. A lookup and one locked instruction; takes
    /// no lock, allocates nothing.
    ///
    /// # Errors
    /// As for [`vfree`](Vmap::vfree).
    ///
    /// # Safety
    /// As for [`vfree`](Vmap::vfree).
    pub unsafe fn vfree_atomic(&self, at: VirtAddr) -> Result<(), Error> {
        let area = self.claim(at, is_vmalloc, State::PendingFree)?;
        self.local.with(|local| local.pending_free.push(area));
        Ok(())
    }

    /// Frees what this CPU was given in interrupts.
    pub(crate) fn free_pending(&self) {
        let next = || self.local.with(|local| local.pending_free.pop()).flatten();
        while let Some(area) = next() {
            area.set(State::Unmapping);
            self.free_claimed(area);
        }
    }

    pub(crate) fn free_claimed(&self, area: Ours) {
        if let Some(range) = area.mapped() {
            self.depopulate(range);
        }
        self.put(area);
    }
}

/// What gives memory back, or moves it, is for this.
pub(crate) fn is_vmalloc(what: What) -> Result<(), Option<usize>> {
    what.is(Made::Vmalloc)
}

/// Pages that are mapped or unmapped at once: up to where a large page may begin.
fn pages_at_once(rest: VirtRange) -> usize {
    let large = PageSize::Size2M.bytes();
    let to_large = (large - rest.start().offset_in(PageSize::Size2M)) / PAGE;
    (rest.len() / PAGE).min(to_large).min(BATCH as u64) as usize
}

/// What is left of a range from an address on; `None` at its end.
pub(crate) fn rest_of(range: VirtRange, at: VirtAddr) -> Option<VirtRange> {
    let done = at.offset_from(range.start())?;
    let left = range.len().checked_sub(done).filter(|left| *left != 0)?;
    VirtRange::new(at, left)
}
