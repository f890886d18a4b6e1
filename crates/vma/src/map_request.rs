//! The arguments of mmap, and its flags with Linux's numbers.

use crate::VmFlags;

bitflags::bitflags! {
    /// The `MAP_*` flags of mmap that change what is mapped, with Linux's numbers.
    ///
    /// ```
    /// use vma::MapFlags;
    /// assert_eq!(MapFlags::PRIVATE | MapFlags::ANONYMOUS, MapFlags::from_bits_retain(0x22));
    /// ```
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct MapFlags: u32 {
        /// Writes are visible to all maps of the object.
        const SHARED = 0x01;
        /// Writes stay private to this address space.
        const PRIVATE = 0x02;
        /// Shared, and unknown flags are an error.
        const SHARED_VALIDATE = 0x03;
        /// With [`PRIVATE`](Self::PRIVATE) clear: pages may be dropped under memory pressure.
        const DROPPABLE = 0x08;
        /// At exactly this address. Replaces existing maps there.
        const FIXED = 0x10;
        /// Maps no file.
        const ANONYMOUS = 0x20;
        /// In the lowest 2 GiB.
        const BIT32 = 0x40;
        /// Above the lowest 4 GiB.
        const ABOVE4G = 0x80;
        /// Grows downwards.
        const GROWSDOWN = 0x100;
        /// Locked in memory.
        const LOCKED = 0x2000;
        /// Not counted against the commit limit.
        const NORESERVE = 0x4000;
        /// Populated at once.
        const POPULATE = 0x8000;
        /// With [`POPULATE`](Self::POPULATE): not populated.
        const NONBLOCK = 0x1_0000;
        /// A thread's stack: no huge pages.
        const STACK = 0x2_0000;
        /// Uses huge pages.
        const HUGETLB = 0x4_0000;
        /// Synchronous faults on persistent memory.
        const SYNC = 0x8_0000;
        /// At exactly this address, and an error if the range is in use.
        const FIXED_NOREPLACE = 0x10_0000;
        /// All other bits.
        const _ = !0;
    }
}

impl MapFlags {
    const TYPE: u32 = 0x0f;

    /// The type of the map; `None` if there is no such type.
    pub(crate) fn map_type(self) -> Option<MapType> {
        match self.bits() & Self::TYPE {
            1 => Some(MapType::Shared),
            2 => Some(MapType::Private),
            3 => Some(MapType::Shared),
            8 => Some(MapType::Droppable),
            _ => None,
        }
    }
}

/// The type of a map: the lowest bits of its flags.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum MapType {
    Shared,
    Private,
    Droppable,
}

/// The arguments of mmap.
///
/// ```
/// # use vma::*;
/// # let layout = Layout { mmap_base: 0x7fff_0000_0000, ..Layout::default() };
/// # let mut space = AddressSpace::<NoFile, grace::Single>::new(Profile::LINUX_6_18, layout);
/// # let mut writer = space.get_mut();
/// # let request = MapRequest::anonymous(0x4000, 3);
/// # let at = writer.mmap(request.clone())?;
/// let more = MapRequest { len: 0x1000, prot: 1, ..request };
/// assert_eq!(writer.choose_address(&more), Ok(at - 0x1000));
/// assert_eq!(writer.mmap(more), Ok(at - 0x1000));
/// # Ok::<(), vma::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct MapRequest<F> {
    /// The address: a hint, or with FIXED the exact address.
    pub addr: usize,
    /// Length in bytes, rounded up to pages.
    pub len: usize,
    /// The sum of PROT_READ (1), PROT_WRITE (2) and PROT_EXEC (4).
    pub prot: u32,
    /// The `MAP_*` flags.
    pub flags: MapFlags,
    /// The file to map. A shared anonymous map needs one, too: the zero-filled object that it
    /// shares.
    pub file: Option<F>,
    /// Offset in bytes, a multiple of the page size.
    pub offset: usize,
    /// If set, these flags from the file's driver replace the usual ones.
    pub driver_flags: Option<VmFlags>,
}

impl<F> MapRequest<F> {
    /// Private anonymous memory at an address that the call chooses.
    pub fn anonymous(len: usize, prot: u32) -> Self {
        let flags = MapFlags::PRIVATE | MapFlags::ANONYMOUS;
        MapRequest { addr: 0, len, prot, flags, file: None, offset: 0, driver_flags: None }
    }
}
