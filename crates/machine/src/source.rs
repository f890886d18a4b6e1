//! Where frames come from.

use crate::{Frame, FrameInfo, Owner};
use core::fmt;

/// A NUMA node: memory that is equally near to the same CPUs.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct NodeId(pub u8);

/// The most nodes there can be.
pub const MAX_NODES: usize = 8;

/// Which node a frame is wanted on.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Place {
    /// This CPU's node, or any other when that is full.
    #[default]
    Local,
    /// This node, or any other when it is full.
    Prefer(NodeId),
    /// This node and no other.
    Only(NodeId),
}

/// Why frames could not be had, or not be taken back. Nothing has changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FrameError {
    /// No block of this order (base-2 logarithm of frames) is free where it may come from.
    OutOfFrames {
        /// The order asked for.
        order: u8,
    },
    /// No block can be as large as this.
    TooLarge {
        /// The order asked for.
        order: u8,
    },
    /// There is no such node.
    NoSuchNode(NodeId),
    /// The frame is not of this source.
    NotOurs(Frame),
    /// The frame is free already, or lies within a block and does not begin it.
    NotAllocated(Frame),
    /// Others hold references to the frame.
    InUse {
        /// The frame.
        frame: Frame,
        /// References, that of the caller included.
        refs: u32,
        /// Pins among them.
        pins: u32,
    },
    /// The frame is a page table, or lies on a quicklist: it is not the caller's.
    Table(Frame),
}

impl fmt::Display for FrameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FrameError::OutOfFrames { order } => {
                write!(f, "out of memory: no block of 2^{order} frames is free")
            }
            FrameError::TooLarge { order } => write!(f, "no block can have 2^{order} frames"),
            FrameError::NoSuchNode(NodeId(node)) => write!(f, "there is no node {node}"),
            FrameError::NotOurs(frame) => write!(f, "frame {frame} is not of this source"),
            FrameError::NotAllocated(frame) => {
                write!(f, "frame {frame} does not begin an allocated block")
            }
            FrameError::InUse { frame, refs, pins } => {
                write!(f, "frame {frame} is still in use: {refs} references, {pins} of them pins")
            }
            FrameError::Table(frame) => {
                write!(f, "frame {frame} is a page table, or waits on a quicklist to become one")
            }
        }
    }
}

impl core::error::Error for FrameError {}

/// A source of frames, with the state of each frame beside it.
///
/// # Calling context
/// May be called anywhere, also in an interrupt. Never sleeps. Whether it allocates from the heap
/// is the host's choice: see [`Frames`](crate::Frames).
///
/// # Safety
/// Unsafe code relies on all of this:
/// - A block that [`alloc`](FrameSource::alloc) returns belongs to nobody else until it is freed,
///   has memory behind it in the machine's [`Memory`](crate::Memory), begins at a multiple of its
///   length, and its first frame has one reference and [`Owner::Raw`].
/// - A block is freed only when its last reference is given up, by the calls here, and no call
///   gives up a reference that it was not asked to.
/// - [`info`](FrameSource::info) is always the same state for the same frame, and no other frame's.
///   Nothing but the calls here changes the state; the word of a frame is left alone until the
///   frame is freed.
/// - [`set_owner`](FrameSource::set_owner) makes the state say what it was told.
/// - The calls do not call into structures built on the machine, as [`Step`](crate::Step) says.
pub unsafe trait FrameSource {
    /// Takes a block of 2^`order` frames. Its contents are whatever was left there.
    ///
    /// # Errors
    /// [`FrameError::OutOfFrames`], [`FrameError::TooLarge`], [`FrameError::NoSuchNode`].
    fn alloc(&self, order: u8, place: Place) -> Result<Frame, FrameError>;

    /// Gives back the block that begins at `frame`, to which the caller has the only reference.
    ///
    /// # Errors
    /// [`FrameError::NotOurs`], [`FrameError::NotAllocated`], [`FrameError::InUse`] (then use
    /// [`release`](FrameSource::release)).
    ///
    /// # Safety
    /// Nobody will use the block's memory: no pointer, no translation, no page walk.
    unsafe fn free(&self, frame: Frame) -> Result<(), FrameError>;

    /// Gives up one reference to the block that begins at `frame`; the last one frees it. Returns
    /// whether it did.
    ///
    /// # Errors
    /// [`FrameError::NotOurs`], [`FrameError::NotAllocated`] (no reference but pins is left to give
    /// up).
    ///
    /// # Safety
    /// The caller holds the reference, and will not use the block's memory by it.
    unsafe fn release(&self, frame: Frame) -> Result<bool, FrameError>;

    /// Gives up `pins` pins of the block that begins at `frame`; the last reference frees it.
    /// Returns whether it did.
    ///
    /// # Errors
    /// [`FrameError::NotOurs`], [`FrameError::NotAllocated`] (there are not so many).
    ///
    /// # Safety
    /// The caller holds the pins, and will not use the block's memory by them.
    unsafe fn unpin(&self, frame: Frame, pins: u32) -> Result<bool, FrameError>;

    /// Makes a block of many frames, to which the caller has the only reference, as many blocks of
    /// one frame, each with one reference and the block's owner. Cost: one line for each four
    /// frames.
    ///
    /// # Errors
    /// [`FrameError::NotOurs`], [`FrameError::NotAllocated`], [`FrameError::InUse`];
    /// [`FrameError::Table`] for a page table, or what is on a quicklist.
    ///
    /// # Safety
    /// The block is the caller's. Nobody else relies on its being one block, with its length and
    /// the word of its first frame: whoever would free it, or keeps a lock or a count in that word.
    unsafe fn split(&self, frame: Frame) -> Result<(), FrameError>;

    /// The state of a frame, or `None` if it is not of this source. An addition and a compare.
    fn info(&self, frame: Frame) -> Option<&FrameInfo>;

    /// Says what a frame is used for from now on; only its owner may. One store; a machine in
    /// software watches it.
    ///
    /// # Errors
    /// [`FrameError::NotOurs`].
    ///
    /// # Safety
    /// The caller has the frame: nobody else uses its memory but by what the caller has shown him.
    /// And it is true: who reads that a frame is a table, or a page in its constructed state, may
    /// use it as such. It is not said to be free.
    #[inline]
    unsafe fn set_owner(&self, frame: Frame, owner: Owner) -> Result<(), FrameError> {
        let info = self.info(frame).ok_or(FrameError::NotOurs(frame))?;
        // SAFETY: passed on.
        unsafe { info.set_owner(owner) };
        Ok(())
    }

    /// Debug hook: the page in `frame` is now in the constructed state of quicklist `list` (I6),
    /// and is given back to that list as it is now. On hardware it does nothing; a machine in
    /// software remembers the words, and compares them whenever the page enters or leaves the list.
    #[inline(always)]
    fn note_constructed(&self, frame: Frame, list: u8) {
        let _ = (frame, list);
    }

    /// How many nodes there are; at least 1.
    fn nodes(&self) -> usize;

    /// The node that this CPU is near to; it has memory, if any has.
    fn local_node(&self) -> NodeId;

    /// How many frames are free, in sum. For watermarks: exact only while nobody allocates or
    /// frees. It reads a line of each CPU and takes no lock, so it may be asked from each CPU's
    /// timer, but has no place on a fast path.
    fn free_frames(&self) -> usize;
}
