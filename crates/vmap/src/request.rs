//! [`Request`]: everything that a caller may demand of an area. All calls that make areas express
//! their parameters as one, so each demand works with each kind of area.
//!
//! Cost of the demands: one branch each where they are not used.

use crate::PAGE;
use crate::area::Guard;
use crate::check;
use crate::error::Error;
use crate::space::Vmap;
use core::panic::Location;
use grace::Concurrent;
use machine::{Frame, Machine, NodePolicy, PhysRange, VirtAddr};
use paging::{Attrs, Cache, Format};

/// Memory that an area gets for itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Allocation {
    /// Requested bytes; rounded up to whole pages.
    pub bytes: u64,
    /// Attributes of the pages; if `None`, those of the space's [`Options`](crate::Options).
    pub attrs: Option<Attrs>,
    /// Whether the memory is zeroed.
    pub zero: bool,
    /// Whether to use 2 MiB pages where they fit and memory is available.
    pub huge: bool,
    /// The NUMA placement of the memory.
    pub place: NodePolicy,
}

impl Allocation {
    /// So many bytes from the local node, not zeroed.
    pub const fn new(bytes: u64) -> Allocation {
        Allocation { bytes, attrs: None, zero: false, huge: false, place: NodePolicy::Local }
    }
}

/// The contents of an area. They determine the call that gives the area back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Contents<'a> {
    /// Memory of its own, until [`vfree`](Vmap::vfree).
    Memory(Allocation),
    /// The caller's frames, until [`vunmap`](Vmap::vunmap); see [`vmap`](Vmap::vmap).
    Frames {
        /// The frames, in the order of their addresses.
        frames: &'a [Frame],
        /// Attributes of the pages.
        attrs: Attrs,
    },
    /// A physical range, until [`iounmap`](Vmap::iounmap); see [`ioremap`](Vmap::ioremap).
    Device {
        /// The range. It may begin and end anywhere in a page.
        range: PhysRange,
        /// The memory type.
        cache: Cache,
    },
    /// Nothing: the addresses are only reserved, until [`unreserve`](Vmap::unreserve); see
    /// [`reserve`](Vmap::reserve).
    Addresses {
        /// Requested bytes; rounded up to whole pages.
        bytes: u64,
    },
}

/// A request for an area: its contents, and demands on its addresses. [`Vmap::create`] makes the
/// area; [`Vmap::vmalloc`], [`Vmap::vmap`], [`Vmap::ioremap`], [`Vmap::reserve`] and their variants
/// are short for the usual requests.
///
/// A size-aligned kernel stack with a guard page below. An overflow faults, and masking the stack
/// pointer finds the start of the stack:
///
/// ```
/// # use machine::{PageSize, Translated, VirtAddr, VirtRange};
/// # use paging::{PageTables, Paging, X86_64L4};
/// # use sim::{Config, Grace, Sim};
/// # use std::sync::Arc;
/// # use vmap::{Options, TlbGrace, Vmap};
/// use vmap::{Guard, Request};
///
/// const STACK: u64 = 16 << 10;
///
/// # let sim = Sim::new(Config::default()).unwrap();
/// # let paging = Paging::<Sim, X86_64L4>::try_new(sim.clone(), PageSize::Size1G).unwrap();
/// # let tlb_grace = TlbGrace::try_new(sim.clone()).unwrap();
/// # let tables = sim.on_cpu(0, || {
/// # let tables = Arc::new(PageTables::<_, _, Grace>::kernel(&paging).unwrap());
/// # // SAFETY: the example needs no other mapping.
/// # unsafe { tables.activate() };
/// # let space = VirtRange::new(VirtAddr::new(0xffff_c900_0000_0000), 1 << 30).unwrap();
/// # // SAFETY: no other code maps at these addresses.
/// # let vmap = unsafe {
/// #     Vmap::try_new(tables.clone(), tlb_grace.clone(), space, Options::default())
/// # };
/// # let vmap = vmap.unwrap();
/// let stack =
///     Request { align: STACK, guard: Some(Guard::Below), ..Request::memory(STACK) };
/// let bottom = vmap.create(&stack).unwrap();
/// let pointer = VirtAddr::new(bottom.get() + STACK - 8);
/// // SAFETY: ordinary memory, and ours.
/// unsafe { sim.store(pointer, 42) }.unwrap();
/// assert_eq!(pointer.get() & !(STACK - 1), bottom.get());
/// // SAFETY: the access faults.
/// assert!(unsafe { sim.store(VirtAddr::new(bottom.get() - 8), 1) }.is_err(), "an overflow");
/// // SAFETY: the stack is not used any more.
/// unsafe { vmap.vfree(bottom) }.unwrap();
/// # drop(vmap);
/// # tables
/// # });
/// # sim.on_cpu(0, || drop(tables));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request<'a> {
    /// The contents.
    pub contents: Contents<'a>,
    /// The address that the first page must have; `None` for any address.
    ///
    /// All of the area must lie in one zone, guard pages included. The head of the [crate]
    /// describes the zones. Searches for other areas begin at the low end of each zone, so
    /// addresses at the high end of the space are likely to be free.
    pub at: Option<VirtAddr>,
    /// The alignment of the first page in bytes: a power of two. Less than a page counts as a page.
    pub align: u64,
    /// The guard pages; `None` for those of the space's [`Options`](crate::Options).
    pub guard: Option<Guard>,
}

impl<'a> Request<'a> {
    /// An area with these contents, at any address, aligned to a page, with the guard pages of the
    /// space's options.
    pub const fn new(contents: Contents<'a>) -> Request<'a> {
        Request { contents, at: None, align: PAGE, guard: None }
    }

    /// So many bytes of memory, from the local node, not zeroed.
    pub const fn memory(bytes: u64) -> Request<'a> {
        Request::new(Contents::Memory(Allocation::new(bytes)))
    }

    /// These frames.
    pub const fn frames(frames: &'a [Frame], attrs: Attrs) -> Request<'a> {
        Request::new(Contents::Frames { frames, attrs })
    }

    /// This physical range.
    pub const fn device(range: PhysRange, cache: Cache) -> Request<'a> {
        Request::new(Contents::Device { range, cache })
    }

    /// So many bytes of addresses, at which nothing is mapped.
    pub const fn addresses(bytes: u64) -> Request<'a> {
        Request::new(Contents::Addresses { bytes })
    }

    /// The alignment, at least a page.
    pub(crate) fn alignment(&self) -> Result<u64, Error> {
        if self.align.is_power_of_two() {
            Ok(self.align.max(PAGE))
        } else {
            Err(Error::BadAlign(self.align))
        }
    }
}

impl<M: Machine, F: Format, G: Concurrent> Vmap<M, F, G> {
    /// Makes an area as the request specifies, and returns the address of its first page or, for a
    /// physical range, of its first byte.
    ///
    /// It is safe for the reason given at [`vmap`](Vmap::vmap), also at an address that the caller
    /// names: no area has that address, and the caller that gave it back has promised not to use
    /// it.
    ///
    /// If freed addresses are in the way of [`Request::at`], takes them back: those whose grace
    /// period has ended at once, all others after one broadcast ([`purge`](Vmap::purge)).
    ///
    /// Cost: as [`vmalloc`](Vmap::vmalloc), [`vmap`](Vmap::vmap), [`ioremap`](Vmap::ioremap) or
    /// [`reserve`](Vmap::reserve). With an alignment larger than a page, the area is not taken from
    /// those kept for reuse: a heap allocation and two writes to the tree. If also a guard page
    /// below is demanded and space is scarce, the search visits each free range that is long
    /// enough. Not in interrupt handlers.
    ///
    /// # Errors
    /// Those of the four calls; and [`Error::BadAlign`], [`Error::Unaligned`], [`Error::Outside`],
    /// [`Error::AcrossZones`], and [`Error::InTheWay`] if another area has some of the addresses.
    /// An area that was freed in an interrupt on another CPU, and an unused block that another CPU
    /// holds, are in the way until that CPU next calls [`poll`](Vmap::poll).
    ///
    /// # Misuse
    /// Whatever the frames and the address are, the mapping is harmless until unsafe code uses it
    /// (`check`). An area in use, with its guard pages, is in the way of an address; addresses that
    /// were freed are flushed first. Areas that are not given back use addresses and tables up:
    /// then calls fail, and keep nothing.
    #[inline]
    #[track_caller]
    pub fn create(&self, request: &Request<'_>) -> Result<VirtAddr, Error> {
        match request.contents {
            Contents::Memory(memory) => memory.attrs.map_or(Ok(()), check::ram)?,
            Contents::Frames { frames, attrs } => check::frames(self.machine(), frames, attrs)?,
            Contents::Device { .. } | Contents::Addresses { .. } => {}
        }
        self.create_checked(request, Location::caller())
    }

    /// As [`create`](Vmap::create), but also makes pages that are both writable and executable, and
    /// maps the caller's frames with a memory type other than write-back if they are RAM.
    ///
    /// # Errors
    /// As for [`create`](Vmap::create), without [`Error::WritableCode`] and, for frames,
    /// [`Error::MemoryType`].
    ///
    /// # Safety
    /// While the area is mapped:
    /// - every other mapping of the caller's frames has the same memory type, or is not used, not
    ///   even speculatively; code that changed the type of the other mappings has called
    ///   [`vm_unmap_aliases`](Vmap::vm_unmap_aliases) afterwards;
    /// - executable pages hold code that the kernel may run, after every write to them.
    #[track_caller]
    pub unsafe fn create_unchecked(&self, request: &Request<'_>) -> Result<VirtAddr, Error> {
        match request.contents {
            Contents::Memory(Allocation { attrs: Some(attrs), .. }) => check::write_back(attrs)?,
            Contents::Frames { attrs, .. } => check::kernel_only(attrs)?,
            _ => {}
        }
        self.create_checked(request, Location::caller())
    }

    /// Makes an area whose attributes have been checked.
    ///
    /// It is inlined where the kind of contents is known.
    #[inline(always)]
    fn create_checked(
        &self,
        request: &Request<'_>,
        caller: &'static Location<'static>,
    ) -> Result<VirtAddr, Error> {
        match request.contents {
            Contents::Memory(memory) => self.create_memory(memory, request, caller),
            Contents::Frames { frames, attrs } => {
                self.create_frames(frames, attrs, request, caller)
            }
            Contents::Device { range, cache } => self.create_device(range, cache, request, caller),
            Contents::Addresses { bytes } => self.create_reserved(bytes, request, caller),
        }
    }
}
