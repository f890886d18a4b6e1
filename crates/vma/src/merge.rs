//! Merging of neighbouring VMAs (rules 1 to 7 of RULES.md), and the one way to change part of a
//! VMA.
//!
//! Merging is decided before anything is written. The result is always one range with one set of
//! contents, so the change is one store into the tree, which overwrites the merged VMAs. A change
//! cannot fail half-way.

use crate::{Area, Error, MappedFile, RefCounted, VmFlags, Vma, space::Writer, tree::Look};

/// Whether two VMAs agree in everything that merging requires, apart from position and private
/// pages.
fn same_kind<F: MappedFile>(a: &Vma<F>, b: &Vma<F>) -> bool {
    a.policy == b.policy
        && (a.flags ^ b.flags).difference(VmFlags::STICKY).is_empty()
        && a.file == b.file
        && a.uffd == b.uffd
        && a.name == b.name
}

/// Whether the anon_vmas of two VMAs allow a merge. If only one of them has private pages, it must
/// not have inherited its anon_vma by fork, because an ancestor's anon_vma may hold these pages.
fn pages_fit<F>(target: &Vma<F>, source: &Vma<F>) -> bool {
    match (target.is_faulted(), source.is_faulted()) {
        (false, true) => !source.anon.is_inherited(),
        (true, false) => !target.anon.is_inherited(),
        _ => target.anon.same_owner(&source.anon),
    }
}

fn joins<F: MappedFile>(target: &Vma<F>, new: &Vma<F>) -> bool {
    target.slide == new.slide && same_kind(target, new) && pages_fit(target, new)
}

/// Whether a first write in one VMA may use the other's anon_vma: they differ at most in r, w and
/// x.
pub(crate) fn may_share_anon<F: MappedFile>(below: &Area<F>, above: &Area<F>) -> bool {
    let (a, b) = (&below.vma, &above.vma);
    below.end == above.start
        && a.policy == b.policy
        && a.file == b.file
        && (a.flags ^ b.flags).difference(VmFlags::ACCESS | VmFlags::STICKY).is_empty()
        && a.slide == b.slide
}

/// The neighbours that join a new or changed range.
struct Sides<'a, F> {
    left: Option<Look<'a, F>>,
    right: Option<Look<'a, F>>,
}

impl<'a, F: MappedFile> Sides<'a, F> {
    /// Keeps the neighbours that `new` can join. It keeps both only if they also fit each other.
    fn of(left: Option<Look<'a, F>>, right: Option<Look<'a, F>>, new: &Vma<F>) -> Self {
        let left = left.filter(|l| joins(l.vma, new));
        let right = right.filter(|r| {
            joins(r.vma, new)
                && left.as_ref().is_none_or(|l| {
                    !l.vma.is_faulted() || !r.vma.is_faulted() || l.vma.anon.same_owner(&r.vma.anon)
                })
        });
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
    fn join(self, start: usize, end: usize, new: &Vma<F>) -> Result<Option<Area<F>>, Error> {
        let Sides { left, right } = self;
        let sticky = [left.as_ref(), right.as_ref()]
            .into_iter()
            .flatten()
            .fold(new.flags, |flags, side| flags | side.vma.flags)
            & VmFlags::STICKY;
        let pages = [left.as_ref(), right.as_ref()]
            .into_iter()
            .flatten()
            .map(|side| side.vma)
            .chain([new])
            .find(|vma| vma.is_faulted())
            .map(|vma| vma.anon.clone());
        let mut joined = match (left, right) {
            (Some(left), Some(right)) => Area { end: right.end, ..left.keep() },
            (Some(left), None) => Area { end, ..left.keep() },
            (None, Some(right)) => Area { start, ..right.keep() },
            (None, None) => return Ok(None),
        };
        let pages = pages.filter(|_| !joined.vma.is_faulted());
        if pages.is_some() || !joined.vma.flags.contains(sticky) {
            let mut vma = Vma::clone(&joined.vma);
            vma.flags |= sticky;
            vma.anon = pages.unwrap_or(vma.anon);
            joined.vma = RefCounted::new(vma)?;
        }
        Ok(Some(joined))
    }
}

impl<F: MappedFile, R: grace::Reclaim, A: maple::NodeAlloc> Writer<'_, F, R, A> {
    /// The result of merging a new VMA at `start..end` with its neighbours; `None` if none joins.
    /// The new VMA replaces the contents of the range, so a neighbour that reaches into the range
    /// counts from its edge.
    pub(crate) fn merge_new(
        &self,
        start: usize,
        end: usize,
        new: &Vma<F>,
    ) -> Result<Option<Area<F>>, Error> {
        if new.flags.intersects(VmFlags::SPECIAL) {
            return Ok(None);
        }
        let left = self.before(start).filter(|l| l.end >= start);
        let right = self.look_at(end);
        Sides::of(left, right, new).without_close_hook().join(start, end, new)
    }

    /// The area that will contain a new VMA over `start..end`: the VMA itself, or the merged one.
    pub(crate) fn placed(&self, start: usize, end: usize, new: Vma<F>) -> Result<Area<F>, Error> {
        match self.merge_new(start, end, &new)? {
            Some(area) => Ok(area),
            None => Ok(Area { start, end, vma: RefCounted::new(new)? }),
        }
    }

    /// Stores a new VMA over `start..end`, merged with the neighbours that join it.
    pub(crate) fn insert(&mut self, start: usize, end: usize, new: Vma<F>) -> Result<(), Error> {
        let area = self.placed(start, end, new)?;
        self.store(area.start, area.end, area.vma)
    }

    /// Gives the part `start..end` of the VMA `middle` the contents `new`, with merging or
    /// splitting as needed. Returns the end of the VMA that now holds the part: the caller
    /// continues from there.
    pub(crate) fn modify(
        &mut self,
        middle: &Area<F>,
        start: usize,
        end: usize,
        new: Vma<F>,
    ) -> Result<usize, Error> {
        let (at_left, at_right) = (start == middle.start, end == middle.end);
        if let Some(area) = self.merge_changed(middle, start, end, &new)? {
            self.store(area.start, area.end, area.vma)?;
            return Ok(area.end);
        }
        self.room_for(usize::from(!at_left) + usize::from(!at_right))?;
        self.store(start, end, RefCounted::new(new)?)?;
        Ok(end)
    }

    fn merge_changed(
        &self,
        middle: &Area<F>,
        start: usize,
        end: usize,
        new: &Vma<F>,
    ) -> Result<Option<Area<F>>, Error> {
        if new.flags.intersects(VmFlags::SPECIAL) {
            return Ok(None);
        }
        let (at_left, at_right) = (start == middle.start, end == middle.end);
        let left = at_left.then(|| self.before(start).filter(|l| l.end == start)).flatten();
        let right = at_right.then(|| self.look_at(end).filter(|r| r.start == end)).flatten();
        let sides = Sides::of(left, right, new);
        let joins_any = sides.left.is_some() || sides.right.is_some();
        if joins_any && at_left && at_right && middle.vma.has_close_hook() {
            return Ok(None);
        }
        sides.without_close_hook().join(start, end, new)
    }
}

impl<F: MappedFile> Look<'_, F> {
    /// Whether new memory behind it, with the contents `new`, joins it.
    pub(crate) fn takes_in(&self, new: &Vma<F>) -> bool {
        joins(self.vma, new) && !new.flags.intersects(VmFlags::SPECIAL)
    }
}
