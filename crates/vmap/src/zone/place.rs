//! The choice of an area's addresses in its zone: a search for free ones, or those that the caller
//! names.
//!
//! The tree searches for aligned ranges. It is the first page that is aligned; a guard page below
//! precedes it. So the search with such a guard page looks for an aligned range that is free, and
//! then whether the page before is free. If that fails [`PATIENCE`] times, it looks for a range so
//! long that neither can fail. If there is none, it continues with all ranges that are left.
//!
//! Cost: that of one search in the tree. With both demands, and if space is scarce, one search for
//! each free range that is long enough, with the zone's lock held.

use super::{BATCH, Held, Zone, refused};
use crate::PAGE;
use crate::TlbGrace;
use crate::area::{AreaState, Guard, Ours, Record};
use crate::error::Error;
use core::ops::RangeInclusive;
use grace::Concurrent;
use machine::{Machine, VirtAddr, VirtRange};
use maple::{Global, Index, Writer};

/// Free aligned ranges whose page before may be in use, before the search looks for longer ones.
const PATIENCE: usize = 8;

/// The addresses that an area needs.
#[derive(Clone, Copy)]
pub(crate) struct Span {
    /// Bytes, guard pages included.
    pub(crate) bytes: u64,
    /// The alignment of the first page in bytes; at least a page.
    pub(crate) align: u64,
    /// Bytes below the first page.
    pub(crate) below: u64,
}

impl Span {
    /// For so many bytes of pages, aligned to a page.
    pub(crate) fn new(bytes: u64, guard: Guard) -> Span {
        let below = guard.below();
        Span { bytes: bytes + below + guard.above(), align: PAGE, below }
    }
}

impl<G: Concurrent> Zone<G> {
    /// Takes free addresses for the area of this record. If there is no free range, removes areas
    /// whose period has ended and kept areas from the tree.
    ///
    /// Cost: the lock, and a write to the tree.
    pub(crate) fn take<M: Machine>(
        &self,
        tlb_grace: &TlbGrace<M>,
        span: Span,
        record: Record,
    ) -> Result<Ours, (Error, Record)> {
        let mut held = self.lock(tlb_grace.machine());
        // SAFETY: the record is new, and it is in the tree wherever the value is used.
        let area = unsafe { Ours::of(&record) };
        let mut record = record;
        loop {
            record = match self.place(&mut held, span, record) {
                Ok(start) => {
                    area.place(start, span.bytes);
                    self.grown(span.bytes);
                    return Ok(area);
                }
                Err((Error::NoSpace(bytes), record)) => {
                    let back = self.take_back(&mut held, tlb_grace.done(), BATCH);
                    if back + self.drop_kept(&mut held, BATCH) == 0 {
                        return Err((Error::NoSpace(bytes), record));
                    }
                    record
                }
                Err(no) => return Err(no),
            }
        }
    }

    fn place(
        &self,
        held: &mut Held,
        span: Span,
        record: Record,
    ) -> Result<VirtAddr, (Error, Record)> {
        let no_space = Error::NoSpace(span.bytes);
        let Some(last) = self.range.last() else { return Err((no_space, record)) };
        let (first, last) = (self.range.start().get() as Index, last.get() as Index);
        let mut writer = match self.tree.writer(&mut held.token) {
            Ok(writer) => writer,
            Err(error) => return Err((refused(error), record)),
        };
        let bytes = span.bytes as Index;
        let Ok(align) = Index::try_from(span.align) else { return Err((no_space, record)) };
        let stored = if span.below == 0 || span.align == PAGE {
            writer.alloc_range(first..=last, bytes, align, record)
        } else {
            let below = span.below as Index;
            match search(&writer, first..=last, bytes, align, below) {
                Some(start) => {
                    let stored = writer.store_range(start..=start + (bytes - 1), record);
                    stored.map(|()| start)
                }
                None => return Err((no_space, record)),
            }
        };
        match stored {
            Ok(start) => Ok(VirtAddr::new(start as u64)),
            Err(no) if no.error == maple::Error::NoSpace => Err((no_space, no.entry)),
            Err(no) => Err((refused(no.error), no.entry)),
        }
    }

    /// Takes `range`, in this zone, for the area of this record, whose first page is at `at`.
    /// Removes areas whose period has ended and kept areas from the tree while such an area is in
    /// the way, in several critical sections.
    pub(crate) fn take_at<M: Machine>(
        &self,
        tlb_grace: &TlbGrace<M>,
        at: VirtAddr,
        range: VirtRange,
        mut record: Record,
    ) -> Result<Ours, (Error, Record)> {
        let Some(last) = range.last() else { return Err((Error::ZeroSize, record)) };
        let addresses = range.start().get() as Index..=last.get() as Index;
        loop {
            let mut held = self.lock(tlb_grace.machine());
            let mut writer = match self.tree.writer(&mut held.token) {
                Ok(writer) => writer,
                Err(error) => return Err((refused(error), record)),
            };
            // SAFETY: the record is new, and it is in the tree wherever the value is used.
            let area = unsafe { Ours::of(&record) };
            let start = match writer.insert_range(addresses.clone(), record) {
                Ok(()) => {
                    area.place(range.start(), range.len());
                    self.grown(range.len());
                    return Ok(area);
                }
                Err(no) => {
                    record = no.entry;
                    match no.error {
                        maple::Error::Occupied { start, .. } => start,
                        error => return Err((refused(error), record)),
                    }
                }
            };
            drop(writer);
            if let Err(error) = self.make_way(&mut held, tlb_grace.done(), at, start) {
                return Err((error, record));
            }
        }
    }

    /// Removes some areas from the tree if the area at `start` can be removed now. Fails if it
    /// cannot.
    fn make_way(
        &self,
        held: &mut Held,
        done: u64,
        at: VirtAddr,
        start: Index,
    ) -> Result<(), Error> {
        let guard = G::pin();
        let Some((_, area)) = self.tree.lookup(&guard, start) else { return Ok(()) };
        let area = area.get();
        // A Ready area is kept, or another CPU has just taken it.
        let may_go = match area.state() {
            // SAFETY: the lock is held, so the area is in this zone's queue.
            AreaState::Waiting => unsafe { Ours::of(area) }.target() <= done,
            AreaState::Ready => self.kept() != 0,
            _ => false,
        };
        if !may_go {
            return Err(Error::InTheWay(area.culprit(at, VirtAddr::new(start as u64))));
        }
        match self.take_back(held, done, BATCH) + self.drop_kept(held, BATCH) {
            0 => Err(Error::OutOfMemory),
            _ => Ok(()),
        }
    }

    /// Whether an area of the range is in use, so that no purge can free all of the range.
    pub(crate) fn is_in_use(&self, range: VirtRange) -> bool {
        let Some(last) = range.last() else { return false };
        let guard = G::pin();
        let mut areas = self.tree.iter(&guard, range.start().get() as Index..=last.get() as Index);
        areas.any(|(_, area)| match area.get().bits() {
            Some(bits) => bits.count().0 != 0,
            None => matches!(
                area.get().state(),
                AreaState::Mapping | AreaState::Live | AreaState::Unmapping
            ),
        })
    }
}

/// The start of `bytes` free addresses inside `bounds`, of which those after the first `below`
/// begin at a multiple of `align`; see the head of this file.
#[cold]
fn search<G: Concurrent>(
    writer: &Writer<'_, Record, G, Global>,
    bounds: RangeInclusive<Index>,
    bytes: Index,
    align: Index,
    below: Index,
) -> Option<Index> {
    let (first, last) = (*bounds.start(), *bounds.end());
    let mut from = first.checked_add(below)?;
    let mut failed = 0;
    while from <= last {
        let page = writer.empty_area(from..=last, bytes - below, align).ok()?;
        let start = page - below;
        if writer.empty_area(start..=page - 1, below, 1).is_ok() {
            return Some(start);
        }
        failed += 1;
        if failed == PATIENCE
            && let Some(long) = bytes.checked_add(align - PAGE as Index)
            && let Ok(free) = writer.empty_area(bounds.clone(), long, PAGE as Index)
        {
            return Some(free.checked_add(below)?.checked_next_multiple_of(align)? - below);
        }
        from = page.checked_add(align)?;
    }
    None
}
