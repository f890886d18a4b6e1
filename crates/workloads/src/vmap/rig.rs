//! The resources of experiments with areas: frames, and addresses for each implementation.

use crate::error::Error;
use crate::lab::Lab;
use crate::vmap::areas::Areas;
use alloc::vec::Vec;
use grace::Concurrent;
use machine::{Frame, Machine, NodePolicy, Translated, VirtAddr, VirtRange};

/// Operations between two quiescent states.
const QUIET: usize = 64;
/// Bytes of a cache line. CPUs that map the same frames touch one line each.
const LINE: usize = 64;

/// A lab, and frames to map.
pub(crate) struct Rig<'l, 'a, M: Machine, G: Concurrent, R> {
    pub(crate) lab: &'l Lab<'a, M, G, R>,
    frames: Vec<Frame>,
}

impl<'l, 'a, M: Machine, G: Concurrent, R: Sync> Rig<'l, 'a, M, G, R> {
    /// With so many frames. From now on all CPUs use the kernel's tables, so a flush on all CPUs
    /// includes the idle ones.
    pub(crate) fn new(lab: &'l Lab<'a, M, G, R>, frames: usize) -> Result<Self, Error> {
        let mut rig = Rig { lab, frames: Vec::with_capacity(frames) };
        let taken = lab.on_first(|| {
            (0..frames).try_for_each(|_| {
                rig.frames.push(lab.host.machine.alloc(0, NodePolicy::Local)?);
                Ok(())
            })
        });
        if let Err(error) = taken {
            rig.end()?;
            return Err(error);
        }
        lab.host.everywhere(|| (lab.kernel.enter)());
        Ok(rig)
    }

    /// Runs a program on CPU 0 that uses areas.
    pub(crate) fn on_first<T: Send>(
        &self,
        areas: &impl Areas,
        program: impl FnOnce() -> Result<T, Error> + Send,
    ) -> Result<T, Error> {
        self.lab.on_first(|| self.inside(areas, program))
    }

    /// Runs a program on this CPU that uses areas.
    pub(crate) fn inside<T>(
        &self,
        areas: &impl Areas,
        program: impl FnOnce() -> Result<T, Error>,
    ) -> Result<T, Error> {
        (self.lab.kernel.enter)();
        areas.enter();
        let result = program();
        areas.leave();
        (self.lab.host.quiet)();
        result
    }

    /// Makes all lazily unmapped addresses available again, those in blocks of CPUs included.
    pub(crate) fn settle(&self, areas: &impl Areas) {
        // Twice, because a purge frees areas lazily, too.
        for _ in 0..2 {
            self.lab.host.everywhere(|| {
                (self.lab.kernel.enter)();
                areas.enter();
                areas.purge();
                areas.leave();
                (self.lab.host.quiet)();
            });
        }
    }

    /// One of eight parts of the addresses.
    pub(crate) fn part(&self, number: u64) -> Result<VirtRange, Error> {
        let each = (self.lab.kernel.range.len() / 8) & !0xfff;
        let start = self.lab.kernel.range.start().checked_add(number * each);
        start.and_then(|start| VirtRange::new(start, each)).ok_or(Error::Full { pages: 0 })
    }

    /// The first so many frames. CPUs share them.
    pub(crate) fn frames(&self, count: usize) -> &[Frame] {
        self.frames.get(..count).unwrap_or(&self.frames)
    }

    /// Repeats an operation on this CPU, with a quiescent state every [`QUIET`] times.
    pub(crate) fn repeat(
        &self,
        times: usize,
        mut operation: impl FnMut() -> Result<(), Error>,
    ) -> Result<(), Error> {
        for done in 1..=times {
            operation()?;
            if done.is_multiple_of(QUIET) {
                (self.lab.host.quiet)();
            }
        }
        Ok(())
    }

    /// Frees everything: mappings left by an experiment that failed, the frames, and the tables for
    /// the addresses.
    pub(crate) fn end(self) -> Result<(), Error> {
        let ended = self.lab.on_first(|| self.clear());
        self.lab.settle(self.lab.kernel.tables.paging());
        ended
    }

    fn clear(&self) -> Result<(), Error> {
        let Rig { lab, frames } = self;
        let half = &lab.kernel;
        let mut left = Vec::new();
        // SAFETY: the addresses are those of the experiment, which has ended. They are flushed
        // before the frames are freed.
        let pending = unsafe { half.tables.unmap(half.range, |page| left.push(page.frame)) };
        pending.map_err(|failed| failed.error)?.flush();
        left.retain(|frame| !frames.contains(frame));
        for frame in left.iter().chain(frames) {
            // SAFETY: the frame is ours, or of an area that was never freed. No translation leads
            // to it any more.
            unsafe { lab.host.machine.release(*frame) }?;
        }
        // SAFETY: as above, and nothing else has a table of the range.
        unsafe { half.tables.prune(half.range) }.map_err(|failed| failed.error)?.flush();
        Ok(())
    }
}

impl<M: Machine + Translated, G: Concurrent, R: Sync> Rig<'_, '_, M, G, R> {
    /// Writes a word in each page through the mapping. Each CPU uses a cache line of its own.
    pub(crate) fn touch(&self, at: VirtAddr, pages: usize, cpu: usize) -> Result<(), Error> {
        let line = (cpu % (4096 / LINE) * LINE) as u64;
        for page in 0..pages as u64 {
            let word = VirtAddr::new(at.get() + (page << 12) + line);
            // SAFETY: the page was just mapped to a frame of ours, and nothing has a reference to
            // it.
            unsafe { self.lab.host.machine.store(word, page) }?;
        }
        Ok(())
    }

    /// Maps, touches and unmaps so many pages.
    pub(crate) fn cycle(&self, areas: &impl Areas, cpu: usize, pages: usize) -> Result<(), Error> {
        let at = areas.map(self.frames(pages))?;
        self.touch(at, pages, cpu)?;
        areas.unmap(at, pages)
    }
}
