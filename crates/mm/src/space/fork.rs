//! fork: a child with the same memory, in constant time.
//!
//! The child's VMAs are a duplicate of the tree, and its page tables share the parent's lower
//! tables ([`paging::PageTables::fork`]). Neither grows with what is mapped. A write pays for it
//! later, a table at a time.
//!
//! A fork of Linux leaves out the pages of VMAs without an anon_vma, such as shared maps, and the
//! child faults for them. Here it has them at once: mincore may show a page where Linux shows none.
//! And the accessed bits of a table are those of all spaces that share it: smaps of a child shows
//! pages as referenced that its parent has used.
//!
//! Pages whose munmap by the parent waits stay with the parent: their entries are cleared, so no
//! table that the two share leads there (`deferred_unmap`).
//!
//! # Concurrent faults
//! A fork holds the mmap lock, and faults run meanwhile. One that finds a table that is being
//! shared waits for the lock. When the flush of the fork is done, no CPU writes by an old right;
//! the child is what the parent was at some moment between the call and that flush, page by page.
//! A fault that was under way may still bring a page of zeros into a shared table. That is right
//! for both: they had the same VMA there, and a space that changes its VMA leaves the table first.

use alloc::sync::Arc;
use core::sync::atomic::Ordering;

use grace::Concurrent;
use machine::{FrameError, Machine, VirtAddr};
use paging::{Format, Tag};
use vma::VmFlags;

use crate::{
    AddressSpace, Commitment, Error, Shared,
    change::page_host::{PageHost, TableWork},
    fault::frame_ref::{NoFrame, Reference},
    monitor::events::Children,
    space::Core,
    space::shared::SharedRoom,
};

impl<M: Machine, F: Format, G: Concurrent> AddressSpace<M, F, G> {
    /// The address space of a forked child, with `tag` as in
    /// [`PageTables::user`](paging::PageTables::user). It has the same memory; neither of the two
    /// sees later writes of the other. Memory under MADV_DONTFORK is missing in it, and memory
    /// under MADV_WIPEONFORK is empty. It is registered only with userfaultfds that follow forks:
    /// their monitors hear of it before this returns.
    ///
    /// Cost: the same however much is mapped, if there is no such memory, and none is locked; see
    /// [`vma::Writer::fork`] and [`paging::PageTables::fork`]. One flush on the CPUs that use this
    /// space.
    ///
    /// # Context
    /// As for [`handle_fault`](Self::handle_fault).
    ///
    /// # Errors
    /// [`Error::Vma`] or [`Error::Tables`]: no memory, also for copies of pinned pages within the
    /// limit of the group, or no such tag. Nothing that a program can see has changed.
    pub fn fork(&self, tag: impl Into<Tag>) -> Result<Self, Error> {
        let tag = tag.into();
        match self.try_fork(tag) {
            // Not `with_what_waits`: a space that is passed on once more needs more of the stack.
            Err(error) if self.ends_wait(&error) => self.try_fork(tag),
            forked => forked,
        }
    }

    fn try_fork(&self, tag: Tag) -> Result<Self, Error> {
        let mut children = Children::default();
        let child = self.change(|calls| {
            // Before the fork of the tables, which cannot be undone without a flush.
            let room = SharedRoom::try_new()?;
            let mut vmas = calls.fork_with(|uffd| children.of(self, uffd))?;
            let commitment = self.core.commitment.get();
            let promised = vmas.get_mut().sizes().accounted;
            if commitment.is_some_and(|commitment| !commitment.charge_child(promised)) {
                return Err(vma::Error::Overcommit.into());
            }
            // Given back if the fork fails before the child exists.
            let promise = Promise { commitment, bytes: promised };
            let machine = self.core.tables.machine();
            let (pinned, _under_way) = self.pins.fork(machine);
            let copies = |page: VirtAddr| {
                let guard = G::pin();
                let found = self.core.vmas.lookup(&guard, page.get() as usize);
                let own = VmFlags::DONTCOPY | VmFlags::WIPEONFORK;
                if found.is_some_and(|(_, vma)| vma.flags.intersects(own)) {
                    return Ok(None);
                }
                // The child is of the same group.
                match Reference::alloc_page(machine, self.core.group(), 0) {
                    Ok(new) => Ok(Some(new.keep())),
                    Err(NoFrame::Source(error)) => Err(error),
                    Err(NoFrame::Group { .. }) => Err(FrameError::OutOfFrames { order: 0 }),
                }
            };
            // Tables that are shared cannot be unlinked any more.
            self.core.waiting.unlink_kept(&self.core.tables);
            // SAFETY: entries of user frames hold references, and the zero frame outlives the
            // tables of all spaces that share it. The software bits are this crate's, as
            // `copy_on_write` says. The mmap lock keeps other calls away. The flush is done below.
            let forked = unsafe { self.core.tables.fork_with(tag, pinned.then_some(&copies)) };
            let (tables, pending) = forked.map_err(|failed| Error::Tables(failed.error))?;
            pending.flush();
            let zeros = [self.core.zero_frame.clone(), self.core.guard_frame.clone()];
            let family = self.family.clone();
            let (huge, waiting) = (self.core.huge.fork(), self.core.waiting.fork());
            let core = Core { waiting, ..Core::new(vmas, tables, huge, zeros) };
            if let Some(commitment) = commitment {
                core.commitment.call_once(|| commitment.clone());
            }
            if let Some(handler) = self.core.userfaults.get() {
                core.userfaults.call_once(|| Arc::clone(handler));
            }
            if let Some(handler) = self.core.shortage.get() {
                core.shortage.call_once(|| Arc::clone(handler));
            }
            if let Some(group) = self.core.group.get() {
                core.group.call_once(|| group.clone());
            }
            // Relaxed: the child is not used before it is returned.
            core.had_marks.store(self.core.had_marks.load(Ordering::Relaxed), Ordering::Relaxed);
            core.tracks_new.store(self.core.tracks_new.load(Ordering::Relaxed), Ordering::Relaxed);
            self.inherit_events(&core.has_events);
            promise.keep();
            let child = AddressSpace::from_core(room.put(core), family, self.stack_limit)?;
            // Objects find the child from here on: none takes pages back while some are removed.
            let mut lock = None;
            calls.not_inherited().try_for_each(|range| {
                lock.get_or_insert_with(|| child.core.lock());
                let mut pages = PageHost::new(&child.core, None);
                pages.prepare(range.clone(), TableWork::Empty)?;
                pages.remove(range);
                pages.noted().map_err(Error::Tables)
            })?;
            drop(lock);
            self.begin_changes(children.events());
            Ok::<_, Error>(child)
        })?;
        self.deliver(children.into_events());
        Ok(child)
    }
}

/// Memory promised to a child that does not exist yet.
struct Promise<'a, M: Machine> {
    commitment: Option<&'a Shared<Commitment<M>>>,
    bytes: usize,
}

impl<M: Machine> Promise<'_, M> {
    /// The child gives it back when it ends.
    fn keep(mut self) {
        self.commitment = None;
    }
}

impl<M: Machine> Drop for Promise<'_, M> {
    fn drop(&mut self) {
        if let Some(commitment) = self.commitment {
            commitment.settle(-(self.bytes as isize));
        }
    }
}
