//! Flushes, on this CPU and on others.
//!
//! With [`Config::broadcast`](crate::Config::broadcast), hardware waits until each target CPU has
//! ended the page walk and the access that it had begun, and then drops its entries. No access
//! begins on that CPU meanwhile. Otherwise it could use an entry that the earlier walk has cached.
//!
//! Otherwise a CPU leaves its request in the mail of each target CPU, and waits until all have
//! performed it. While it waits it performs the requests of others, so two CPUs that flush each
//! other do not deadlock. A CPU on which nothing runs is idle. The sender performs the flush on
//! that CPU's caches itself, under the lock of its mail, so that the CPU cannot start meanwhile.

use crate::cpu::{Cpu, Request};
use crate::events::EventKind;
use crate::lock::locked;
use crate::sim::Sim;
use machine::{Asid, CpuSet, Cpus, Flush, Step};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering, fence};

impl Sim {
    /// Asserts that the machine has this tag. Hardware stores a tag in few bits and ignores the
    /// others, so a flush with an unknown tag would affect another space.
    pub(crate) fn known(&self, space: Asid) {
        let tags = self.0.config.tags;
        assert!(
            u32::from(space.0) < tags,
            "there is no tag {} on a machine with {tags} tags",
            space.0
        );
    }

    fn known_in(&self, what: Flush) {
        if let Flush::Range { space: Some(space), .. } | Flush::Space(space) = what {
            self.known(space);
        }
    }

    /// A CPU drops the absent entries that a flush covers, if CPUs cache such entries.
    pub(crate) fn drop_absent(&self, cpu: &Cpu, what: Flush) {
        if let Some(absent) = &self.0.absent {
            absent.flush(self.tables(), cpu.id, what);
        }
    }

    pub(crate) fn flush_here(&self, cpu: &Cpu, what: Flush) {
        self.known_in(what);
        self.instruction(cpu);
        cpu.drop_cached(what);
        self.drop_absent(cpu, what);
        self.note_if(cpu, || EventKind::Flush(what));
    }

    pub(crate) fn flush_there(&self, cpu: &Cpu, cpus: &CpuSet, what: Flush) {
        self.known_in(what);
        let mut others = cpus.intersection(&self.online());
        if others.contains(cpu.id) {
            others.remove(cpu.id);
            self.flush_here(cpu, what);
        }
        if others.is_empty() {
            return;
        }
        self.note_if(cpu, || EventKind::FlushRequest(others, what));
        if self.0.config.broadcast {
            return self.broadcast(cpu, &others, what);
        }
        // SeqCst: the caller's changes of entries come before the walks that the other CPUs make
        // after they have flushed.
        fence(Ordering::SeqCst);
        let request = Arc::new(Request { what, open: AtomicUsize::new(others.len()) });
        for other in others.iter() {
            cpu.stats.ipis_sent.add(1);
            self.send(&self.0.cpus[other.index()], &request);
        }
        // Acquire: pairs with the Release of `perform`.
        while request.open.load(Ordering::Acquire) != 0 && !std::thread::panicking() {
            self.relax();
        }
    }

    /// Drops the entries of these CPUs. No interrupt, and nothing for the targets to do.
    fn broadcast(&self, cpu: &Cpu, others: &CpuSet, what: Flush) {
        cpu.stats.broadcasts.add(1);
        for other in others.iter() {
            let other = &self.0.cpus[other.index()];
            // SeqCst: pairs with `busy`. Either this flush finds the access under way, or the
            // access finds the CPU closed. And the caller's changes of entries come before the
            // walks that begin afterwards.
            other.closed.fetch_add(1, Ordering::SeqCst);
            let _closed = Closed(other);
            // SeqCst: as above. The access under way comes before later ones.
            while other.busy.load(Ordering::SeqCst) && !std::thread::panicking() {
                self.relax();
            }
            // Seeds try an access here.
            self.point(cpu);
            other.drop_uncounted(what);
            self.drop_absent(other, what);
        }
    }

    /// A translation and the access that follows it: a broadcast flush waits for its end, and it
    /// begins when no such flush is under way on this CPU. No interrupt is taken within it.
    pub(crate) fn busy<'a>(&self, cpu: &'a Cpu) -> Busy<'a> {
        // Relaxed: only this CPU changes it.
        if !self.0.config.broadcast || cpu.busy.load(Ordering::Relaxed) {
            return Busy(None);
        }
        loop {
            // SeqCst: pairs with `broadcast`.
            cpu.busy.store(true, Ordering::SeqCst);
            let busy = Busy(Some(cpu));
            if cpu.closed.load(Ordering::SeqCst) == 0 {
                return busy;
            }
            drop(busy);
            self.relax();
        }
    }

    /// Puts the request into the mail of `other`, or performs it if that CPU is idle.
    fn send(&self, other: &Cpu, request: &Arc<Request>) {
        let mut mail = locked(&other.mail);
        if mail.attached {
            mail.requests.push(Arc::clone(request));
            // Release: pairs with the Acquire of the CPU that polls.
            other.flag.store(true, Ordering::Release);
        } else {
            // Still under the lock: no program can start there with the old translations.
            self.perform(other, request);
        }
    }

    /// Performs a request on the CPU's caches.
    pub(crate) fn perform(&self, cpu: &Cpu, request: &Request) {
        cpu.drop_cached(request.what);
        self.drop_absent(cpu, request.what);
        self.note_if(cpu, || EventKind::RequestedFlush(request.what));
        // Release: no cached entry is used after it; pairs with the Acquire of the waiting CPU.
        request.open.fetch_sub(1, Ordering::Release);
    }

    /// Performs all requests of other CPUs.
    pub(crate) fn perform_all(&self, cpu: &Cpu) {
        let requests = {
            let mut mail = locked(&cpu.mail);
            // Relaxed: under the mail's lock.
            let more = !mail.interrupts.is_empty() || mail.hurried || self.is_halted();
            cpu.flag.store(more, Ordering::Relaxed);
            std::mem::take(&mut mail.requests)
        };
        for request in requests {
            cpu.stats.ipis_taken.add(1);
            self.perform(cpu, &request);
        }
    }

    pub(crate) fn note_if(&self, cpu: &Cpu, what: impl FnOnce() -> EventKind) {
        if self.0.config.events != 0 {
            self.0.log.note(cpu.id, what);
        }
    }
}

/// An access under way.
pub(crate) struct Busy<'a>(Option<&'a Cpu>);

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        if let Some(cpu) = self.0 {
            // Release: the access is made; pairs with the load of `broadcast`.
            cpu.busy.store(false, Ordering::Release);
        }
    }
}

/// A broadcast flush that is under way on a CPU.
struct Closed<'a>(&'a Cpu);

impl Drop for Closed<'_> {
    fn drop(&mut self) {
        // Release: the entries are dropped; pairs with the load of `busy`.
        self.0.closed.fetch_sub(1, Ordering::Release);
    }
}
