//! The spaces, pages and checks that the models share.

use crate::cursor::{EntryChange, SweepChange};
use crate::format::{Attrs, Format, X86_64};
use crate::quick::{QUICK_ROOT, QUICK_TABLE};
use crate::shared::Paging;
use crate::tables::PageTables;
use crate::walk::Mapping;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::Deref;
use grace::Reclaim;
use machine::{Asid, Frame, FrameSource, NodePolicy, Owner, PageSize, Step, VirtAddr, VirtRange};
use sim::{MODEL_CPUS, MODEL_FRAMES, Model, ModelGrace};

/// The levels of the tables: the top one, one above the lowest, the lowest.
pub(super) const LEVELS: u8 = 3;

/// The format of most models.
pub(super) type X86 = X86_64<LEVELS>;

/// The page that the models are about, and its neighbour in the lowest table.
pub(super) const AT: VirtAddr = VirtAddr::new(0);
pub(super) const NEXT: VirtAddr = VirtAddr::new(0x1000);
/// A page in the next lowest table.
pub(super) const AFTER: VirtAddr = VirtAddr::new(0x20_0000);

/// The range of pages from `at` on.
pub(super) fn pages(at: VirtAddr, count: u64) -> VirtRange {
    VirtRange::new(at, count << 12).unwrap()
}

/// The shared state of all page tables of a model's machine.
pub(super) struct World<F: Format = X86> {
    pub(super) model: Model,
    paging: Arc<Paging<Model, F>>,
}

impl World {
    pub(super) fn new(model: &Model) -> World {
        World::of(model)
    }
}

impl<F: Format> World<F> {
    /// A world of tables of a format.
    pub(super) fn of(model: &Model) -> World<F> {
        let paging = Paging::try_new(model.clone(), PageSize::Size1G).unwrap();
        World { model: model.clone(), paging }
    }

    /// An empty space with this tag.
    pub(super) fn space(&self, tag: u16) -> Space<F> {
        let tables = PageTables::user(&self.paging, Asid(tag), None).unwrap();
        Space { tables: Arc::new(tables), model: self.model.clone() }
    }

    pub(super) fn kernel(&self) -> Arc<PageTables<Model, F, ModelGrace>> {
        Arc::new(PageTables::kernel(&self.paging).unwrap())
    }

    /// A program that makes a space with this tag over the kernel's tables.
    pub(super) fn maker(
        &self,
        tag: u16,
        kernel: &Arc<PageTables<Model, F, ModelGrace>>,
    ) -> impl FnOnce() -> PageTables<Model, F, ModelGrace> + use<F> {
        let (paging, kernel) = (Arc::clone(&self.paging), Arc::clone(kernel));
        move || PageTables::user(&paging, Asid(tag), Some(kernel)).unwrap()
    }

    /// Ends a model whose spaces are gone. No frame has a reference left, and each table is on a
    /// quicklist, once.
    pub(super) fn end(self) {
        // SAFETY: the threads have ended.
        unsafe { ModelGrace::end() };
        let lists = |cpu| {
            self.model.as_cpu(cpu, || {
                [QUICK_TABLE, QUICK_ROOT]
                    .map(|list| self.paging.lists().len(list))
                    .iter()
                    .sum::<usize>()
            })
        };
        let tables: usize = (0..MODEL_CPUS).map(lists).sum();
        let all = MODEL_FRAMES as usize;
        assert_eq!(self.model.free_frames() + tables, all, "frames are lost, or freed twice");
        assert_eq!(self.paging.waiting(), 0);
    }

    /// A frame of a program, with one reference.
    pub(super) fn frame(&self) -> Frame {
        let frame = self.model.alloc(0, NodePolicy::Local).unwrap();
        // SAFETY: just allocated.
        unsafe { self.model.set_owner(frame, Owner::User) }.unwrap();
        frame
    }
}

/// A space, which threads share.
pub(super) struct Space<F: Format = X86> {
    pub(super) tables: Arc<PageTables<Model, F, ModelGrace>>,
    pub(super) model: Model,
}

impl<F: Format> Clone for Space<F> {
    fn clone(&self) -> Space<F> {
        Space { tables: Arc::clone(&self.tables), model: self.model.clone() }
    }
}

impl<F: Format> Deref for Space<F> {
    type Target = PageTables<Model, F, ModelGrace>;

    fn deref(&self) -> &Self::Target {
        &self.tables
    }
}

impl<F: Format> Space<F> {
    /// Makes this CPU translate by the space.
    pub(super) fn run(&self) {
        // SAFETY: the CPU needs no mapping of its own, and each space has a tag of its own.
        unsafe { self.activate() };
    }

    pub(super) fn map(&self, at: VirtAddr, frame: Frame, attrs: Attrs) {
        // SAFETY: the models own their spaces and frames.
        unsafe { self.tables.map(pages(at, 1), frame, attrs) }.unwrap();
    }

    /// Whether there is no table but the top one on the way to [`AT`].
    pub(super) fn is_empty(&self) -> bool {
        self.walk(&ModelGrace::pin()).find(AT, 0).is_some_and(|spot| spot.level == LEVELS - 1)
    }

    /// The page at an address.
    pub(super) fn get(&self, at: VirtAddr) -> Option<Mapping> {
        self.walk(&ModelGrace::pin()).get(at)
    }

    /// Changes one entry as `decide` says, and flushes. Returns whether the call succeeded.
    pub(super) fn change(
        &self,
        at: VirtAddr,
        decide: impl FnOnce(Option<Mapping>) -> EntryChange,
    ) -> bool {
        let guard = ModelGrace::pin();
        // SAFETY: the models own their spaces and frames. The flush follows.
        let done = unsafe { self.with_entry(&guard, at, |found| (decide(found), ())) };
        done.map(|((), pending)| pending.flush()).is_ok()
    }

    /// As [`change`](Self::change), with the reference that the old page's entry had: it is dropped
    /// after the flush if the page was replaced or cleared. Tries again after a fork. Returns the
    /// old page.
    pub(super) fn change_held(
        &self,
        at: VirtAddr,
        decide: impl Fn(Option<Mapping>) -> EntryChange,
    ) -> Option<Mapping> {
        let mut old = None;
        while !self.change(at, |found| {
            old = found;
            decide(found)
        }) {
            self.model.relax();
        }
        if let Some(old) = old
            && matches!(decide(Some(old)), EntryChange::Replace(..) | EntryChange::Clear)
        {
            self.release(old.frame);
        }
        old
    }

    /// Replaces the page by another frame, or maps it if there is none.
    pub(super) fn put(&self, at: VirtAddr, frame: Frame) {
        self.change_held(at, |found| match found {
            Some(_) => EntryChange::Replace(frame, Attrs::USER_RO),
            None => EntryChange::Set(frame, Attrs::USER_RO),
        });
    }

    /// As [`put`](Self::put) for a page that is mapped, in the table that a walk has found before.
    pub(super) fn put_found(&self, at: VirtAddr, frame: Frame) {
        let guard = ModelGrace::pin();
        let found = self.walk(&guard).look(at);
        let replace = EntryChange::Replace(frame, Attrs::USER_RO);
        // SAFETY: the models own their spaces and frames. The flush follows.
        let done = unsafe { self.with_found(&guard, &found, |page| (replace, page)) };
        let (old, pending) = done.unwrap();
        pending.flush();
        self.release(old.unwrap().frame);
    }

    /// Drops the reference of an entry that is gone.
    pub(super) fn release(&self, frame: Frame) {
        // SAFETY: the entry's reference; the translations are flushed.
        unsafe { self.model.release(frame) }.unwrap();
    }

    /// Removes the pages of a range by a sweep, flushes, and drops their references. Returns their
    /// frames.
    pub(super) fn remove(&self, at: VirtAddr, count: u64) -> Vec<Frame> {
        let (mut pending, mut gone) = (self.no_flush(), Vec::new());
        // SAFETY: the models own their spaces. The flush follows.
        let swept = unsafe {
            self.sweep(pages(at, count), &mut pending, |page| {
                gone.push(page.frame);
                SweepChange::Clear
            })
        };
        swept.unwrap();
        pending.flush();
        gone.iter().for_each(|frame| self.release(*frame));
        gone
    }

    /// Forks. The flush is done.
    pub(super) fn child(&self, tag: u16) -> Space<F> {
        // SAFETY: each entry has a reference to its frame, and the models do nothing else than
        // change single entries meanwhile.
        let (tables, pending) = unsafe { self.fork(Asid(tag), false) }.unwrap();
        pending.flush();
        Space { tables: Arc::new(tables), model: self.model.clone() }
    }

    /// Pins the page for reading, without a lock. Returns its frame, whose pin is given back.
    pub(super) fn pin(&self, at: VirtAddr) -> Option<Frame> {
        let mut frames = [Frame::default(); 1];
        let pins = self.get_user_pages_fast_only(at, false, &mut frames).ok()?;
        pins.frames().first().copied()
    }
}
