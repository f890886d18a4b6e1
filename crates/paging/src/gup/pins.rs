//! Pins, and how they are taken and given up, block by block.
//!
//! Pins are counted at the first frame of a block ([`crate::block`]).

use super::take::PinOutcome;
use crate::block::{MAX_ORDER, head_of, left_in};
use core::fmt;
use machine::{Frame, FrameSource, Machine, SharedAccess};

/// Pinned frames; dropping this unpins them.
///
/// ```
/// # use machine::*;
/// # use paging::*;
/// # use sim::{Config, Grace, Sim};
/// # let sim = Sim::new(Config::default()).unwrap();
/// # let paging = Paging::<Sim, X86_64L4>::try_new(sim.clone(), PageSize::Size1G).unwrap();
/// # sim.on_cpu(0, || {
/// # let tables = PageTables::<_, _, Grace>::user(&paging, Asid(1), None).unwrap();
/// let page = sim.alloc(0, NodePolicy::Local).unwrap();
/// let at = VirtAddr::new(0x5000);
/// let range = VirtRange::new(at, 4096).unwrap();
/// // SAFETY: the page is ours, and so are the addresses.
/// unsafe { tables.map(range, page, Attrs::USER_RW) }.unwrap();
///
/// let mut frames = [Frame::default(); 8];
/// let pins = tables.get_user_pages_fast(at, true, &mut frames, |_, _| false).unwrap();
/// assert_eq!(pins.frames(), [page], "the next page is a hole");
/// assert_eq!(sim.info(page).unwrap().pins(), 1);
/// drop(pins);
/// assert_eq!(sim.info(page).unwrap().pins(), 0);
/// # unsafe { tables.unmap(range, |_| ()) }.unwrap().flush();
/// # unsafe { sim.release(page) }.unwrap();
/// # });
/// ```
///
/// # Misuse
/// A pin is a reference, and gives no access. Forgotten pins leak the frames.
#[must_use = "the pages are unpinned when this is dropped"]
pub struct Pins<'a, M: Machine> {
    machine: &'a M,
    into: &'a mut [Frame],
    len: usize,
}

impl<'a, M: Machine> Pins<'a, M> {
    pub(super) fn none(machine: &'a M, into: &'a mut [Frame]) -> Self {
        Pins { machine, into, len: 0 }
    }

    /// The frames, in the order of the pages.
    pub fn frames(&self) -> &[Frame] {
        &self.into[..self.len]
    }

    /// Keeps the pins. The holder of the frames gives each up by [`unpin`]. Returns how many there
    /// are.
    pub fn keep(self) -> usize {
        let len = self.len;
        core::mem::forget(self);
        len
    }

    pub(super) fn machine(&self) -> &'a M {
        self.machine
    }

    pub(super) fn room(&self) -> usize {
        self.into.len() - self.len
    }

    /// Pins one frame for each of `places`, as long as there is room, by `hold`, which returns an
    /// error if it cannot.
    ///
    /// The loop state is in registers: each pin is a locked instruction, which waits for all stores
    /// before it.
    #[inline(always)]
    pub(super) fn fill<T>(
        &mut self,
        places: impl Iterator<Item = T>,
        mut hold: impl FnMut(&'a M, T) -> Result<Frame, PinOutcome>,
    ) -> PinOutcome {
        let (machine, mut done, mut taken) = (self.machine, 0, PinOutcome::Some);
        for (slot, place) in self.into[self.len..].iter_mut().zip(places) {
            match hold(machine, place) {
                Ok(frame) => *slot = frame,
                Err(why) => {
                    taken = why;
                    break;
                }
            }
            done += 1;
        }
        self.len += done;
        taken
    }

    /// Pins consecutive frames: all of them or none.
    pub(super) fn add(&mut self, first: Frame, count: usize) -> bool {
        let before = self.len;
        let mut done = 0;
        while done < count {
            let Some(frame) = first.checked_add(done as u64) else { break };
            let Some(pinned) = pin_block(self.machine, frame, count - done) else { break };
            for number in 0..pinned {
                if let (Some(slot), Some(frame)) =
                    (self.into.get_mut(self.len), frame.checked_add(number as u64))
                {
                    *slot = frame;
                    self.len += 1;
                }
            }
            done += pinned;
        }
        if done < count {
            self.cut(before);
        }
        done == count
    }

    /// Gives up all pins but the first `keep`.
    pub(super) fn cut(&mut self, keep: usize) {
        let frames = &self.into[keep..self.len];
        // SAFETY: `add` pinned them, and they are forgotten below.
        unsafe { unpin(self.machine, frames) };
        self.len = keep;
    }
}

impl<M: Machine> Drop for Pins<'_, M> {
    fn drop(&mut self) {
        self.cut(0);
    }
}

impl<M: Machine> fmt::Debug for Pins<'_, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Pins").field(&self.frames()).finish()
    }
}

/// Pins one frame. One locked instruction, on the cache line of its state.
#[inline(always)]
pub(super) fn pin_one<M: Machine>(machine: &M, frame: Frame) -> bool {
    machine.step(SharedAccess::Other);
    // A frame with references begins a block, and one pin needs no more than that.
    let own = machine.info(frame).is_some_and(|info| info.try_pin(1));
    own || pin_block(machine, frame, 1).is_some()
}

/// The reason why a frame could not be pinned.
#[cold]
pub(super) fn why_not<M: Machine>(machine: &M, frame: Frame) -> PinOutcome {
    // A number in the range of the frame source may be of a device, too.
    match machine.info(frame) {
        Some(info) if info.is_memory() => PinOutcome::Not,
        _ => PinOutcome::NotMemory,
    }
}

/// Pins the block that contains `frame`, once for each of up to `most` of its frames from `frame`
/// on. Returns how many. One locked instruction, unless the frame lies within a block.
#[cold]
fn pin_block<M: Machine>(machine: &M, frame: Frame, most: usize) -> Option<usize> {
    machine.step(SharedAccess::Other);
    (0..=MAX_ORDER).find_map(|order| {
        let head = head_of(frame, order)?;
        let info = machine.info(head)?;
        // The order comes first: it limits the number of pins. It is read again after the pin,
        // since the block may have been freed, and other blocks allocated there, in between.
        let count = (left_in(head, info.order(), frame)?).min(most);
        machine.step(SharedAccess::Other);
        if !info.try_pin(count as u32) {
            return None;
        }
        if left_in(head, info.order(), frame).is_some_and(|left| left >= count) {
            return Some(count);
        }
        // SAFETY: just pinned, and never used.
        let _ = unsafe { machine.unpin(head, count as u32) };
        None
    })
}

/// Gives up one pin of each of these frames; consecutive frames of one block in one step.
///
/// # Safety
/// The caller holds these pins, from [`Pins::keep`], and will not use the frames' memory by them.
pub unsafe fn unpin<M: FrameSource + ?Sized>(machine: &M, frames: &[Frame]) {
    let mut rest = frames;
    while let Some((first, others)) = rest.split_first() {
        // The common case: a block of one frame.
        if let Some(info) = machine.info(*first)
            && info.order() == 0
            && info.pins() != 0
        {
            // SAFETY: promised by the caller.
            let done = unsafe { machine.unpin(*first, 1) };
            debug_assert!(done.is_ok(), "{done:?}");
            rest = others;
        } else {
            // SAFETY: promised by the caller.
            rest = unsafe { unpin_block(machine, *first, rest) };
        }
    }
}

/// Gives up the pins of the consecutive frames from `first` on that lie in its block, in one step.
/// Returns the other frames.
///
/// # Safety
/// As for [`unpin`].
#[cold]
unsafe fn unpin_block<'f, M: FrameSource + ?Sized>(
    machine: &M,
    first: Frame,
    frames: &'f [Frame],
) -> &'f [Frame] {
    // A pinned block stays a block, so this finds the one that was pinned.
    let block = (0..=MAX_ORDER).find_map(|order| {
        let head = head_of(first, order)?;
        let info = machine.info(head)?;
        let left = left_in(head, info.order(), first)?;
        (info.pins() != 0).then_some((head, left))
    });
    let Some((head, left)) = block else {
        debug_assert!(false, "frame {first} is not pinned");
        return &frames[1..];
    };
    let follow = frames.iter().zip(first.number()..).take(left);
    let count = follow.take_while(|(frame, number)| frame.number() == *number).count();
    // SAFETY: promised by the caller.
    let done = unsafe { machine.unpin(head, count as u32) };
    debug_assert!(done.is_ok(), "{done:?}");
    &frames[count..]
}
