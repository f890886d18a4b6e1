//! An area: one mapping, as the tree holds it, and its record, which is used again.
//!
//! What becomes of an area is one word, of which the lowest bits are its state and the others count
//! how often the record was used:
//!
//! ```text
//!           .--> Mapping --> Live --> Unmapping --> Waiting --.
//!           |       |          |          ^            ^      |
//!         Ready     |          `-> PendingFree-'            |      |
//!           ^       `----------------------------------'      |
//!           `-------------------------------------------------'
//! ```
//!
//! *Ready*: nothing is mapped, and nobody holds a translation of its addresses; it is being made,
//! or kept to be used again. *Mapping*: its pages are being mapped. *Live*: it is the caller's.
//! *PendingFree*: freed in an interrupt, and to be unmapped later. *Unmapping*: whoever changed it
//! to that takes its pages out, and nobody else does: so a second unmapping finds that it came too
//! late. *Waiting*: its pages are gone, its addresses wait for a TLB grace period, in its zone's
//! queue.
//!
//! # Why it is right
//! Who has an area to himself ([`Ours`]) is who made it, who changed its state from Live, and whose
//! list it is on, one after the other; it leaves the tree by his hand only, so the record stays as
//! long as he has it. Who looks on has a guard: then a record that leaves the tree stays too.
//!
//! The record's words are written while it is Ready, after the count has gone up. Who looks on
//! reads the first word, the others, and the first again: if the count is the same, and it was not
//! Ready, all that was read is of one mapping. (The writer's fence and the reader's pair: who reads
//! a word of the next mapping reads its count.)
//!
//! # Where it lies
//! A record has two cache lines to itself, a pair of those that processors fetch together: 128
//! bytes, of which 96 are used. Who lists areas takes lines from the CPU that will write them next.
//! If records shared lines, or pairs, with each other, how many that are would be left to the heap,
//! and a writer loses several times as much to a reader.

use crate::block::Bits;
use crate::error::Culprit;
use crate::sync::{AtomicPtr, AtomicU8, AtomicU64, AtomicUsize, Ordering, fence};
use crate::vmap::PAGE;
use alloc::boxed::Box;
#[cfg(not(loom))]
use core::mem::offset_of;
use core::ops::Deref;
use core::panic::Location;
use core::ptr::{self, NonNull};
use machine::{PhysAddr, VirtAddr, VirtRange};
use maple::Counted;

/// By which call an area was made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Made {
    /// [`Vmap::vmap`](crate::Vmap::vmap).
    Vmap,
    /// [`Vmap::vm_map_ram`](crate::Vmap::vm_map_ram), where it was too large for a block.
    Ram,
    /// [`Vmap::vmalloc`](crate::Vmap::vmalloc) and its like.
    Vmalloc,
    /// [`Vmap::ioremap`](crate::Vmap::ioremap).
    Ioremap,
    /// It is a block, of which [`Vmap::vm_map_ram`](crate::Vmap::vm_map_ram) takes small runs.
    Block,
}

impl Made {
    const ALL: [Made; 5] = [Made::Vmap, Made::Ram, Made::Vmalloc, Made::Ioremap, Made::Block];
}

/// What becomes of an area.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum State {
    /// Nothing is mapped there, and nobody holds a translation of it; not listed.
    Ready,
    /// Its pages are being mapped.
    Mapping,
    /// It is in use.
    Live,
    /// It was freed in an interrupt, and will be unmapped.
    PendingFree,
    /// Its pages are being unmapped.
    Unmapping,
    /// It was unmapped, and its addresses wait for a TLB grace period.
    Waiting,
}

impl State {
    const ALL: [State; 6] = [
        State::Ready,
        State::Mapping,
        State::Live,
        State::PendingFree,
        State::Unmapping,
        State::Waiting,
    ];
}

/// The bits of a word that are the state.
const STATE: u64 = 7;
/// One use of the record.
const USE: u64 = STATE + 1;

/// What an area is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct What {
    pub(crate) made: Made,
    /// Pages that are mapped.
    pub(crate) pages: usize,
    /// Bytes that were asked for.
    pub(crate) bytes: u64,
    /// The first byte of a physical range that it maps.
    pub(crate) phys: Option<PhysAddr>,
    pub(crate) caller: Option<&'static Location<'static>>,
}

impl What {
    pub(crate) fn new(
        made: Made,
        pages: usize,
        bytes: u64,
        caller: &'static Location<'static>,
    ) -> What {
        let known = cfg!(any(feature = "listing", debug_assertions));
        What { made, pages, bytes, phys: None, caller: known.then_some(caller) }
    }

    /// Whether it was made by this call: what unmaps it asks so. Nothing is said of the pages.
    pub(crate) fn is(self, made: Made) -> Result<(), Option<usize>> {
        if self.made == made { Ok(()) } else { Err(None) }
    }
}

/// Bytes of a cache line.
const LINE: usize = 64;

/// Two lines, which processors fetch together: what a record has to itself.
#[repr(align(128))]
pub(crate) struct Lines;

/// A record, as a tree holds it: nothing else lies on its lines. What readers look at is on the
/// first, with the count of its users; on the second is what only those have to do with who have
/// the area.
pub(crate) type Record = Counted<Area, Lines>;
#[cfg(all(target_pointer_width = "64", not(loom)))]
const _: () = {
    assert!(size_of::<usize>() + offset_of!(Area, start) == LINE);
    assert!(size_of::<usize>() + size_of::<Area>() <= align_of::<Lines>());
};

/// No physical range.
const NO_PHYS: u64 = u64::MAX;

/// The record of an area, in a [`Record`].
#[repr(C)]
pub(crate) struct Area {
    word: AtomicU64,
    /// Of a block.
    bits: Option<Box<Bits>>,
    made: AtomicU8,
    pages: AtomicUsize,
    bytes: AtomicU64,
    phys: AtomicU64,
    caller: AtomicPtr<Location<'static>>,
    /// Its addresses, with its guard page: what the tree says too.
    start: AtomicU64,
    len: AtomicU64,
    /// The period that it waits for.
    target: AtomicU64,
    /// The next in the list that it is on.
    next: AtomicPtr<Area>,
}

impl Area {
    pub(crate) fn new(bits: Option<Box<Bits>>) -> Area {
        Area {
            word: AtomicU64::new(State::Ready as u64),
            bits,
            made: AtomicU8::new(0),
            pages: AtomicUsize::new(0),
            bytes: AtomicU64::new(0),
            phys: AtomicU64::new(NO_PHYS),
            caller: AtomicPtr::new(ptr::null_mut()),
            start: AtomicU64::new(0),
            len: AtomicU64::new(0),
            target: AtomicU64::new(0),
            next: AtomicPtr::new(ptr::null_mut()),
        }
    }

    pub(crate) fn bits(&self) -> Option<&Bits> {
        self.bits.as_deref()
    }

    pub(crate) fn state(&self) -> State {
        // Acquire: pairs with `set`: who sees an area live sees its pages mapped.
        state_of(self.word.load(Ordering::Acquire))
    }

    /// What it is for, and what has become of it; `None` if nothing is mapped there, or if it
    /// becomes another again and again.
    pub(crate) fn look(&self) -> Option<(What, State)> {
        for _ in 0..8 {
            // Acquire: pairs with the Release of `set` that followed the writing.
            let word = self.word.load(Ordering::Acquire);
            if state_of(word) == State::Ready {
                return None;
            }
            let what = self.what();
            // Acquire: what was read comes before the second look; pairs with the fence of
            // `prepare`.
            fence(Ordering::Acquire);
            // Relaxed: the fence orders it.
            if self.word.load(Ordering::Relaxed) / USE == word / USE {
                return Some((what, state_of(word)));
            }
        }
        None
    }

    /// Relaxed, all: ordered by the two looks at the word.
    fn what(&self) -> What {
        let phys = self.phys.load(Ordering::Relaxed);
        let caller = NonNull::new(self.caller.load(Ordering::Relaxed));
        What {
            made: Made::ALL[usize::from(self.made.load(Ordering::Relaxed))],
            pages: self.pages.load(Ordering::Relaxed),
            bytes: self.bytes.load(Ordering::Relaxed),
            phys: (phys != NO_PHYS).then_some(PhysAddr::new(phys)),
            // SAFETY: it was made of a `&'static`.
            caller: caller.map(|caller| unsafe { caller.as_ref() }),
        }
    }

    /// From live to what the caller makes of it, for one caller: then the area is his. Else an
    /// error by what the area is instead. `is_right` looks at what it is for.
    pub(crate) fn claim<E>(
        &self,
        to: State,
        is_right: impl FnOnce(What) -> Result<(), E>,
        not_live: impl FnOnce(State) -> E,
    ) -> Result<What, E> {
        // Acquire: as in `look`.
        let word = self.word.load(Ordering::Acquire);
        let what = self.what();
        is_right(what)?;
        if state_of(word) != State::Live {
            return Err(not_live(state_of(word)));
        }
        // Acquire: what was done to the area before. If the word is the same then so is what was
        // read. Relaxed on failure: it is only reported.
        let to = word & !STATE | to as u64;
        match self.word.compare_exchange(word, to, Ordering::Acquire, Ordering::Relaxed) {
            Ok(_) => Ok(what),
            Err(word) => Err(not_live(state_of(word))),
        }
    }

    /// Of what the caller is told whose call this was.
    pub(crate) fn culprit(&self, at: VirtAddr, start: VirtAddr) -> Culprit {
        Culprit { at, start, by: self.look().and_then(|(what, _)| what.caller) }
    }
}

fn state_of(word: u64) -> State {
    State::ALL[((word & STATE) as usize).min(State::ALL.len() - 1)]
}

/// An area that somebody has to himself.
///
/// It is in its tree until he takes it out there: so its record is there.
#[derive(Clone, Copy)]
pub(crate) struct Ours(NonNull<Area>);

// SAFETY: it is a reference to what all CPUs may look at.
unsafe impl Send for Ours {}
// SAFETY: as above.
unsafe impl Sync for Ours {}

impl Deref for Ours {
    type Target = Area;

    fn deref(&self) -> &Area {
        // SAFETY: the promise of `of`.
        unsafe { self.0.as_ref() }
    }
}

impl Ours {
    /// # Safety
    /// The caller has made the area, or claimed it, and nobody else has: so as long as this is used
    /// the area is in its tree.
    pub(crate) unsafe fn of(area: &Area) -> Ours {
        Ours(NonNull::from(area))
    }

    /// Asks for the lines of the record, to be written soon. A hint; it waits for nothing.
    ///
    /// In assembly, since no intrinsic asks for writing unless the build is for processors that are
    /// known to have the instruction; on one that has not, it does nothing.
    #[inline]
    pub(crate) fn bring_near(self) {
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        for at in [0, LINE] {
            // SAFETY: a hint, whatever the address: it changes nothing that a program sees.
            unsafe {
                core::arch::asm!(
                    "prefetchw byte ptr [{}]",
                    in(reg) self.0.addr().get() + at,
                    options(nomem, nostack, preserves_flags)
                );
            }
        }
    }

    /// Its addresses, with its guard page.
    pub(crate) fn place(self, start: VirtAddr, len: u64) {
        // Relaxed, here and below: of whoever has it; passed on with it.
        self.start.store(start.get(), Ordering::Relaxed);
        self.len.store(len, Ordering::Relaxed);
    }

    pub(crate) fn start(self) -> VirtAddr {
        VirtAddr::new(self.start.load(Ordering::Relaxed))
    }

    /// The bytes of its addresses, with its guard page.
    pub(crate) fn len(self) -> u64 {
        self.len.load(Ordering::Relaxed)
    }

    /// The pages that it maps.
    pub(crate) fn mapped(self) -> Option<VirtRange> {
        VirtRange::new(self.start(), self.pages.load(Ordering::Relaxed) as u64 * PAGE)
    }

    /// Says what it is for from now on: readers see it as being mapped.
    pub(crate) fn prepare(self, what: What) {
        // Relaxed: only who has it writes it.
        let uses = self.word.load(Ordering::Relaxed) / USE + 1;
        // Relaxed: the fence orders it.
        self.word.store((uses * USE) | State::Ready as u64, Ordering::Relaxed);
        // Release: the count comes before what follows; pairs with the fence of `look`.
        fence(Ordering::Release);
        // Relaxed, all: as in `what`.
        self.made.store(what.made as u8, Ordering::Relaxed);
        self.pages.store(what.pages, Ordering::Relaxed);
        self.bytes.store(what.bytes, Ordering::Relaxed);
        let phys = what.phys.map_or(NO_PHYS, PhysAddr::get);
        self.phys.store(phys, Ordering::Relaxed);
        let caller = what.caller.map_or(ptr::null_mut(), |caller| ptr::from_ref(caller).cast_mut());
        self.caller.store(caller, Ordering::Relaxed);
        self.set(State::Mapping);
    }

    /// Its size within its last page has changed.
    pub(crate) fn set_bytes(self, bytes: u64) {
        // Relaxed: it is right before and after.
        self.bytes.store(bytes, Ordering::Relaxed);
    }

    pub(crate) fn set(self, state: State) {
        // Relaxed: only who has it changes it.
        let word = self.word.load(Ordering::Relaxed) & !STATE | state as u64;
        // Release: what was done to the area comes before; pairs with `state`, `look` and `claim`.
        self.word.store(word, Ordering::Release);
    }

    /// It waits from now on, for this period.
    pub(crate) fn wait(self, target: u64) {
        // Relaxed: read by whose list it is on.
        self.target.store(target, Ordering::Relaxed);
        self.set(State::Waiting);
    }

    pub(crate) fn target(self) -> u64 {
        self.target.load(Ordering::Relaxed)
    }
}

/// Areas in a row, first in, first out, linked through themselves: nothing is allocated, and
/// nothing can fail. Whose list it is has them to himself.
#[derive(Default)]
pub(crate) struct List {
    first: Option<Ours>,
    last: Option<Ours>,
    len: usize,
}

impl List {
    pub(crate) fn push(&mut self, area: Ours) {
        // Relaxed, here and below: of whose list it is.
        area.next.store(ptr::null_mut(), Ordering::Relaxed);
        match self.last.replace(area) {
            Some(last) => last.next.store(area.0.as_ptr(), Ordering::Relaxed),
            None => self.first = Some(area),
        }
        self.len += 1;
    }

    /// Back to where it was popped.
    pub(crate) fn push_first(&mut self, area: Ours) {
        let next = self.first.map_or(ptr::null_mut(), |first| first.0.as_ptr());
        area.next.store(next, Ordering::Relaxed);
        self.first = Some(area);
        self.last.get_or_insert(area);
        self.len += 1;
    }

    pub(crate) fn first(&self) -> Option<Ours> {
        self.first
    }

    pub(crate) fn pop(&mut self) -> Option<Ours> {
        let area = self.first?;
        self.first = NonNull::new(area.next.load(Ordering::Relaxed)).map(Ours);
        if self.first.is_none() {
            self.last = None;
        }
        self.len -= 1;
        Some(area)
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }
}
