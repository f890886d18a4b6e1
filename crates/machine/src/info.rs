//! What is known of each frame: who holds it, and what for.
//!
//! 16 bytes a frame, so that whatever is done to a frame's state touches one cache line.
//!
//! # The counts
//! References and pins are the two halves of one word. A pin is a reference too: pinning adds one
//! to both, in one atomic instruction, so there are never more pins than references. A frame whose
//! references are 0 is free or about to be, and nobody can take a reference to it any more:
//! [`try_get`](FrameInfo::try_get) and [`try_pin`](FrameInfo::try_pin) fail. That is what a walk
//! without a lock needs: it finds a frame in an entry, tries to pin it, and then reads the entry
//! again. Who takes the last reference away owns the frame alone.

use crate::word::RefCounts;
use core::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

/// What a frame is used for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Owner {
    /// Nothing: the frame source has it, or there is no memory there.
    #[default]
    Free,
    /// Allocated, and nobody has said more.
    Raw,
    /// A page table that CPUs may walk; the number is its level, 0 for the one whose entries map 4
    /// KiB.
    Table(u8),
    /// On the quicklist with this number, in its constructed state (I6).
    Quick(u8),
    /// The kernel's own: stacks, vmalloc, buffers.
    Kernel,
    /// A program's memory.
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
/// assert!(!info.try_get(), "nobody takes a reference to a free frame");
/// ```
///
/// Safe code can ask what is known, and take references. It cannot give up what others hold, nor
/// touch what they rely on:
///
/// ```compile_fail,E0624
/// # let info = machine::FrameInfo::new();
/// info.unpin(1);
/// ```
/// ```compile_fail,E0624
/// # let info = machine::FrameInfo::new();
/// info.put();
/// ```
/// ```compile_fail,E0624
/// # let info = machine::FrameInfo::new();
/// info.put_only();
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
    word: AtomicU32,
    owner: AtomicU16,
    order: AtomicU8,
    node: AtomicU8,
}

const _: () = assert!(size_of::<FrameInfo>() == 16);

impl FrameInfo {
    /// The state of a free frame.
    #[expect(clippy::new_without_default, reason = "only a frame source makes them")]
    pub const fn new() -> Self {
        FrameInfo {
            ref_counts: RefCounts::new(AtomicU64::new(0)),
            word: AtomicU32::new(0),
            owner: AtomicU16::new(Owner::Free.pack()),
            order: AtomicU8::new(0),
            node: AtomicU8::new(0),
        }
    }

    /// References, pins included. Out of date when it is returned, unless it is 0 or the caller has
    /// the only one.
    #[inline]
    pub fn refs(&self) -> u32 {
        self.ref_counts.get().0
    }

    /// Pins.
    #[inline]
    pub fn pins(&self) -> u32 {
        self.ref_counts.get().1
    }

    /// Takes a reference, unless the frame is free or there are too many. One cmpxchg on one line;
    /// any context.
    #[inline]
    pub fn try_get(&self) -> bool {
        self.ref_counts.add(1, 0)
    }

    /// Takes `count` pins, which are references too, unless the frame is free or there are too
    /// many. One cmpxchg on one line; any context.
    #[inline]
    pub fn try_pin(&self, count: u32) -> bool {
        self.ref_counts.add(count, count)
    }

    /// Gives up a reference that the caller holds. Returns whether it was the last: then the frame
    /// is the caller's alone. `None` if there is none besides the pins.
    #[inline]
    pub(crate) fn put(&self) -> Option<bool> {
        self.ref_counts.sub(1, 0)
    }

    /// Gives up `count` pins. Returns whether the last reference went with them; `None` if there
    /// are fewer.
    #[inline]
    pub(crate) fn unpin(&self, count: u32) -> Option<bool> {
        self.ref_counts.sub(count, count)
    }

    /// Gives up the only reference, if it is the only one and there is no pin. Returns the
    /// references otherwise.
    ///
    /// # Errors
    /// The references that there are.
    #[inline]
    pub(crate) fn put_only(&self) -> Result<(), u32> {
        self.ref_counts.sub_only()
    }

    /// What the frame is used for.
    #[inline]
    pub fn owner(&self) -> Owner {
        // Acquire: pairs with `set_owner`; who sees a frame in a new role sees what made it fit for
        // it.
        Owner::unpack(self.owner.load(Ordering::Acquire))
    }

    /// Whether the frame is allocated, and no page table nor on a quicklist: [`Owner::Raw`],
    /// [`Owner::Kernel`] or [`Owner::User`].
    #[inline(always)]
    pub fn is_page(&self) -> bool {
        const PAGES: u32 = 1 << (Owner::Raw.pack() >> 8)
            | 1 << (Owner::Kernel.pack() >> 8)
            | 1 << (Owner::User.pack() >> 8);
        // Acquire: as `owner`.
        PAGES >> (self.owner.load(Ordering::Acquire) >> 8) & 1 != 0
    }

    /// Says what the frame is used for from now on: what is left to do for a machine that watches
    /// [`FrameSource::set_owner`](crate::FrameSource::set_owner).
    ///
    /// # Safety
    /// As there.
    #[inline]
    pub unsafe fn set_owner(&self, owner: Owner) {
        // Release: pairs with `owner`.
        self.owner.store(owner.pack(), Ordering::Release)
    }

    /// A word for whoever has the frame: a lock, a count, a link. 0 when the frame is allocated,
    /// and to be 0 again when it is freed.
    ///
    /// # Safety
    /// The frame's owner says what the word means and who may change it, and memory safety may hang
    /// on that (a lock's holder relies on it, a list follows its links). The caller keeps to it:
    /// the owner does, and whoever the owner lets.
    #[inline]
    pub unsafe fn word(&self) -> &AtomicU32 {
        &self.word
    }

    /// The base-2 logarithm of the length, in frames, of the block that begins here; 0 within a
    /// block.
    #[inline]
    pub fn order(&self) -> u8 {
        // Relaxed: it changes only while the frame has one owner.
        self.order.load(Ordering::Relaxed)
    }

    /// The number of the node that the frame's memory belongs to. Constant.
    #[inline]
    pub fn node(&self) -> crate::NodeId {
        // Relaxed: constant once frames are handed out.
        crate::NodeId(self.node.load(Ordering::Relaxed))
    }

    /// Whether there is memory of the frame source behind the number. Constant.
    #[inline]
    pub fn is_memory(&self) -> bool {
        self.node() != crate::frames::NO_NODE
    }

    /// From free to allocated with one reference, for the frame source alone.
    pub(crate) fn allocate(&self, order: u8) {
        // Relaxed: nobody else can find the frame yet; whoever the caller shows it to gets these by
        // the way it is shown.
        self.order.store(order, Ordering::Relaxed);
        self.word.store(0, Ordering::Relaxed);
        self.owner.store(Owner::Raw.pack(), Ordering::Relaxed);
        self.ref_counts.begin();
    }

    pub(crate) fn set_order(&self, order: u8) {
        // Relaxed: as `order`.
        self.order.store(order, Ordering::Relaxed);
    }

    pub(crate) fn set_node(&self, node: crate::NodeId) {
        // Relaxed: before any frame is handed out.
        self.node.store(node.0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::word::LIMIT;

    fn allocated() -> FrameInfo {
        let info = FrameInfo::new();
        info.allocate(0);
        info
    }

    #[test]
    fn counts_of_references_and_pins() {
        let info = allocated();
        assert!(info.try_get() && info.try_pin(3));
        assert_eq!((info.refs(), info.pins()), (5, 3));
        assert_eq!(info.put_only(), Err(5));
        assert_eq!(info.unpin(4), None);
        assert_eq!((info.put(), info.put()), (Some(false), Some(false)));
        assert_eq!(info.put(), None, "a pin keeps its reference");
        assert_eq!((info.unpin(1), info.unpin(2)), (Some(false), Some(true)));
        assert!(!info.try_pin(1) && !info.try_get(), "it is free");
        assert_eq!(info.put(), None);
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
            // SAFETY: nobody relies on this one.
            unsafe { info.set_owner(owner) };
            assert_eq!(info.owner(), owner);
            let pages = [Owner::Raw, Owner::Kernel, Owner::User];
            assert_eq!(info.is_page(), pages.contains(&owner));
        }
    }
}
