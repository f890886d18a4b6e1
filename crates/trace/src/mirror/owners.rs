//! Owners: the call that mapped each byte of an address space last.
//!
//! A range map has the owner of each mapped byte. It follows the [`SpaceChange`]s: the VMAs change
//! in no other way. After a change, the range that it mapped gets a new owner, and where the VMAs
//! have a hole in the range that it could change, nothing has an owner. So a change that failed
//! half-way needs no rule of its own: the VMAs show how far it came.
//!
//! A map that moves belongs to the mremap that moved it. One that grows in its place belongs to it
//! only with its new part. Bytes by which a stack grows belong to the owner of the stack.
//!
//! Cost: one or two stores into the tree for a change that maps or unmaps, and a walk over the VMAs
//! in its range. A fork shares the parent's tree, in constant time. Address spaces have owners
//! only if calls have stacks.

use std::{
    num::NonZeroUsize,
    ops::{Range, RangeInclusive},
};

use maple::MapleTree;
use vma::{MappedFile, PAGE_SIZE, Placement, Writer};

use super::{Engine, File, SpaceChange};
use crate::{
    owner::Owner,
    record::{Op, StackId},
    report::stacks::Owned,
    span::Span,
};

type Space<'a> = Writer<'a, File, Engine>;

/// The owners of an address space.
pub(super) struct Owners {
    tree: MapleTree<NonZeroUsize>,
    /// The newest call: the owner of what the next changes map.
    owner: Owner,
    /// The bytes that it has mapped.
    mapped: usize,
    /// Whether memory ran out, so that some bytes have a former owner.
    incomplete: bool,
}

/// The state that the effect of a change depends on.
#[derive(Clone, Copy)]
pub(super) struct BeforeChange {
    brk: usize,
}

impl BeforeChange {
    pub(super) fn of(space: &Space<'_>) -> BeforeChange {
        BeforeChange { brk: space.layout().brk }
    }
}

impl Owners {
    /// The owners of an address space without calls.
    pub(super) fn new(space: &Space<'_>) -> Owners {
        let mut owners =
            Owners { tree: MapleTree::new(), owner: Owner::Program, mapped: 0, incomplete: false };
        owners.resync(space, Owner::Program);
        owners
    }

    /// Those of a forked child, whose VMAs are `space`.
    pub(super) fn fork(&mut self, space: &Space<'_>) -> Owners {
        let tree = self.tree.get_mut().duplicate().ok();
        let mut child = Owners {
            incomplete: self.incomplete || tree.is_none(),
            tree: tree.unwrap_or_default(),
            owner: Owner::Unknown,
            mapped: 0,
        };
        // MADV_DONTFORK: the child has fewer VMAs.
        if child.owned() != space.sizes().total {
            child.resync(space, Owner::Unknown);
        }
        child
    }

    /// The next changes are those of this call.
    pub(super) fn begin(&mut self, stack: StackId, op: Op) {
        (self.owner, self.mapped) = (Owner::Call(stack, op), 0);
    }

    /// The bytes that the newest call has mapped since the last question.
    pub(super) fn take_mapped(&mut self) -> u64 {
        std::mem::take(&mut self.mapped) as u64
    }

    /// A change was carried out on `space`, which has the VMAs after it.
    pub(super) fn change(
        &mut self,
        change: &SpaceChange<File>,
        result: Result<usize, vma::Error>,
        space: &Space<'_>,
        before: BeforeChange,
    ) {
        match (change, result) {
            (SpaceChange::Mmap(request), Ok(start)) => {
                let huge = match request.file.as_ref().map(MappedFile::placement) {
                    Some(Placement::HugeOnly(unit)) => unit,
                    _ => PAGE_SIZE,
                };
                let length = request.len.checked_next_multiple_of(huge).unwrap_or(request.len);
                self.map(Span::of(start, length).range(), space);
            }
            (SpaceChange::Mmap(request), Err(_)) => {
                self.unmap(Span::of(request.addr, request.len).range(), space)
            }
            (SpaceChange::Munmap { addr, len }, _) => {
                // After a map in the same call, it takes back a map at a wrong address.
                self.mapped = 0;
                self.unmap(Span::of(*addr, *len).range(), space);
            }
            (SpaceChange::Mremap(request), Ok(to)) if to == request.addr => {
                let (old, new) =
                    (Span::of(to, request.old_len).range(), Span::of(to, request.new_len).range());
                if old.end < new.end {
                    self.map(old.end..new.end, space);
                }
                self.unmap(old, space);
            }
            (SpaceChange::Mremap(request), result) => {
                if let Ok(to) = result {
                    self.map(Span::of(to, request.new_len).range(), space);
                }
                if let Some(to) = request.fixed {
                    self.unmap(Span::of(to, request.new_len).range(), space);
                }
                self.unmap(Span::of(request.addr, request.old_len).range(), space);
            }
            (SpaceChange::Brk(_), Ok(brk)) => {
                let [old, new] = [before.brk, brk].map(|end| Span::of(0, end).end);
                if old < new {
                    self.map(old..new, space);
                } else {
                    self.unmap(new..old, space);
                }
            }
            (SpaceChange::Shmat(request), Ok(start)) => {
                self.map(Span::of(start, request.len).range(), space)
            }
            // A failure may have unmapped the target, and shmdt unmaps what is left of the segment.
            (SpaceChange::Shmat(_), Err(_)) => self.unmap(0..usize::MAX, space),
            (SpaceChange::Shmdt(addr), _) => self.unmap(*addr..usize::MAX, space),
            (SpaceChange::Adopt(whole), Ok(_)) => self.map(whole.start..whole.end, space),
            (SpaceChange::RemapFilePages { addr, len, .. }, Ok(_)) => {
                let start = addr & !(PAGE_SIZE - 1);
                self.map(start..start.saturating_add(len & !(PAGE_SIZE - 1)), space);
            }
            (SpaceChange::GrowDown { end, start }, Ok(_)) => self.grow(*start, *end),
            (SpaceChange::Settle { start, end, .. }, _) => self.unmap(*start..*end, space),
            // The others change no hole.
            _ => {}
        }
    }

    /// The range belongs to the newest call now, but for holes in it.
    fn map(&mut self, range: Range<usize>, space: &Space<'_>) {
        self.store(range.clone(), self.owner);
        let holes = self.follow(range.clone(), space, self.owner);
        self.mapped += (range.end - range.start).saturating_sub(holes);
    }

    /// A change may have unmapped the range, or parts of it.
    fn unmap(&mut self, range: Range<usize>, space: &Space<'_>) {
        self.follow(range, space, self.owner);
    }

    /// A stack grew down to `start`.
    fn grow(&mut self, start: usize, end: usize) {
        let found = self.tree.get_mut().find(start..=end.saturating_sub(1));
        let Some((owned, word)) = found else { return };
        if start < *owned.start() {
            self.store(start..*owned.start(), Owner::of(word));
        }
    }

    fn store(&mut self, range: Range<usize>, owner: Owner) {
        if !range.is_empty() {
            let stored = self.tree.get_mut().store_range(range.start..=range.end - 1, owner.word());
            self.incomplete |= stored.is_err();
        }
    }

    fn erase(&mut self, range: Range<usize>) -> usize {
        if range.is_empty() {
            return 0;
        }
        let erased = self.tree.get_mut().erase_range(range.start..=range.end - 1);
        self.incomplete |= erased.is_err();
        range.end - range.start
    }

    /// Makes the owned bytes in a range the mapped ones: holes have no owner, and mapped bytes
    /// without one get `other`. Returns the bytes of the holes. O(VMAs and owners in the range).
    fn follow(&mut self, range: Range<usize>, space: &Space<'_>, other: Owner) -> usize {
        let (mut at, mut holes) = (range.start, 0);
        for area in space.areas_from(at).take_while(|area| area.start < range.end) {
            holes += self.erase(at..area.start);
            self.fill(at.max(area.start)..area.end.min(range.end), other);
            at = area.end;
        }
        holes + self.erase(at..range.end)
    }

    /// Gives the bytes in a range that have no owner this one.
    fn fill(&mut self, range: Range<usize>, owner: Owner) {
        let mut at = range.start;
        while at < range.end {
            let found = self.tree.get_mut().find(at..=range.end - 1).map(|(owned, _)| owned);
            let (free, next) = match found {
                Some(owned) => (at..*owned.start(), owned.end() + 1),
                None => (at..range.end, range.end),
            };
            self.store(free, owner);
            at = next;
        }
    }

    fn resync(&mut self, space: &Space<'_>, other: Owner) {
        self.follow(0..usize::MAX, space, other);
    }

    /// After the VMAs were replaced as a whole. O(VMAs and owners).
    pub(super) fn take_over(&mut self, space: &Space<'_>) {
        self.resync(space, Owner::Unknown);
    }

    /// All bytes with an owner.
    fn owned(&mut self) -> usize {
        let length = |range: &RangeInclusive<usize>| range.end() - range.start() + 1;
        self.tree.get_mut().iter(0..=usize::MAX).map(|(range, _)| length(&range)).sum()
    }

    /// Makes the owned bytes the mapped ones. Both are equal by construction, unless memory ran
    /// out.
    fn complete(&mut self, space: &Space<'_>) {
        if self.incomplete || self.owned() != space.sizes().total {
            self.resync(space, Owner::Unknown);
        }
    }

    /// The bytes of each owner in some ranges, which are in order. Bytes that another thread has
    /// just mapped have none yet. O(VMAs, owners and ranges).
    pub(super) fn resident(&mut self, ranges: &[Range<usize>], space: &Space<'_>) -> Owned {
        self.complete(space);
        let mut sums = Owned::new();
        let mut add = |owner, bytes: usize| *sums.entry(owner).or_default() += bytes as u64;
        let (mut next, mut owned) = (0, 0);
        for (range, word) in self.tree.get_mut().iter(0..=usize::MAX) {
            let (start, end) = (*range.start(), range.end().saturating_add(1));
            next += ranges[next..].partition_point(|range| range.end <= start);
            for one in ranges[next..].iter().take_while(|one| one.start < end) {
                let bytes = one.end.min(end) - one.start.max(start);
                owned += bytes;
                add(Owner::of(word), bytes);
            }
        }
        let all: usize = ranges.iter().map(|range| range.end - range.start).sum();
        if owned < all {
            add(Owner::Unknown, all - owned);
        }
        sums
    }

    /// Adds the mapped bytes of each owner. O(VMAs and owners).
    pub(super) fn add_to(&mut self, sums: &mut Owned, space: &Space<'_>) {
        self.complete(space);
        for (range, word) in self.tree.get_mut().iter(0..=usize::MAX) {
            let sum = sums.entry(Owner::of(word)).or_default();
            *sum = sum.saturating_add((range.end() - range.start() + 1) as u64);
        }
    }
}

#[cfg(test)]
mod tests;
