//! The `tables` trial: all CPUs change page tables at once, in page-table pages of their own and in
//! shared ones.
//!
//! Each CPU has slots of one page, and knows the mapping of each. So it knows the result of each
//! load and store. In shared page-table pages it must not disturb the pages of its neighbours, and
//! any CPU may prune at any time.

mod large;

use crate::checked::{frame_is, give, is, is_absent, is_read_only, store, take};
use crate::environment::{Environment, Tables, page, pages, word};
use crate::own::Own;
use crate::worker::{Context, Outcome, Worker, fail};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use grace::Concurrent;
use large::Large;
use machine::{Checker, Frame, Machine, Owner, Translated, VirtAddr, VirtRange};
use paging::{Attrs, Flags, Format, Geometry, PendingFlush};

/// Adjacent slots of a CPU in page-table pages of its own, and slots between those of other CPUs.
const OWN: usize = 40;
const SHARED: usize = 24;
/// Large pages between the first slots of two CPUs.
const APART: u64 = 8;
/// Steps of each CPU in a round.
const STEPS: usize = 400;
/// Steps between two quiescent states.
const QUIET: usize = 16;

/// The mapping of a slot.
#[derive(Clone, Copy)]
struct Mapped {
    frame: Frame,
    tag: u64,
    write: bool,
}

/// A CPU with its slots.
struct OwnSlots<'g, 'a, M: Machine, F: Format, G: Concurrent> {
    env: &'g Environment<'a, M, F, G>,
    tables: &'g Tables<M, F, G>,
    cpu: usize,
    own: VirtRange,
    shared: VirtRange,
    slots: [Option<Mapped>; OWN + SHARED],
    pool: Vec<Frame>,
    tags: u64,
}

pub(crate) fn tables<M: Machine + Translated, F: Format, G: Concurrent>(
    env: &Environment<'_, M, F, G>,
) -> Result<(), String> {
    env.whole(|| {
        let (own, shared) = (env.part(2)?, env.part(3)?);
        env.at_once(|worker| {
            let mut slots = OwnSlots::new(env, worker.cpu, own, shared)?;
            let mut large = Large::new(env, page_at(slots.own, 4 * F::LARGE.bytes())?)?;
            env.steps(STEPS, QUIET, |_| match worker.below(64) {
                0 => large.step(worker),
                _ => slots.step(worker),
            })?;
            large.end()?;
            slots.end()
        })?;
        env.on_first(|| {
            env.prune(own)?;
            env.prune(shared)
        })
    })
}

/// Shared page-table pages: few, but with room for all slots.
fn shared_tables<F: Format>(cpus: usize) -> usize {
    (SHARED * cpus).div_ceil(F::ENTRIES).max(3)
}

/// The address so many bytes into a range.
fn page_at(range: VirtRange, bytes: u64) -> Outcome<VirtAddr> {
    match range.start().checked_add(bytes) {
        Some(at) => Ok(at),
        None => fail(format!("{range:?} is too short")),
    }
}

impl<'g, 'a, M: Machine + Translated, F: Format, G: Concurrent> OwnSlots<'g, 'a, M, F, G> {
    fn new(
        env: &'g Environment<'a, M, F, G>,
        cpu: usize,
        own: VirtRange,
        shared: VirtRange,
    ) -> Outcome<Self> {
        // The slots of a CPU lie across a border of two page-table pages.
        let first =
            (APART * cpu as u64 + 1) * F::LARGE.bytes() - (OWN as u64 / 2) * F::PAGE.bytes();
        Ok(OwnSlots {
            env,
            tables: env.tables,
            cpu,
            own: pages::<F>(page_at(own, first)?, OWN)?,
            shared: pages::<F>(shared.start(), shared_tables::<F>(env.cpus) * F::ENTRIES)?,
            slots: [None; OWN + SHARED],
            pool: take::<F, M>(env.host.machine, OWN + SHARED, Owner::Kernel)?,
            tags: 0,
        })
    }

    /// The address of a slot. Shared slots of different CPUs are neighbours, and alternate between
    /// the shared page-table pages.
    fn at(&self, slot: usize) -> VirtAddr {
        let Some(slot) = slot.checked_sub(OWN) else { return page::<F>(self.own.start(), slot) };
        let number = slot * self.env.cpus + self.cpu;
        let tables = shared_tables::<F>(self.env.cpus);
        page::<F>(self.shared.start(), number % tables * F::ENTRIES + number / tables)
    }

    fn step(&mut self, worker: &mut Worker<'_, M>) -> Outcome {
        let slot = worker.below(self.slots.len());
        match (self.slots[slot], worker.below(16)) {
            (_, 0) => self
                .complete(worker.below(2), self.tables.prune_own(self.own).of("could not prune")?),
            (_, 1) => self.complete(
                worker.below(2),
                self.tables.prune_own(self.shared).of("could not prune")?,
            ),
            (_, 2) => self.unmap_some(worker)?,
            (_, 3) => self.map_some(worker)?,
            (None, _) => self.map(slot)?,
            (Some(_), 4..8) => self.unmap(slot, worker.below(2))?,
            (Some(was), 8..11) => self.protect(slot, was, !was.write, worker.below(2))?,
            (Some(was), 11..13) if was.write => self.write(slot)?,
            (Some(_), _) => {}
        }
        self.look(slot)?;
        self.look(worker.below(self.slots.len()))
    }

    /// Makes a pending flush, at once or deferred.
    fn complete(&self, how: usize, pending: PendingFlush<'_, M, F, G>) {
        match how {
            0 => pending.flush(),
            _ => self.tables.flush_deferred(pending.defer()),
        }
    }

    /// Checks that loads and stores at a slot follow its mapping.
    fn look(&self, slot: usize) -> Outcome {
        let (machine, at) = (self.env.host.machine, self.at(slot));
        let Some(Mapped { frame, tag, write }) = self.slots[slot] else {
            return is_absent(machine, at, format_args!("slot {slot}, which is unmapped"));
        };
        let what = format_args!("slot {slot}, which is mapped to frame {frame}");
        is(machine, at, tag, what)?;
        is(machine, word(at, F::ENTRIES - 1), !tag, what)?;
        frame_is(machine, frame, 0, tag, what)?;
        if !write {
            is_read_only(machine, word(at, 1), 0, what)?;
        }
        Ok(())
    }

    /// Writes a new value to a writable page.
    fn write(&mut self, slot: usize) -> Outcome {
        self.tags += 1;
        let tag = (self.cpu as u64) << 48 | (slot as u64) << 32 | self.tags;
        let (machine, at) = (self.env.host.machine, self.at(slot));
        let what = format_args!("slot {slot}");
        store(machine, at, tag, what)?;
        store(machine, word(at, F::ENTRIES - 1), !tag, what)?;
        if let Some(mapped) = &mut self.slots[slot] {
            mapped.tag = tag;
        }
        Ok(())
    }

    fn map(&mut self, slot: usize) -> Outcome {
        let Some(frame) = self.pool.pop() else {
            return fail("the pool of frames is empty".into());
        };
        let range = pages::<F>(self.at(slot), 1)?;
        self.env.host.machine.checker().check_reuse(None, range);
        self.tables.map_own(range, frame, Attrs::KERNEL_RW).of("could not map a page")?;
        self.slots[slot] = Some(Mapped { frame, tag: 0, write: true });
        self.write(slot)
    }

    /// Maps adjacent slots up to the next one that is mapped.
    fn map_some(&mut self, worker: &mut Worker<'_, M>) -> Outcome {
        let first = worker.below(OWN);
        let free = self.slots[first..OWN].iter().take_while(|slot| slot.is_none()).count();
        let frames = self.pool.split_off(self.pool.len() - free.min(self.pool.len()));
        if frames.is_empty() {
            return Ok(());
        }
        let at = self.at(first);
        self.env.host.machine.checker().check_reuse(None, pages::<F>(at, frames.len())?);
        self.tables.map_frames_own(at, &frames, Attrs::KERNEL_RW).of("could not map pages")?;
        for (slot, frame) in (first..).zip(frames) {
            self.slots[slot] = Some(Mapped { frame, tag: 0, write: true });
            self.write(slot)?;
        }
        Ok(())
    }

    fn protect(&mut self, slot: usize, was: Mapped, write: bool, how: usize) -> Outcome {
        let rights = if write { Flags::READ | Flags::WRITE } else { Flags::READ };
        let range = pages::<F>(self.at(slot), 1)?;
        self.complete(
            how,
            self.tables.protect_own(range, rights).of("could not change what a page allows")?,
        );
        self.slots[slot] = Some(Mapped { write, ..was });
        if write { self.write(slot) } else { Ok(()) }
    }

    fn unmap(&mut self, slot: usize, how: usize) -> Outcome {
        self.unmap_range(slot, 1, how)
    }

    /// Unmaps adjacent slots, with the holes between them.
    fn unmap_some(&mut self, worker: &mut Worker<'_, M>) -> Outcome {
        let first = worker.below(OWN);
        let count = 1 + worker.below(OWN - first);
        self.unmap_range(first, count, worker.below(2))
    }

    fn unmap_range(&mut self, first: usize, count: usize, how: usize) -> Outcome {
        let (range, mut gone) = (pages::<F>(self.at(first), count)?, Vec::with_capacity(count));
        let pending = self.tables.unmap_own(range, |was| gone.push(was)).of("could not unmap")?;
        self.complete(how, pending);
        let mut gone = gone.into_iter();
        for slot in first..first + count {
            let Some(Mapped { frame, write, .. }) = self.slots[slot].take() else { continue };
            let marked = Flags::READ | Flags::ACCESSED | Flags::DIRTY;
            let right = gone.next().is_some_and(|was| {
                let flags = was.attrs.flags;
                (was.page, was.frame, flags.contains(Flags::WRITE)) == (self.at(slot), frame, write)
                    && flags.contains(marked)
            });
            if !right {
                return fail(format!(
                    "slot {slot} is mapped to frame {frame} and written, but unmapping it \
                     reported something else"
                ));
            }
            self.pool.push(frame);
            self.look(slot)?;
        }
        match gone.next() {
            None => Ok(()),
            Some(was) => fail(format!("unmapping reported {was:?}, which was not mapped")),
        }
    }

    /// Unmaps everything, and gives the frames back.
    fn end(&mut self) -> Outcome {
        for slot in 0..self.slots.len() {
            self.look(slot)?;
            if self.slots[slot].is_some() {
                self.unmap(slot, 0)?;
            }
        }
        give(self.env.host.machine, &self.pool)
    }
}
