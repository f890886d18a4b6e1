//! The mappings of a CPU before memory runs out: one of each kind, whose contents must not change.

use super::Shared;
use crate::checked::{frame_is, give, is, store, take};
use crate::environment::{page, pages};
use crate::own::Own;
use crate::space::AreaKind;
use crate::worker::{Context, Outcome};
use alloc::vec::Vec;
use grace::Concurrent;
use machine::{
    Checker, Frame, Machine, NodePolicy, Owner, PageSize, Translated, VirtAddr, VirtRange,
};
use paging::{Attrs, Format};

/// Frames that are mapped by each kind.
pub(super) const FRAMES: usize = 8;
/// Pages of a `vmalloc` area.
pub(super) const PAGES: usize = 5;
/// Pages of the large page that are checked.
const PIECES: [usize; 3] = [0, 77, 511];

pub(super) struct Mappings<'s, 'g, 'a, M: Machine, F: Format, G: Concurrent> {
    shared: &'s Shared<'g, 'a, M, F, G>,
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

impl<'s, 'g, 'a, M: Machine + Translated, F: Format, G: Concurrent> Mappings<'s, 'g, 'a, M, F, G> {
    pub(super) fn new(shared: &'s Shared<'g, 'a, M, F, G>, cpu: usize) -> Outcome<Self> {
        let frames = take::<F, M>(shared.env.host.machine, FRAMES, Owner::User)?;
        Ok(Mappings { shared, cpu, frames, block: None, memory: None, area: None, ram: None })
    }

    fn kernel(&self) -> Outcome<VirtRange> {
        pages::<F>(self.shared.kernel_at(self.cpu, 0)?, FRAMES)
    }

    fn program(&self) -> Outcome<VirtRange> {
        pages::<F>(self.shared.program_at(self.cpu, 0), FRAMES)
    }

    /// The addresses of the large page.
    pub(super) fn large(&self) -> Outcome<VirtRange> {
        let size = PageSize::Size2M;
        pages::<F>(self.shared.kernel_at(self.cpu, size.bytes())?, size.frames() as usize)
    }

    /// The first word of a page.
    fn mark(&self, number: usize) -> u64 {
        0xe4a0_0000_0000_0000 | (self.cpu as u64) << 16 | number as u64
    }

    /// Makes a mapping of each kind, and fills it.
    pub(super) fn begin(&mut self) -> Outcome {
        let Shared { env, program, used, .. } = *self.shared;
        let (kernel, user) = (self.kernel()?, self.program()?);
        env.host.machine.checker().check_reuse(None, kernel);
        env.tables
            .map_frames_own(kernel.start(), &self.frames, Attrs::KERNEL_RW)
            .of("could not map")?;
        for number in 0..FRAMES {
            let (at, what) = (page::<F>(kernel.start(), number), format_args!("page {number}"));
            store(env.host.machine, at, self.mark(number), what)?;
        }
        let mapped = program.tables().map_frames_own(user.start(), &self.frames, Attrs::USER_RW);
        mapped.of("could not map a program's pages")?;
        let memory = used.vmalloc(PAGES as u64 * 4096).of("vmalloc")?;
        self.memory = Some(memory);
        for number in 0..PAGES {
            let (at, what) = (page::<F>(memory, number), format_args!("page {number} of vmalloc"));
            store(env.host.machine, at, self.mark(FRAMES + number), what)?;
        }
        self.area = Some(used.vmap(&self.frames, Attrs::KERNEL_RW).of("vmap")?);
        self.ram = Some(used.vm_map_ram(&self.frames, Attrs::KERNEL_RW).of("vm_map_ram")?);
        let Ok(block) = env.host.machine.alloc(PageSize::Size2M.order(), NodePolicy::Local) else {
            return Ok(());
        };
        self.block = Some(block);
        let large = self.large()?;
        env.tables.map_own(large, block, Attrs::KERNEL_RW).of("could not map a large page")?;
        PIECES.into_iter().try_for_each(|number| {
            let (at, what) = (page::<F>(large.start(), number), format_args!("a large page"));
            store(env.host.machine, at, self.mark(number), what)
        })
    }

    /// Checks the contents of all mappings.
    pub(super) fn look(&self, when: &str) -> Outcome {
        let machine = self.shared.env.host.machine;
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
        let Shared { env, program, used, .. } = *self.shared;
        let memory = self.memory.take().map(|at| (AreaKind::Vmalloc, at));
        let area = self.area.take().map(|at| (AreaKind::Vmap, at));
        let ram = self.ram.take().map(|at| (AreaKind::Ram, at));
        for (kind, at) in [memory, area, ram].into_iter().flatten() {
            kind.free(used, at, FRAMES)?;
        }
        program.tables().unmap_own(self.program()?, |_| ()).of("could not unmap")?.flush();
        env.tables.unmap_own(self.kernel()?, |_| ()).of("could not unmap")?.flush();
        if let Some(block) = self.block.take() {
            env.tables.unmap_own(self.large()?, |_| ()).of("could not unmap a large page")?.flush();
            give(env.host.machine, &[block])?;
        }
        give(env.host.machine, &self.frames)
    }
}
