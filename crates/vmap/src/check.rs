//! Checks of the mappings that a safe call may create.
//!
//! # Why mapping is safe
//! A mapping call takes addresses of the space that no area has, also if the caller names them. So
//! no translation of them exists, and no code may use a pointer to them: callers that gave such an
//! area back have promised it. The mapping is harmless until unsafe code uses the address, whatever
//! the frames are: frames that the caller does not own, that are freed while they are mapped, or
//! that are page-table pages. The unsafe code that uses the address is responsible for that. This
//! holds under three conditions, which this module checks:
//!
//! - *Programs cannot use the mapping.* `USER` is refused.
//! - *It is not writable and executable at once.* One stray write into such a page is arbitrary
//!   code execution.
//! - *It does not change the memory type of RAM.* RAM of the frame source is mapped write-back
//!   elsewhere. A second mapping of another type makes accesses through the first one incoherent,
//!   and processors may use a mapping speculatively. Write-back mappings of devices pass: there the
//!   range registers (MTRRs) of x86, or the physical memory attributes of RISC-V, decide.
//!
//! [`Vmap::create_unchecked`](crate::Vmap::create_unchecked) is for mappings that need the last two.
//!
//! Cost: two tests for each call; for mappings that are not write-back, one load of the state of
//! each frame.

use crate::error::Error;
use machine::{Frame, FrameInfo, FrameSource};
use paging::{Attrs, Cache, Flags};

/// Refuses mappings that programs could use.
#[inline]
pub(crate) fn kernel_only(attrs: Attrs) -> Result<(), Error> {
    if attrs.flags.contains(Flags::USER) { Err(Error::UserAccess) } else { Ok(()) }
}

/// Checks the access rights of a safe call.
#[inline]
pub(crate) fn rights(attrs: Attrs) -> Result<(), Error> {
    kernel_only(attrs)?;
    let both = Flags::WRITE.union(Flags::EXECUTE);
    if attrs.flags.contains(both) { Err(Error::WritableCode) } else { Ok(()) }
}

/// Checks attributes for frames of the frame source, which are RAM.
pub(crate) fn ram(attrs: Attrs) -> Result<(), Error> {
    rights(attrs)?;
    write_back(attrs)
}

/// Checks the attributes of an unsafe call for frames of the frame source.
pub(crate) fn write_back(attrs: Attrs) -> Result<(), Error> {
    kernel_only(attrs)?;
    match attrs.cache {
        Cache::WriteBack => Ok(()),
        cache => Err(Error::MemoryType { frame: None, cache }),
    }
}

/// Checks attributes for frames that the caller supplies.
#[inline]
pub(crate) fn frames<M: FrameSource>(
    machine: &M,
    frames: &[Frame],
    attrs: Attrs,
) -> Result<(), Error> {
    rights(attrs)?;
    if attrs.cache == Cache::WriteBack {
        return Ok(());
    }
    let cache = attrs.cache;
    match first_ram(|frame| machine.info(frame), frames.iter().copied()) {
        Some(frame) => Err(Error::MemoryType { frame: Some(frame), cache }),
        None => Ok(()),
    }
}

/// Checks that none of the `pages` frames from `first` on is RAM.
pub(crate) fn device<M: FrameSource>(machine: &M, first: Frame, pages: u64) -> Result<(), Error> {
    let frames = (0..pages).map_while(|page| first.checked_add(page));
    first_ram(|frame| machine.info(frame), frames).map_or(Ok(()), |frame| Err(Error::Ram(frame)))
}

/// The first frame that is RAM of the frame source. A hole between its memory ranges has a state,
/// too, but is not RAM.
fn first_ram<'a>(
    info: impl Fn(Frame) -> Option<&'a FrameInfo>,
    mut frames: impl Iterator<Item = Frame>,
) -> Option<Frame> {
    frames.find(|frame| info(*frame).is_some_and(FrameInfo::is_memory))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::first_ram;
    use machine::{Frame, FrameRange, Frames, NodeId};

    #[test]
    fn a_hole_between_memory_is_none() {
        let frame = |number| Frame::new(number).unwrap();
        let range = |first, len| FrameRange::new(frame(first), len).unwrap();
        let mut frames = Frames::try_new(range(0x100, 64), 1).unwrap();
        for (node, first) in [(0, 0x100), (1, 0x130)] {
            // SAFETY: the memory of these frames is never accessed.
            unsafe { frames.add(range(first, 16), NodeId(node)) }.unwrap();
        }
        let first =
            |from, len: u64| first_ram(|frame| frames.info(frame), (from..from + len).map(frame));
        assert!(frames.info(frame(0x110)).is_some(), "the hole is covered");
        assert_eq!((first(0x110, 32), first(0x0, 0x100), first(0x140, 0x1000)), (None, None, None));
        assert_eq!(first(0x10f, 1), Some(frame(0x10f)));
        assert_eq!(first(0x110, 33), Some(frame(0x130)));
        assert_eq!(first(0x0, 0x101), Some(frame(0x100)));
    }
}
