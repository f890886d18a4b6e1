//! Memory: frames from the boot memory map, accessed through the direct map.

use super::kernel::Kernel;
use crate::layout::DIRECT;
use alloc::boxed::Box;
use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicU64, Ordering};
use machine::{
    Frame, FrameError, FrameInfo, FrameRange, FrameSource, Frames, FramesError, Memory, NodeId,
    NodePolicy,
};
use spin::Once;

static FRAMES: Once<Frames> = Once::new();

/// The largest range, which has nearly all frames: its first frame, and its length.
static FIRST: AtomicU64 = AtomicU64::new(0);
static COUNT: AtomicU64 = AtomicU64::new(0);
/// All ranges.
static RANGES: Once<Box<[FrameRange]>> = Once::new();

/// Makes these ranges the frames of the machine, for `cpus` CPUs. Allocates 16 bytes for each frame
/// of their span.
///
/// # Errors
/// The heap is too small for that.
///
/// # Safety
/// Call it once. No other code uses the ranges, and the direct map has them.
pub(crate) unsafe fn start(ranges: &[FrameRange], cpus: usize) -> Result<(), FramesError> {
    let start = ranges.iter().map(FrameRange::start).min();
    let end = ranges.iter().filter_map(FrameRange::end).max();
    let span = start.zip(end).and_then(|(start, end)| FrameRange::between(start, end));
    let span = span.ok_or(FramesError::OutOfMemory)?;
    let mut frames = Frames::try_new(span, cpus)?;
    for range in ranges {
        // SAFETY: the caller's promise is passed on.
        unsafe { frames.add(*range, NodeId(0)) }?;
    }
    FRAMES.call_once(|| frames);
    RANGES.call_once(|| ranges.into());
    // Relaxed, both: other CPUs start later.
    if let Some(largest) = ranges.iter().max_by_key(|range| range.len()) {
        FIRST.store(largest.start().number(), Ordering::Relaxed);
        COUNT.store(largest.len(), Ordering::Relaxed);
    }
    Ok(())
}

/// All frames. Call it after [`start`].
#[inline]
fn frames() -> &'static Frames {
    FRAMES.get().expect("frames come from the boot memory map")
}

// SAFETY: a frame of the source is in the direct map, in physical order. To Rust, the memory there
// has no other owner.
unsafe impl Memory for Kernel {
    /// For a frame of the largest range: two loads of constant data, a compare and an addition. It
    /// does not read the frame's state.
    #[inline]
    fn frame_ptr(&self, frame: Frame) -> Option<NonNull<u8>> {
        // Relaxed, both: written before the second CPU started.
        let above = frame.number().wrapping_sub(FIRST.load(Ordering::Relaxed));
        if above >= COUNT.load(Ordering::Relaxed) {
            // The frames' states cannot tell: there are states for the holes between the ranges,
            // too.
            RANGES.get()?.iter().find(|range| range.contains(frame))?;
        }
        NonNull::new(ptr::with_exposed_provenance_mut((DIRECT + (frame.number() << 12)) as usize))
    }
}

// SAFETY: as `Frames`.
unsafe impl FrameSource for Kernel {
    #[inline]
    fn alloc(&self, order: u8, place: NodePolicy) -> Result<Frame, FrameError> {
        frames().alloc(self, order, place)
    }

    #[inline]
    unsafe fn recycle(&self, frame: Frame, info: &FrameInfo) {
        // SAFETY: the caller's promise is passed on.
        unsafe { frames().recycle(self, frame, info) }
    }

    #[inline]
    fn info(&self, frame: Frame) -> Option<&FrameInfo> {
        frames().info(frame)
    }

    fn accounts(&self) -> Option<&machine::Accounts> {
        Some(frames().accounts())
    }

    fn nodes(&self) -> usize {
        frames().nodes()
    }

    #[inline]
    fn local_node(&self) -> NodeId {
        frames().local_node(self)
    }

    fn free_frames(&self) -> usize {
        frames().free_frames()
    }
}
