//! The machine as the code under test sees it: the traits of the crate `machine`.

use crate::current_cpu;
use crate::events::{EventKind, change};
use crate::format::Want;
use crate::lock::locked;
use crate::sim::Sim;
use machine::{
    Accounts, Asid, Checker, CpuId, CpuSet, Cpus, Fault, FaultKind, Flush, Frame, FrameError,
    FrameInfo, FrameSource, Irqs, Memory, NodeId, NodePolicy, Owner, PageSize, SharedAccess, Step,
    Tlb, Translated, VirtAddr, VirtRange,
};
use std::ptr::NonNull;
use std::sync::atomic::Ordering;

// SAFETY: a CPU is attached to one host thread at a time, or to one coroutine of the seeded driver.
unsafe impl Cpus for Sim {
    fn count(&self) -> usize {
        self.0.cpus.len()
    }

    #[inline]
    fn current(&self) -> CpuId {
        self.cpu().id
    }

    /// The CPUs that have run. A CPU whose program has ended is idle, and may still have
    /// translations.
    fn online(&self) -> CpuSet {
        // SeqCst: pairs with the insertion at a CPU's start, before it can cache anything.
        let bits = self.0.online.load(Ordering::SeqCst);
        (0..64).filter(|cpu| bits >> cpu & 1 != 0).filter_map(CpuId::new).collect()
    }

    fn hurry(&self, cpus: &CpuSet) {
        let here = self.cpu();
        for cpu in cpus.iter().filter_map(|cpu| self.0.cpus.get(cpu.index())) {
            self.hurry_one(here, cpu);
        }
    }
}

// SAFETY: handlers run only at a step or at the end of a section, and only when none is open. A
// host thread, or a coroutine, stays the CPU that it is.
unsafe impl Irqs for Sim {
    #[inline]
    fn irq_enter(&self) {
        let cpu = self.cpu();
        cpu.set_depth(cpu.depth() + 1);
    }

    #[inline]
    unsafe fn irq_leave(&self) {
        let cpu = self.cpu();
        cpu.set_depth(cpu.depth().saturating_sub(1));
        self.poll(cpu);
    }

    fn irqs_enabled(&self) -> bool {
        self.cpu().depth() == 0
    }
}

// SAFETY: interrupts come only while they are enabled; while disabled, only flushes are performed.
unsafe impl Step for Sim {
    #[inline]
    fn step(&self, access: SharedAccess) {
        if !self.quick_step() {
            self.slow_step(access);
        }
    }

    fn relax(&self) {
        let cpu = self.cpu();
        let waits = cpu.stats.waits.add(1);
        // Acquire: pairs with the Release of the CPU that left mail.
        if cpu.flag.load(Ordering::Acquire) {
            self.perform_all(cpu);
        }
        let turn = current_cpu::get().turn;
        if std::thread::panicking() {
            give_up_in_the_end(self);
        } else if !turn.is_null() {
            // SAFETY: the seeded driver keeps it alive while anything runs under it.
            unsafe { &*turn }.point(cpu.id.index(), true);
        } else if waits.is_multiple_of(64) {
            // There may be fewer host CPUs than CPUs.
            std::thread::yield_now();
        } else {
            std::hint::spin_loop();
        }
        self.instruction(cpu);
    }

    fn checker(&self) -> Option<&dyn Checker> {
        Some(self)
    }
}

impl Checker for Sim {
    fn check_reuse(&self, space: Option<Asid>, range: VirtRange) {
        let cpu = self.cpu();
        self.instruction(cpu);
        self.note_if(cpu, || EventKind::Reused(range));
        self.check_reused(space, range);
    }

    fn check_tag_taken(&self, asid: Asid) {
        let cpu = self.cpu();
        self.instruction(cpu);
        self.known(asid);
        self.note_if(cpu, || EventKind::TagTaken(asid));
        self.take_tag(asid);
    }

    fn check_passed_over(&self, cpus: &CpuSet, asid: Asid) {
        // No step: a CPU of the seeded driver cannot come back meanwhile.
        self.known(asid);
        cpus.iter().for_each(|cpu| self.pass_over(cpu, asid));
    }

    fn note_constructed(&self, frame: Frame, list: u8) {
        self.learn_constructed(frame, list);
    }
}

// SAFETY: a flush drops the cached entries of each named CPU that has run, and waits for its walks
// (`flush.rs`).
unsafe impl Tlb for Sim {
    fn flush(&self, what: Flush) {
        self.flush_here(self.cpu(), what);
    }

    fn flush_on(&self, cpus: &CpuSet, what: Flush) {
        self.flush_there(self.cpu(), cpus, what);
    }

    fn published(&self, space: Option<Asid>, range: VirtRange) {
        let cpu = self.cpu();
        self.instruction(cpu);
        cpu.stats.published.add(1);
        if let Some(absent) = &self.0.absent {
            absent.publish(self.tables(), cpu.id, space, range);
        }
        self.note_if(cpu, || EventKind::Published(space, range));
    }

    fn interrupts(&self) -> bool {
        !self.0.config.broadcast
    }

    fn tags(&self) -> u32 {
        self.0.config.tags
    }

    unsafe fn activate(&self, root: Frame, asid: Asid, keep: bool) {
        let cpu = self.cpu();
        self.instruction(cpu);
        self.known(asid);
        let before = locked(&cpu.state).root.replace((root, asid));
        if let Some(absent) = &self.0.absent {
            absent.now_active(self.tables(), cpu.id, (root, asid), before.is_none());
        }
        if !keep {
            cpu.drop_cached(Flush::Space(asid));
            self.drop_absent(cpu, Flush::Space(asid));
        }
        self.check_not_void(cpu, root, asid, keep);
        self.check_kept(cpu, root, asid);
        self.note_if(cpu, || EventKind::Activate(root, asid));
        let now = self.0.log.now();
        self.check_table(root, self.0.config.levels - 1, VirtAddr::new(0), now, false);
        if self.0.config.speculation != 0 {
            let last = locked(&cpu.state).last;
            self.speculate(cpu, root, asid, last);
            self.instruction(cpu);
        }
    }

    fn active(&self) -> Option<(Frame, Asid)> {
        locked(&self.cpu().state).root
    }
}

// SAFETY: frames are pieces of one aligned block of the host's memory, which lives as long as the
// machine.
unsafe impl Memory for Sim {
    #[inline]
    fn frame_ptr(&self, frame: Frame) -> Option<NonNull<u8>> {
        self.0.arena.frame_ptr(frame)
    }
}

// SAFETY: as `Frames`, whose frames are the arena's.
unsafe impl FrameSource for Sim {
    fn alloc(&self, order: u8, place: NodePolicy) -> Result<Frame, FrameError> {
        self.instruction(self.cpu());
        if self.0.failing.next_fails() {
            return Err(FrameError::OutOfFrames { order });
        }
        let frame = self.0.frames.alloc(self, order, place)?;
        if self.watches() {
            self.stamp(frame, order, true);
        }
        Ok(frame)
    }

    unsafe fn recycle(&self, frame: Frame, info: &FrameInfo) {
        // SAFETY: passed on.
        unsafe { self.0.frames.recycle(self, frame, info) }
    }

    unsafe fn free(&self, frame: Frame) -> Result<(), FrameError> {
        self.instruction(self.cpu());
        let pinned = self.info(frame).is_some_and(|info| info.pins() != 0);
        if self.refs_of(frame) == 1 || pinned {
            self.before_free(frame);
        }
        // SAFETY: promised by the caller.
        unsafe { self.0.frames.on(self).free(frame) }
    }

    unsafe fn release(&self, frame: Frame) -> Result<bool, FrameError> {
        self.instruction(self.cpu());
        if self.refs_of(frame) == 1 {
            self.before_free(frame);
        }
        // SAFETY: promised by the caller.
        unsafe { self.0.frames.on(self).release(frame) }
    }

    unsafe fn unpin(&self, frame: Frame, pins: u32) -> Result<bool, FrameError> {
        self.instruction(self.cpu());
        let info = self.info(frame);
        if info.is_some_and(|info| info.refs() == pins && info.pins() == pins && pins != 0) {
            self.before_unpin(frame);
        }
        // SAFETY: promised by the caller.
        unsafe { self.0.frames.on(self).unpin(frame, pins) }
    }

    unsafe fn split(&self, frame: Frame) -> Result<(), FrameError> {
        self.instruction(self.cpu());
        // SAFETY: passed on.
        unsafe { self.0.frames.on(self).split(frame) }
    }

    #[inline]
    fn info(&self, frame: Frame) -> Option<&FrameInfo> {
        self.0.frames.info(frame)
    }

    unsafe fn set_owner(&self, frame: Frame, owner: Owner) -> Result<(), FrameError> {
        self.instruction(self.cpu());
        let info = self.info(frame).ok_or(FrameError::NotOurs(frame))?;
        if self.watches() {
            let before = info.owner();
            if let Owner::Quick(list) = owner {
                self.check_constructed(frame, list, true);
            }
            match (before, owner) {
                (Owner::Table(_), Owner::Table(_)) => {}
                (Owner::Table(_), _) => self.check_given_up(frame, owner),
                // Whatever its new owner is: the caller relies on its constructed state.
                (Owner::Quick(list), _) => self.check_constructed(frame, list, false),
                _ => {}
            }
            self.stamp_owner(frame, before, owner);
        }
        // SAFETY: promised by the caller.
        unsafe { info.set_owner(owner) };
        Ok(())
    }

    fn accounts(&self) -> Option<&Accounts> {
        Some(self.0.frames.accounts())
    }

    fn nodes(&self) -> usize {
        self.0.frames.nodes()
    }

    fn local_node(&self) -> NodeId {
        self.0.frames.local_node(self)
    }

    fn free_frames(&self) -> usize {
        if self.0.failing.exhausted() { 0 } else { self.0.frames.free_frames() }
    }
}

/// A destructor waits while its CPU unwinds. On host threads the awaited event may still come, but
/// under the seeded driver it never does: abort instead of hanging.
fn give_up_in_the_end(sim: &Sim) {
    thread_local! {
        static TURNS: std::cell::Cell<u32> = const { std::cell::Cell::new(0) };
    }
    let turns = TURNS.replace(TURNS.get() + 1);
    if turns > 100_000 {
        eprintln!("a destructor waits for another CPU while its own CPU unwinds: giving up");
        if let Some(report) = sim.found() {
            eprintln!("the cause of the unwinding: {report}");
        }
        std::process::abort();
    }
    std::thread::yield_now();
}

/// Accesses of words must be aligned.
fn misaligned(at: VirtAddr, write: bool) -> Result<(), Fault> {
    if at.get().is_multiple_of(8) {
        Ok(())
    } else {
        Err(Fault { address: at, write, kind: FaultKind::Misaligned })
    }
}

impl Sim {
    fn slow_step(&self, access: SharedAccess) {
        let cpu = self.cpu();
        self.instruction(cpu);
        if let SharedAccess::Entry { table, index, op } = access {
            self.check_entry(cpu, table, index, op);
            if let Some(what) = change(access) {
                self.note_if(cpu, || what);
            }
        }
    }

    /// Makes an access to the word that contains `at`.
    fn word<R>(
        &self,
        at: VirtAddr,
        write: bool,
        access: impl FnOnce(&std::sync::atomic::AtomicU64) -> R,
    ) -> Result<R, Fault> {
        let cpu = self.cpu();
        self.instruction(cpu);
        let _busy = self.busy(cpu);
        let into = self.translate_now(cpu, at, Want { write, ..Want::default() })?;
        if self.0.config.broadcast {
            // A flush that sends no interrupt may come between the two.
            self.point(cpu);
        }
        let index = into.get() as usize % 4096 / 8;
        let word = self.0.arena.word(Frame::containing(into), index);
        word.map(access).ok_or(Fault { address: at, write, kind: FaultKind::Malformed })
    }
}

/// Splits `at..at + len` at the borders of words: the address of each piece, and its part of the
/// buffer.
fn pieces(
    at: VirtAddr,
    len: usize,
) -> impl Iterator<Item = (Option<VirtAddr>, std::ops::Range<usize>)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        (done < len).then(|| {
            let here = at.checked_add(done as u64);
            let room = 8 - (at.get() as usize).wrapping_add(done) % 8;
            let piece = done..(done + room).min(len);
            done = piece.end;
            (here, piece)
        })
    })
}

fn beyond(at: VirtAddr, write: bool) -> Fault {
    Fault { address: at, write, kind: FaultKind::NotCanonical }
}

impl Translated for Sim {
    unsafe fn read(&self, at: VirtAddr, into: &mut [u8]) -> Result<(), Fault> {
        for (here, piece) in pieces(at, into.len()) {
            let here = here.ok_or(beyond(at, false))?;
            // Acquire: as a load on x86-64.
            let word = self.word(here, false, |word| word.load(Ordering::Acquire))?;
            let first = here.offset_in(PageSize::Size4K) as usize % 8;
            let len = piece.len();
            into[piece].copy_from_slice(&word.to_le_bytes()[first..first + len]);
        }
        Ok(())
    }

    unsafe fn write(&self, at: VirtAddr, from: &[u8]) -> Result<(), Fault> {
        for (here, piece) in pieces(at, from.len()) {
            let here = here.ok_or(beyond(at, true))?;
            let first = here.offset_in(PageSize::Size4K) as usize % 8;
            let change = |word: u64| {
                let mut bytes = word.to_le_bytes();
                bytes[first..first + piece.len()].copy_from_slice(&from[piece.clone()]);
                Some(u64::from_le_bytes(bytes))
            };
            // AcqRel, Acquire: a store on x86-64 releases. The rest of the word keeps the values of
            // other writers.
            self.word(here, true, |word| {
                word.fetch_update(Ordering::AcqRel, Ordering::Acquire, change).is_ok()
            })?;
        }
        Ok(())
    }

    unsafe fn load(&self, at: VirtAddr) -> Result<u64, Fault> {
        misaligned(at, false)?;
        // Acquire: as a load on x86-64.
        self.word(at, false, |word| word.load(Ordering::Acquire))
    }

    unsafe fn store(&self, at: VirtAddr, value: u64) -> Result<(), Fault> {
        misaligned(at, true)?;
        // Release: as a store on x86-64.
        self.word(at, true, |word| word.store(value, Ordering::Release))
    }
}
