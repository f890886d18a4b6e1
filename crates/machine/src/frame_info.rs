//! The state of each frame: its references and pins, and its use.
//!
//! The state is 16 bytes, so that changing it touches one cache line.
//!
//! # References and pins
//! The two counts are the halves of one word. A pin is also a reference: pinning increments both in
//! one atomic instruction, so there are never more pins than references. A frame without references
//! is free, or is being freed, and no CPU can take a reference to it:
//! [`try_get`](FrameInfo::try_get) and [`try_pin`](FrameInfo::try_pin) fail. A lockless walk relies
//! on that: it finds a frame in an entry, tries to pin it, and then reads the entry again. The CPU
//! that drops the last reference owns the frame alone.

use crate::word::{FrameWord, MemoryWord, RefCounts};
use core::sync::atomic::{AtomicU8, AtomicU16, Ordering};

/// The use of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Owner {
    /// Free: it belongs to the frame source, or there is no memory behind it.
    #[default]
    Free,
    /// Allocated, without a stated use.
    Raw,
    /// A page table that CPUs may walk: a frame, or a block of them. The number is its level, 0 for
    /// a table whose entries map the smallest pages.
    Table(u8),
    /// On the quicklist with this number, in its constructed state (I6).
    Quick(u8),
    /// Kernel memory: stacks, vmalloc, buffers.
    Kernel,
    /// Memory of a program.
    User,
}

impl Owner {
    const fn pack(self) -> u16 {
        let (kind, number) = match self {
            Owner::Free => (0, 0),
            Owner::Raw => (1, 0),
            Owner::Table(level) => (2, level),
            Owner::Quick(list) => (3, list),
            Owner::Kernel => (4, 0),
            Owner::User => (5, 0),
        };
        kind << 8 | number as u16
    }

    const fn unpack(bits: u16) -> Owner {
        match bits >> 8 {
            1 => Owner::Raw,
            2 => Owner::Table(bits as u8),
            3 => Owner::Quick(bits as u8),
            4 => Owner::Kernel,
            5 => Owner::User,
            _ => Owner::Free,
        }
    }
}

/// The state of one frame.
///
/// ```
/// use machine::FrameInfo;
/// let info = FrameInfo::new();
/// assert!(!info.try_get(), "a free frame has no references to share");
/// ```
///
/// Safe code can read the state and take references. It cannot drop references that other code
/// holds, or change state on which other code relies. A frame source does, by unsafe methods:
///
/// ```compile_fail,E0133
/// # let info = machine::FrameInfo::new();
/// info.unpin(1);
/// ```
/// ```compile_fail,E0133
/// # let info = machine::FrameInfo::new();
/// info.put();
/// ```
/// ```compile_fail,E0133
/// # let info = machine::FrameInfo::new();
/// info.put_only();
/// ```
/// ```compile_fail,E0133
/// # let info = machine::FrameInfo::new();
/// info.allocate(0);
/// ```
/// ```compile_fail,E0133
/// # let info = machine::FrameInfo::new();
/// info.set_owner(machine::Owner::Table(0));
/// ```
/// ```compile_fail,E0133
/// # let info = machine::FrameInfo::new();
/// info.word();
/// ```
#[derive(Debug)]
#[repr(C, align(16))]
pub struct FrameInfo {
    /// References and pins.
    ref_counts: RefCounts,
    word: FrameWord,
    owner: AtomicU16,
    order: AtomicU8,
    node: AtomicU8,
}

const _: () = assert!(size_of::<FrameInfo>() == 16);

impl FrameInfo {
    /// The state of a free frame, on node 0.
    #[expect(clippy::new_without_default, reason = "only a frame source makes them")]
    pub const fn new() -> Self {
        FrameInfo {
            ref_counts: RefCounts::new(MemoryWord::new(0)),
            word: FrameWord::new(0),
            owner: AtomicU16::new(Owner::Free.pack()),
            order: AtomicU8::new(0),
            node: AtomicU8::new(0),
        }
    }

    /// The number of references, pins included. It may be out of date when it is returned, unless
    /// it is 0 or the caller holds the only reference.
    #[inline]
    pub fn refs(&self) -> u32 {
        self.ref_counts.get().0
    }

    /// The number of pins.
    #[inline]
    pub fn pins(&self) -> u32 {
        self.ref_counts.get().1
    }

    /// Takes a reference. Fails if the frame is free or has too many references. One
    /// compare-exchange on one cache line. May be called in any context.
    ///
    /// # Misuse
    /// A reference gives no access. One that is never dropped leaks the frame; the count stops at a
    /// limit, and a free frame gives none.
    #[inline]
    pub fn try_get(&self) -> bool {
        self.ref_counts.add(1, 0)
    }

    /// Takes `count` references. As [`try_get`](Self::try_get).
    #[inline]
    pub fn try_get_many(&self, count: u32) -> bool {
        self.ref_counts.add(count, 0)
    }

    /// Takes `count` pins, each of which is also a reference. Fails if the frame is free or has too
    /// many references. One compare-exchange on one cache line. May be called in any context.
    #[inline]
    pub fn try_pin(&self, count: u32) -> bool {
        self.ref_counts.add(count, count)
    }

    /// Drops a reference that the caller holds. Returns whether it was the last: then the caller
    /// owns the frame alone. `None` if the frame has no reference besides its pins. Sources use
    /// [`FrameSource::release`](crate::FrameSource::release).
    ///
    /// # Safety
    /// As there. After the last one, the caller gives the block back to its source.
    #[inline]
    pub unsafe fn put(&self) -> Option<bool> {
        self.ref_counts.sub(1, 0)
    }

    /// Drops `count` pins. Returns whether the last reference was among them. `None` if the frame
    /// has fewer pins. Sources use [`FrameSource::unpin`](crate::FrameSource::unpin).
    ///
    /// # Safety
    /// As there. After the last one, the caller gives the block back to its source.
    #[inline]
    pub unsafe fn unpin(&self, count: u32) -> Option<bool> {
        self.ref_counts.sub(count, count)
    }

    /// Drops the only reference, if there is exactly one and no pin. Otherwise returns the number
    /// of references.
    ///
    /// # Errors
    /// The number of references.
    ///
    /// # Safety
    /// The caller holds the reference. It gives the block back to its source, or allocates it
    /// again.
    #[inline]
    pub unsafe fn put_only(&self) -> Result<(), u32> {
        self.ref_counts.sub_only()
    }

    /// The use of the frame.
    #[inline]
    pub fn owner(&self) -> Owner {
        // Acquire: pairs with `set_owner`. A CPU that sees a frame's new use also sees the writes
        // that prepared the frame for it.
        Owner::unpack(self.owner.load(Ordering::Acquire))
    }

    /// Whether the frame is allocated and neither a page table nor on a quicklist: [`Owner::Raw`],
    /// [`Owner::Kernel`] or [`Owner::User`].
    #[inline(always)]
    pub fn is_page(&self) -> bool {
        const PAGES: u32 = 1 << (Owner::Raw.pack() >> 8)
            | 1 << (Owner::Kernel.pack() >> 8)
            | 1 << (Owner::User.pack() >> 8);
        // Acquire: as `owner`.
        PAGES >> (self.owner.load(Ordering::Acquire) >> 8) & 1 != 0
    }

    /// Sets the use of the frame. [`FrameSource::set_owner`](crate::FrameSource::set_owner) calls
    /// it.
    ///
    /// # Safety
    /// As there.
    #[inline]
    pub unsafe fn set_owner(&self, owner: Owner) {
        // Release: pairs with `owner`.
        self.owner.store(owner.pack(), Ordering::Release)
    }

    /// A word for the owner of the frame: a lock, a counter, a link. It is 0 when the frame is
    /// allocated, and must be 0 again when the frame is freed. For a frame of a program it is the
    /// frame's [account](crate::Accounts).
    ///
    /// # Safety
    /// The frame's owner defines the meaning of the word and the code that may change it. Memory
    /// safety may depend on it: the holder of a lock relies on the word, and a list follows its
    /// links. The caller must obey the owner's rules.
    #[inline]
    pub unsafe fn word(&self) -> &FrameWord {
        &self.word
    }

    /// The base-2 logarithm of the number of frames of the block that begins here. 0 within a
    /// block.
    #[inline]
    pub fn order(&self) -> u8 {
        // Relaxed: it changes only while the frame has one owner.
        self.order.load(Ordering::Relaxed)
    }

    /// The NUMA node of the frame's memory. Constant.
    #[inline]
    pub fn node(&self) -> crate::NodeId {
        // Relaxed: constant once frames are allocated.
        crate::NodeId(self.node.load(Ordering::Relaxed))
    }

    /// Whether the frame source has memory behind this number. Constant.
    #[inline]
    pub fn is_memory(&self) -> bool {
        self.node() != crate::numa::NO_NODE
    }

    /// Marks the first frame of a free block as allocated, with one reference and
    /// [`Owner::Raw`]. For frame sources, before they return the block.
    ///
    /// # Safety
    /// The caller is the block's source, and the block is free and in no list of free blocks.
    #[inline]
    pub unsafe fn allocate(&self, order: u8) {
        // Relaxed: no other CPU can find the frame yet. The caller orders these writes when it
        // passes the frame on.
        self.order.store(order, Ordering::Relaxed);
        self.word.store(0, Ordering::Relaxed);
        self.owner.store(Owner::Raw.pack(), Ordering::Relaxed);
        self.ref_counts.begin();
    }

    /// Marks a block as free, and returns its order. For
    /// [`FrameSource::recycle`](crate::FrameSource::recycle).
    ///
    /// # Safety
    /// The caller is the block's source, and the block has no reference.
    #[inline]
    pub unsafe fn recycle(&self) -> u8 {
        let order = self.order();
        // SAFETY: its last reference is gone, so the source owns the block.
        unsafe { self.set_owner(Owner::Free) };
        // Relaxed: as `order`.
        self.order.store(0, Ordering::Relaxed);
        order
    }

    pub(crate) fn set_node(&self, node: crate::NodeId) {
        // Relaxed: written before any frame is allocated.
        self.node.store(node.0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::word::LIMIT;

    fn allocated() -> FrameInfo {
        let info = FrameInfo::new();
        // SAFETY: no code relies on this state.
        unsafe { info.allocate(0) };
        info
    }

    #[test]
    fn counts_of_references_and_pins() {
        let info = allocated();
        assert!(info.try_get() && info.try_pin(3));
        assert_eq!((info.refs(), info.pins()), (5, 3));
        // SAFETY: no code relies on this state.
        let put = || unsafe { info.put() };
        // SAFETY: as above.
        let unpin = |count| unsafe { info.unpin(count) };
        // SAFETY: as above.
        assert_eq!(unsafe { info.put_only() }, Err(5));
        assert_eq!(unpin(4), None);
        assert_eq!((put(), put()), (Some(false), Some(false)));
        assert_eq!(put(), None, "a pin keeps its reference");
        assert_eq!((unpin(1), unpin(2)), (Some(false), Some(true)));
        assert!(!info.try_pin(1) && !info.try_get(), "the frame is free");
        assert_eq!(put(), None);
        assert_eq!((info.refs(), info.pins()), (0, 0));
    }

    #[test]
    fn counts_never_run_over() {
        let info = allocated();
        assert!(info.try_pin(LIMIT - 2));
        assert!(!info.try_pin(1) && !info.try_get() && !info.try_pin(u32::MAX));
        assert_eq!((info.refs(), info.pins()), (LIMIT - 1, LIMIT - 2));
    }

    #[test]
    fn owners_are_kept_apart() {
        let info = allocated();
        let owners = [
            Owner::Free,
            Owner::Raw,
            Owner::Table(0),
            Owner::Table(4),
            Owner::Quick(255),
            Owner::Kernel,
            Owner::User,
        ];
        for owner in owners {
            // SAFETY: no code relies on this state.
            unsafe { info.set_owner(owner) };
            assert_eq!(info.owner(), owner);
            let pages = [Owner::Raw, Owner::Kernel, Owner::User];
            assert_eq!(info.is_page(), pages.contains(&owner));
        }
    }
}
