//! When neighbouring VMAs become one (rules 1 to 7 of RULES.md), and the one way to change part of
//! a VMA.
//!
//! Merging is decided before anything is written: the outcome is always a single range with single
//! contents, so the change itself is one store into the tree, which overwrites what it swallows.
//! Nothing in here fails half-way.

use crate::{Area, Counted, Error, MappedFile, VmFlags, Vma, space::Writer};

/// Do two VMAs agree in all that merging asks for, apart from position and private pages?
fn same_kind<F: MappedFile>(a: &Vma<F>, b: &Vma<F>) -> bool {
    a.policy == b.policy
        && (a.flags ^ b.flags).difference(VmFlags::STICKY).is_empty()
        && a.file == b.file
        && a.uffd == b.uffd
        && a.name == b.name
}

/// May pages of `source` be counted to `target`? If just one has private pages, it must not be a
/// fork's child, whose pages an ancestor's anon_vma may hold.
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

/// Could a first fault in one use the other's anon_vma: alike but for r, w, x?
pub(crate) fn may_share_anon<F: MappedFile>(below: &Area<F>, above: &Area<F>) -> bool {
    let (a, b) = (&below.vma, &above.vma);
    below.end == above.start
        && a.policy == b.policy
        && a.file == b.file
        && (a.flags ^ b.flags).difference(VmFlags::ACCESS | VmFlags::STICKY).is_empty()
        && a.slide == b.slide
}

/// Which sides of a new or changed range join it, and what they are.
struct Sides<F> {
    left: Option<Area<F>>,
    right: Option<Area<F>>,
}

impl<F: MappedFile> Sides<F> {
    /// Keeps the neighbours that `new` can join. Both only if they also fit each other.
    fn of(left: Option<Area<F>>, right: Option<Area<F>>, new: &Vma<F>) -> Self {
        let left = left.filter(|l| joins(&l.vma, new));
        let right = right.filter(|r| {
            joins(&r.vma, new)
                && left.as_ref().is_none_or(|l| {
                    !l.vma.is_faulted() || !r.vma.is_faulted() || l.vma.anon.same_owner(&r.vma.anon)
                })
        });
        Sides { left, right }
    }

    /// Joining on both sides takes the right one away, which its close hook may forbid.
    fn without_close_hook(mut self) -> Self {
        if self.left.is_some() && self.right.as_ref().is_some_and(|r| r.vma.has_close_hook()) {
            self.right = None;
        }
        self
    }

    /// The range and contents that come out; `None` if no side joins. Allocates only if a side that
    /// saw no write takes in private pages or sticky flags.
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
            .map(|side| &*side.vma)
            .chain([new])
            .find(|vma| vma.is_faulted())
            .map(|vma| vma.anon.clone());
        let mut joined = match (left, right) {
            (Some(left), Some(right)) => Area { end: right.end, ..left },
            (Some(left), None) => Area { end, ..left },
            (None, Some(right)) => Area { start, ..right },
            (None, None) => return Ok(None),
        };
        let pages = pages.filter(|_| !joined.vma.is_faulted());
        if pages.is_some() || !joined.vma.flags.contains(sticky) {
            let mut vma = Vma::clone(&joined.vma);
            vma.flags |= sticky;
            vma.anon = pages.unwrap_or(vma.anon);
            joined.vma = Counted::new(vma)?;
        }
        Ok(Some(joined))
    }
}

impl<F: MappedFile, R: grace::Reclaim, A: maple::NodeAlloc> Writer<'_, F, R, A> {
    /// What a new VMA at `start..end` becomes together with its neighbours; `None` if it stays
    /// alone. What the range holds now will be gone by then, so a neighbour that reaches into it
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
        let right = self.covering(end);
        Sides::of(left, right, new).without_close_hook().join(start, end, new)
    }

    /// What a new VMA over `start..end` will be part of: itself, or what it joins.
    pub(crate) fn placed(&self, start: usize, end: usize, new: Vma<F>) -> Result<Area<F>, Error> {
        match self.merge_new(start, end, &new)? {
            Some(area) => Ok(area),
            None => Ok(Area { start, end, vma: Counted::new(new)? }),
        }
    }

    /// Puts a new VMA over `start..end`, merged with its neighbours where they join.
    pub(crate) fn insert(&mut self, start: usize, end: usize, new: Vma<F>) -> Result<(), Error> {
        let area = self.placed(start, end, new)?;
        self.store(area.start, area.end, area.vma)
    }

    /// Gives the part `start..end` of the VMA `middle` the contents `new`, merging or splitting as
    /// needed. Returns where the VMA that holds the part now ends: the place to go on from.
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
        self.store(start, end, Counted::new(new)?)?;
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
        let right = at_right.then(|| self.covering(end).filter(|r| r.start == end)).flatten();
        let sides = Sides::of(left, right, new);
        let joins_any = sides.left.is_some() || sides.right.is_some();
        if joins_any && at_left && at_right && middle.vma.has_close_hook() {
            return Ok(None);
        }
        sides.without_close_hook().join(start, end, new)
    }
}

impl<F: MappedFile> Area<F> {
    /// The area made longer up to `end` if new memory there, with contents `new`, joins it.
    pub(crate) fn extend(self, end: usize, new: &Vma<F>) -> Option<Area<F>> {
        let joins = joins(&self.vma, new) && !new.flags.intersects(VmFlags::SPECIAL);
        joins.then_some(Area { end, ..self })
    }
}
