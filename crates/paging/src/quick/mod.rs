//! Quicklists: per-CPU lists of pages that are already in their constructed state.
//!
//! A page table must be empty when it is linked, and is empty again when it is given up, since all
//! its entries were unmapped. To clear it for its next use would change nothing, and touch 64 cache
//! lines. A quicklist keeps such pages *in their constructed state* (I6), for each CPU. To take a
//! page is to pop it from a list that no other CPU touches.
//!
//! # How it works
//! A list is a stack of frame numbers in cache lines of this CPU (`stack`). The pages themselves
//! are not touched, nor, on the way out, the states of their frames. A page from the frame source
//! is cleared, and then its list's constructor runs. Before a page goes back to the frame source,
//! the destructor runs. In between, the users of the page preserve the state: they give it back as
//! they got it.
//!
//! A page of another node's memory is not kept, nor is a page for which the list is too long. Both
//! go back to the frame source. [`trim`](QuickLists::trim) gives back more pages as memory gets
//! short. When the frame source is empty, [`shortage`](QuickLists::shortage) asks all CPUs for all
//! their pages, by a flag in the cache line of each list. A CPU sees the flag when it next gives a
//! page back, at its timer interrupt ([`tick`](QuickLists::tick)), or when it has taken the twelve
//! nearest pages. No CPU accesses another CPU's list. A CPU that is about to be idle for long calls
//! [`drain`](QuickLists::drain) first, since it would not see the flag.
//!
//! # Why it is right
//! - Only its own CPU changes a list, with interrupts disabled. CPUs share nothing but the request
//!   flag. (Other CPUs also read the counts, which are atomic for that purpose.)
//! - A page is on one list or has one owner; it comes to a list from that owner. On a list it has
//!   [`Owner::Quick`], and the machine in software (`sim`) checks each word of such a page.
//!
//! # Cost
//! - Taking a page: a section with interrupts disabled and two cache lines: that of [`QuickLists`],
//!   which is only read, and that of this CPU's list. About once in six times, one more line
//!   (`stack`). No atomic read-modify-write, no allocation. The caller then stores the page's new
//!   owner to the state of its frame.
//! - Giving a page back: the same, and the cache lines of the frame's state and of the lookup
//!   that finds it.

mod lists;
mod stack;
mod stats;

pub use lists::TableLists;
pub use stats::QuickStats;
pub(crate) use stats::bump;

use alloc::boxed::Box;
use alloc::collections::TryReserveError;
use core::mem;
use core::ptr::NonNull;
use core::slice;
use core::sync::atomic::{AtomicU64, Ordering};
use machine::{
    Checker, CpuId, CpuSet, ENTRIES, Frame, FrameError, Machine, NodePolicy, Owner, PerCpu,
    SharedAccess,
};
use stats::{List, add};

/// The number of lists.
pub const NR_QUICK: usize = 2;
/// The list of empty page tables, for all levels below the top.
pub const QUICK_TABLE: u8 = 0;
/// The list of top-level tables whose upper half is the kernel's.
pub const QUICK_ROOT: u8 = 1;

/// The most pages that a list keeps. With a granule of 64 KiB these are 16 MiB.
pub const QUICK_MAX: u32 = 252;
/// The number of pages next to the length word, on the same cache line.
const QUICK_NEAR: usize = 12;
/// The divisor that limits the lists' share of free memory; see [`QuickLists::trim`].
pub const QUICK_FRACTION: usize = 16;

/// The constructed state of a list's pages, which are 512 words, or more if tables are larger.
///
/// ```
/// use paging::Construct;
/// /// Pages whose first word is 1.
/// struct First;
/// impl<M> Construct<M> for First {
///     fn construct(&self, _: &M, page: &mut [u64]) {
///         page[0] = 1;
///     }
/// }
/// let mut page = [0; 512];
/// First.construct(&(), &mut page);
/// assert_eq!(page[0], 1);
/// ```
///
/// The trait is safe to implement: a page is a slice of words, and no unsafe code relies on the
/// contents of pages that a foreign constructor made. If a call panics, its page goes to the frame
/// source.
pub trait Construct<M>: Send + Sync {
    /// Puts a page of zero words into the constructed state. Must neither allocate from the list
    /// nor sleep.
    fn construct(&self, machine: &M, page: &mut [u64]) {
        let _ = (machine, page);
    }

    /// Called with a page in its constructed state, before it goes back to the frame source.
    fn destruct(&self, machine: &M, page: &mut [u64]) {
        let _ = (machine, page);
    }
}

/// The constructed state of all-zero pages.
#[derive(Clone, Copy, Debug)]
pub struct Zeroed;

impl<M> Construct<M> for Zeroed {}

/// The quicklists of all CPUs of a machine.
///
/// ```
/// use machine::{FrameSource, Owner};
/// use paging::{QUICK_TABLE, QuickLists, Zeroed};
/// use sim::{Config, Sim};
///
/// let sim = Sim::new(Config::default()).unwrap();
/// let lists = QuickLists::try_new(sim.clone(), [Box::new(Zeroed), Box::new(Zeroed)]).unwrap();
/// sim.on_cpu(0, || {
///     let page = lists.alloc(QUICK_TABLE).unwrap();
///     // SAFETY: the page is ours, and an empty table.
///     unsafe { sim.set_owner(page, Owner::Table(0)) }.unwrap();
///     // SAFETY: the page is in its constructed state, and has no other user.
///     unsafe { lists.free(QUICK_TABLE, page) }.unwrap();
///     assert_eq!(lists.alloc(QUICK_TABLE), Ok(page));
///     unsafe { lists.free(QUICK_TABLE, page) }.unwrap();
///     assert_eq!(lists.trim(QUICK_TABLE, 0, usize::MAX), 0, "there is plenty");
/// });
/// assert_eq!((lists.stats(QUICK_TABLE).made, lists.stats(QUICK_TABLE).taken), (1, 1));
/// sim.on_cpu(0, || assert_eq!(lists.drain(), 1));
/// assert!(sim.check_leaks().is_ok());
/// ```
///
/// Dropping it gives no page back; [`drain`](QuickLists::drain) does, on each CPU.
///
/// # Misuse
/// The number of a list that does not exist panics.
#[repr(C, align(64))]
pub struct QuickLists<M: Machine> {
    // These two first: they share a cache line if a handle of the machine has at most six words.
    lists: PerCpu<[List; NR_QUICK]>,
    machine: M,
    kinds: [Box<dyn Construct<M>>; NR_QUICK],
    /// The order of a page's block of frames.
    order: u8,
}

impl<M: Machine> QuickLists<M> {
    /// Makes empty lists of pages of one frame, with the constructor of each. Allocates.
    ///
    /// # Errors
    /// There is not enough heap memory.
    pub fn try_new(
        machine: M,
        kinds: [Box<dyn Construct<M>>; NR_QUICK],
    ) -> Result<Self, TryReserveError> {
        Self::try_with_order(machine, 0, kinds)
    }

    /// As [`try_new`](Self::try_new), of pages that are blocks of `1 << order` frames. A page has
    /// the number of its first frame, whose state is the page's. If the frame source has no blocks
    /// of this order, [`alloc`](Self::alloc) fails.
    ///
    /// # Errors
    /// There is not enough heap memory.
    pub fn try_with_order(
        machine: M,
        order: u8,
        kinds: [Box<dyn Construct<M>>; NR_QUICK],
    ) -> Result<Self, TryReserveError> {
        let lists = PerCpu::try_new(machine.count(), |_| Default::default())?;
        Ok(QuickLists { lists, machine, kinds, order })
    }

    /// Whether the frame source has a page, at this moment. With an order of 0 a load; otherwise it
    /// is tried.
    pub(crate) fn has_page(&self) -> bool {
        match self.order {
            0 => self.machine.free_frames() != 0,
            order => match self.machine.alloc(order, NodePolicy::Local) {
                // SAFETY: it is ours, and nothing uses it.
                Ok(frame) => unsafe { self.machine.release(frame) }.is_ok(),
                Err(_) => false,
            },
        }
    }

    /// The machine.
    #[inline]
    pub fn machine(&self) -> &M {
        &self.machine
    }

    /// Takes a page in its constructed state. It still has [`Owner::Quick`]: the caller sets its
    /// new owner. Allowed in any context.
    ///
    /// # Errors
    /// [`FrameError::OutOfFrames`]: this CPU's list and the frame source are both empty. Other
    /// lists and other CPUs are not asked. To ask them, call [`shortage`](QuickLists::shortage),
    /// then try again.
    ///
    /// # Panics
    /// There is no such list.
    #[inline]
    pub fn alloc(&self, list: u8) -> Result<Frame, FrameError> {
        match self.with(list, |list| list.stack.pop_near(|| self.machine.step(SharedAccess::Other)))
        {
            Some(Some(page)) => Ok(frame(page)),
            _ => self.alloc_slowly(list),
        }
    }

    /// No near page is left. Takes a far page, or gives all of them back if another CPU has
    /// requested them: this CPU may not have freed a page for a long time, and so not have seen the
    /// request.
    #[cold]
    fn alloc_slowly(&self, list: u8) -> Result<Frame, FrameError> {
        let taken = self.with(list, |list| {
            let stay = !list.stack.is_requested();
            stay.then(|| list.stack.pop(|| self.machine.step(SharedAccess::Other))).flatten()
        });
        if let Some(Some(page)) = taken {
            return Ok(frame(page));
        }
        self.give_if_requested(list);
        self.make(list)
    }

    /// Gives a page back, in its constructed state. Allowed in any context.
    ///
    /// # Errors
    /// [`FrameError::NotOurs`], [`FrameError::NotAllocated`].
    ///
    /// # Panics
    /// There is no such list.
    ///
    /// # Safety
    /// The page came from [`alloc`](QuickLists::alloc) of the same list, and is in the same state
    /// as then (I6). Nothing uses it any more: no pointer, no translation, no walk (I3).
    #[inline]
    pub unsafe fn free(&self, list: u8, frame: Frame) -> Result<(), FrameError> {
        let machine = self.machine();
        let info = machine.info(frame).ok_or(FrameError::NotOurs(frame))?;
        if info.refs() == 0 {
            return Err(FrameError::NotAllocated(frame));
        }
        // SAFETY: the frame is ours now. Relaxed for the same reason. An unlinked table has left
        // its dead flag in the word.
        unsafe { info.word() }.store(0, Ordering::Relaxed);
        // SAFETY: promised by the caller: it is ours now, and in its constructed state.
        unsafe { machine.set_owner(frame, Owner::Quick(list)) }?;
        let near = info.node() == machine.local_node();
        let kept = match u32::try_from(frame.number()) {
            Ok(number) if near => self.with(list, |list| {
                let kept = list.stack.push(number, || machine.step(SharedAccess::Other));
                if kept {
                    bump(&list.kept);
                }
                kept
            }),
            // Frame numbers beyond 32 bits (16 TiB of memory) are not kept.
            _ => None,
        };
        if kept == Some(true) { Ok(()) } else { self.refuse(list, frame, near) }
    }

    /// Sends a page to the frame source instead of the list: it is of another node, or the list is
    /// full, or another CPU has requested the list's pages.
    #[cold]
    fn refuse(&self, list: u8, frame: Frame, near: bool) -> Result<(), FrameError> {
        let why = |list: &List| match (near, list.stack.is_requested()) {
            (false, _) => bump(&list.remote),
            (true, false) => bump(&list.full),
            (true, true) => bump(&list.given),
        };
        self.with(list, why);
        self.give_back(list, frame)?;
        self.give_if_requested(list);
        Ok(())
    }

    /// Gives at most `most` pages of this CPU's list back to the frame source, while the list is
    /// longer than its share. The share is the number of pages that the free frames make, divided
    /// by [`QUICK_FRACTION`] and by the number of CPUs, but at least `least`. Returns how many
    /// pages were given back.
    ///
    /// Call it now and then on each CPU: from its timer, from its idle loop, after an address space
    /// has ended. Not for a fast path: it reads a cache line of each CPU.
    ///
    /// # Panics
    /// There is no such list.
    pub fn trim(&self, list: u8, least: usize, most: usize) -> usize {
        let machine = self.machine();
        // No memory has a page of an order beyond the bits of a number.
        let pages = machine.free_frames().checked_shr(self.order.into()).unwrap_or(0);
        let share = pages / QUICK_FRACTION / machine.count();
        let keep = share.max(least);
        let excess = self.len(list).saturating_sub(keep).min(most);
        self.take_back(list, excess, |list| Some(&list.trimmed))
    }

    /// Gives back this CPU's pages if another CPU has requested them. For the timer interrupt of
    /// each CPU. Costs one load for each list if there is no request. Returns the number of pages
    /// given back.
    pub fn tick(&self) -> usize {
        (0..NR_QUICK as u8).map(|list| self.give_if_requested(list)).sum()
    }

    /// Call when memory has run out: gives all pages of this CPU's lists back, and asks the other
    /// CPUs for theirs. Returns the CPUs that have some. Does not wait; allowed in any context. For
    /// each list, reads two cache lines of each CPU, and writes one of those that have pages.
    pub fn shortage(&self) -> CpuSet {
        self.drain();
        let here = {
            let _section = self.machine.irqs_off();
            self.machine.current()
        };
        let mut asked = CpuSet::EMPTY;
        for (lists, number) in self.lists.iter().zip(0..) {
            let Some(cpu) = CpuId::new(number).filter(|cpu| *cpu != here) else { continue };
            // `count`, not `any`: each list gets the request.
            if lists.iter().filter(|list| list.stack.request()).count() != 0 {
                asked.insert(cpu);
            }
        }
        asked
    }

    /// Gives this CPU's pages back if another CPU has requested them.
    #[cold]
    fn give_if_requested(&self, list: u8) -> usize {
        if self.with(list, |list| list.stack.take_request()) != Some(true) {
            return 0;
        }
        self.take_back(list, usize::MAX, |list| Some(&list.given))
    }

    /// Gives all pages of this CPU's lists back. Returns how many.
    pub fn drain(&self) -> usize {
        (0..NR_QUICK as u8).map(|list| self.take_back(list, usize::MAX, |_| None)).sum()
    }

    /// The length of this CPU's list.
    ///
    /// # Panics
    /// There is no such list.
    pub fn len(&self, list: u8) -> usize {
        self.with(list, |list| list.stack.len() as usize).unwrap_or(0)
    }

    /// Whether this CPU has no page on any list.
    pub fn is_empty(&self) -> bool {
        (0..NR_QUICK as u8).all(|list| self.len(list) == 0)
    }

    /// Moves at most `most` pages from this CPU's list to the frame source. `count` selects the
    /// statistic, if there is one.
    fn take_back(&self, list: u8, most: usize, count: fn(&List) -> Option<&AtomicU64>) -> usize {
        let pop = |list: &List| list.stack.pop(|| self.machine.step(SharedAccess::Other));
        let pages = (0..most).map_while(|_| self.with(list, pop).flatten());
        let gone = pages.filter(|page| self.give_back(list, frame(*page)).is_ok()).count();
        self.with(list, |list| {
            for of in [Some(&list.left), count(list)].into_iter().flatten() {
                add(of, gone);
            }
        });
        gone
    }

    /// The statistics of one list, summed over all CPUs.
    ///
    /// # Panics
    /// There is no such list.
    pub fn stats(&self, list: u8) -> QuickStats {
        self.lists.iter().map(|lists| lists[usize::from(list)].stats()).sum()
    }

    /// Calls `f` with this CPU's list, with interrupts disabled.
    #[inline]
    fn with<R>(&self, list: u8, f: impl FnOnce(&List) -> R) -> Option<R> {
        let _section = self.machine.irqs_off();
        Some(f(&self.lists.get(self.machine.current())?[usize::from(list)]))
    }

    /// Makes a page from a frame of the frame source.
    #[cold]
    fn make(&self, list: u8) -> Result<Frame, FrameError> {
        let kind = &self.kinds[usize::from(list)];
        let machine = self.machine();
        let frame = machine.alloc(self.order, NodePolicy::Local)?;
        // Frees the frame on an early return or a panic.
        let going = Going { machine, frame };
        let page = machine.frame_ptr(frame).ok_or(FrameError::NotOurs(frame))?;
        // SAFETY: the block was just allocated, so its memory is ours alone: consecutive frames.
        // Zero words are a valid page of words.
        let page = unsafe {
            page.write_bytes(0, 4096 << self.order);
            self.words(page)
        };
        kind.construct(machine, page);
        machine.checker().note_constructed(frame, list);
        // SAFETY: it was just allocated, and constructed.
        unsafe { machine.set_owner(frame, Owner::Quick(list)) }?;
        mem::forget(going);
        self.with(list, |list| bump(&list.made));
        Ok(frame)
    }

    /// The words of a page.
    ///
    /// # Safety
    /// The page has no other user while `'p` lasts, and holds words.
    unsafe fn words<'p>(&self, page: NonNull<u8>) -> &'p mut [u64] {
        // SAFETY: a block of this order, by the caller's promise.
        unsafe { slice::from_raw_parts_mut(page.cast().as_ptr(), ENTRIES << self.order) }
    }

    /// Returns a page to the frame source.
    #[cold]
    fn give_back(&self, list: u8, frame: Frame) -> Result<(), FrameError> {
        let machine = self.machine();
        let page = machine.frame_ptr(frame).ok_or(FrameError::NotOurs(frame))?;
        let going = Going { machine, frame };
        // SAFETY: the page has no other user; it holds words.
        let words = unsafe { self.words(page) };
        self.kinds[usize::from(list)].destruct(machine, words);
        going.go()
    }
}

/// A frame that goes to the frame source when this is dropped, also when a constructor or
/// destructor panics.
struct Going<'m, M: Machine> {
    machine: &'m M,
    frame: Frame,
}

impl<M: Machine> Going<'_, M> {
    fn go(self) -> Result<(), FrameError> {
        let Going { machine, frame } = &*mem::ManuallyDrop::new(self);
        // SAFETY: the page has no user any more. It is released, not freed: a lock-free pin may
        // have mistaken it for a mapped page, and hold a reference until it sees the mistake.
        unsafe { machine.release(*frame) }.map(drop)
    }
}

impl<M: Machine> Drop for Going<'_, M> {
    fn drop(&mut self) {
        let _ = Going { machine: self.machine, frame: self.frame }.go();
    }
}

/// The frame with a number from a list.
#[inline(always)]
fn frame(number: u32) -> Frame {
    const { assert!(Frame::new(u32::MAX as u64).is_some()) };
    Frame::new(number.into()).unwrap_or_default()
}

impl<M: Machine> core::fmt::Debug for QuickLists<M> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("QuickLists")
    }
}
