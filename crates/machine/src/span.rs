//! Ranges of addresses and of frames.
//!
//! A [`Span`] is a start and a length, not two ends. So a range may include the very last address,
//! where an exclusive end would not fit, and an empty range is no special case. Its constructors
//! check that it lies within its space, so no method overflows.

use crate::{Frame, PageSize, PhysAddr, VirtAddr};
use core::fmt;

/// The points of a [`Span`]: [`VirtAddr`] and [`PhysAddr`] in bytes, [`Frame`] in frames.
pub trait Point: Copy + Ord + fmt::Debug + private::Sealed {
    /// The largest index.
    const LAST: u64;
    /// The point as a number.
    fn index(self) -> u64;
    /// The point with this number. A number above [`LAST`](Self::LAST) counts as `LAST`.
    fn at(index: u64) -> Self;
}

mod private {
    pub trait Sealed {}
    impl Sealed for crate::VirtAddr {}
    impl Sealed for crate::PhysAddr {}
    impl Sealed for crate::Frame {}
}

macro_rules! address {
    ($($type:ty),*) => {$(
        impl Point for $type {
            const LAST: u64 = u64::MAX;
            #[inline]
            fn index(self) -> u64 {
                self.get()
            }
            #[inline]
            fn at(index: u64) -> Self {
                <$type>::new(index)
            }
        }
    )*};
}
address!(VirtAddr, PhysAddr);

impl Point for Frame {
    const LAST: u64 = Frame::LIMIT - 1;
    #[inline]
    fn index(self) -> u64 {
        self.number()
    }
    #[inline]
    fn at(index: u64) -> Self {
        Frame::containing(PhysAddr::new(index.min(Self::LAST) << 12))
    }
}

/// A range of points: [`VirtRange`], [`PhysRange`] or [`FrameRange`].
///
/// ```
/// use machine::{PageSize, VirtAddr, VirtRange};
/// let range = VirtRange::new(VirtAddr::new(0x1000), 0x3000).unwrap();
/// assert!(range.contains(VirtAddr::new(0x3fff)));
/// assert_eq!(range.last(), Some(VirtAddr::new(0x3fff)));
/// assert_eq!(range.pages(PageSize::Size4K).count(), 3);
/// assert!(VirtRange::new(VirtAddr::new(u64::MAX), 2).is_none());
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Span<P> {
    start: P,
    len: u64,
}

/// A range of virtual addresses; its length is in bytes.
pub type VirtRange = Span<VirtAddr>;
/// A range of physical addresses; its length is in bytes.
pub type PhysRange = Span<PhysAddr>;
/// A range of frames; its length is in frames.
pub type FrameRange = Span<Frame>;

impl<P: Point> Span<P> {
    /// The `len` points from `start` on. `None` if they extend past the last point of the space.
    #[inline]
    pub fn new(start: P, len: u64) -> Option<Self> {
        if len != 0 && len - 1 > P::LAST - start.index() {
            return None;
        }
        Some(Span { start, len })
    }

    /// The points from `start` up to and excluding `end`. `None` if `end` is below `start`.
    #[inline]
    pub fn between(start: P, end: P) -> Option<Self> {
        let len = end.index().checked_sub(start.index())?;
        Some(Span { start, len })
    }

    /// The first point. An empty range has one, too.
    #[inline]
    pub const fn start(&self) -> P {
        self.start
    }

    /// The number of points.
    #[inline]
    pub const fn len(&self) -> u64 {
        self.len
    }

    /// Whether the range is empty.
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The last point. `None` if the range is empty.
    #[inline]
    pub fn last(&self) -> Option<P> {
        Some(P::at(self.start.index() + self.len.checked_sub(1)?))
    }

    /// The first point after the range. `None` if the range includes the last point of the space.
    #[inline]
    pub fn end(&self) -> Option<P> {
        let end = self.start.index().checked_add(self.len)?;
        if end > P::LAST { None } else { Some(P::at(end)) }
    }

    /// Whether the range contains `point`.
    #[inline]
    pub fn contains(&self, point: P) -> bool {
        // For a point below the start, the difference wraps to a number that is larger than every
        // length, unless the space is empty.
        point >= self.start && point.index() - self.start.index() < self.len
    }

    /// Whether the range contains all of `other`. An empty `other` is contained if its start is in
    /// the range or at its end.
    #[inline]
    pub fn covers(&self, other: &Self) -> bool {
        other.start >= self.start
            && other.start.index() - self.start.index() <= self.len
            && other.len <= self.len - (other.start.index() - self.start.index())
    }

    /// The intersection. `None` if it is empty.
    #[inline]
    pub fn intersection(&self, other: &Self) -> Option<Self> {
        let last = self.last()?.min(other.last()?);
        let start = self.start.max(other.start);
        if start > last {
            return None;
        }
        // `start..=last` is not a whole space of 2^64 points, since the `len` of `self` could not
        // represent that either.
        Some(Span { start, len: last.index() - start.index() + 1 })
    }

    /// Whether the ranges have a point in common.
    #[inline]
    pub fn overlaps(&self, other: &Self) -> bool {
        self.intersection(other).is_some()
    }
}

impl VirtRange {
    /// The starts of the pages of this size that intersect the range, in ascending order.
    #[inline]
    pub fn pages(&self, size: PageSize) -> impl Iterator<Item = VirtAddr> + use<> {
        pages(*self, size)
    }
}

impl PhysRange {
    /// The frames that lie entirely within the range.
    #[inline]
    pub fn whole_frames(&self) -> FrameRange {
        let first = self.start.get().div_ceil(4096);
        let beyond = match self.end() {
            Some(end) => end.get() >> 12,
            None => Frame::LIMIT,
        };
        Span { start: Frame::at(first), len: beyond.saturating_sub(first) }
    }
}

impl FrameRange {
    /// The frames of the range, in ascending order.
    #[inline]
    pub fn iter(&self) -> impl Iterator<Item = Frame> + use<> {
        let start = self.start.number();
        (0..self.len).map(move |i| Frame::at(start + i))
    }
}

fn pages(range: VirtRange, size: PageSize) -> impl Iterator<Item = VirtAddr> {
    let mut next = (!range.is_empty()).then(|| range.start.align_down(size));
    let last = range.last();
    core::iter::from_fn(move || {
        let page = next.filter(|page| Some(*page) <= last)?;
        next = page.checked_add(size.bytes());
        Some(page)
    })
}

impl<P: Point> fmt::Debug for Span<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.last() {
            Some(last) => write!(f, "{:?}..={:?}", self.start, last),
            None => write!(f, "{:?}..(empty)", self.start),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn virt(start: u64, len: u64) -> Option<VirtRange> {
        VirtRange::new(VirtAddr::new(start), len)
    }

    #[test]
    fn ends_of_the_space() {
        let top = virt(u64::MAX - 0xfff, 0x1000).unwrap();
        assert_eq!(top.end(), None);
        assert_eq!(top.last(), Some(VirtAddr::new(u64::MAX)));
        assert_eq!(top.pages(PageSize::Size4K).count(), 1);
        assert_eq!(virt(u64::MAX - 0xfff, 0x1001), None);
        assert_eq!(virt(u64::MAX, 0).unwrap().pages(PageSize::Size4K).count(), 0);
        let frames = FrameRange::new(Frame::at(Frame::LIMIT - 1), 1).unwrap();
        assert_eq!((frames.end(), frames.iter().count()), (None, 1));
        assert!(FrameRange::new(Frame::at(Frame::LIMIT - 1), 2).is_none());
        let all = PhysRange::new(PhysAddr::new(1), u64::MAX).unwrap();
        assert_eq!(all.whole_frames().len(), Frame::LIMIT - 1);
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, cases: if cfg!(miri) { 8 } else { 256 }, ..ProptestConfig::default() })]
        /// Compares with sets of points, near both ends of the space.
        #[test]
        fn as_sets(a in 0u64..20, b in 0u64..12, c in 0u64..20, d in 0u64..12, high in any::<bool>(), p in 0u64..20) {
            let base = if high { u64::MAX - 19 } else { 0 };
            let points = |start: u64, len: u64| (start as u128..start as u128 + len as u128).collect::<alloc::vec::Vec<_>>();
            let (one, other) = (virt(base + a, b), virt(base + c, d));
            prop_assert_eq!(one.is_some(), !high || a + b <= 20);
            let (Some(one), Some(other)) = (one, other) else { return Ok(()) };
            let (first, second) = (points(base + a, b), points(base + c, d));
            prop_assert_eq!(one.contains(VirtAddr::new(base + p)), first.contains(&(base as u128 + p as u128)));
            let common: alloc::vec::Vec<_> = first.iter().filter(|x| second.contains(x)).collect();
            let found = one.intersection(&other);
            prop_assert_eq!(found.map_or(0, |found| found.len()), common.len() as u64);
            prop_assert_eq!(found.map(|found| found.start().get() as u128), common.first().map(|x| **x));
            if d > 0 {
                prop_assert_eq!(one.covers(&other), second.iter().all(|x| first.contains(x)));
            }
        }
    }
}
