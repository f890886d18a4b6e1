//! One area: made, filled, checked, freed.

use crate::checked::{frame_is, give, is, load, store, take};
use crate::environment::{page, word};
use crate::space::{AreaKind, Areas};
use crate::worker::{Context, Outcome, Worker, fail};
use alloc::format;
use alloc::vec::Vec;
use grace::Concurrent;
use machine::{Frame, Machine, Owner, Translated, VirtAddr};
use paging::Format;
use vmap::Made;

/// The largest run of a block, in pages.
const RUN: usize = 64;

#[derive(Debug)]
pub(super) struct Area {
    pub(super) at: VirtAddr,
    pub(super) kind: AreaKind,
    pub(super) pages: usize,
    pub(super) bytes: u64,
    tag: u64,
    /// The area was larger. The pages behind it are unmapped, but may not be flushed yet.
    shrunk: bool,
    /// The frames, if the caller owns them.
    frames: Vec<Frame>,
}

impl Area {
    /// Makes an area of a random kind, and fills it.
    pub(super) fn make<M: Machine + Translated, F: Format, G: Concurrent>(
        machine: &M,
        vmap: &Areas<M, F, G>,
        worker: &mut Worker<'_, M>,
        tag: u64,
    ) -> Outcome<Area> {
        let few = 1 + worker.below(6);
        let (kind, pages) = match worker.below(6) {
            0 | 1 => (AreaKind::Ram, [1, 2, 4, few, RUN, RUN + few][worker.below(6)]),
            2 => (AreaKind::Vmap, few),
            _ => (AreaKind::Vmalloc, few),
        };
        let bytes =
            (pages * 4096 - if kind == AreaKind::Vmalloc { worker.below(4000) } else { 0 }) as u64;
        let at = VirtAddr::new(0);
        let mut area = Area { at, kind, pages, bytes, tag, shrunk: false, frames: Vec::new() };
        if kind == AreaKind::Vmalloc {
            return area.allocate(machine, vmap, worker);
        }
        area.frames = take::<F, M>(machine, pages, Owner::Kernel)?;
        match kind.map(vmap, &area.frames) {
            Ok(at) => area.at = at,
            Err(stop) => {
                give(machine, &area.frames)?;
                return Err(stop);
            }
        }
        area.fill::<F, M>(machine)?;
        for (number, frame) in area.frames.iter().enumerate() {
            let what = format_args!("page {number} of the area at {}, written", area.at);
            frame_is(machine, *frame, 0, area.word(number), what)?;
        }
        Ok(area)
    }

    /// Makes memory of its own: not cleared, cleared, with large pages, or resized.
    fn allocate<M: Machine + Translated, F: Format, G: Concurrent>(
        mut self,
        machine: &M,
        vmap: &Areas<M, F, G>,
        worker: &mut Worker<'_, M>,
    ) -> Outcome<Area> {
        match worker.below(24) {
            0..8 => self.at = vmap.vmalloc(self.bytes).of("vmalloc")?,
            8..16 => {
                self.at = vmap.vzalloc(self.bytes).of("vzalloc")?;
                for number in 0..self.pages * 512 {
                    is(machine, word(self.at, number), 0, format_args!("a word of vzalloc"))?;
                }
            }
            16 => {
                (self.pages, self.bytes) = (512 + self.pages, (2 << 20) + self.bytes);
                self.at = vmap.vmalloc_huge(self.bytes).of("vmalloc_huge")?;
            }
            _ => {
                self.at = vmap.vmalloc(self.bytes).of("vmalloc")?;
                self.fill::<F, M>(machine)?;
                let pages = 1 + worker.below(9);
                // SAFETY: no other CPU knows it.
                let moved = unsafe { vmap.vrealloc(self.at, pages as u64 * 4096) };
                self.at = moved.of("vrealloc")?;
                for number in 0..pages.min(self.pages) {
                    let at = page::<F>(self.at, number);
                    is(
                        machine,
                        at,
                        self.word(number),
                        format_args!("page {number} after vrealloc"),
                    )?;
                }
                self.shrunk = pages < self.pages;
                (self.pages, self.bytes) = (pages, pages as u64 * 4096);
            }
        }
        self.fill::<F, M>(machine)?;
        Ok(self)
    }

    /// The first word of a page. The last is its complement.
    pub(super) fn word(&self, number: usize) -> u64 {
        self.tag | number as u64
    }

    /// The call that the listing shows. Small short maps are in a block.
    pub(super) fn made(&self) -> Made {
        match self.kind {
            AreaKind::Ram if self.pages <= RUN => Made::Block,
            AreaKind::Ram => Made::Ram,
            AreaKind::Vmap => Made::Vmap,
            AreaKind::Vmalloc => Made::Vmalloc,
        }
    }

    pub(super) fn has_guard(&self) -> bool {
        self.kind != AreaKind::Ram
    }

    /// Whether a load behind the last page must fault, because nothing has been mapped there since
    /// all CPUs flushed.
    pub(super) fn is_guarded(&self) -> bool {
        self.has_guard() && !self.shrunk
    }

    fn fill<F: Format, M: machine::Tlb + Translated>(&self, machine: &M) -> Outcome {
        (0..self.pages).try_for_each(|number| {
            let (at, what) =
                (page::<F>(self.at, number), format_args!("page {number} of {:?}", self.kind));
            store(machine, at, self.word(number), what)?;
            store(machine, word(at, 511), !self.word(number), what)
        })
    }

    /// Checks the contents of all pages, through the mapping and in the frames.
    pub(super) fn look<M: Machine + Translated, F: Format, G: Concurrent>(
        &self,
        machine: &M,
        vmap: &Areas<M, F, G>,
    ) -> Outcome {
        for number in 0..self.pages {
            let (at, expected) = (page::<F>(self.at, number), self.word(number));
            let what = format_args!("page {number} of the {:?} at {}", self.kind, self.at);
            is(machine, at, expected, what)?;
            let last = load(machine, word(at, 511), what)?;
            let frame = vmap.vmalloc_to_page(at);
            let same = self.frames.get(number).is_none_or(|own| frame == Some(*own));
            match frame {
                Some(frame) if same && last == !expected => {
                    frame_is(machine, frame, 0, expected, what)?
                }
                _ => {
                    return fail(format!(
                        "{what}: its frame is {frame:?} and its last word {last:#x}"
                    ));
                }
            }
        }
        Ok(())
    }

    /// Checks the area and frees it. `atomically` frees memory as an interrupt handler does.
    pub(super) fn free<M: Machine + Translated, F: Format, G: Concurrent>(
        self,
        machine: &M,
        vmap: &Areas<M, F, G>,
        atomically: bool,
    ) -> Outcome {
        let looked = self.look(machine, vmap);
        if atomically && self.kind == AreaKind::Vmalloc {
            // SAFETY: this CPU has the area, and uses it no more.
            unsafe { vmap.vfree_atomic(self.at) }.of("vfree_atomic")?;
        } else {
            self.kind.free(vmap, self.at, self.pages)?;
        }
        give(machine, &self.frames)?;
        looked
    }
}
