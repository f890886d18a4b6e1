//! An allocator of address ranges.

use maple::{Error as MapError, RangeMap};
use vm_allocator::{AllocPolicy, Constraint, Error, RangeInclusive};

/// Allocates ranges of an address space, with the functions of
/// [`vm_allocator::AddressAllocator`].
///
/// Results differ where that type, in version 0.1, fails although there is a place: it does not
/// join all free neighbours, and its highest place (`LastMatch`) is one address below the highest.
///
/// ```
/// use vm_allocator::AllocPolicy;
/// use vmm::AddressAllocator;
/// let mut space = AddressAllocator::new(0x1000, 0x10000)?;
/// let low = space.allocate(0x400, 0x100, AllocPolicy::FirstMatch)?;
/// let high = space.allocate(0x400, 0x100, AllocPolicy::LastMatch)?;
/// assert_eq!((low.start(), high.end()), (0x1000, 0x10fff));
/// space.free(&low)?;
/// # Ok::<(), vm_allocator::Error>(())
/// ```
///
/// Cost: one or two searches of the tree by its gaps, and a store. A search for an aligned place
/// among holes that are long enough, but all fail by alignment, tries each of them.
#[derive(Clone, Debug)]
pub struct AddressAllocator {
    space: RangeInclusive,
    used: RangeMap<u64, ()>,
    /// The addresses that are not used.
    available: u64,
}

impl AddressAllocator {
    /// An allocator of `size` addresses from `base` on.
    ///
    /// # Errors
    /// `Underflow` if the size is zero, `Overflow` if the end is beyond `u64::MAX`, `InvalidRange`
    /// for all of `u64`.
    pub fn new(base: u64, size: u64) -> Result<Self, Error> {
        let more = size.checked_sub(1).ok_or(Error::Underflow)?;
        let space = RangeInclusive::new(base, base.checked_add(more).ok_or(Error::Overflow)?)?;
        Ok(AddressAllocator { space, used: RangeMap::new(), available: size })
    }

    /// Allocates `size` addresses at a multiple of `alignment`, a power of two: the lowest place,
    /// the highest, or a given one.
    ///
    /// # Errors
    /// `InvalidSize`, `InvalidAlignment` or `UnalignedAddress` for the arguments;
    /// `ResourceNotAvailable` if there is no such place, or no memory.
    pub fn allocate(
        &mut self,
        size: u64,
        alignment: u64,
        policy: AllocPolicy,
    ) -> Result<RangeInclusive, Error> {
        self.allocate_in(&{ self.space }, size, alignment, policy)
    }

    /// As [`allocate`](Self::allocate), of the addresses in `limits`: below 4 GiB for a device with
    /// 32-bit registers, say.
    ///
    /// ```
    /// use vm_allocator::{AllocPolicy, RangeInclusive};
    /// use vmm::AddressAllocator;
    /// let mut space = AddressAllocator::new(0, 1 << 40)?;
    /// let low = RangeInclusive::new(0xc000_0000, 0xffff_ffff)?;
    /// let bar = space.allocate_in(&low, 0x1000, 0x1000, AllocPolicy::LastMatch)?;
    /// assert_eq!(bar.start(), 0xffff_f000);
    /// # Ok::<(), vm_allocator::Error>(())
    /// ```
    ///
    /// # Errors
    /// As there. `ResourceNotAvailable` if the limits have no address of the space.
    pub fn allocate_in(
        &mut self,
        limits: &RangeInclusive,
        size: u64,
        alignment: u64,
        policy: AllocPolicy,
    ) -> Result<RangeInclusive, Error> {
        let wanted = Constraint::new(size, alignment, policy)?;
        let (size, align) = (wanted.size() as usize, wanted.align() as usize);
        let (base, last) = (limits.start().max(self.base()), limits.end().min(self.end()));
        if base > last {
            return Err(Error::ResourceNotAvailable);
        }
        let start = match policy {
            AllocPolicy::ExactMatch(start) => start,
            AllocPolicy::FirstMatch => self.first(base, last, size, align)?,
            AllocPolicy::LastMatch => self.last(base, last, size, align)?,
        };
        let end = start.checked_add(size as u64 - 1).ok_or(Error::ResourceNotAvailable)?;
        let range = RangeInclusive::new(start, end)?;
        if start < base || end > last {
            return Err(Error::ResourceNotAvailable);
        }
        self.used.insert(start..=end, ()).map_err(|_| Error::ResourceNotAvailable)?;
        self.available -= size as u64;
        Ok(range)
    }

    /// Frees an allocated range.
    ///
    /// # Errors
    /// `ResourceNotAvailable` if it was not allocated as such.
    pub fn free(&mut self, key: &RangeInclusive) -> Result<(), Error> {
        match self.used.lookup(key.start()) {
            Some((range, ())) if range == (key.start()..=key.end()) => {}
            _ => return Err(Error::ResourceNotAvailable),
        }
        self.used.erase(key.start()).map_err(|_| Error::ResourceNotAvailable)?;
        self.available += key.len();
        Ok(())
    }

    /// The first address of the space.
    pub fn base(&self) -> u64 {
        self.space.start()
    }

    /// The last address of the space.
    pub fn end(&self) -> u64 {
        self.space.end()
    }

    /// The number of addresses that are free, in ranges that may be short.
    pub fn available(&self) -> u64 {
        self.available
    }

    /// The allocated ranges, in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = RangeInclusive> {
        // No range is empty, or all of `u64`.
        self.used
            .iter()
            .filter_map(|(range, ())| RangeInclusive::new(*range.start(), *range.end()).ok())
    }

    /// The free ranges, in ascending order.
    pub fn free_ranges(&self) -> impl Iterator<Item = RangeInclusive> {
        self.used
            .holes(self.base()..=self.end())
            .filter_map(|hole| RangeInclusive::new(*hole.start(), *hole.end()).ok())
    }

    /// The lowest allocated range that has an address of this one, and is in the way of
    /// `AllocPolicy::ExactMatch`.
    pub fn overlapping(&self, range: &RangeInclusive) -> Option<RangeInclusive> {
        let (found, ()) = self.used.range(range.start()..=range.end()).next()?;
        RangeInclusive::new(*found.start(), *found.end()).ok()
    }

    /// The lowest place. A search may pass over places where alignment is hard to meet, so it is
    /// repeated below what it found.
    fn first(&self, base: u64, mut last: u64, size: usize, align: usize) -> Result<u64, Error> {
        let mut place = Err(Error::ResourceNotAvailable);
        while let Ok(found) = self.used.find_free(base..=last, size, align) {
            place = Ok(found);
            if found == base || align == 1 {
                break;
            }
            // A lower place ends before the last index of this one.
            last = found + (size as u64 - 1) - 1;
        }
        place
    }

    /// The highest place, as [`first`](Self::first).
    fn last(&self, mut base: u64, end: u64, size: usize, align: usize) -> Result<u64, Error> {
        let mut place = Err(Error::ResourceNotAvailable);
        loop {
            match self.used.find_free_last(base..=end, size, align) {
                Ok(found) => {
                    place = Ok(found);
                    if align == 1 || found == end {
                        break;
                    }
                    base = found + 1;
                }
                Err(error) => {
                    debug_assert!(matches!(error, MapError::NoSpace | MapError::EmptyRange));
                    break;
                }
            }
        }
        place
    }
}
