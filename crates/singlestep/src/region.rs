//! Named parts of memory, to attribute cache lines to.

use std::ops::Range;

/// A named range of addresses. Regions with the same name are counted as one. Regions may overlap:
/// an access belongs to every region that it touches, and to "other" if it touches none.
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
    /// The bytes at these addresses. An empty range is allowed and contains nothing.
    pub fn new(name: impl Into<String>, addresses: Range<usize>) -> Self {
        Self { name: name.into(), addresses }
    }

    /// The bytes of a value, or of a slice's elements, without the memory behind pointers in it.
    pub fn of<T: ?Sized>(name: impl Into<String>, value: &T) -> Self {
        let start = (&raw const *value).cast::<u8>() as usize;
        Self::new(name, start..start + size_of_val(value))
    }

    /// The region's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The region's addresses.
    pub fn addresses(&self) -> Range<usize> {
        self.addresses.clone()
    }
}
