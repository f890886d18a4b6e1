//! Quicklists: pages that are already as they have to be.
//!
//! A page table must be empty when it is linked, and is empty again when it is given up: everything
//! in it was unmapped. So clearing it for its next use does nothing, at the price of 64 cache
//! lines. A quicklist keeps such pages *in their constructed state* (I6), each CPU its own: taking
//! one is taking the head off a list that nobody else touches.
//!
//! # How it works
//! A list is a stack of frame numbers in this CPU's own lines (`stack`). So the pages themselves
//! are not touched at all, nor, to take one, the states of their frames. A page that comes from the
//! frame source is cleared, then its list's constructor runs; before a page goes back there, the
//! destructor does. In between the state is kept by those who use the page: they give it back as
//! they got it.
//!
//! A page of another node's memory is not kept, nor one for which a list is too long: they go back
//! to the frame source. [`trim`](QuickLists::trim) gives back more as memory gets short. When it
//! has given out, [`shortage`](QuickLists::shortage) asks all CPUs for all they have: by a flag in
//! the line of each list, which its CPU sees when it next gives a page, or at its timer interrupt
//! ([`tick`](QuickLists::tick)), or when it has taken the twelve that are nearest. Nobody reaches
//! into another CPU's list. A CPU that is about to be idle for long calls
//! [`drain`](QuickLists::drain) first: it would see nothing.
//!
//! # Why it is right
//! A list is changed by its own CPU only, with interrupts off: there is nothing that CPUs share but
//! the wish of one for the pages of another. (Others read the counts, which are atomic for their
//! sake.) A page is on one list, or is somebody's: it comes to a list from its one owner. On a list
//! it has [`Owner::Quick`], which a machine in software checks word by word.
//!
//! # Cost
//! Taking a page: an IRQ-off section and two cache lines, that of [`QuickLists`], which nobody
//! writes, and that of this CPU's list, and once in six times or so one more (`stack`); no atomic
//! read-modify-write, no allocation. What the page becomes is said by a store to the state of its
//! frame. Giving one: the line of the frame's state, and those that say where it is, besides.

mod lists;
mod stack;
mod stats;

pub use lists::TableLists;
pub use stats::QuickStats;
pub(crate) use stats::bump;

use alloc::boxed::Box;
use alloc::collections::TryReserveError;
use core::mem;
use core::sync::atomic::{AtomicU64, Ordering};
use machine::{Access, CpuId, CpuSet, ENTRIES, Frame, FrameError, Machine, Owner, PerCpu, Place};
use stats::{List, add};

/// How many lists there are.
pub const NR_QUICK: usize = 2;
/// The list of empty page tables, for all levels below the top.
pub const QUICK_TABLE: u8 = 0;
/// The list of top-level tables whose upper half is the kernel's.
pub const QUICK_ROOT: u8 = 1;

/// As many pages as a list keeps at most.
pub const QUICK_MAX: u32 = 252;
/// So many of them lie beside their number: what fits on the line.
const QUICK_NEAR: usize = 12;
/// One part in so many of the free memory may lie on the lists; see [`QuickLists::trim`].
pub const QUICK_FRACTION: usize = 16;

/// What the pages of a list are like.
///
/// ```
/// use paging::Construct;
/// /// Pages whose first word is 1.
/// struct First;
/// impl<M> Construct<M> for First {
///     fn construct(&self, _: &M, page: &mut [u64; 512]) {
///         page[0] = 1;
///     }
/// }
/// let mut page = [0; 512];
/// First.construct(&(), &mut page);
/// assert_eq!(page[0], 1);
/// ```
///
/// The trait is safe to implement: a page is a slice of words, and no unsafe code relies on what is
/// in the pages of lists that others construct. If a call panics, its page goes to the frame
/// source.
pub trait Construct<M>: Send + Sync {
    /// Makes a page, whose words are all 0, as those of the list are. It must neither allocate from
    /// the list nor sleep.
    fn construct(&self, machine: &M, page: &mut [u64; ENTRIES]) {
        let _ = (machine, page);
    }

    /// Called with a page in its constructed state, before it goes back to the frame source.
    fn destruct(&self, machine: &M, page: &mut [u64; ENTRIES]) {
        let _ = (machine, page);
    }
}

/// Pages that are all 0.
#[derive(Clone, Copy, Debug)]
pub struct Zeroed;

impl<M> Construct<M> for Zeroed {}

/// The lists of all CPUs of a machine.
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
///     // SAFETY: the page is as it was, and nobody else uses it.
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
/// Dropping it gives nothing back: [`drain`](QuickLists::drain) does, on each CPU.
#[repr(C, align(64))]
pub struct QuickLists<M: Machine> {
    // These two first: together on one line, if a handle of the machine is no larger than six
    // words.
    lists: PerCpu<[List; NR_QUICK]>,
    machine: M,
    kinds: [Box<dyn Construct<M>>; NR_QUICK],
}

impl<M: Machine> QuickLists<M> {
    /// Empty lists, with what the pages of each are like. Allocates.
    ///
    /// # Errors
    /// There is no memory for it.
    pub fn try_new(
        machine: M,
        kinds: [Box<dyn Construct<M>>; NR_QUICK],
    ) -> Result<Self, TryReserveError> {
        let lists = PerCpu::try_new(machine.count(), |_| Default::default())?;
        Ok(QuickLists { lists, machine, kinds })
    }

    /// The machine.
    #[inline]
    pub fn machine(&self) -> &M {
        &self.machine
    }

    /// Takes a page in its constructed state, of [`Owner::Quick`] still: the caller says what it
    /// becomes. Any context.
    ///
    /// # Errors
    /// [`FrameError::OutOfFrames`]: this CPU's list is empty, and so is the frame source. What
    /// other lists and other CPUs have is not looked at: [`shortage`](QuickLists::shortage) does,
    /// and then it is worth trying again.
    ///
    /// # Panics
    /// There is no such list.
    #[inline]
    pub fn alloc(&self, list: u8) -> Result<Frame, FrameError> {
        match self.with(list, |list| list.stack.pop_near(|| self.machine.step(Access::Shared))) {
            Some(Some(page)) => Ok(frame(page)),
            _ => self.alloc_slowly(list),
        }
    }

    /// No page is near. Those that are far come, or go if they are asked for: this CPU may not have
    /// given one for long.
    #[cold]
    fn alloc_slowly(&self, list: u8) -> Result<Frame, FrameError> {
        let taken = self.with(list, |list| {
            let stay = !list.stack.is_asked();
            stay.then(|| list.stack.pop(|| self.machine.step(Access::Shared))).flatten()
        });
        if let Some(Some(page)) = taken {
            return Ok(frame(page));
        }
        self.give_if_asked(list);
        self.make(list)
    }

    /// Gives a page back, in its constructed state. Any context.
    ///
    /// # Errors
    /// [`FrameError::NotOurs`], [`FrameError::NotAllocated`].
    ///
    /// # Panics
    /// There is no such list.
    ///
    /// # Safety
    /// The page came from [`alloc`](QuickLists::alloc) of the same list, is as it was then (I6),
    /// and nobody will use it: no pointer, no translation, no walk (I3).
    #[inline]
    pub unsafe fn free(&self, list: u8, frame: Frame) -> Result<(), FrameError> {
        let machine = self.machine();
        let info = machine.info(frame).ok_or(FrameError::NotOurs(frame))?;
        if info.refs() == 0 {
            return Err(FrameError::NotAllocated(frame));
        }
        // SAFETY: the frame is ours now. Relaxed: as that. A table that was unlinked has left word
        // of that.
        unsafe { info.word() }.store(0, Ordering::Relaxed);
        // SAFETY: the caller's promise: it is ours now, and in its constructed state.
        unsafe { machine.set_owner(frame, Owner::Quick(list)) }?;
        let near = info.node() == machine.local_node();
        let kept = match u32::try_from(frame.number()) {
            Ok(number) if near => self.with(list, |list| {
                let kept = list.stack.push(number, || machine.step(Access::Shared));
                if kept {
                    bump(&list.kept);
                }
                kept
            }),
            // Memory beyond 16 TiB is not kept.
            _ => None,
        };
        if kept == Some(true) { Ok(()) } else { self.refuse(list, frame, near) }
    }

    /// A page goes to the frame source instead of the list: it is another node's, the list is full,
    /// or asked for.
    #[cold]
    fn refuse(&self, list: u8, frame: Frame, near: bool) -> Result<(), FrameError> {
        let why = |list: &List| match (near, list.stack.is_asked()) {
            (false, _) => bump(&list.remote),
            (true, false) => bump(&list.full),
            (true, true) => bump(&list.given),
        };
        self.with(list, why);
        self.give_back(list, frame)?;
        self.give_if_asked(list);
        Ok(())
    }

    /// Gives pages of this CPU's list back to the frame source, `most` at most, as long as the list
    /// is longer than its share: one part in [`QUICK_FRACTION`] of the free frames, divided among
    /// the CPUs, but `least` in any case. Returns how many.
    ///
    /// Call it now and then on each CPU: from its timer, from its idle loop, after an address space
    /// is gone. Off any fast path: it reads a line of each CPU.
    ///
    /// # Panics
    /// There is no such list.
    pub fn trim(&self, list: u8, least: usize, most: usize) -> usize {
        let machine = self.machine();
        let share = machine.free_frames() / QUICK_FRACTION / machine.count();
        let keep = share.max(least);
        let excess = self.len(list).saturating_sub(keep).min(most);
        self.take_back(list, excess, |list| Some(&list.trimmed))
    }

    /// Gives back what other CPUs have asked for, if they have: for each CPU's timer interrupt. One
    /// load for each list when nobody has. Returns how many pages.
    pub fn tick(&self) -> usize {
        (0..NR_QUICK as u8).map(|list| self.give_if_asked(list)).sum()
    }

    /// Memory has given out: gives all pages of this CPU's lists back, and asks the other CPUs for
    /// theirs. Returns those that have some. Does not wait; any context. It reads two lines of each
    /// CPU for each list, and writes one of those that have pages.
    pub fn shortage(&self) -> CpuSet {
        self.drain();
        let here = {
            let _section = self.machine.irqs_off();
            self.machine.current()
        };
        let mut asked = CpuSet::EMPTY;
        for (lists, number) in self.lists.iter().zip(0..) {
            let Some(cpu) = CpuId::new(number).filter(|cpu| *cpu != here) else { continue };
            // All of them are asked.
            if lists.iter().filter(|list| list.stack.ask()).count() != 0 {
                asked.insert(cpu);
            }
        }
        asked
    }

    /// If another CPU has asked for this CPU's pages, they go.
    #[cold]
    fn give_if_asked(&self, list: u8) -> usize {
        if self.with(list, |list| list.stack.answer()) != Some(true) {
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

    /// Takes so many pages off this CPU's list, and gives them to the frame source; `count` is what
    /// they are counted as, if they are.
    fn take_back(&self, list: u8, most: usize, count: fn(&List) -> Option<&AtomicU64>) -> usize {
        let pop = |list: &List| list.stack.pop(|| self.machine.step(Access::Shared));
        let pages = (0..most).map_while(|_| self.with(list, pop).flatten());
        let gone = pages.filter(|page| self.give_back(list, frame(*page)).is_ok()).count();
        self.with(list, |list| {
            for of in [Some(&list.left), count(list)].into_iter().flatten() {
                add(of, gone);
            }
        });
        gone
    }

    /// What has been counted on all CPUs, of one list.
    ///
    /// # Panics
    /// There is no such list.
    pub fn stats(&self, list: u8) -> QuickStats {
        self.lists.iter().map(|lists| lists[usize::from(list)].stats()).sum()
    }

    /// This CPU's list, with interrupts off.
    #[inline]
    fn with<R>(&self, list: u8, f: impl FnOnce(&List) -> R) -> Option<R> {
        let _section = self.machine.irqs_off();
        Some(f(&self.lists.get(self.machine.current())?[usize::from(list)]))
    }

    /// A page from the frame source.
    #[cold]
    fn make(&self, list: u8) -> Result<Frame, FrameError> {
        let kind = &self.kinds[usize::from(list)];
        let machine = self.machine();
        let frame = machine.alloc(0, Place::Local)?;
        // Until it is a page of the list.
        let going = Going { machine, frame };
        let page = machine.frame_ptr(frame).ok_or(FrameError::NotOurs(frame))?;
        // SAFETY: the frame was just allocated: its memory is nobody else's. All words of 0 are a
        // valid page of words.
        let page = unsafe {
            page.write_bytes(0, 4096);
            page.cast::<[u64; ENTRIES]>().as_mut()
        };
        kind.construct(machine, page);
        machine.note_constructed(frame, list);
        // SAFETY: it was just allocated, and constructed.
        unsafe { machine.set_owner(frame, Owner::Quick(list)) }?;
        mem::forget(going);
        self.with(list, |list| bump(&list.made));
        Ok(frame)
    }

    /// A page goes to the frame source.
    #[cold]
    fn give_back(&self, list: u8, frame: Frame) -> Result<(), FrameError> {
        let machine = self.machine();
        let page = machine.frame_ptr(frame).ok_or(FrameError::NotOurs(frame))?;
        let going = Going { machine, frame };
        // SAFETY: nobody uses the page any more; it holds words.
        let words = unsafe { page.cast::<[u64; ENTRIES]>().as_mut() };
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
        // SAFETY: nobody uses the page any more. Released, not freed: a walk without a lock may
        // have mistaken it for a page, and hold a reference for as long as it takes to see the
        // mistake.
        unsafe { machine.release(*frame) }.map(drop)
    }
}

impl<M: Machine> Drop for Going<'_, M> {
    fn drop(&mut self) {
        let _ = Going { machine: self.machine, frame: self.frame }.go();
    }
}

/// The frame with a number that came from a list.
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
