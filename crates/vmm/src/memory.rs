//! Regions of guest memory in a map of guest addresses.

use maple::{Error, RangeMap};
use std::fmt;
use std::sync::Arc;
use vm_memory::guest_memory::GuestMemoryBackend;
use vm_memory::{Address, GuestAddress, GuestMemoryRegion, GuestRegionCollectionError, GuestUsize};

/// Regions of guest memory, by guest address.
///
/// A lookup costs one descent of the tree. A clone takes constant time: clones share the tree's
/// nodes until one of them is changed. See the [crate] for how a monitor uses that.
///
/// ```
/// use vm_memory::{GuestAddress, GuestAddressSpace, GuestMemoryAtomic, GuestMemoryBackend};
/// use vm_memory::GuestRegionMmap;
/// use vmm::GuestRegions;
/// let region = |base| GuestRegionMmap::<()>::from_range(GuestAddress(base), 0x1000, None);
/// let mut memory = GuestRegions::new();
/// memory.insert(region(0)?.into())?;
///
/// // Hotplug: devices read the old memory until the new one is in place.
/// let shared = GuestMemoryAtomic::new(memory);
/// let mut next = (*shared.memory()).clone();
/// next.insert(region(0x4000)?.into())?;
/// shared.lock().unwrap().replace(next);
/// assert_eq!(shared.memory().num_regions(), 2);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct GuestRegions<R: Send + Sync + 'static> {
    map: RangeMap<u64, Arc<R>>,
}

impl<R: GuestMemoryRegion + Send + Sync + 'static> GuestRegions<R> {
    /// No memory. Allocates nothing.
    pub const fn new() -> Self {
        GuestRegions { map: RangeMap::new() }
    }

    /// Adds a region.
    ///
    /// # Errors
    /// `MemoryRegionOverlap` if another region has one of its addresses, which
    /// [`overlapping`](Self::overlapping) names; `NoMemoryRegion` if it has none.
    ///
    /// # Panics
    /// If there is no memory for a node of the tree. Nothing has changed.
    pub fn insert(&mut self, region: Arc<R>) -> Result<(), GuestRegionCollectionError> {
        let first = region.start_addr().raw_value();
        let Some(last) = region.len().checked_sub(1).and_then(|more| first.checked_add(more))
        else {
            return Err(GuestRegionCollectionError::NoMemoryRegion);
        };
        self.map.insert(first..=last, region).map_err(|refused| match refused.error {
            Error::OutOfMemory => panic!("no memory for a node of guest memory's tree"),
            _ => GuestRegionCollectionError::MemoryRegionOverlap,
        })
    }

    /// Removes the region of `size` bytes at `base`, and returns it.
    ///
    /// # Errors
    /// `NoMemoryRegion` if there is no region with that base and size.
    ///
    /// # Panics
    /// As for [`insert`](GuestRegions::insert).
    pub fn remove(
        &mut self,
        base: GuestAddress,
        size: GuestUsize,
    ) -> Result<Arc<R>, GuestRegionCollectionError> {
        match self.find_region(base) {
            Some(region) if region.start_addr() == base && region.len() == size => {}
            _ => return Err(GuestRegionCollectionError::NoMemoryRegion),
        }
        match self.map.erase(base.raw_value()) {
            Ok(Some((_, region))) => Ok(region),
            Ok(None) => unreachable!("found just now"),
            Err(_) => panic!("no memory for a node of guest memory's tree"),
        }
    }

    /// The lowest region that has one of the `size` addresses from `base` on. `None` also if there
    /// is no such range.
    pub fn overlapping(&self, base: GuestAddress, size: GuestUsize) -> Option<Arc<R>> {
        let first = base.raw_value();
        let last = first.checked_add(size.checked_sub(1)?)?;
        self.map.range(first..=last).next().map(|(_, region)| region.to_arc())
    }

    /// The region that has the address, shared.
    pub fn get(&self, address: GuestAddress) -> Option<Arc<R>> {
        self.map.get(address.raw_value()).map(|region| region.to_arc())
    }
}

impl<R: GuestMemoryRegion + Send + Sync + 'static> GuestMemoryBackend for GuestRegions<R> {
    type R = R;

    fn num_regions(&self) -> usize {
        self.map.len()
    }

    fn find_region(&self, address: GuestAddress) -> Option<&R> {
        self.map.get(address.raw_value()).map(|region| region.get())
    }

    fn iter(&self) -> impl Iterator<Item = &R> {
        self.map.iter().map(|(_, region)| region.get())
    }
}

impl<R: GuestMemoryRegion + Send + Sync + 'static> Clone for GuestRegions<R> {
    fn clone(&self) -> Self {
        GuestRegions { map: self.map.clone() }
    }
}

impl<R: GuestMemoryRegion + Send + Sync + 'static> Default for GuestRegions<R> {
    fn default() -> Self {
        Self::new()
    }
}

impl<R: GuestMemoryRegion + Send + Sync + 'static> fmt::Debug for GuestRegions<R> {
    /// Shows the ranges of addresses.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.map.iter().map(|(range, _)| range)).finish()
    }
}
