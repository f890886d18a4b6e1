//! Every call that needs memory: refused while there is none, granted when there is.

use super::Stage;
use super::hand::{FRAMES, Hand, PAGES};
use super::hoard::Hoard;
use crate::crew::{Outcome, Told, seen};
use crate::ground::{Tables, pages};
use crate::own::Own;
use alloc::format;
use alloc::sync::Arc;
use core::fmt::Display;
use grace::Concurrent;
use machine::{Asid, FrameError, Machine, PageSize, Place, Translated, VirtAddr};
use paging::{Attrs, QUICK_TABLE};

/// As often a call may find what somebody has given up at that moment.
const TRIES: u64 = 8;

/// Errors that may say that there are no frames.
trait SaysOut: Display {
    fn says_out(&self) -> bool;
}

impl SaysOut for FrameError {
    fn says_out(&self) -> bool {
        matches!(self, FrameError::OutOfFrames { .. })
    }
}

impl SaysOut for paging::Error {
    fn says_out(&self) -> bool {
        matches!(self, paging::Error::Frames(error) if error.says_out())
    }
}

impl SaysOut for vmap::Error {
    fn says_out(&self) -> bool {
        match self {
            vmap::Error::Frames(error) => error.says_out(),
            vmap::Error::FewFrames { .. } => true,
            _ => false,
        }
    }
}

/// What should become of calls.
enum Judge<'h, 'm, M> {
    /// There is no memory: they fail, and say so. What one of them finds all the same goes to the
    /// others.
    Refuse(&'h mut Hoard<'m, M>),
    /// There is memory: they work.
    Grant,
}

impl<M: Machine> Judge<'_, '_, M> {
    /// Makes a call, each time with another number, and undoes it if it works.
    fn judge<T, E: SaysOut>(
        &mut self,
        what: &str,
        mut call: impl FnMut(u64) -> Result<T, E>,
        mut undo: impl FnMut(T) -> Outcome,
    ) -> Outcome {
        let Judge::Refuse(hoard) = self else {
            return match call(TRIES) {
                Ok(done) => undo(done),
                Err(error) => seen(format!("{what}, with memory again: {error}")),
            };
        };
        for number in 0..TRIES {
            match call(number) {
                Err(error) if error.says_out() => return Ok(()),
                Err(error) => return seen(format!("{what}, without memory: {error}")),
                Ok(done) => {
                    undo(done)?;
                    hoard.fill()?;
                }
            }
        }
        seen(format!("{what} works again and again, while all frames are taken"))
    }
}

/// The calls of a CPU.
pub(super) struct Calls<'h, 's, 'g, 'a, M: Machine, G: Concurrent> {
    stage: &'s Stage<'g, 'a, M, G>,
    hand: &'h Hand<'s, 'g, 'a, M, G>,
}

impl<'h, 's, 'g, 'a, M: Machine + Translated, G: Concurrent> Calls<'h, 's, 'g, 'a, M, G> {
    pub(super) fn new(stage: &'s Stage<'g, 'a, M, G>, hand: &'h Hand<'s, 'g, 'a, M, G>) -> Self {
        Calls { stage, hand }
    }

    pub(super) fn are_refused(&self, hoard: &mut Hoard<'_, M>) -> Outcome {
        let mut judge = Judge::Refuse(hoard);
        self.each(&mut judge)?;
        self.grow(&mut judge)
    }

    pub(super) fn are_granted(&self) -> Outcome {
        self.each(&mut Judge::Grant)
    }

    /// There are so many frames on all CPUs together, and each call wants more: what it has taken
    /// it gives back.
    pub(super) fn are_too_large(&self, hoard: &mut Hoard<'_, M>, few: usize) -> Outcome {
        let (used, bare, cpu) = (self.stage.used, self.stage.bare, self.hand.cpu);
        let (program, mut judge) = (self.stage.program.tables(), Judge::Refuse(hoard));
        let bytes = (few as u64 + 100) * 4096;
        // SAFETY: it was never used.
        let vfree = |at| unsafe { bare.vfree(at) }.of("vfree");
        // All of the frames, and none for a table.
        judge.judge("vmalloc of all there is", |_| bare.vmalloc(few as u64 * 4096), vfree)?;
        judge.judge("vmalloc of more than there is", |_| bare.vmalloc(bytes), vfree)?;
        if let Some(at) = self.hand.memory {
            // SAFETY: it is this CPU's, and nobody uses it meanwhile.
            let grow = |_| unsafe { used.vrealloc(at, bytes) };
            let moved = |now| seen(format!("vrealloc to more than there is moved to {now}"));
            judge.judge("vrealloc to more than there is", grow, moved)?;
        }
        // As many tables, of 512 pages each, and one more.
        let many = self.hand.frames.repeat((few + 1) * 512 / FRAMES);
        let at = self.stage.program_at(cpu, 1 << 29);
        let map =
            |_| program.map_frames_own(at, &many, Attrs::USER_RW).map_err(|failed| failed.error);
        let range = pages(at, many.len())?;
        judge.judge("to map where more tables are wanted than there are", map, |()| {
            program.unmap_own(range, |_| ()).of("to unmap")?.flush();
            Ok(())
        })?;
        let left = program.walk(&G::pin()).pages(range).count();
        if left != 0 {
            return seen(format!("{left} pages are mapped by a call that has failed"));
        }
        let vmap = |_| bare.vmap(&many, Attrs::KERNEL_RW);
        judge.judge("vmap of more than there are tables for", vmap, |at| {
            // SAFETY: it was never used.
            unsafe { bare.vunmap(at) }.of("vunmap")
        })
    }

    fn each(&self, judge: &mut Judge<'_, '_, M>) -> Outcome {
        self.frames(judge)?;
        self.kernel(judge)?;
        self.programs(judge)?;
        self.areas(judge)
    }

    fn frames(&self, judge: &mut Judge<'_, '_, M>) -> Outcome {
        let machine = self.stage.ground.host.machine;
        let quick = self.stage.ground.tables.paging().quick();
        // SAFETY: it was never used.
        let free = |frame| unsafe { machine.free(frame) }.of("to free a frame");
        judge.judge("to take a frame", |_| machine.alloc(0, Place::Local), free)?;
        judge.judge("to take two frames", |_| machine.alloc(1, Place::Local), free)?;
        judge.judge(
            "to take a page of a quicklist",
            |_| // SAFETY: no top-level table.
            unsafe { quick.alloc(QUICK_TABLE) },
            |page| {
                // SAFETY: it is as it came.
                unsafe { quick.free(QUICK_TABLE, page) }.of("to give a page to a quicklist")?;
                quick.drain();
                Ok(())
            },
        )
    }

    fn kernel(&self, judge: &mut Judge<'_, '_, M>) -> Outcome {
        let (ground, cpu) = (self.stage.ground, self.hand.cpu);
        let tables = ground.tables;
        // Each number has a table of its own, of these two calls' one or the other.
        let first = self.stage.kernel_at(cpu, 8 << 20)?;
        let fresh = |number| VirtAddr::new(first.get() + (number << 22));
        self.map(judge, "to map pages of the kernel", tables, fresh, Attrs::KERNEL_RW)?;
        let leaf = |number| tables.leaf(VirtAddr::new(fresh(number).get() + (1 << 21)));
        judge.judge("to make a table of the kernel", leaf, |_| Ok(()))?;
        // For these addresses all tables that are wanted are there.
        tables.reserve(ground.range).of("to reserve addresses that are reserved")?;
        if self.hand.block.is_none() || tables.paging().largest() < PageSize::Size2M {
            return Ok(());
        }
        // It stays split: it is tried last with memory, and if it works without, that is seen.
        let at = self.hand.large()?.start();
        let split = |_| {
            let split = tables.split_own(at, PageSize::Size4K);
            split.map(|owed| owed.flush()).map_err(|failed| failed.error)
        };
        judge.judge("to split a large page", split, |()| Ok(()))
    }

    fn programs(&self, judge: &mut Judge<'_, '_, M>) -> Outcome {
        let (program, kernel) = (self.stage.program.tables(), self.stage.ground.tables);
        let fresh = |number: u64| self.stage.program_at(self.hand.cpu, (1 + number) << 21);
        self.map(judge, "to map pages of a program", program, fresh, Attrs::USER_RW)?;
        // With another tag: it is never active.
        let user = |_| Tables::<M, G>::user(kernel.paging(), Asid(2), Some(Arc::clone(kernel)));
        judge.judge("to make a program's tables", user, |tables| {
            drop(tables);
            kernel.paging().quick().drain();
            Ok(())
        })
    }

    /// Maps pages where there is no table yet.
    fn map(
        &self,
        judge: &mut Judge<'_, '_, M>,
        what: &str,
        tables: &Tables<M, G>,
        fresh: impl Fn(u64) -> VirtAddr,
        attrs: Attrs,
    ) -> Outcome {
        let map = |number| {
            let mapped = tables.map_frames_own(fresh(number), &self.hand.frames, attrs);
            mapped.map(|()| fresh(number)).map_err(|failed| failed.error)
        };
        judge.judge(what, map, |at| {
            tables.unmap_own(pages(at, FRAMES)?, |_| ()).of("to unmap")?.flush();
            Ok(())
        })
    }

    fn areas(&self, judge: &mut Judge<'_, '_, M>) -> Outcome {
        let (used, bare, frames) = (self.stage.used, self.stage.bare, &self.hand.frames);
        // SAFETY: it was never used.
        let vfree = |at| unsafe { bare.vfree(at) }.of("vfree");
        judge.judge("vmalloc", |_| bare.vmalloc(1), vfree)?;
        judge.judge("vzalloc", |_| bare.vzalloc(9 * 4096), vfree)?;
        // SAFETY: it was never used.
        let vfree = |at| unsafe { used.vfree(at) }.of("vfree");
        judge.judge("vmalloc where areas are", |_| used.vmalloc(3 * 4096), vfree)?;
        // What has worked once has left a table: then more pages need another.
        let more = |number: u64| frames.repeat(1 + 64 * (number % TRIES) as usize);
        let vmap = |number| bare.vmap(&more(number), Attrs::KERNEL_RW);
        // SAFETY: it was never used.
        judge.judge("vmap", vmap, |at| unsafe { bare.vunmap(at) }.of("vunmap"))?;
        let ram = |_| bare.vm_map_ram(frames, Attrs::KERNEL_RW);
        // SAFETY: it was never used.
        let unmap = |at| unsafe { bare.vm_unmap_ram(at, FRAMES) }.of("vm_unmap_ram");
        judge.judge("vm_map_ram", ram, unmap)
    }

    /// More memory than the half of it is sure to have, and where there is some already.
    fn grow(&self, judge: &mut Judge<'_, '_, M>) -> Outcome {
        let (used, memory) = (self.stage.used, self.hand.memory);
        let huge = |_| used.vmalloc_huge((2 << 20) + 1);
        // SAFETY: it was never used.
        judge.judge("vmalloc_huge", huge, |at| unsafe { used.vfree(at) }.of("vfree"))?;
        let Some(at) = memory else { return Ok(()) };
        // SAFETY: it is this CPU's, and nobody uses it meanwhile.
        let grow = |_| unsafe { used.vrealloc(at, (PAGES as u64 + 40) * 4096) };
        judge.judge("vrealloc", grow, |now| seen(format!("vrealloc without memory moved to {now}")))
    }
}
