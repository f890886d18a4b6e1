//! The fast path of the most frequent writes: an entry into a hole, an erase, the move of an end.
//! Each stays within one leaf and does without the general [`Edit`], because it knows up to two
//! bits which slots appear and disappear.
//!
//! Every other write is left to [`crate::write::leaf::quick`], which starts again.
//!
//! Each write is compiled twice, for narrow and for wide leaves (`WIDE`), behind one branch.
//!
//! Cost: the descent, one search in the leaf, some sixty instructions, and [`Target::commit`].

use crate::Index;
use crate::alloc::NodeAlloc;
use crate::cold_path::cold_path;
use crate::entry::Entry;
use crate::error::Error;
use crate::layout::{LEAF_LOW, NARROW};
use crate::node::{Body, Bound, Change, Edit, Job, Link, Run, Search, words};
use crate::write::descent::WriteDescent;
use crate::write::leaf::finger::{Finger, Spot};
use crate::write::leaf::place::{Holes, Place};
use crate::write::{Removed, Target};
use core::hint::assert_unchecked;
use core::ptr::{self, NonNull};
use grace::Reclaim;

/// The outcome of a fast write. It fits in a register: a result that is returned in memory is
/// stored word by word and read with SIMD loads, which stall because stores do not forward to a
/// larger load.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::write) enum Fast {
    Done,
    OutOfMemory,
    /// Not yet done: the caller must start again.
    Again,
    /// Nothing was done; another function must do the write.
    Other,
}

impl Fast {
    /// The result; `None` if nothing was done.
    #[inline(always)]
    pub(in crate::write) fn done(self) -> Option<Result<(), Error>> {
        match self {
            Fast::Done => Some(Ok(())),
            Fast::OutOfMemory => Some(Err(Error::OutOfMemory)),
            Fast::Again | Fast::Other => None,
        }
    }

    #[inline(always)]
    pub(super) fn of<T>(done: Result<T, Error>) -> Fast {
        match done {
            Ok(_) => Fast::Done,
            Err(Error::OutOfMemory) => Fast::OutOfMemory,
            Err(error) => unreachable!("{error}"),
        }
    }
}

/// Puts an entry into a hole. `NEAR`: the slot is near the last write. With `swaps`, an entry over
/// exactly the range of another replaces it.
pub(in crate::write) struct InsertHole<'q, 't, E: Entry, R: Reclaim, A: NodeAlloc, const NEAR: bool>
{
    pub(in crate::write) target: &'q mut Target<'t, E, R, A>,
    pub(in crate::write) finger: &'q mut Finger,
    pub(in crate::write) first: Index,
    pub(in crate::write) last: Index,
    pub(in crate::write) word: NonNull<()>,
    pub(in crate::write) swaps: bool,
}

impl<E: Entry, R: Reclaim, A: NodeAlloc, const NEAR: bool> Job
    for InsertHole<'_, '_, E, R, A, NEAR>
{
    type Out = Fast;

    #[cfg_attr(not(unoptimized), inline(always))]
    fn run<S: Search>(mut self, search: S) -> Fast {
        let mut own = WriteDescent::new();
        let spot = if NEAR {
            self.finger.near(self.target, search, self.first)
        } else {
            self.target.spot(search, self.first, &mut own)
        };
        let Spot { place, slot, start, end, shared } = spot;
        if shared {
            return Fast::Other;
        }
        if place.body.is_wide() {
            cold_path();
            return self.put::<S, true>(search, &own, slot, (start, end));
        }
        self.put::<S, false>(search, &own, slot, (start, end))
    }
}

impl<E: Entry, R: Reclaim, A: NodeAlloc, const NEAR: bool> InsertHole<'_, '_, E, R, A, NEAR> {
    /// Puts the entry into a slot, whose range is `start..=end`. `own` is the path if the slot is
    /// not near the last write.
    #[cfg_attr(not(unoptimized), inline(always))]
    fn put<S: Search, const WIDE: bool>(
        &mut self,
        search: S,
        own: &WriteDescent,
        slot: usize,
        (start, end): (Index, Index),
    ) -> Fast {
        let InsertHole { target, finger, first, last, word, swaps } = self;
        let (first, last, word) = (*first, *last, *word);
        let descent = if NEAR { &finger.descent } else { own };
        // SAFETY: the promise of `Target::new`; the caller has asked for the form.
        let body = unsafe { descent.leaf().as_leaf().body() };
        // SAFETY: as above.
        unsafe { assert_unchecked(body.is_wide() == WIDE) }
        if !body.is_hole(slot) {
            if *swaps && (start, end) == (first, last) {
                let (old, change) = swapped(body, slot, word);
                return Fast::of(target.swap::<S, WIDE>(search, descent, &change, old));
            }
            return Fast::Other;
        }
        let (left, right) = (start < first, last < end);
        let value = |is: bool, end| if is { body.encode_if_taken(end) } else { Some(0) };
        let (before, behind) = (value(left, first.wrapping_sub(1)), value(right, last));
        let (Some(before), Some(behind), true) = (before, behind, last <= end) else {
            if WIDE || last > end {
                return Fast::Other;
            }
            let bounds = [left.then(|| first - 1), right.then_some(last)];
            return match target.halve(search, descent, bounds) {
                Ok(true) => Fast::Again,
                Ok(false) => Fast::Other,
                Err(error) => Fast::of::<()>(Err(error)),
            };
        };
        let (lefts, rights) = (usize::from(left), usize::from(right));
        let len = body.len() + lefts + rights;
        let count = body.count() + 1;
        // A hole is shorter than the whole index range, because the leaf has an entry.
        let (taken, after) = (end - start + 1, (first - start).max(end - last));
        let holes = Holes { gone: 1 << slot, before: taken, after, start, end, measure: true };
        if !body.has_room_for(len, count) {
            if target.is_parent_full(descent) {
                return match target.make_room(search, descent) {
                    Ok(true) => Fast::Again,
                    Ok(false) => Fast::Other,
                    Err(error) => Fast::of::<()>(Err(error)),
                };
            }
            let rests = (left, right);
            let edit = Edit::new(body, (slot, slot), rests, (first, last), word.as_ptr());
            let split = target.split(search, descent, (&edit, holes), Removed::Drop);
            return split.map_or(Fast::Other, Fast::of);
        }
        let rank = body.rank(slot);
        let mask = u64::from(body.entries());
        let below = mask & ((1 << slot) - 1);
        let above = (mask >> slot) << (slot + lefts + rights);
        let change = Change {
            len,
            mask: (below | 1 << (slot + lefts) | above) as u32,
            count,
            bounds: Run { old: slot, new: slot + lefts + rights, len: body.len() - 1 - slot },
            words: words(body, rank, 0, 1),
            new: [
                Bound { is: left, slot, value: before },
                Bound { is: right, slot: slot + lefts, value: behind },
            ],
            word: word.as_ptr(),
            rank,
            splits: false,
        };
        let done = target.commit(search, descent, &change, holes, (Some(WIDE), NEAR));
        if let Ok(leaf) = done {
            // The second write of a run: a third may follow. Random writes do not pay for the note.
            if NEAR || finger.is_beside((start, end)) {
                if !NEAR {
                    finger.descent.follow(own);
                }
                finger.end_at(leaf);
                finger.note(slot + lefts, (first, last), (start, end));
            } else {
                finger.pass((first, last));
            }
        }
        Fast::of(done)
    }
}

impl<E: Entry, R: Reclaim, A: NodeAlloc> Target<'_, E, R, A> {
    /// Replaces an entry by another one over the same range. No gap changes. The leaf is not
    /// borrowed: an owner changes it in place.
    #[inline(always)]
    fn swap<S: Search, const WIDE: bool>(
        &mut self,
        search: S,
        descent: &WriteDescent,
        change: &Change,
        old: *mut (),
    ) -> Result<Link, Error> {
        let unchanged = Holes { gone: 0, before: 0, after: 0, start: 0, end: 0, measure: false };
        let link = self.commit(search, descent, change, unchanged, (Some(WIDE), true))?;
        if let Some(old) = NonNull::new(old) {
            // SAFETY: the entry has left the tree, and the word was the tree's.
            unsafe { self.supplies.bin.entry(old) }
        }
        Ok(link)
    }
}

/// The word in a slot, and the change that replaces it by another one. No bound changes.
#[cfg_attr(not(unoptimized), inline(always))]
fn swapped(body: &Body, slot: usize, word: NonNull<()>) -> (*mut (), Change) {
    let change = Change {
        len: body.len(),
        mask: body.entries(),
        count: body.count(),
        bounds: Run::default(),
        words: Run::default(),
        new: [Bound::NONE; 2],
        word: word.as_ptr(),
        rank: body.rank(slot),
        splits: false,
    };
    (body.word(slot), change)
}

/// Replaces the entry that holds an index by a hole.
pub(in crate::write) struct EraseOne<'q, 't, E: Entry, R: Reclaim, A: NodeAlloc> {
    pub(in crate::write) target: &'q mut Target<'t, E, R, A>,
    pub(in crate::write) index: Index,
    /// Receives the entry.
    pub(in crate::write) found: &'q mut Found,
}

/// An entry with its range. The word is null if there is none.
pub(in crate::write) struct Found {
    pub(in crate::write) start: Index,
    pub(in crate::write) end: Index,
    pub(in crate::write) word: *mut (),
}

impl<E: Entry, R: Reclaim, A: NodeAlloc> Job for EraseOne<'_, '_, E, R, A> {
    type Out = Fast;

    #[inline(always)]
    fn run<S: Search>(mut self, search: S) -> Fast {
        let mut descent = WriteDescent::new();
        let (place, slot, shared) = self.target.reach(search, self.index, &mut descent);
        if place.body.is_wide() {
            cold_path();
            return self.clear::<S, true>(search, place.descent, slot, shared);
        }
        self.clear::<S, false>(search, place.descent, slot, shared)
    }
}

impl<E: Entry, R: Reclaim, A: NodeAlloc> EraseOne<'_, '_, E, R, A> {
    /// Replaces the entry in a slot by a hole.
    #[cfg_attr(not(unoptimized), inline(always))]
    fn clear<S: Search, const WIDE: bool>(
        &mut self,
        search: S,
        descent: &WriteDescent,
        slot: usize,
        shared: bool,
    ) -> Fast {
        let EraseOne { target, found, .. } = self;
        // Not an argument: a reference argument stays borrowed until the call returns, but the leaf
        // is changed before that. SAFETY: the promise of `Target::new`.
        let body = unsafe { descent.leaf().as_leaf().body() };
        // SAFETY: the caller has asked for the form.
        unsafe { assert_unchecked(body.is_wide() == WIDE) }
        let place = Place { descent, body };
        let word = body.word(slot);
        if word.is_null() {
            return Fast::Done;
        }
        if shared {
            return Fast::Other;
        }
        let (start, end) = (place.start(slot), place.end(slot));
        // Holes stay whole: this hole may continue in the next leaf.
        if (slot == 0 && place.has_hole_before())
            || (slot + 1 == body.len() && place.has_hole_after())
        {
            let Some(done) = target.border(search, descent, slot, Removed::Keep) else {
                return Fast::Other;
            };
            (found.start, found.end, found.word) = (start, end, word);
            return Fast::of(done);
        }
        let (change, (from, to)) = vacated(body, slot);
        if descent.height() > 1 && NARROW.weigh(change.len, change.count) < LEAF_LOW {
            let Some(done) = target.join(search, descent, slot) else { return Fast::Other };
            (found.start, found.end, found.word) = (start, end, word);
            return Fast::of(done);
        }
        if change.count == 0 {
            return Fast::Other;
        }
        (found.start, found.end, found.word) = (start, end, word);
        let (start, end) = (place.start(from), place.end_of(to));
        let holes = Holes::made((end - start).wrapping_add(1), (start, end));
        Fast::of(target.commit(search, descent, &change, holes, (Some(WIDE), false)))
    }
}

/// The change that replaces the entry in a slot by a hole, and the slots that the hole replaces:
/// the holes next to it are merged into it.
#[cfg_attr(not(unoptimized), inline(always))]
pub(in crate::write) fn vacated(body: &Body, slot: usize) -> (Change, (usize, usize)) {
    let holes = body.holes();
    let lefts = (holes << 1 >> slot & 1) as usize;
    let rights = (holes >> slot >> 1 & 1) as usize;
    let (from, to) = (slot - lefts, slot + rights);
    let rank = body.rank(slot);
    let mask = u64::from(body.entries());
    let below = mask & ((1 << from) - 1);
    let change = Change {
        len: body.len() - lefts - rights,
        mask: (below | mask >> (to + 1) << (from + 1)) as u32,
        count: body.count() - 1,
        bounds: Run { old: to, new: from, len: (body.len() - 1).saturating_sub(to) },
        words: words(body, rank, 1, 0),
        new: [Bound::NONE; 2],
        word: ptr::null_mut(),
        rank,
        splits: false,
    };
    (change, (from, to))
}
