//! The source of frames.

use crate::{Accounts, Frame, FrameInfo, NodeId, NodePolicy, Owner};
use core::fmt;
use core::sync::atomic::Ordering;

/// The reason why frames could not be allocated or freed. Nothing has changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FrameError {
    /// No block of this order (base-2 logarithm of frames) is free on the nodes allowed.
    OutOfFrames {
        /// The requested order.
        order: u8,
    },
    /// The order is larger than any block can be.
    TooLarge {
        /// The requested order.
        order: u8,
    },
    /// There is no such node.
    NoSuchNode(NodeId),
    /// The frame does not belong to this source.
    NotOurs(Frame),
    /// The frame is free, or it lies within a block and does not begin it.
    NotAllocated(Frame),
    /// The block that begins there is not free as a whole, or does not begin at a multiple of its
    /// length.
    NotFree(Frame),
    /// Other code holds references to the frame.
    InUse {
        /// The frame.
        frame: Frame,
        /// The number of references, the caller's included.
        refs: u32,
        /// The number of pins among them.
        pins: u32,
    },
    /// The frame is a page table, or is on a quicklist, so the caller does not own it.
    Table(Frame),
}

impl fmt::Display for FrameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FrameError::OutOfFrames { order } => {
                write!(f, "out of memory: no block of 2^{order} frames is free")
            }
            FrameError::TooLarge { order } => {
                write!(f, "no block can have 2^{order} frames: allocate smaller blocks")
            }
            FrameError::NoSuchNode(NodeId(node)) => write!(f, "there is no node {node}"),
            FrameError::NotOurs(frame) => write!(f, "frame {frame} does not belong to this source"),
            FrameError::NotAllocated(frame) => {
                write!(f, "frame {frame} does not begin an allocated block")
            }
            FrameError::NotFree(frame) => {
                write!(f, "no free block of this length begins at frame {frame}")
            }
            FrameError::InUse { frame, refs, pins } => {
                write!(f, "frame {frame} is still in use: {refs} references, {pins} of them pins")
            }
            FrameError::Table(frame) => {
                write!(
                    f,
                    "frame {frame} is a page table, or is on a quicklist: its owner must free it"
                )
            }
        }
    }
}

impl core::error::Error for FrameError {}

/// A source of frames, with a state for each frame.
///
/// A host implements it on [`Frames`](crate::Frames), or on an allocator of its own. Then it needs
/// three methods, and a [`FrameInfo`] for each frame, 16 bytes, which may be a part of its own
/// record of the frame. A kernel that counts references itself holds one reference here for all of
/// its own, from [`alloc`](FrameSource::alloc) on, and [releases](FrameSource::release) it when its
/// own count is 0. The block is free when [`recycle`](FrameSource::recycle) gets it: a pin may hold
/// it for longer.
///
/// ```
/// use machine::{Frame, FrameError, FrameInfo, FrameSource, NodePolicy};
/// use std::sync::Mutex;
///
/// /// Frames 0 to 63, of a kernel with a stack of free frames.
/// struct Mine {
///     free: Mutex<Vec<u64>>,
///     pages: [Page; 64],
/// }
///
/// /// The kernel's state of a frame.
/// struct Page {
///     info: FrameInfo,
///     // And so on.
/// }
///
/// // SAFETY: a frame is in the stack, or was returned by `alloc` and has come back by `recycle`.
/// unsafe impl FrameSource for Mine {
///     fn alloc(&self, order: u8, _: NodePolicy) -> Result<Frame, FrameError> {
///         let none = FrameError::OutOfFrames { order };
///         let number = if order == 0 { self.free.lock().unwrap().pop() } else { None };
///         let frame = number.and_then(Frame::new).ok_or(none)?;
///         // SAFETY: it was free, and is no longer in the stack.
///         unsafe { self.pages[frame.number() as usize].info.allocate(order) };
///         Ok(frame)
///     }
///     unsafe fn recycle(&self, frame: Frame, info: &FrameInfo) {
///         // SAFETY: its last reference is gone.
///         unsafe { info.recycle() };
///         self.free.lock().unwrap().push(frame.number());
///     }
///     fn info(&self, frame: Frame) -> Option<&FrameInfo> {
///         self.pages.get(frame.number() as usize).map(|page| &page.info)
///     }
///     fn free_frames(&self) -> usize {
///         self.free.lock().unwrap().len()
///     }
/// }
///
/// let pages = std::array::from_fn(|_| Page { info: FrameInfo::new() });
/// let mine = Mine { free: Mutex::new((0..64).collect()), pages };
/// let frame = mine.alloc(0, NodePolicy::Local)?;
/// assert!(mine.info(frame).is_some_and(|info| info.try_pin(1)));
/// // SAFETY: no code uses the frame, and both references are ours.
/// unsafe {
///     assert!(!mine.release(frame)?);
///     assert!(mine.unpin(frame, 1)?);
/// }
/// assert_eq!(mine.free_frames(), 64);
/// # Ok::<(), FrameError>(())
/// ```
///
/// # Calling context
/// May be called anywhere, also in an interrupt. Never sleeps. The host decides whether it
/// allocates from the heap: see [`Frames`](crate::Frames).
///
/// # Safety
/// Unsafe code relies on all of this:
/// - A block that [`alloc`](FrameSource::alloc) returns belongs to no other code until it is freed.
///   It has memory behind it in the machine's [`Memory`](crate::Memory), and begins at a multiple
///   of its length. Its first frame has one reference and [`Owner::Raw`]
///   ([`FrameInfo::allocate`]). The states of the others stay as they were: [`Owner::Free`] does
///   not tell whether such a frame is free.
/// - A block is freed only when its last reference is dropped, by the calls here, and a call drops
///   only the references that it was asked to drop.
/// - [`info`](FrameSource::info) always returns the same state for the same frame, and never
///   another frame's. Only the calls here change the state. The word of a frame is not changed
///   until the frame is freed.
/// - [`set_owner`](FrameSource::set_owner) stores the use that it is given.
/// - The calls do not call into structures built on the machine, as [`Step`](crate::Step) requires.
pub unsafe trait FrameSource {
    /// Allocates a block of 2^`order` frames. Its contents are undefined.
    ///
    /// # Errors
    /// [`FrameError::OutOfFrames`], [`FrameError::TooLarge`], [`FrameError::NoSuchNode`].
    fn alloc(&self, order: u8, place: NodePolicy) -> Result<Frame, FrameError>;

    /// Takes back a block whose last reference is gone: the source may allocate it again. `info` is
    /// the state of its first frame, with its order and its last use; the host calls
    /// [`FrameInfo::recycle`]. Called by the methods below.
    ///
    /// # Safety
    /// The block is of this source, was allocated, and has no reference; and no code uses it.
    unsafe fn recycle(&self, frame: Frame, info: &FrameInfo);

    /// The state of a frame. `None` if it does not belong to this source. Costs an addition and a
    /// compare.
    fn info(&self, frame: Frame) -> Option<&FrameInfo>;

    /// The number of free frames, for watermarks. Exact only while no CPU allocates or frees.
    /// [`Frames`](crate::Frames) reads one cache line for each CPU and takes no lock. So each CPU's
    /// timer may call it, but no fast path should.
    fn free_frames(&self) -> usize;

    /// Frees the block that begins at `frame`. The caller must hold its only reference.
    ///
    /// # Errors
    /// [`FrameError::NotOurs`], [`FrameError::NotAllocated`], [`FrameError::InUse`] (use
    /// [`release`](FrameSource::release) instead).
    ///
    /// # Safety
    /// No code uses the block's memory from now on: by no pointer, no translation, and no page
    /// walk.
    #[inline]
    unsafe fn free(&self, frame: Frame) -> Result<(), FrameError> {
        let info = known(self, frame)?;
        take_only(frame, info)?;
        // SAFETY: that was the only reference, and the caller uses the block no more.
        unsafe { self.recycle(frame, info) };
        Ok(())
    }

    /// Drops one reference to the block that begins at `frame`, and frees the block if it was the
    /// last. Returns whether it was.
    ///
    /// # Errors
    /// [`FrameError::NotOurs`], [`FrameError::NotAllocated`] (the block has no reference besides
    /// its pins).
    ///
    /// # Safety
    /// The caller holds the reference, and does not use the block's memory through it from now on.
    #[inline]
    unsafe fn release(&self, frame: Frame) -> Result<bool, FrameError> {
        let info = known(self, frame)?;
        // SAFETY: the caller's reference.
        let last = unsafe { info.put() }.ok_or(FrameError::NotAllocated(frame))?;
        if last {
            // SAFETY: no reference is left, so no code uses the block.
            unsafe { self.recycle(frame, info) };
        }
        Ok(last)
    }

    /// Drops `pins` pins of the block that begins at `frame`, and frees the block if the last
    /// reference was among them. Returns whether it was.
    ///
    /// # Errors
    /// [`FrameError::NotOurs`], [`FrameError::NotAllocated`] (the block has fewer pins).
    ///
    /// # Safety
    /// The caller holds the pins, and does not use the block's memory through them from now on.
    #[inline]
    unsafe fn unpin(&self, frame: Frame, pins: u32) -> Result<bool, FrameError> {
        let info = known(self, frame)?;
        // SAFETY: the caller's pins.
        let last = unsafe { info.unpin(pins) }.ok_or(FrameError::NotAllocated(frame))?;
        if last {
            // SAFETY: no reference is left, so no code uses the block.
            unsafe { self.recycle(frame, info) };
        }
        Ok(last)
    }

    /// Splits a block, to which the caller has the only reference, into single frames. Each frame
    /// then has one reference and the block's owner. Costs one cache line for every four frames.
    ///
    /// # Errors
    /// [`FrameError::NotOurs`], [`FrameError::NotAllocated`], [`FrameError::InUse`];
    /// [`FrameError::Table`] for a page table, or a frame on a quicklist.
    ///
    /// # Safety
    /// The caller owns the block. No other code relies on its being one block, with its length and
    /// the word of its first frame: no code will free the block as a whole, or keeps a lock or a
    /// counter in that word.
    unsafe fn split(&self, frame: Frame) -> Result<(), FrameError> {
        let info = known(self, frame)?;
        let (order, owner) = (info.order(), info.owner());
        if matches!(owner, Owner::Table(_) | Owner::Quick(_)) {
            return Err(FrameError::Table(frame));
        }
        // SAFETY: the caller owns the block. Relaxed: its own value.
        let word = unsafe { info.word() }.load(Ordering::Relaxed);
        // While the block has no reference, no other CPU can take one.
        take_only(frame, info)?;
        let pieces = (0..1 << order).filter_map(|at| self.info(frame.checked_add(at)?));
        for info in pieces {
            // SAFETY: the caller's block, which is no longer one, and in no list.
            unsafe { info.allocate(0) };
            // SAFETY: the caller owned the block, and used all its frames for this. Relaxed: the
            // owner is stored with Release.
            unsafe { info.word() }.store(word, Ordering::Relaxed);
            // SAFETY: as above.
            unsafe { info.set_owner(owner) };
        }
        Ok(())
    }

    /// Sets the use of a frame. Only its owner may call this. One store. A simulated machine checks
    /// it.
    ///
    /// # Errors
    /// [`FrameError::NotOurs`].
    ///
    /// # Safety
    /// The caller owns the frame: no other code uses its memory, except as the caller has allowed.
    /// The new use is true: code that reads that a frame is a page table, or a page in its
    /// constructed state, may use it as such. The new use is not [`Owner::Free`].
    #[inline]
    unsafe fn set_owner(&self, frame: Frame, owner: Owner) -> Result<(), FrameError> {
        let info = self.info(frame).ok_or(FrameError::NotOurs(frame))?;
        // SAFETY: the caller's promise.
        unsafe { info.set_owner(owner) };
        Ok(())
    }

    /// The accounts on which frames can be put, if the source has any.
    #[inline]
    fn accounts(&self) -> Option<&Accounts> {
        None
    }

    /// The number of nodes, at least 1.
    #[inline]
    fn nodes(&self) -> usize {
        1
    }

    /// This CPU's near node. It has memory, if any node has.
    #[inline]
    fn local_node(&self) -> NodeId {
        NodeId(0)
    }
}

fn known<S: FrameSource + ?Sized>(source: &S, frame: Frame) -> Result<&FrameInfo, FrameError> {
    source.info(frame).ok_or(FrameError::NotOurs(frame))
}

/// Drops the only reference to a block, which the caller holds.
fn take_only(frame: Frame, info: &FrameInfo) -> Result<(), FrameError> {
    // SAFETY: the callers hold a reference, and recycle the block or allocate it again.
    match unsafe { info.put_only() } {
        Ok(()) => Ok(()),
        Err(0) => Err(FrameError::NotAllocated(frame)),
        Err(refs) => Err(FrameError::InUse { frame, refs, pins: info.pins() }),
    }
}
