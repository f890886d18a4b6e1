//! An area: one mapping in a zone's tree, and its record, which is reused.
//!
//! One word holds the state of an area in its lowest bits, and in the others a count of how often
//! the record was used:
//!
//! ```text
//!           .--> Mapping --> Live --> Unmapping ------> Waiting --.
//!           |       |          |          ^                ^      |
//!         Ready     |          `-> PendingFree             |      |
//!           ^       `--------------------------------------'      |
//!           `-----------------------------------------------------'
//! ```
//!
//! - *Ready*: nothing is mapped, and no CPU holds a translation of its addresses. The area is being
//!   made, or kept for reuse.
//! - *Mapping*: its pages are being mapped.
//! - *Live*: the caller may use it.
//! - *PendingFree*: freed in an interrupt, to be unmapped later.
//! - *Unmapping*: the CPU that set this state removes the pages, and no other CPU does. A second
//!   unmapping fails on the state.
//! - *Waiting*: its pages are gone. Its addresses wait for a TLB grace period, in the zone's queue.
//!
//! # Why it is correct
//! *Exclusive access* ([`Ours`]) passes from one owner to the next: the maker of the area, the
//! caller that changed its state from Live, and the owner of the list that the area is on. Only the
//! owner removes the area from the tree, so the record stays in memory while it has an owner. A
//! reader holds a guard, which keeps a removed record in memory, too.
//!
//! *A snapshot of a record* is consistent by a sequence count. The owner writes the record's words
//! while the state is Ready, after it has incremented the use count. A reader loads the first word,
//! then the others, then the first word again. If the count is the same and the state was not
//! Ready, all loaded words belong to one mapping. The fences pair: a reader that loads a word of
//! the next mapping also loads its count.
//!
//! # Layout
//! A record has two cache lines to itself, 128 bytes of which 96 are used: a pair that processors
//! prefetch together. A CPU that lists areas takes these lines from the CPU that writes them next.
//! If records shared lines or pairs, the heap would decide how many, and a writer would lose
//! several times as much to a reader.

mod list;

pub(crate) use list::List;

use crate::PAGE;
use crate::block::Bits;
use crate::error::Culprit;
use crate::sync::{AtomicPtr, AtomicU64, AtomicUsize, Ordering, fence};
use alloc::boxed::Box;
#[cfg(not(loom))]
use core::mem::offset_of;
use core::ops::Deref;
use core::panic::Location;
use core::ptr::{self, NonNull};
use machine::{PageSize, PhysAddr, VirtAddr, VirtRange};
use maple::RefCounted;

/// The call that made an area.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Made {
    /// [`Vmap::vmap`](crate::Vmap::vmap).
    Vmap,
    /// [`Vmap::vm_map_ram`](crate::Vmap::vm_map_ram), for requests too large for a block.
    Ram,
    /// [`Vmap::vmalloc`](crate::Vmap::vmalloc) and its variants.
    Vmalloc,
    /// [`Vmap::ioremap`](crate::Vmap::ioremap).
    Ioremap,
    /// A block, from which [`Vmap::vm_map_ram`](crate::Vmap::vm_map_ram) takes small runs.
    Block,
    /// [`Vmap::reserve`](crate::Vmap::reserve).
    Reserved,
}

impl Made {
    const ALL: [Made; 6] =
        [Made::Vmap, Made::Ram, Made::Vmalloc, Made::Ioremap, Made::Block, Made::Reserved];
}

/// The guard pages of an area. They belong to it: they are never mapped, and no other area gets
/// them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Guard {
    /// No guard page.
    None,
    /// A guard page follows the last page.
    Above,
    /// A guard page precedes the first page, as below a stack.
    Below,
    /// A guard page on each side.
    Both,
}

impl Guard {
    const ALL: [Guard; 4] = [Guard::None, Guard::Above, Guard::Below, Guard::Both];

    /// Bytes of the guard page below.
    pub(crate) fn below(self) -> u64 {
        if matches!(self, Guard::Below | Guard::Both) { PAGE } else { 0 }
    }

    /// Bytes of the guard page above.
    pub(crate) fn above(self) -> u64 {
        if matches!(self, Guard::Above | Guard::Both) { PAGE } else { 0 }
    }
}

/// The state of an area.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum AreaState {
    /// Nothing is mapped there, and no CPU holds a translation of it. Not listed.
    Ready,
    /// Its pages are being mapped.
    Mapping,
    /// It is in use.
    Live,
    /// It was freed in an interrupt and will be unmapped.
    PendingFree,
    /// Its pages are being unmapped.
    Unmapping,
    /// It was unmapped, and its addresses wait for a TLB grace period.
    Waiting,
}

impl AreaState {
    const ALL: [AreaState; 6] = [
        AreaState::Ready,
        AreaState::Mapping,
        AreaState::Live,
        AreaState::PendingFree,
        AreaState::Unmapping,
        AreaState::Waiting,
    ];
}

/// The bits of the word that hold the state.
const STATE: u64 = 7;
/// The increment of the use count.
const USE: u64 = STATE + 1;

/// The contents of an area's record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct AreaRecord {
    pub(crate) made: Made,
    pub(crate) guard: Guard,
    /// The base-2 logarithm of the requested alignment.
    pub(crate) align: u8,
    /// Pages, guard pages not included. They are mapped, unless the addresses are only reserved.
    pub(crate) pages: usize,
    /// Requested bytes.
    pub(crate) bytes: u64,
    /// The first byte of the physical range, if the area maps one.
    pub(crate) phys: Option<PhysAddr>,
    pub(crate) caller: Option<&'static Location<'static>>,
}

impl AreaRecord {
    pub(crate) fn new(
        made: Made,
        pages: usize,
        bytes: u64,
        caller: &'static Location<'static>,
    ) -> AreaRecord {
        let known = cfg!(any(feature = "listing", debug_assertions));
        let (guard, align) = (Guard::None, PageSize::Size4K.bytes().trailing_zeros() as u8);
        let caller = known.then_some(caller);
        AreaRecord { made, guard, align, pages, bytes, phys: None, caller }
    }

    /// The address of the first page of an area that begins at `start`.
    pub(crate) fn first(self, start: VirtAddr) -> VirtAddr {
        start.checked_add(self.guard.below()).unwrap_or(start)
    }

    /// The kind, the guard pages and the alignment in one word.
    fn form(self) -> u64 {
        self.made as u64 | (self.guard as u64) << GUARD_SHIFT | u64::from(self.align) << ALIGN_SHIFT
    }

    /// Checks that this call made the area; `Err(None)` otherwise. Does not compare the pages.
    pub(crate) fn is(self, made: Made) -> Result<(), Option<usize>> {
        if self.made == made { Ok(()) } else { Err(None) }
    }
}

/// The bits of [`AreaRecord::form`]: a byte each.
const GUARD_SHIFT: u32 = 8;
const ALIGN_SHIFT: u32 = 16;

/// Bytes of a cache line.
const LINE: usize = 64;

/// Alignment of a record: two cache lines, which processors prefetch together.
#[repr(align(128))]
pub(crate) struct Lines;

/// A record as a tree holds it, alone on its cache lines. The first line holds the reference count
/// and the words that readers load; the second line holds words that only the owner uses.
pub(crate) type Record = RefCounted<Area, Lines>;
#[cfg(all(target_pointer_width = "64", not(loom)))]
const _: () = {
    assert!(size_of::<usize>() + offset_of!(Area, start) == LINE);
    assert!(size_of::<usize>() + size_of::<Area>() <= align_of::<Lines>());
};

/// The value of `phys` for no physical range.
const NO_PHYS: u64 = u64::MAX;

/// The record of an area, inside a [`Record`].
#[repr(C)]
pub(crate) struct Area {
    word: AtomicU64,
    /// `Some` for a block.
    bits: Option<Box<Bits>>,
    /// See [`AreaRecord::form`].
    form: AtomicU64,
    pages: AtomicUsize,
    bytes: AtomicU64,
    phys: AtomicU64,
    caller: AtomicPtr<Location<'static>>,
    /// Its addresses, guard pages included; the tree has the same.
    start: AtomicU64,
    len: AtomicU64,
    /// The grace period that it waits for.
    target: AtomicU64,
    /// The next area of the list that it is on.
    next: AtomicPtr<Area>,
}

impl Area {
    pub(crate) fn new(bits: Option<Box<Bits>>) -> Area {
        Area {
            word: AtomicU64::new(AreaState::Ready as u64),
            bits,
            form: AtomicU64::new(0),
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

    pub(crate) fn state(&self) -> AreaState {
        // Acquire: pairs with the Release of `set`: a CPU that sees an area live sees its pages
        // mapped.
        state_of(self.word.load(Ordering::Acquire))
    }

    /// A consistent snapshot of the record and its state. `None` if nothing is mapped there, or if
    /// the record is reused at every attempt.
    pub(crate) fn look(&self) -> Option<(AreaRecord, AreaState)> {
        for _ in 0..8 {
            // Acquire: pairs with the Release of `set`, which follows the writes of the record.
            let word = self.word.load(Ordering::Acquire);
            if state_of(word) == AreaState::Ready {
                return None;
            }
            let what = self.what();
            // Acquire: the loads of the record come before the second load of the word; pairs with
            // the fence of `prepare`.
            fence(Ordering::Acquire);
            // Relaxed: the fence orders it.
            if self.word.load(Ordering::Relaxed) / USE == word / USE {
                return Some((what, state_of(word)));
            }
        }
        None
    }

    /// The contents of the record; consistent for the owner only.
    ///
    /// Relaxed, all: the callers order them by the accesses to the word before and after.
    pub(crate) fn what(&self) -> AreaRecord {
        let form = self.form.load(Ordering::Relaxed);
        let phys = self.phys.load(Ordering::Relaxed);
        let caller = NonNull::new(self.caller.load(Ordering::Relaxed));
        AreaRecord {
            made: Made::ALL[usize::from(form as u8)],
            guard: guard_of(form),
            align: (form >> ALIGN_SHIFT) as u8,
            pages: self.pages.load(Ordering::Relaxed),
            bytes: self.bytes.load(Ordering::Relaxed),
            phys: (phys != NO_PHYS).then_some(PhysAddr::new(phys)),
            // SAFETY: the pointer was made from a `&'static`.
            caller: caller.map(|caller| unsafe { caller.as_ref() }),
        }
    }

    /// Changes the state from Live to `to`, for at most one caller, which then owns the area. Fails
    /// with `not_live` for another state. `is_right` checks the contents of the record.
    pub(crate) fn claim<E>(
        &self,
        to: AreaState,
        is_right: impl FnOnce(AreaRecord) -> Result<(), E>,
        not_live: impl FnOnce(AreaState) -> E,
    ) -> Result<AreaRecord, E> {
        // Acquire: as in `look`.
        let word = self.word.load(Ordering::Acquire);
        let what = self.what();
        is_right(what)?;
        if state_of(word) != AreaState::Live {
            return Err(not_live(state_of(word)));
        }
        // Acquire: pairs with `set`: earlier accesses to the area come before ours. If the word has
        // not changed, neither has the record. Relaxed on failure: the state is only reported.
        let to = word & !STATE | to as u64;
        match self.word.compare_exchange(word, to, Ordering::Acquire, Ordering::Relaxed) {
            Ok(_) => Ok(what),
            Err(word) => Err(not_live(state_of(word))),
        }
    }

    /// Diagnostics: the first page of the area that begins at `start`, and the call site that
    /// created it.
    pub(crate) fn culprit(&self, at: VirtAddr, start: VirtAddr) -> Culprit {
        match self.look() {
            Some((what, _)) => Culprit { at, start: what.first(start), by: what.caller },
            None => Culprit { at, start, by: None },
        }
    }
}

/// The guard pages of a [`AreaRecord::form`].
fn guard_of(form: u64) -> Guard {
    Guard::ALL[usize::from((form >> GUARD_SHIFT) as u8)]
}

fn state_of(word: u64) -> AreaState {
    AreaState::ALL[((word & STATE) as usize).min(AreaState::ALL.len() - 1)]
}

/// An area that the holder owns exclusively.
///
/// Only the owner removes it from its tree, so the record stays in memory.
#[derive(Clone, Copy)]
pub(crate) struct Ours(NonNull<Area>);

// SAFETY: it is a reference to an `Area`, which all CPUs may read.
unsafe impl Send for Ours {}
// SAFETY: as above.
unsafe impl Sync for Ours {}

impl Deref for Ours {
    type Target = Area;

    fn deref(&self) -> &Area {
        // SAFETY: the caller of `of` guarantees that the record stays in memory.
        unsafe { self.0.as_ref() }
    }
}

impl Ours {
    /// # Safety
    /// The caller has made or claimed the area, and no other code has it: the area stays in its
    /// tree while this value is used.
    pub(crate) unsafe fn of(area: &Area) -> Ours {
        Ours(NonNull::from(area))
    }

    /// Prefetches the lines of the record for writing. A hint; it does not wait.
    ///
    /// It is inline assembly because no intrinsic prefetches for writing unless the build targets
    /// processors that are known to have the instruction. Other processors execute it as a no-op.
    #[inline]
    pub(crate) fn bring_near(self) {
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        for at in [0, LINE] {
            // SAFETY: a prefetch is a hint that is valid for any address and changes no memory.
            unsafe {
                core::arch::asm!(
                    "prefetchw byte ptr [{}]",
                    in(reg) self.0.addr().get() + at,
                    options(nomem, nostack, preserves_flags)
                );
            }
        }
    }

    /// Sets its addresses, guard pages included.
    pub(crate) fn place(self, start: VirtAddr, len: u64) {
        // Relaxed, here and below: only the owner uses them, and ownership passes with
        // synchronization.
        self.start.store(start.get(), Ordering::Relaxed);
        self.len.store(len, Ordering::Relaxed);
    }

    pub(crate) fn start(self) -> VirtAddr {
        VirtAddr::new(self.start.load(Ordering::Relaxed))
    }

    /// The length of its addresses in bytes, guard pages included.
    pub(crate) fn len(self) -> u64 {
        self.len.load(Ordering::Relaxed)
    }

    /// The range of its pages.
    pub(crate) fn mapped(self) -> Option<VirtRange> {
        let below = guard_of(self.form.load(Ordering::Relaxed)).below();
        let pages = self.pages.load(Ordering::Relaxed);
        VirtRange::new(self.start().checked_add(below)?, pages as u64 * PAGE)
    }

    /// Begins a new use of the record: writes its contents and sets the state to Mapping.
    pub(crate) fn prepare(self, what: AreaRecord) {
        // Relaxed: only the owner writes it.
        let uses = self.word.load(Ordering::Relaxed) / USE + 1;
        // Relaxed: the fence below orders it.
        self.word.store((uses * USE) | AreaState::Ready as u64, Ordering::Relaxed);
        // Release: the count is stored before the record is written; pairs with the fence of
        // `look`.
        fence(Ordering::Release);
        // Relaxed, all: as in `what`.
        self.form.store(what.form(), Ordering::Relaxed);
        self.pages.store(what.pages, Ordering::Relaxed);
        self.bytes.store(what.bytes, Ordering::Relaxed);
        let phys = what.phys.map_or(NO_PHYS, PhysAddr::get);
        self.phys.store(phys, Ordering::Relaxed);
        let caller = what.caller.map_or(ptr::null_mut(), |caller| ptr::from_ref(caller).cast_mut());
        self.caller.store(caller, Ordering::Relaxed);
        self.set(AreaState::Mapping);
    }

    /// Sets the requested size; the number of pages stays.
    pub(crate) fn set_bytes(self, bytes: u64) {
        // Relaxed: both the old and the new value are valid for a reader.
        self.bytes.store(bytes, Ordering::Relaxed);
    }

    pub(crate) fn set(self, state: AreaState) {
        // Relaxed: only the owner changes it.
        let word = self.word.load(Ordering::Relaxed) & !STATE | state as u64;
        // Release: all earlier accesses to the area come before; pairs with `state`, `look` and
        // `claim`.
        self.word.store(word, Ordering::Release);
    }

    /// Lets it wait for this period.
    pub(crate) fn wait(self, target: u64) {
        // Relaxed: only the owner of the list that it is on reads it.
        self.target.store(target, Ordering::Relaxed);
        self.set(AreaState::Waiting);
    }

    pub(crate) fn target(self) -> u64 {
        self.target.load(Ordering::Relaxed)
    }
}
