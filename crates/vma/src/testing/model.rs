//! The model: a list of VMAs, and a second implementation of the merging rules (1 to 7).

use alloc::vec::Vec;

use super::{File, Kind};
use crate::{Policy, Uffd, VmFlags as V};

/// The outcome of a call: a page number or 0, or the errno.
pub(super) type Outcome = Result<usize, i32>;

pub(super) const EPERM: i32 = 1;
pub(super) const ENOMEM: i32 = 12;
pub(super) const EACCES: i32 = 13;
pub(super) const EFAULT: i32 = 14;
pub(super) const EBUSY: i32 = 16;
pub(super) const EEXIST: i32 = 17;
pub(super) const EINVAL: i32 = 22;

/// The lowest page for maps, the page at which the search from above begins, and the end of the
/// address space.
pub(super) const LOWEST: usize = 16;
pub(super) const BASE: usize = 112;
pub(super) const END: usize = 420;
/// Pages that stay free below a stack.
pub(super) const GAP: usize = 3;
pub(super) const HEAP: usize = 20;

/// The anonymous pages that a VMA may hold: those of `own`, and those of all its ancestors.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Anon {
    pub(super) own: usize,
    pub(super) all: Vec<usize>,
}

/// A VMA, in pages.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct M {
    pub(super) start: usize,
    pub(super) end: usize,
    pub(super) flags: V,
    pub(super) file: Option<File>,
    /// The offset of the first page. For anonymous memory, the page at which it was mapped.
    pub(super) pgoff: usize,
    pub(super) anon: Option<Anon>,
    pub(super) policy: Option<Policy>,
    pub(super) uffd: Option<Uffd>,
}

impl M {
    pub(super) fn acts_anonymous(&self) -> bool {
        self.file.is_none_or(|f| f.kind == Kind::Zero && !self.flags.contains(V::SHARED))
    }

    pub(super) fn is_segment(&self) -> bool {
        self.file.is_some_and(|f| matches!(f.kind, Kind::Segment(_)))
    }

    fn is_special(&self) -> bool {
        self.flags.intersects(V::IO | V::DONTEXPAND | V::PFNMAP | V::MIXEDMAP)
    }

    pub(super) fn can_be_mergeable(&self) -> bool {
        let no = V::SHARED | V::MAYSHARE | V::DROPPABLE | V::HUGETLB;
        !self.flags.intersects(no) && !self.is_special()
    }

    /// Whether addresses and offsets continue from `self` to `next`, so that one VMA could hold
    /// both.
    fn follows(&self, next: &M) -> bool {
        self.end == next.start && self.pgoff + (self.end - self.start) == next.pgoff
    }
}

const STICKY: V = V::SOFTDIRTY.union(V::MAYBE_GUARD);

fn differ_in(a: &M, b: &M, ignored: V) -> bool {
    ((a.flags ^ b.flags) - ignored) != V::empty() || a.file != b.file || a.policy != b.policy
}

/// Whether `a` and `b` may merge. `a` lies below `b`.
fn can_join(a: &M, b: &M) -> bool {
    let pages = match (&a.anon, &b.anon) {
        (None, None) => true,
        (Some(a), Some(b)) => a.own == b.own,
        (Some(one), None) | (None, Some(one)) => one.all.len() == 1,
    };
    a.follows(b) && pages && !differ_in(a, b, STICKY) && a.uffd == b.uffd && !b.is_special()
}

/// The address space of the model.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Model {
    pub(super) vmas: Vec<M>,
    /// In bytes, as brk has it.
    pub(super) brk: usize,
    pub(super) to_come: V,
    pub(super) merge_any: bool,
    /// The number of the next new anon_vma.
    pub(super) next_anon: usize,
}

impl Model {
    pub(super) fn at(&self, page: usize) -> Option<usize> {
        self.vmas.iter().position(|m| m.start <= page && page < m.end)
    }

    pub(super) fn is_free(&self, start: usize, end: usize) -> bool {
        !self.vmas.iter().any(|m| m.start < end && m.end > start)
    }

    /// The parts of VMAs in the range, each with its start and end.
    pub(super) fn parts(&self, start: usize, end: usize) -> Vec<(usize, usize)> {
        let overlap = |m: &M| (m.start.max(start), m.end.min(end));
        self.vmas.iter().map(overlap).filter(|(s, e)| s < e).collect()
    }

    pub(super) fn has_hole(&self, start: usize, end: usize) -> bool {
        (start..end).any(|page| self.at(page).is_none())
    }

    /// Splits the VMA that contains `page` inside, so that `page` is a boundary.
    pub(super) fn cut(&mut self, page: usize) {
        if let Some(i) = self.vmas.iter().position(|m| m.start < page && page < m.end) {
            let mut upper = self.vmas[i].clone();
            upper.pgoff += page - upper.start;
            upper.start = page;
            self.vmas[i].end = page;
            self.vmas.insert(i + 1, upper);
        }
    }

    pub(super) fn remove(&mut self, start: usize, end: usize) {
        self.cut(start);
        self.cut(end);
        self.vmas.retain(|m| m.end <= start || m.start >= end);
    }

    /// munmap, without the checks of its arguments.
    pub(super) fn unmap(&mut self, start: usize, end: usize) -> Result<(), i32> {
        self.no_seal(start, end)?;
        self.remove(start, end);
        Ok(())
    }

    /// Returns an error if a VMA in the range is sealed. The VMA that contains the range's start is
    /// split by then.
    pub(super) fn no_seal(&mut self, start: usize, end: usize) -> Result<(), i32> {
        let sealed = |m: &M| m.start < end && m.end > start && m.flags.contains(V::SEALED);
        if !self.vmas.iter().any(sealed) {
            return Ok(());
        }
        if self.at(start).is_some_and(|i| !self.vmas[i].flags.contains(V::SEALED)) {
            self.cut(start);
        }
        Err(EPERM)
    }

    /// Inserts a new VMA into a free range and joins it with its neighbours. Returns its index
    /// afterwards.
    pub(super) fn insert(&mut self, new: M) -> usize {
        assert!(self.is_free(new.start, new.end));
        let i = self.vmas.iter().take_while(|m| m.end <= new.start).count();
        self.vmas.insert(i, new);
        self.join(i, false)
    }

    /// Joins the VMA at `i`, which is new or was changed (and `existed` before), with its
    /// neighbours where the rules allow it.
    pub(super) fn join(&mut self, i: usize, existed: bool) -> usize {
        let me = self.vmas[i].clone();
        if me.is_special() {
            return i;
        }
        let left = i > 0 && can_join(&self.vmas[i - 1], &me);
        let mut right = i + 1 < self.vmas.len() && can_join(&me, &self.vmas[i + 1]);
        if left && right {
            // Both neighbours fit this VMA. They must also fit each other, and joining both removes
            // the right one.
            let (l, r) = (&self.vmas[i - 1].anon, &self.vmas[i + 1].anon);
            let fit =
                l.is_none() || r.is_none() || l.as_ref().unwrap().own == r.as_ref().unwrap().own;
            right = fit && !self.vmas[i + 1].is_segment();
        }
        if existed && me.is_segment() && (left || right) {
            return i; // joining would remove this VMA, which has a close hook
        }
        let first = if left { i - 1 } else { i };
        let last = if right { i + 1 } else { i };
        let parts: Vec<M> = self.vmas.drain(first..=last).collect();
        let mut whole = parts[0].clone();
        whole.end = parts[parts.len() - 1].end;
        whole.flags |= parts.iter().fold(V::empty(), |all, m| all | m.flags) & STICKY;
        // The left neighbour grows, or else the right one. It keeps its anon_vma, or takes
        // another's if it has none.
        let (l, r) = (left.then_some(&parts[0]), right.then_some(&parts[parts.len() - 1]));
        let grower = l.or(r).unwrap_or(&me);
        let others = [l, r, Some(&me)].into_iter().flatten();
        whole.anon = [grower].into_iter().chain(others).find_map(|m| m.anon.clone());
        self.vmas.insert(first, whole);
        first
    }

    /// Changes the part `start..end` of one VMA and joins it with its neighbours.
    pub(super) fn change(&mut self, start: usize, end: usize, change: impl Fn(&mut M)) {
        let i = self.at(start).expect("a part of a VMA");
        let mut new = self.vmas[i].clone();
        change(&mut new);
        if new == self.vmas[i] {
            return;
        }
        // A VMA that is split is not removed, so its close hook does not matter.
        let whole = self.vmas[i].start == start && self.vmas[i].end == end;
        self.cut(start);
        self.cut(end);
        let i = self.at(start).expect("cut, not removed");
        change(&mut self.vmas[i]);
        self.join(i, whole);
    }

    /// Calls [`change`](Self::change) for each VMA of a range, in order.
    pub(super) fn change_all(&mut self, start: usize, end: usize, change: impl Fn(&mut M)) {
        for (s, e) in self.parts(start, end) {
            self.change(s, e, &change);
        }
    }

    /// A first write in the VMA at `i`. It gets an anon_vma: the next VMA's or the previous one's
    /// where that is allowed, else a new one.
    pub(super) fn touch(&mut self, i: usize) {
        if self.vmas[i].anon.is_some() {
            return;
        }
        let me = &self.vmas[i];
        let alike =
            |a: &M, b: &M| a.follows(b) && !differ_in(a, b, STICKY | V::READ | V::WRITE | V::EXEC);
        let lent = |m: &M| m.anon.clone().filter(|anon| anon.all.len() == 1);
        let next = self.vmas.get(i + 1).filter(|next| alike(me, next)).and_then(lent);
        let previous = || {
            let previous = &self.vmas[i.checked_sub(1)?];
            Some(previous).filter(|previous| alike(previous, me)).and_then(lent)
        };
        let anon = next.or_else(previous).unwrap_or_else(|| {
            let own = self.next_anon;
            Anon { own, all: alloc::vec![own] }
        });
        self.next_anon += 1;
        self.vmas[i].anon = Some(anon);
    }

    /// Populates a range, as mlock and MAP_POPULATE do.
    pub(super) fn populate(&mut self, start: usize, end: usize) {
        for i in 0..self.vmas.len() {
            let m = &self.vmas[i];
            let skip = m.flags.intersects(V::IO | V::PFNMAP | V::LOCKONFAULT | V::SHARED);
            if m.start < end && m.end > start && m.flags.contains(V::WRITE) && !skip {
                self.touch(i);
            }
        }
    }

    /// Adds a piece to the heap. It joins the VMA below only if that is the heap.
    pub(super) fn extend_heap(&mut self, piece: M) {
        let i = self.vmas.iter().take_while(|m| m.end <= piece.start).count();
        let below = i.checked_sub(1).map(|below| &self.vmas[below]);
        if below.is_some_and(|below| below.end > HEAP && can_join(below, &piece)) {
            self.vmas[i - 1].end = piece.end;
        } else {
            self.vmas.insert(i, piece);
        }
    }

    fn stack_gap(m: &M) -> usize {
        if m.flags.contains(V::GROWSDOWN) { GAP } else { 0 }
    }

    /// Whether a map of `len` pages fits at `at`, with the gap below a stack.
    fn fits(&self, at: usize, len: usize) -> bool {
        let above = self.vmas.iter().find(|m| m.end > at);
        above.is_none_or(|m| m.start.saturating_sub(Self::stack_gap(m)) >= at + len)
    }

    /// The kernel's choice of an address: the hint if it is free, else the highest free one, else
    /// the lowest.
    pub(super) fn place(&self, hint: usize, len: usize) -> Outcome {
        if len > END {
            return Err(ENOMEM);
        }
        if hint != 0 && hint + len <= END && self.fits(hint, len) {
            return Ok(hint);
        }
        let bottom_up = || (END / 3..(END + 1).saturating_sub(len)).find(|&at| self.fits(at, len));
        self.highest(len).or_else(bottom_up).ok_or(ENOMEM)
    }

    /// The search from above. At a stack it continues below the stack's gap, whatever else lies
    /// between.
    fn highest(&self, len: usize) -> Option<usize> {
        let mut at = BASE.checked_sub(len)?;
        while at >= LOWEST {
            let above = self.vmas.iter().find(|m| m.start >= at + len);
            let room = above.map_or(END, |m| m.start.saturating_sub(Self::stack_gap(m)));
            if !self.is_free(at, at + len) {
                at -= 1;
            } else if room < at + len {
                at = room.checked_sub(len)?;
            } else {
                return Some(at);
            }
        }
        None
    }
}
