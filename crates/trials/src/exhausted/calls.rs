//! The calls that need memory: refused while there is none, granted when there is.

use super::Shared;
use super::hoard::Hoard;
use super::mappings::{FRAMES, Mappings, PAGES};
use crate::environment::{Tables, pages};
use crate::own::Own;
use crate::worker::{Context, Outcome, fail};
use alloc::format;
use alloc::sync::Arc;
use core::fmt::Display;
use grace::Concurrent;
use machine::{Asid, FrameError, Machine, NodePolicy, PageSize, Translated, VirtAddr};
use paging::{Attrs, Format, QUICK_TABLE};

/// Attempts of a call. It may find frames that another CPU has just given up.
const TRIES: u64 = 8;

/// Errors that may mean that there are no frames.
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

/// The expected result of calls.
enum Expected<'h, 'm, M> {
    /// There is no memory, so they fail with the right error. A frame that a call finds
    /// nevertheless joins the hoard.
    Refuse(&'h mut Hoard<'m, M>),
    /// There is memory, so they succeed.
    Grant,
}

impl<M: Machine> Expected<'_, '_, M> {
    /// Makes a call, each time with another number. Undoes it if it succeeds.
    fn check<T, E: SaysOut>(
        &mut self,
        what: &str,
        mut call: impl FnMut(u64) -> Result<T, E>,
        mut undo: impl FnMut(T) -> Outcome,
    ) -> Outcome {
        let Expected::Refuse(hoard) = self else {
            return match call(TRIES) {
                Ok(done) => undo(done),
                Err(error) => fail(format!("{what}, with free memory: {error}")),
            };
        };
        for number in 0..TRIES {
            match call(number) {
                Err(error) if error.says_out() => return Ok(()),
                Err(error) => return fail(format!("{what}, without memory: {error}")),
                Ok(done) => {
                    undo(done)?;
                    hoard.fill()?;
                }
            }
        }
        fail(format!("{what} succeeds repeatedly, while all frames are taken"))
    }
}

/// The calls of a CPU.
pub(super) struct Calls<'h, 's, 'g, 'a, M: Machine, F: Format, G: Concurrent> {
    shared: &'s Shared<'g, 'a, M, F, G>,
    mappings: &'h Mappings<'s, 'g, 'a, M, F, G>,
}

impl<'h, 's, 'g, 'a, M: Machine + Translated, F: Format, G: Concurrent>
    Calls<'h, 's, 'g, 'a, M, F, G>
{
    pub(super) fn new(
        shared: &'s Shared<'g, 'a, M, F, G>,
        mappings: &'h Mappings<'s, 'g, 'a, M, F, G>,
    ) -> Self {
        Calls { shared, mappings }
    }

    pub(super) fn are_refused(&self, hoard: &mut Hoard<'_, M>) -> Outcome {
        let mut expected = Expected::Refuse(hoard);
        self.each(&mut expected)?;
        self.grow(&mut expected)
    }

    pub(super) fn are_granted(&self) -> Outcome {
        self.each(&mut Expected::Grant)
    }

    /// All CPUs together have `few` free frames, and each call needs more. It must give back the
    /// frames that it took.
    pub(super) fn are_too_large(&self, hoard: &mut Hoard<'_, M>, few: usize) -> Outcome {
        let (used, bare, cpu) = (self.shared.used, self.shared.bare, self.mappings.cpu);
        let (program, mut expected) = (self.shared.program.tables(), Expected::Refuse(hoard));
        let bytes = (few as u64 + 100) * 4096;
        // SAFETY: nothing has used it.
        let vfree = |at| unsafe { bare.vfree(at) }.of("vfree");
        // This one could have all frames, but none for a table.
        expected.check("vmalloc of all there is", |_| bare.vmalloc(few as u64 * 4096), vfree)?;
        expected.check("vmalloc of more than there is", |_| bare.vmalloc(bytes), vfree)?;
        if let Some(at) = self.mappings.memory {
            // SAFETY: it is this CPU's, and nothing uses it meanwhile.
            let grow = |_| unsafe { used.vrealloc(at, bytes) };
            let moved = |now| fail(format!("vrealloc to more than there is moved to {now}"));
            expected.check("vrealloc to more than there is", grow, moved)?;
        }
        // This needs one more table, of 512 pages each, than there are frames.
        let many = self.mappings.frames.repeat((few + 1) * 512 / FRAMES);
        let at = self.shared.program_at(cpu, 1 << 29);
        let map =
            |_| program.map_frames_own(at, &many, Attrs::USER_RW).map_err(|failed| failed.error);
        let range = pages::<F>(at, many.len())?;
        expected.check("a map that needs more tables than there are frames", map, |()| {
            program.unmap_own(range, |_| ()).of("could not unmap")?.flush();
            Ok(())
        })?;
        let left = program.walk(&G::pin()).pages(range).count();
        if left != 0 {
            return fail(format!("{left} pages are mapped by a call that has failed"));
        }
        let vmap = |_| bare.vmap(&many, Attrs::KERNEL_RW);
        expected.check("vmap of more pages than there are tables for", vmap, |at| {
            // SAFETY: nothing has used it.
            unsafe { bare.vunmap(at) }.of("vunmap")
        })
    }

    fn each(&self, expected: &mut Expected<'_, '_, M>) -> Outcome {
        self.frames(expected)?;
        self.kernel(expected)?;
        self.programs(expected)?;
        self.areas(expected)
    }

    fn frames(&self, expected: &mut Expected<'_, '_, M>) -> Outcome {
        let machine = self.shared.env.host.machine;
        let quick = self.shared.env.tables.paging().quick();
        // SAFETY: nothing has used it.
        let free = |frame| unsafe { machine.free(frame) }.of("could not free a frame");
        expected.check(
            "the allocation of a frame",
            |_| machine.alloc(0, NodePolicy::Local),
            free,
        )?;
        expected.check(
            "the allocation of two frames",
            |_| machine.alloc(1, NodePolicy::Local),
            free,
        )?;
        expected.check(
            "the allocation from a quicklist",
            |_| // SAFETY: no top-level table.
            unsafe { quick.alloc(QUICK_TABLE) },
            |page| {
                // SAFETY: it is as it came.
                unsafe { quick.free(QUICK_TABLE, page) }
                    .of("could not give a page to a quicklist")?;
                quick.drain();
                Ok(())
            },
        )
    }

    fn kernel(&self, expected: &mut Expected<'_, '_, M>) -> Outcome {
        let (env, cpu) = (self.shared.env, self.mappings.cpu);
        let tables = env.tables;
        // Each number has a table of its own, which one of the next two calls makes.
        let first = self.shared.kernel_at(cpu, 8 << 20)?;
        let fresh = |number| VirtAddr::new(first.get() + (number << 22));
        self.map(expected, "a map of kernel pages", tables, fresh, Attrs::KERNEL_RW)?;
        let leaf = |number| tables.leaf(VirtAddr::new(fresh(number).get() + (1 << 21)));
        expected.check("a new kernel table", leaf, |_| Ok(()))?;
        // All tables for these addresses exist.
        tables.reserve(env.range).of("could not reserve addresses that are reserved")?;
        if self.mappings.block.is_none() || tables.paging().largest() < PageSize::Size2M {
            return Ok(());
        }
        // The page stays split. So this is tried last while there is memory, where a success shows.
        let at = self.mappings.large()?.start();
        let split = |_| {
            let split = tables.split_own(at, PageSize::Size4K);
            split.map(|pending| pending.flush()).map_err(|failed| failed.error)
        };
        expected.check("the split of a large page", split, |()| Ok(()))
    }

    fn programs(&self, expected: &mut Expected<'_, '_, M>) -> Outcome {
        let (program, kernel) = (self.shared.program.tables(), self.shared.env.tables);
        let fresh = |number: u64| self.shared.program_at(self.mappings.cpu, (1 + number) << 21);
        self.map(expected, "a map of a program's pages", program, fresh, Attrs::USER_RW)?;
        // The tag differs from the program's. These tables are never active.
        let user = |_| Tables::<M, F, G>::user(kernel.paging(), Asid(2), Some(Arc::clone(kernel)));
        expected.check("the making of a program's tables", user, |tables| {
            drop(tables);
            kernel.paging().quick().drain();
            Ok(())
        })
    }

    /// Maps pages where there is no table yet.
    fn map(
        &self,
        expected: &mut Expected<'_, '_, M>,
        what: &str,
        tables: &Tables<M, F, G>,
        fresh: impl Fn(u64) -> VirtAddr,
        attrs: Attrs,
    ) -> Outcome {
        let map = |number| {
            let mapped = tables.map_frames_own(fresh(number), &self.mappings.frames, attrs);
            mapped.map(|()| fresh(number)).map_err(|failed| failed.error)
        };
        expected.check(what, map, |at| {
            tables.unmap_own(pages::<F>(at, FRAMES)?, |_| ()).of("could not unmap")?.flush();
            Ok(())
        })
    }

    fn areas(&self, expected: &mut Expected<'_, '_, M>) -> Outcome {
        let (used, bare, frames) = (self.shared.used, self.shared.bare, &self.mappings.frames);
        // SAFETY: nothing has used it.
        let vfree = |at| unsafe { bare.vfree(at) }.of("vfree");
        expected.check("vmalloc", |_| bare.vmalloc(1), vfree)?;
        expected.check("vzalloc", |_| bare.vzalloc(9 * 4096), vfree)?;
        // SAFETY: nothing has used it.
        let vfree = |at| unsafe { used.vfree(at) }.of("vfree");
        expected.check("vmalloc where areas are", |_| used.vmalloc(3 * 4096), vfree)?;
        // A success leaves a table behind, so the next attempt needs more pages.
        let more = |number: u64| frames.repeat(1 + 64 * (number % TRIES) as usize);
        let vmap = |number| bare.vmap(&more(number), Attrs::KERNEL_RW);
        // SAFETY: nothing has used it.
        expected.check("vmap", vmap, |at| unsafe { bare.vunmap(at) }.of("vunmap"))?;
        let ram = |_| bare.vm_map_ram(frames, Attrs::KERNEL_RW);
        // SAFETY: nothing has used it.
        let unmap = |at| unsafe { bare.vm_unmap_ram(at, FRAMES) }.of("vm_unmap_ram");
        expected.check("vm_map_ram", ram, unmap)
    }

    /// Calls that need more memory than half of the frames are sure to provide, or that change an
    /// area.
    fn grow(&self, expected: &mut Expected<'_, '_, M>) -> Outcome {
        let (used, memory) = (self.shared.used, self.mappings.memory);
        let huge = |_| used.vmalloc_huge((2 << 20) + 1);
        // SAFETY: nothing has used it.
        expected.check("vmalloc_huge", huge, |at| unsafe { used.vfree(at) }.of("vfree"))?;
        let Some(at) = memory else { return Ok(()) };
        // SAFETY: it is this CPU's, and nothing uses it meanwhile.
        let grow = |_| unsafe { used.vrealloc(at, (PAGES as u64 + 40) * 4096) };
        expected
            .check("vrealloc", grow, |now| fail(format!("vrealloc without memory moved to {now}")))
    }
}
