//! The mappings of a CPU before memory runs out: one of each kind, whose contents must not change.

use super::Stage;
use crate::crew::{Outcome, Told};
use crate::ground::{page, pages};
use crate::own::Own;
use crate::sight::{frame_is, give, is, store, take};
use alloc::vec::Vec;
use grace::Concurrent;
use machine::{Checker, Frame, Machine, Owner, PageSize, Place, Translated, VirtAddr, VirtRange};
use paging::{Attrs, Format};

/// Frames that are mapped by each kind.
pub(super) const FRAMES: usize = 8;
/// Pages of a `vmalloc` area.
pub(super) const PAGES: usize = 5;
/// Pages of the large page that are checked.
const PIECES: [usize; 3] = [0, 77, 511];

pub(super) struct Hand<'s, 'g, 'a, M: Machine, F: Format, G: Concurrent> {
    stage: &'s Stage<'g, 'a, M, F, G>,
    pub(super) cpu: usize,
    pub(super) frames: Vec<Frame>,
    /// A block that is mapped as a large page. `None` if there was no free block.
    pub(super) block: Option<Frame>,
    /// A `vmalloc` area, a `vmap` area of the frames, and a short map of the frames. `None` while
    /// not mapped.
    pub(super) memory: Option<VirtAddr>,
    area: Option<VirtAddr>,
    ram: Option<VirtAddr>,
}

impl<'s, 'g, 'a, M: Machine + Translated, F: Format, G: Concurrent> Hand<'s, 'g, 'a, M, F, G> {
    pub(super) fn new(stage: &'s Stage<'g, 'a, M, F, G>, cpu: usize) -> Outcome<Self> {
        let frames = take::<F, M>(stage.ground.host.machine, FRAMES, Owner::User)?;
        Ok(Hand { stage, cpu, frames, block: None, memory: None, area: None, ram: None })
    }

    fn kernel(&self) -> Outcome<VirtRange> {
        pages::<F>(self.stage.kernel_at(self.cpu, 0)?, FRAMES)
    }

    fn program(&self) -> Outcome<VirtRange> {
        pages::<F>(self.stage.program_at(self.cpu, 0), FRAMES)
    }

    /// The addresses of the large page.
    pub(super) fn large(&self) -> Outcome<VirtRange> {
        let size = PageSize::Size2M;
        pages::<F>(self.stage.kernel_at(self.cpu, size.bytes())?, size.frames() as usize)
    }

    /// The first word of a page.
    fn mark(&self, number: usize) -> u64 {
        0xe4a0_0000_0000_0000 | (self.cpu as u64) << 16 | number as u64
    }

    /// Makes a mapping of each kind, and fills it.
    pub(super) fn begin(&mut self) -> Outcome {
        let Stage { ground, program, used, .. } = *self.stage;
        let (kernel, user) = (self.kernel()?, self.program()?);
        ground.host.machine.checker().check_reuse(None, kernel);
        ground
            .tables
            .map_frames_own(kernel.start(), &self.frames, Attrs::KERNEL_RW)
            .of("could not map")?;
        for number in 0..FRAMES {
            let (at, what) = (page::<F>(kernel.start(), number), format_args!("page {number}"));
            store(ground.host.machine, at, self.mark(number), what)?;
        }
        let mapped = program.tables().map_frames_own(user.start(), &self.frames, Attrs::USER_RW);
        mapped.of("could not map a program's pages")?;
        let memory = used.vmalloc(PAGES as u64 * 4096).of("vmalloc")?;
        self.memory = Some(memory);
        for number in 0..PAGES {
            let (at, what) = (page::<F>(memory, number), format_args!("page {number} of vmalloc"));
            store(ground.host.machine, at, self.mark(FRAMES + number), what)?;
        }
        self.area = Some(used.vmap(&self.frames, Attrs::KERNEL_RW).of("vmap")?);
        self.ram = Some(used.vm_map_ram(&self.frames, Attrs::KERNEL_RW).of("vm_map_ram")?);
        let Ok(block) = ground.host.machine.alloc(PageSize::Size2M.order(), Place::Local) else {
            return Ok(());
        };
        self.block = Some(block);
        let large = self.large()?;
        ground.tables.map_own(large, block, Attrs::KERNEL_RW).of("could not map a large page")?;
        PIECES.into_iter().try_for_each(|number| {
            let (at, what) = (page::<F>(large.start(), number), format_args!("a large page"));
            store(ground.host.machine, at, self.mark(number), what)
        })
    }

    /// Checks the contents of all mappings.
    pub(super) fn look(&self, when: &str) -> Outcome {
        let machine = self.stage.ground.host.machine;
        let mut ways = Vec::with_capacity(4);
        ways.push((self.kernel()?.start(), "the kernel's"));
        ways.push((self.program()?.start(), "the program's"));
        ways.extend(self.area.map(|at| (at, "vmap's")));
        ways.extend(self.ram.map(|at| (at, "vm_map_ram's")));
        for (number, frame) in self.frames.iter().enumerate() {
            for (start, whose) in &ways {
                let what = format_args!("{whose} page {number}, {when}");
                is(machine, page::<F>(*start, number), self.mark(number), what)?;
            }
            frame_is(machine, *frame, 0, self.mark(number), format_args!("page {number}, {when}"))?;
        }
        for number in 0..self.memory.map_or(0, |_| PAGES) {
            let at = page::<F>(self.memory.unwrap_or_default(), number);
            let what = format_args!("vmalloc's page {number}, {when}");
            is(machine, at, self.mark(FRAMES + number), what)?;
        }
        for number in self.block.into_iter().flat_map(|_| PIECES) {
            let what = format_args!("piece {number} of a large page, {when}");
            is(machine, page::<F>(self.large()?.start(), number), self.mark(number), what)?;
        }
        Ok(())
    }

    /// Unmaps everything, and gives all frames back.
    pub(super) fn end(&mut self) -> Outcome {
        let Stage { ground, program, used, .. } = *self.stage;
        if let Some(memory) = self.memory.take() {
            // SAFETY: nothing uses it any more.
            unsafe { used.vfree(memory) }.of("vfree")?;
        }
        if let Some(area) = self.area.take() {
            // SAFETY: as above.
            unsafe { used.vunmap(area) }.of("vunmap")?;
        }
        if let Some(ram) = self.ram.take() {
            // SAFETY: as above.
            unsafe { used.vm_unmap_ram(ram, FRAMES) }.of("vm_unmap_ram")?;
        }
        program.tables().unmap_own(self.program()?, |_| ()).of("could not unmap")?.flush();
        ground.tables.unmap_own(self.kernel()?, |_| ()).of("could not unmap")?.flush();
        if let Some(block) = self.block.take() {
            ground
                .tables
                .unmap_own(self.large()?, |_| ())
                .of("could not unmap a large page")?
                .flush();
            give(ground.host.machine, &[block])?;
        }
        give(ground.host.machine, &self.frames)
    }
}
