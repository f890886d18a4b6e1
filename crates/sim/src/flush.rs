//! Flushes, here and there.
//!
//! A CPU that asks others leaves a request in the mail of each and waits until all have answered.
//! While it waits it answers to others, so two that ask each other do not wait for ever. A CPU that
//! nobody runs as is idle: the asker carries the flush out on its caches itself, under the mail's
//! lock, so that it cannot start meanwhile.

use crate::cpu::{Cpu, Request};
use crate::events::What;
use crate::sim::{Sim, locked};
use machine::{Asid, CpuSet, Cpus, Flush, Step};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering, fence};

impl Sim {
    /// Hardware has so many bits for a tag, and takes no notice of others: what is asked of such a
    /// tag is done to another space. So nobody may ask.
    pub(crate) fn known(&self, space: Asid) {
        let tags = self.0.config.tags;
        assert!(u32::from(space.0) < tags, "tag {} on a machine with {tags}", space.0);
    }

    fn known_in(&self, what: Flush) {
        if let Flush::Range { space: Some(space), .. } | Flush::Space(space) = what {
            self.known(space);
        }
    }

    pub(crate) fn flush_here(&self, cpu: &Cpu, what: Flush) {
        self.known_in(what);
        self.instruction(cpu);
        cpu.drop_cached(what);
        self.note_if(cpu, || What::Flush(what));
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
        self.note_if(cpu, || What::Ask(others, what));
        // SeqCst: the caller's changes of entries come before what the others do when they answer;
        // they walk after that.
        fence(Ordering::SeqCst);
        let request = Arc::new(Request { what, open: AtomicUsize::new(others.len()) });
        for other in others.iter() {
            cpu.counts.ipis_sent.add(1);
            self.ask(&self.0.cpus[other.index()], &request);
        }
        // Acquire: pairs with the Release of each answer.
        while request.open.load(Ordering::Acquire) != 0 && !std::thread::panicking() {
            self.relax();
        }
    }

    fn ask(&self, other: &Cpu, request: &Arc<Request>) {
        let mut mail = locked(&other.mail);
        if mail.attached {
            mail.flushes.push(Arc::clone(request));
            // Release: pairs with the Acquire of whoever polls.
            other.flag.store(true, Ordering::Release);
        } else {
            // Still under the lock: nobody can begin to run there with the old translations.
            self.answer(other, request);
        }
    }

    /// Carries a request out on the CPU's caches.
    pub(crate) fn answer(&self, cpu: &Cpu, request: &Request) {
        cpu.drop_cached(request.what);
        self.note_if(cpu, || What::Answer(request.what));
        // Release: nothing cached is used after it; pairs with the Acquire of the one who waits.
        request.open.fetch_sub(1, Ordering::Release);
    }

    /// Answers all that others have asked of this CPU.
    pub(crate) fn answer_all(&self, cpu: &Cpu) {
        let flushes = {
            let mut mail = locked(&cpu.mail);
            // Relaxed: under the mail's lock.
            let more = !mail.interrupts.is_empty() || mail.hurried || self.is_halted();
            cpu.flag.store(more, Ordering::Relaxed);
            std::mem::take(&mut mail.flushes)
        };
        for request in flushes {
            cpu.counts.ipis_taken.add(1);
            self.answer(cpu, &request);
        }
    }

    pub(crate) fn note_if(&self, cpu: &Cpu, what: impl FnOnce() -> What) {
        if self.0.config.events != 0 {
            self.0.log.note(cpu.id, what);
        }
    }
}
