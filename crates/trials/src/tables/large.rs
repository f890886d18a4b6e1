//! A large page for each CPU: mapped whole, used, split, changed in pieces.

use crate::checked::{frame_is, is, is_absent, is_read_only, store};
use crate::environment::{Environment, page, pages};
use crate::own::Own;
use crate::worker::{Context, Outcome, Worker, fail};
use alloc::format;
use grace::Concurrent;
use machine::{Checker, Frame, FrameError, Machine, NodePolicy, Owner, Translated, VirtAddr};
use paging::{Attrs, Flags, Format, Geometry};

/// Pages of it that are checked.
const PIECES: usize = 12;

/// A block for a large page, and its address.
pub(super) struct Large<'g, 'a, M: Machine, F: Format, G: Concurrent> {
    env: &'g Environment<'a, M, F, G>,
    at: VirtAddr,
    /// `None` if there was no free block.
    block: Option<Frame>,
    tags: u64,
}

impl<'g, 'a, M: Machine + Translated, F: Format, G: Concurrent> Large<'g, 'a, M, F, G> {
    pub(super) fn new(env: &'g Environment<'a, M, F, G>, near: VirtAddr) -> Outcome<Self> {
        let (machine, size) = (env.host.machine, F::LARGE);
        let block = match machine.alloc(size.order(), NodePolicy::Local) {
            Ok(block) => Some(block),
            Err(FrameError::OutOfFrames { .. } | FrameError::TooLarge { .. }) => None,
            Err(error) => return fail(format!("could not take a large block: {error}")),
        };
        if let Some(block) = block {
            // SAFETY: it was just allocated, and the owner is right.
            unsafe { machine.set_owner(block, Owner::Kernel) }
                .of("could not say what a frame is for")?;
        }
        Ok(Large { env, at: near.align_down(size), block, tags: 0 })
    }

    pub(super) fn step(&mut self, worker: &mut Worker<'_, M>) -> Outcome {
        let Some(block) = self.block else { return Ok(()) };
        let (machine, tables) = (self.env.host.machine, self.env.tables);
        let count = F::ENTRIES;
        let whole = pages::<F>(self.at, count)?;
        self.tags += 1;
        let tag = |number: usize| 0x1a46_0000_0000_0000 | self.tags << 16 | number as u64;
        let mut pieces = [0; PIECES];
        pieces.fill_with(|| worker.below(count));

        machine.checker().check_reuse(None, whole);
        tables.map_own(whole, block, Attrs::KERNEL_RW).of("could not map a large page")?;
        let size = tables.walk(&G::pin()).get(self.at).map(|mapping| mapping.size);
        if size != Some(F::LARGE.min(tables.paging().largest())) {
            return fail(format!("a block for a large page at {} was mapped as {size:?}", self.at));
        }
        for number in pieces {
            store(machine, page::<F>(self.at, number), tag(number), format_args!("a large page"))?;
        }

        let (one, other) = (pieces[0], pieces[1]);
        let at = |number| page::<F>(self.at, number);
        tables.split_own(at(one), F::PAGE).of("could not split a large page")?.flush();
        let all_are = |what: &str| {
            pieces.into_iter().try_for_each(|number| {
                let what = format_args!("piece {number} of a large page, {what}");
                let frame = block.checked_add(number as u64 * F::PAGE.frames()).unwrap_or(block);
                frame_is(machine, frame, 0, tag(number), what)?;
                is(machine, at(number), tag(number), what)
            })
        };
        all_are("split")?;
        tables
            .protect_own(pages::<F>(at(one), 1)?, Flags::READ)
            .of("could not protect a piece")?
            .flush();
        is_read_only(machine, at(one), 0, format_args!("piece {one} of a large page, protected"))?;
        all_are("one of them protected")?;

        tables.unmap_own(pages::<F>(at(one), 1)?, |_| ()).of("could not unmap a piece")?.flush();
        is_absent(machine, at(one), format_args!("piece {one} of a large page, unmapped"))?;
        if other != one {
            let what = format_args!("piece {other} of a large page, of which {one} is unmapped");
            is(machine, at(other), tag(other), what)?;
        }
        let mut left = 0;
        tables.unmap_own(whole, |_| left += 1).of("could not unmap the pieces")?.flush();
        if left != count - 1 {
            return fail(format!("of {count} pieces but one {left} were unmapped"));
        }
        for number in pieces {
            is_absent(
                machine,
                at(number),
                format_args!("piece {number} of a large page, unmapped"),
            )?;
        }
        // The next large page replaces the table.
        self.env.prune(whole)
    }

    pub(super) fn end(self) -> Outcome {
        let Some(block) = self.block else { return Ok(()) };
        // SAFETY: it is ours, and no translation leads to it any more.
        unsafe { self.env.host.machine.release(block) }
            .map(drop)
            .of("could not give a large block back")
    }
}
