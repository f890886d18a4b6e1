//! Blocks of frames, and the references to them.
//!
//! References and pins are counted at the first frame of a *block*, as the frame source allocated
//! it. A mapped frame may lie within a block: a piece of a large page that was split. Its block is
//! found by trial: the frame itself begins a block if it has references; otherwise a lower frame
//! does, aligned to the length of the block.
//!
//! A block that has one reference can be split into single frames, also while it is mapped by a
//! large page: the exchange of the count from one to zero decides. A walk without a lock that has
//! found the first frame before either has pinned the block by then, so that the split fails, or
//! finds another order in its second look (`gup`).

use machine::{Frame, FrameInfo, FrameSource, Owner};

/// The largest order that is tried: a block of 1 GiB.
pub(crate) const MAX_ORDER: u8 = 18;

/// The first frame of a block of this order that contains `frame`; `None` if a lower order has
/// already tried it.
pub(crate) fn head_of(frame: Frame, order: u8) -> Option<Frame> {
    let head = Frame::new(frame.number() & !((1 << order) - 1))?;
    (order == 0 || head != frame).then_some(head)
}

/// The number of frames from `frame` on in the block of this order that begins at `head`.
pub(crate) fn left_in(head: Frame, order: u8, frame: Frame) -> Option<usize> {
    let left = (head.number() + (1u64 << order.min(MAX_ORDER))).checked_sub(frame.number())?;
    (left > 0).then_some(left as usize)
}

/// The first frame of the block that contains an allocated frame, with its state. The references of
/// the block are counted there. `None` if the frame is free, or not of the frame source.
///
/// Cost: a load, unless the frame lies within a block.
#[inline]
pub fn block_of<M: FrameSource + ?Sized>(machine: &M, frame: Frame) -> Option<(Frame, &FrameInfo)> {
    let info = machine.info(frame)?;
    if info.refs() != 0 { Some((frame, info)) } else { block_around(machine, frame) }
}

#[cold]
fn block_around<M: FrameSource + ?Sized>(machine: &M, frame: Frame) -> Option<(Frame, &FrameInfo)> {
    (1..=MAX_ORDER).find_map(|order| {
        let head = head_of(frame, order)?;
        let info = machine.info(head)?;
        left_in(head, info.order(), frame)?;
        (info.refs() != 0).then_some((head, info))
    })
}

/// Whether each entry that leads to the frame holds a reference: whether it is memory of a program
/// ([`Owner::User`]). The caller has the frame from an entry that stays meanwhile, or looks again.
#[inline]
pub fn is_counted<M: FrameSource + ?Sized>(machine: &M, frame: Frame) -> bool {
    match machine.info(frame).map(FrameInfo::owner) {
        Some(Owner::User) => true,
        // Or within a block, whose state is kept at its first frame.
        Some(Owner::Free) => {
            block_around(machine, frame).is_some_and(|(_, info)| info.owner() == Owner::User)
        }
        _ => false,
    }
}

/// Takes a reference to the block of a frame. Returns false if it is free, or has too many.
#[inline]
pub fn hold<M: FrameSource + ?Sized>(machine: &M, frame: Frame) -> bool {
    block_of(machine, frame).is_some_and(|(_, info)| info.try_get())
}

/// Drops a reference to the block of a frame, and frees the block if it was the last. Returns
/// whether it was; `None` if the frame has no reference, which is an error of the caller.
///
/// # Safety
/// The caller holds the reference, and does not use the block's memory through it from now on.
#[inline]
pub unsafe fn release<M: FrameSource + ?Sized>(machine: &M, frame: Frame) -> Option<bool> {
    let (head, _) = block_of(machine, frame)?;
    // SAFETY: the caller's promise. The reference keeps the block one.
    unsafe { machine.release(head) }.ok()
}
