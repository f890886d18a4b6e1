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
        Ok(AddressAllocator { space, used: RangeMap::new() })
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
        let wanted = Constraint::new(size, alignment, policy)?;
        let (size, align) = (wanted.size() as usize, wanted.align() as usize);
        let start = match policy {
            AllocPolicy::ExactMatch(start) => start,
            AllocPolicy::FirstMatch => self.first(size, align)?,
            AllocPolicy::LastMatch => self.last(size, align)?,
        };
        let end = start.checked_add(size as u64 - 1).ok_or(Error::ResourceNotAvailable)?;
        let range = RangeInclusive::new(start, end)?;
        if !self.space.contains(&range) {
            return Err(Error::ResourceNotAvailable);
        }
        self.used.insert(start..=end, ()).map_err(|_| Error::ResourceNotAvailable)?;
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

    /// The lowest place. A search may pass over places where alignment is hard to meet, so it is
    /// repeated below what it found.
    fn first(&self, size: usize, align: usize) -> Result<u64, Error> {
        let (base, mut last) = (self.base(), self.end());
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
    fn last(&self, size: usize, align: usize) -> Result<u64, Error> {
        let (mut base, end) = (self.base(), self.end());
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
