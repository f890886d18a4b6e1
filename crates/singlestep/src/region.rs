//! Parts of memory that the caller names, so that lines can be told apart.

use std::ops::Range;

/// A named range of addresses. Several regions may bear one name and are then counted as one.
/// Regions may overlap: an access belongs to every region that it touches, and to "other" if none.
///
/// ```
/// use singlestep::Region;
/// let counters = [0u64; 8];
/// let region = Region::of("counters", &counters);
/// assert_eq!(region.addresses().len(), 64);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Region {
    name: String,
    addresses: Range<usize>,
}

impl Region {
    /// The bytes at these addresses. An empty range is allowed and holds nothing.
    pub fn new(name: impl Into<String>, addresses: Range<usize>) -> Self {
        Self { name: name.into(), addresses }
    }

    /// The bytes of a value, or of a slice's elements; not what pointers in it point to.
    pub fn of<T: ?Sized>(name: impl Into<String>, value: &T) -> Self {
        let start = (&raw const *value).cast::<u8>() as usize;
        Self::new(name, start..start + size_of_val(value))
    }

    /// What the caller calls it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Where it lies.
    pub fn addresses(&self) -> Range<usize> {
        self.addresses.clone()
    }
}
