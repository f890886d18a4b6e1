//! Pairs of address spaces, ours and the model's, and the checks of all that must hold of them.

use alloc::vec::Vec;

use super::{File, model::*, pages::SomePages};
use crate::{AddressSpace, Error, Layout, PAGE_SIZE, Profile, VmFlags as V, Writer};

pub(super) type Ours = AddressSpace<File, grace::Single>;

pub(super) type OurWriter<'a> = Writer<'a, File, grace::Single>;

/// With the pages of the space.
pub(super) type OurCalls<'a> = Writer<'a, File, grace::Single, &'a mut SomePages>;

/// Sets the number of further allocations that succeed (`None`: all), and returns the last one.
pub(super) type Allow = fn(Option<usize>) -> Option<usize>;

pub(super) struct Pair {
    pub(super) ours: Ours,
    pub(super) model: Model,
    /// The pages behind ours.
    pub(super) pages: SomePages,
}

impl Pair {
    fn new(ours: Ours, model: Model) -> Self {
        Pair { ours, model, pages: SomePages::default() }
    }

    /// A first write without the mmap lock. Returns whether that was enough.
    pub(super) fn first_write(&self, addr: usize) -> bool {
        let guard = self.ours.pin();
        let seen = self.ours.lookup(&guard, addr);
        seen.is_some_and(|(_, vma)| self.ours.first_write(&guard, addr, vma))
    }

    /// The writer of ours, with the pages behind it.
    pub(super) fn calls(&mut self) -> OurCalls<'_> {
        self.ours.get_mut().with_host(&mut self.pages)
    }
}

/// A family of address spaces: forks share anon_vmas.
pub(super) struct World {
    pub(super) pairs: Vec<Pair>,
    /// The parent of each anon_vma, by number.
    parents: Vec<Option<usize>>,
    /// Limits the number of further allocations.
    allow: Option<Allow>,
}

/// Small, so that random calls often meet.
pub(super) const PROFILE: Profile = Profile {
    stack_guard_gap: GAP * PAGE_SIZE,
    min_address: LOWEST * PAGE_SIZE,
    task_size: END * PAGE_SIZE,
    guard_flag: true,
    ..Profile::LINUX_6_18
};

impl World {
    pub(super) fn new() -> Self {
        let heap = HEAP * PAGE_SIZE;
        let mmap_base = BASE * PAGE_SIZE;
        let layout = Layout { start_brk: heap, brk: heap, start_stack: 0, mmap_base };
        let model = Model {
            vmas: Vec::new(),
            brk: heap,
            to_come: V::empty(),
            merge_any: false,
            next_anon: 0,
        };
        let ours = Ours::new(PROFILE, layout);
        World { pairs: alloc::vec![Pair::new(ours, model)], parents: Vec::new(), allow: None }
    }

    /// Calls `act` on one address space of the model, which takes numbers for new anon_vmas.
    pub(super) fn model<T>(&mut self, i: usize, act: impl FnOnce(&mut Model) -> T) -> T {
        let model = &mut self.pairs[i].model;
        model.next_anon = self.parents.len();
        let outcome = act(model);
        let used = model.next_anon;
        self.parents.resize(used, None);
        outcome
    }

    /// Lets each allocation of every later call fail once.
    pub(super) fn failing(mut self, allow: Allow) -> Self {
        self.allow = Some(allow);
        self
    }

    pub(super) fn is_failing(&self) -> bool {
        self.allow.is_some()
    }

    /// A call on one of our address spaces that may stop half-way for lack of memory. It is
    /// repeated then.
    pub(super) fn ours<T>(
        &mut self,
        i: usize,
        call: impl Fn(&mut OurCalls<'_>) -> Result<T, Error>,
    ) -> Result<T, Error> {
        self.attempt(i, false, call)
    }

    /// A call on one of our address spaces that changes nothing if memory runs out (I7).
    pub(super) fn at_once<T>(
        &mut self,
        i: usize,
        call: impl Fn(&mut OurCalls<'_>) -> Result<T, Error>,
    ) -> Result<T, Error> {
        self.attempt(i, true, call)
    }

    fn attempt<T>(
        &mut self,
        i: usize,
        at_once: bool,
        call: impl Fn(&mut OurCalls<'_>) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let Some(allow) = self.allow else { return call(&mut self.pairs[i].calls()) };
        for n in 0.. {
            self.pairs[i].pages.allow = Some(allow);
            let before = at_once.then(|| self.pairs[i].pages.clone());
            allow(Some(n));
            let outcome = call(&mut self.pairs[i].calls());
            allow(None);
            match outcome {
                Err(Error::OutOfMemory) if at_once => {
                    assert!(before.is_some_and(|before| before.is_same(&self.pairs[i].pages)));
                    self.check();
                }
                Err(Error::OutOfMemory) => self.pairs[i].ours.get_mut().validate(),
                other => return other,
            }
        }
        unreachable!("every call makes a limited number of allocations")
    }

    fn vmas(&self) -> impl Iterator<Item = &M> {
        self.pairs.iter().flat_map(|pair| &pair.model.vmas)
    }

    /// The VMAs linked to an anon_vma, the VMAs that have it as their own, and its children with a
    /// linked VMA.
    fn counts(&self, anon: usize) -> [usize; 3] {
        let linked = |id| {
            let has = |m: &&M| m.anon.as_ref().is_some_and(|anon| anon.all.contains(&id));
            self.vmas().filter(has).count()
        };
        let own = |m: &&M| m.anon.as_ref().is_some_and(|a| a.own == anon);
        let child = |&id: &usize| {
            // A root counts as its own child.
            self.parents[id].unwrap_or(id) == anon && linked(id) > 0
        };
        let children = (0..self.parents.len()).filter(child).count();
        [linked(anon), self.vmas().filter(own).count(), children]
    }

    /// fork, by rule 3 of RULES.md.
    pub(super) fn fork(&mut self, i: usize) {
        let parent = self.pairs[i].model.clone();
        let ours = self.at_once(i, |s| s.fork()).expect("memory");
        let child = Model { vmas: Vec::new(), to_come: V::empty(), ..parent.clone() };
        self.pairs.push(Pair::new(ours, child));
        let last = self.pairs.len() - 1;
        for mut m in parent.vmas {
            if m.flags.contains(V::DONTCOPY) {
                continue;
            }
            m.flags -= V::LOCKED | V::LOCKONFAULT;
            if m.uffd.is_some_and(|uffd| !uffd.follows_fork) {
                m.uffd = None;
                m.flags -= V::UFFD;
            }
            if m.flags.contains(V::WIPEONFORK) {
                m.anon = None;
            }
            if let Some(anon) = &mut m.anon {
                let idle = |&&id: &&usize| {
                    let [_, active, children] = self.counts(id);
                    active == 0 && children < 2
                };
                if let Some(&idle) = anon.all.iter().find(idle) {
                    anon.own = idle;
                } else {
                    self.parents.push(Some(anon.own));
                    anon.own = self.parents.len() - 1;
                    anon.all.push(anon.own);
                }
            }
            self.pairs[last].model.vmas.push(m);
        }
    }

    /// Checks that both sides agree in everything, and that ours holds its invariants.
    ///
    /// # Panics
    /// If a check fails.
    pub(super) fn check(&mut self) {
        for Pair { ours, model, pages } in &mut self.pairs {
            let mut space = ours.get_mut();
            space.validate();
            assert_eq!(space.layout().brk, model.brk);
            assert_eq!(space.count(), model.vmas.len());
            assert_eq!(space.areas().count(), model.vmas.len(), "{:#?}", model.vmas);
            for (area, m) in space.areas().zip(&model.vmas) {
                let vma = &area.vma;
                let ours = (area.start / PAGE_SIZE, area.end / PAGE_SIZE, vma.flags, vma.file);
                assert_eq!(ours, (m.start, m.end, m.flags, m.file));
                let hidden = (vma.offset_at(area.start), vma.policy, vma.uffd);
                assert_eq!(hidden, (m.pgoff, m.policy, m.uffd), "{m:?}");
            }
            check_anon(&space, &model.vmas);
            pages.check(&space);
            pages.touch(&space);
        }
    }

    /// Ends one address space after the other.
    pub(super) fn finish(mut self) {
        while let Some(Pair { ours, .. }) = self.pairs.pop() {
            drop(ours);
            self.check();
        }
    }
}

/// Checks that our numbers answer what Linux asks of the model's chains: whether a VMA came by a
/// fork, and which VMAs have the same anon_vma as their own.
fn check_anon(space: &OurWriter<'_>, vmas: &[M]) {
    let here = space.vmas.state.generation();
    let anons: Vec<_> = space.areas().map(|area| area.vma.anon.get()).collect();
    for (i, (ours, m)) in anons.iter().zip(vmas).enumerate() {
        assert_eq!(ours.is_faulted(), m.anon.is_some(), "{m:?}");
        let chain = m.anon.as_ref().map_or(0, |anon| anon.all.len());
        assert_eq!(ours.is_inherited(here), chain > 1, "{m:?}");
        for (others, n) in anons.iter().zip(vmas).skip(i + 1) {
            let own = |m: &M| m.anon.as_ref().map(|anon| anon.own);
            assert_eq!(ours.same_owner(*others, here), own(m) == own(n), "{m:?} and {n:?}");
        }
    }
}
