//! Merging of neighbouring VMAs (rules 1 to 7 of RULES.md), and the one way to change part of a
//! VMA.
//!
//! Merging is decided before anything is written. The result is always one range with one set of
//! contents, so the change is one store into the tree, which overwrites the merged VMAs. A change
//! cannot fail half-way.

use crate::{
    Area, Error, MappedFile, RefCounted, VmFlags, Vma,
    anon_vma::{Anon, AnonSlot, Generation, Moment},
    host::Host,
    space::Writer,
    step_plan::StepPlan,
    tree::{VmaPart, VmaRef},
    vma_counts::VmaCounts,
    work::Work,
};

/// Whether two VMAs agree in everything that merging requires, apart from position and private
/// pages.
fn same_kind<F: MappedFile>(a: &Vma<F>, b: &Vma<F>) -> bool {
    a.policy == b.policy
        && (a.flags ^ b.flags).difference(VmFlags::STICKY).is_empty()
        && a.file == b.file
        && a.uffd == b.uffd
        && a.name == b.name
        && a.busy == b.busy
}

/// Whether the anon_vmas of two VMAs allow a merge. If only one of them has private pages, it must
/// not have inherited its anon_vma by fork, because an ancestor's anon_vma may hold these pages.
fn pages_fit(target: Anon, source: Anon, here: Generation) -> bool {
    match (target.is_faulted(), source.is_faulted()) {
        (false, true) => !source.is_inherited(here),
        (true, false) => !target.is_inherited(here),
        _ => target.same_owner(source, here),
    }
}

/// Whether a VMA in the tree can take in new memory. If only its anon_vma decides that, its slot is
/// closed, so that the answer stays right.
fn joins<F: MappedFile>(target: &Vma<F>, new: &Vma<F>, here: Generation) -> bool {
    target.slide == new.slide
        && same_kind(target, new)
        && pages_fit(target.anon.close(), new.anon.get(), here)
}

/// Whether a first write in one VMA may use the anon_vma of the other, which is next to it: they
/// differ at most in r, w and x.
pub(crate) fn may_share_anon<F: MappedFile>(a: &Vma<F>, b: &Vma<F>) -> bool {
    a.policy == b.policy
        && a.file == b.file
        && (a.flags ^ b.flags).difference(VmFlags::ACCESS | VmFlags::STICKY).is_empty()
        && a.slide == b.slide
}

/// The result of a merge, and the effect on the counts of storing over the neighbours that it takes
/// in; `None` if there is no merge.
type Merged<F> = Option<(Area<F>, VmaCounts)>;

/// The neighbours that join a new or changed range.
struct Sides<'a, F> {
    left: Option<VmaRef<'a, F>>,
    right: Option<VmaRef<'a, F>>,
}

impl<'a, F: MappedFile> Sides<'a, F> {
    /// Keeps the neighbours that `new` can join. It keeps both only if they also fit each other.
    fn of(
        left: Option<VmaRef<'a, F>>,
        right: Option<VmaRef<'a, F>>,
        new: &Vma<F>,
        here: Generation,
    ) -> Self {
        let left = left.filter(|l| joins(l.vma, new, here));
        let right = right.filter(|r| joins(r.vma, new, here));
        let fits = |l: &VmaRef<'a, F>, r: &VmaRef<'a, F>| {
            let both = l.vma.is_faulted() && r.vma.is_faulted();
            !both || l.vma.anon.get().same_owner(r.vma.anon.get(), here)
        };
        let right = right.filter(|r| left.as_ref().is_none_or(|l| fits(l, r)));
        Sides { left, right }
    }

    /// Drops the right side if both sides join and the right one has a close hook, because that
    /// merge would remove the right VMA.
    fn without_close_hook(mut self) -> Self {
        if self.left.is_some() && self.right.as_ref().is_some_and(|r| r.vma.has_close_hook()) {
            self.right = None;
        }
        self
    }

    /// The range and contents of the result; `None` if no side joins. Allocates only if a side
    /// without private pages takes them in, or if a side gets sticky flags.
    fn join(self, start: usize, end: usize, new: &Vma<F>, now: Moment) -> Result<Merged<F>, Error> {
        let Sides { left, right } = self;
        let mut joined = match (left, right) {
            (Some(left), Some(right)) => Area { end: right.end, ..left.keep() },
            (Some(left), None) => Area { end, ..left.keep() },
            (None, Some(right)) => Area { start, ..right.keep() },
            (None, None) => return Ok(None),
        };
        let sides = || left.iter().chain(&right).map(|side| side.vma);
        let mut taken = VmaCounts::default();
        // A side may reach into the range, where it is replaced: it counts up to the edge. One VMA
        // may be both sides.
        if let Some(left) = left {
            taken.count(left.vma, -1);
            taken = taken.size(left.vma.flags, left.end.min(start) - left.start, -1);
        }
        if let Some(right) = right {
            taken.count(right.vma, -1);
            taken = taken.size(right.vma.flags, right.end - right.start.max(end), -1);
        }
        let sticky = sides().fold(new.flags, |flags, side| flags | side.flags) & VmFlags::STICKY;
        let faulted = sides().chain([new]).find(|vma| vma.is_faulted());
        let pages = faulted.filter(|_| !joined.vma.is_faulted());
        if pages.is_some() || !joined.vma.flags.contains(sticky) {
            let mut vma = Vma::clone(&joined.vma);
            vma.flags |= sticky;
            if let Some(pages) = pages {
                vma.anon = AnonSlot::filled(pages.anon.get());
            }
            joined.vma = RefCounted::new(vma)?;
        }
        // The slots of both sides are closed.
        if sides().chain([new]).any(|vma| vma.anon.close_touched(now)) {
            joined.vma.mark_touched_for_call();
        }
        Ok(Some((joined, taken)))
    }
}

impl<F: MappedFile, R: grace::Reclaim, H: Host<F, R>> Writer<'_, F, R, H> {
    /// The result of merging a new VMA at `start..end` with its neighbours; `None` if none joins.
    /// The new VMA replaces the contents of the range, so a neighbour that reaches into the range
    /// counts from its edge. `right` is the VMA at `end`.
    pub(crate) fn merge_new(
        &self,
        start: usize,
        end: usize,
        new: &Vma<F>,
        right: Option<VmaRef<'_, F>>,
    ) -> Result<Merged<F>, Error> {
        if new.flags.intersects(VmFlags::SPECIAL) {
            return Ok(None);
        }
        let left = self.vmas.before(start).filter(|l| l.end >= start);
        let here = self.vmas.state.generation();
        let sides = Sides::of(left, right, new, here).without_close_hook();
        sides.join(start, end, new, self.vmas.state.moment())
    }

    /// The area that will contain a new VMA over `start..end`: the VMA itself, or the merged one.
    /// And the neighbours that it takes in. `right` is the VMA at `end`.
    pub(crate) fn placed(
        &self,
        start: usize,
        end: usize,
        new: Vma<F>,
        right: Option<VmaRef<'_, F>>,
    ) -> Result<(Area<F>, VmaCounts), Error> {
        match self.merge_new(start, end, &new, right)? {
            Some(merged) => Ok(merged),
            None => Ok((Area { start, end, vma: RefCounted::new(new)? }, VmaCounts::default())),
        }
    }

    /// Gives the part `start..end` of the VMA `middle` the contents `new`, with merging or
    /// splitting as needed. They have the file and the private pages of the VMA. Returns the end of
    /// the VMA that now holds the part: the caller continues from there.
    ///
    /// If the call `goes_on` behind the part, no fault gives it an anon_vma until a call replaces
    /// it: its next merge would otherwise depend on a fault between two steps of one call.
    pub(crate) fn modify(
        &mut self,
        middle: VmaPart,
        start: usize,
        end: usize,
        mut new: Vma<F>,
        goes_on: bool,
    ) -> Result<usize, Error> {
        let (at_left, at_right) = (start == middle.start, end == middle.end);
        if !(at_left && at_right) && new.anon.get().is_implied(self.vmas.state.generation()) {
            self.vmas.own_anon(start)?;
            if let Some(look) = self.vmas.look_at(start) {
                new.anon = AnonSlot::filled(look.vma.anon.get());
            }
        }
        // Shared memory never gets one.
        match goes_on && new.is_private() {
            true => _ = new.anon.close(),
            false => self.open(&mut new),
        }
        let work = Work::of_flags(start..end, middle.flags, new.flags);
        let gone = middle.counts.times(1 - isize::from(at_left) - isize::from(at_right));
        let gone = gone.size(middle.flags, end - start, -1);
        let Some((area, taken)) = self.merge_changed(middle, start, end, &new)? else {
            self.room_for(usize::from(!at_left) + usize::from(!at_right))?;
            let vma = RefCounted::new(new)?;
            self.modified(Area { start, end, vma }, gone, work)?;
            return Ok(end);
        };
        let end = area.end;
        self.modified(area, gone + taken, work)?;
        Ok(end)
    }

    /// Stores a VMA that has changed. The host hears of it if the rights of pages change.
    fn modified(&mut self, area: Area<F>, gone: VmaCounts, work: Work) -> Result<(), Error> {
        match work {
            Work::Nothing => self.vmas.write_known(area.into(), gone),
            work => self.apply(StepPlan::change(area.into(), gone, work)),
        }
    }

    fn merge_changed(
        &self,
        middle: VmaPart,
        start: usize,
        end: usize,
        new: &Vma<F>,
    ) -> Result<Merged<F>, Error> {
        if new.flags.intersects(VmFlags::SPECIAL) {
            return Ok(None);
        }
        let (at_left, at_right) = (start == middle.start, end == middle.end);
        let left = at_left.then(|| self.vmas.before(start).filter(|l| l.end == start)).flatten();
        let right = at_right.then(|| self.vmas.look_at(end).filter(|r| r.start == end)).flatten();
        let sides = Sides::of(left, right, new, self.vmas.state.generation());
        let joins_any = sides.left.is_some() || sides.right.is_some();
        if joins_any && at_left && at_right && new.has_close_hook() {
            return Ok(None);
        }
        sides.without_close_hook().join(start, end, new, self.vmas.state.moment())
    }
}

impl<F: MappedFile> VmaRef<'_, F> {
    /// Whether new memory behind it, with the contents `new`, joins it.
    pub(crate) fn takes_in(&self, new: &Vma<F>, here: Generation) -> bool {
        joins(self.vma, new, here) && !new.flags.intersects(VmFlags::SPECIAL)
    }
}
