//! Events of userfaultfd: a monitor hears of forks, moves, removals and unmappings of its memory.
//!
//! A call gathers its events before it changes anything, so lack of memory fails it with nothing
//! changed. When the change is done, with the mmap lock still held, the userfaultfd counts as
//! changing ([`UserFaultHandler::begin_change`](crate::UserFaultHandler::begin_change)), and with
//! nothing held the host gets the events
//! ([`UserFaultHandler::deliver`](crate::UserFaultHandler::deliver)). A removal is announced before
//! it is done, as in Linux.
//!
//! # Correctness
//! A monitor that copies pages from a list of its own must not copy one by the list of before a
//! change when the change is done. Its calls look with the mmap lock
//! ([`UserFaultHandler::is_changing`](crate::UserFaultHandler::is_changing)), under which the
//! userfaultfd began to change together with the memory. So a page was stored before the change, or
//! the call fails with [`UserFaultError::Changing`] until the monitor has read the event.
//!
//! # Cost
//! One load for each call, until memory is registered with a userfaultfd that wants events. Then a
//! search for registered VMAs in the range.

use alloc::vec::Vec;
use core::{
    ops::Range,
    sync::atomic::{AtomicBool, Ordering},
};

use grace::Concurrent;
use machine::Machine;
use paging::Format;
use vma::{Advice, PAGE_SIZE, RemapRequest, Uffd};

use crate::{
    AddressSpace, Error, UserFaultChange, UserFaultError, UserFaultEvent, UserFaultEvents,
    addresses::pages_of, change::locked_call::Calls, space::Core,
};

/// The events of a call, in the order in which the monitors read them.
pub(crate) type Events = Vec<UserFaultEvent>;

/// Adds an event.
fn push(events: &mut Events, uffd: u64, change: UserFaultChange) -> Result<(), vma::Error> {
    events.try_reserve(1).map_err(|_| vma::Error::OutOfMemory)?;
    events.push(UserFaultEvent { uffd, change });
    Ok(())
}

impl<M: Machine, F: Format, G: Concurrent> Core<M, F, G> {
    /// Whether memory of the space, or of a parent, was registered with a userfaultfd that wants
    /// events. The caller holds the mmap lock, or does not need to know of registrations that
    /// are under way.
    fn may_have_events(&self) -> bool {
        // Relaxed: the mmap lock orders it.
        self.has_events.load(Ordering::Relaxed)
    }

    /// Refuses a call of the monitor while its userfaultfd is changing. The caller holds the mmap
    /// lock.
    pub(crate) fn check_unchanging(&self, uffd: Option<Uffd>) -> Result<(), UserFaultError> {
        let handler = self.userfaults.get().filter(|_| self.may_have_events());
        match handler.zip(uffd).is_some_and(|(handler, uffd)| handler.is_changing(uffd.id)) {
            true => Err(UserFaultError::Changing),
            false => Ok(()),
        }
    }
}

impl<M: Machine, F: Format, G: Concurrent> AddressSpace<M, F, G> {
    /// Memory is going to be registered.
    pub(crate) fn note_events(&self, uffd: Uffd) {
        let wants = |uffd: Uffd| {
            let handler = self.core.userfaults.get();
            handler.is_some_and(|handler| !handler.events(uffd.id).is_empty())
        };
        if !self.core.may_have_events() && wants(uffd) {
            // Relaxed: as above.
            self.core.has_events.store(true, Ordering::Relaxed);
        }
    }

    /// A child has the same registrations.
    pub(crate) fn inherit_events(&self, child: &AtomicBool) {
        // Relaxed: the child is not used yet.
        child.store(self.core.may_have_events(), Ordering::Relaxed);
    }

    /// Calls `each` for each part of a range that is registered with a userfaultfd that wants
    /// `events`, in the order of addresses. The caller holds the mmap lock.
    fn each_registered(
        &self,
        range: &Range<usize>,
        events: UserFaultEvents,
        mut each: impl FnMut(Range<usize>, Uffd) -> Result<(), vma::Error>,
    ) -> Result<(), vma::Error> {
        let Some(handler) = self.core.userfaults.get().filter(|_| self.core.may_have_events())
        else {
            return Ok(());
        };
        let guard = G::pin();
        let range = if range.is_empty() { &(0..0) } else { range };
        let all = self.core.vmas.iter(&guard, range.start);
        for (found, vma) in all.take_while(|(found, _)| found.start < range.end) {
            let wanted = |uffd: &Uffd| handler.events(uffd.id).contains(events);
            if let Some(uffd) = vma.uffd().filter(wanted) {
                each(found.start.max(range.start)..found.end.min(range.end), uffd)?;
            }
        }
        Ok(())
    }

    /// Adds the events of an unmapping of a range: one for each userfaultfd.
    pub(crate) fn add_unmap(
        &self,
        range: Range<usize>,
        events: &mut Events,
    ) -> Result<(), vma::Error> {
        let first = events.len();
        self.each_registered(&range, UserFaultEvents::UNMAP, |_, uffd| {
            match events[first..].iter().any(|event| event.uffd == uffd.id) {
                true => Ok(()),
                false => push(events, uffd.id, UserFaultChange::Unmap(range.clone())),
            }
        })
    }

    /// Calls `change` with the mmap lock. The events are those that `events` has added; those of
    /// a call that fails are told if it has unmapped the range nevertheless.
    pub(crate) fn change_and_tell<T>(
        &self,
        events: impl FnOnce(&mut Calls<'_, '_, '_, M, F, G>, &mut Events) -> Result<(), vma::Error>,
        change: impl FnOnce(&mut Calls<'_, '_, '_, M, F, G>, &mut Events) -> Result<T, vma::Error>,
    ) -> Result<T, Error> {
        let mut told = Events::new();
        let done = self.change(|calls| {
            if self.core.may_have_events() {
                events(calls, &mut told).inspect_err(|_| told.clear())?;
            }
            let done = change(calls, &mut told);
            if done.is_err() {
                told.retain(|event| self.was_unmapped(event));
            }
            self.begin_changes(&told);
            done
        });
        self.deliver(told);
        done
    }

    /// Whether nothing is mapped in the range of an unmapping.
    fn was_unmapped(&self, event: &UserFaultEvent) -> bool {
        let UserFaultChange::Unmap(range) = &event.change else { return false };
        let guard = G::pin();
        let next = self.core.vmas.find(&guard, range.start);
        next.is_none_or(|(found, _)| found.start >= range.end)
    }

    /// The userfaultfds of events begin to change. The caller holds the mmap lock.
    pub(crate) fn begin_changes(&self, events: &Events) {
        if let Some(handler) = self.core.userfaults.get() {
            events.iter().for_each(|event| handler.begin_change(event.uffd));
        }
    }

    /// Gives the host the events. Nothing is held.
    pub(crate) fn deliver(&self, events: Events) {
        if let Some(handler) = self.core.userfaults.get().filter(|_| !events.is_empty()) {
            handler.deliver(events);
        }
    }

    /// The events of an mremap before it is done: those of what it unmaps at its target, of the
    /// move, and of what it unmaps at its source. Where the move leads is not known yet.
    pub(crate) fn add_remap(
        &self,
        request: &RemapRequest,
        events: &mut Events,
    ) -> Result<(), vma::Error> {
        let page = |len: usize| len.checked_next_multiple_of(PAGE_SIZE);
        let Some(new_len) = page(request.new_len) else { return Ok(()) };
        // An old length that wraps is 0.
        let old_len = page(request.old_len).unwrap_or(0);
        if let Some(to) = request.fixed {
            self.add_unmap(pages_of(to, new_len), events)?;
        }
        let (from, len) = (request.addr, old_len.min(new_len));
        self.each_registered(&pages_of(from, 1), UserFaultEvents::REMAP, |_, uffd| {
            push(events, uffd.id, UserFaultChange::Remap { from, to: from, len })
        })?;
        self.add_unmap(pages_of(from.saturating_add(len), old_len - len), events)?;
        match request.dont_unmap {
            Some(_) => Ok(()),
            None => self.add_unmap(pages_of(from, len), events),
        }
    }

    /// The mremap is done: where the move has led, if it has moved at all.
    pub(crate) fn finish_remap(request: &RemapRequest, at: usize, events: &mut Events) {
        let moved = at != request.addr;
        events.retain_mut(|event| match &mut event.change {
            UserFaultChange::Remap { to, .. } => {
                *to = at;
                moved
            }
            UserFaultChange::Unmap(range) => moved || range.start != request.addr,
            _ => true,
        });
    }

    /// Announces what [`madvise_announced`](Self::madvise_announced) with these arguments is about
    /// to remove to the monitors that want to hear of it, for a host whose
    /// [`deliver`](crate::UserFaultHandler::deliver) does not wait: it calls this, lets the program
    /// wait until the events are read, and then makes the other call.
    ///
    /// # Errors
    /// [`vma::Error::OutOfMemory`]; nothing is announced. Bad arguments are those of the other
    /// call, so none is announced for them.
    ///
    /// # Misuse
    /// Without the call that it announces, a monitor hears of a removal that does not come.
    pub fn announce_removal(&self, addr: usize, len: usize, advice: Advice) -> Result<(), Error> {
        let end = len.checked_next_multiple_of(PAGE_SIZE).and_then(|len| addr.checked_add(len));
        let Some(end) = end.filter(|_| addr.is_multiple_of(PAGE_SIZE)) else { return Ok(()) };
        // A registration that is not seen here is after the call.
        if !advice.discards() || !self.core.may_have_events() {
            return Ok(());
        }
        let none = |_: &mut Calls<'_, '_, '_, M, F, G>, _: &mut Events| Ok(());
        self.change_and_tell(none, |_, events| {
            // The call stops at the first VMA that refuses it.
            let guard = G::pin();
            let mut all = self.core.vmas.iter(&guard, addr);
            let refuses =
                all.find(|(range, vma)| range.start >= end || vma.refusal(advice).is_some());
            let stop = refuses.map_or(end, |(range, _)| range.start.clamp(addr, end));
            self.each_registered(&(addr..stop), UserFaultEvents::REMOVE, |part, uffd| {
                push(events, uffd.id, UserFaultChange::Remove(part))
            })
            .inspect_err(|_| events.clear())
        })
    }
}

/// The userfaultfds of a child that is being forked, by those of its parent.
#[derive(Default)]
pub(crate) struct Children(Events);

impl Children {
    /// The registration of a VMA of the child.
    pub(crate) fn of<M: Machine, F: Format, G: Concurrent>(
        &mut self,
        space: &AddressSpace<M, F, G>,
        uffd: Uffd,
    ) -> Result<Option<Uffd>, vma::Error> {
        if !uffd.follows_fork {
            return Ok(None);
        }
        let handler = space.core.userfaults.get();
        let wants =
            handler.filter(|handler| handler.events(uffd.id).contains(UserFaultEvents::FORK));
        // The host has no events: the child has the same one.
        let Some(handler) = wants else { return Ok(Some(uffd)) };
        let known = self.0.iter().find(|event| event.uffd == uffd.id);
        if let Some(UserFaultChange::Fork { child }) = known.map(|event| &event.change) {
            return Ok(Some(Uffd { id: *child, ..uffd }));
        }
        self.0.try_reserve(1).map_err(|_| vma::Error::OutOfMemory)?;
        let child = handler.make_child(uffd.id).ok_or(vma::Error::OutOfMemory)?;
        push(&mut self.0, uffd.id, UserFaultChange::Fork { child })?;
        Ok(Some(Uffd { id: child, ..uffd }))
    }

    /// The events of the fork.
    pub(crate) fn events(&self) -> &Events {
        &self.0
    }

    pub(crate) fn into_events(self) -> Events {
        self.0
    }
}
