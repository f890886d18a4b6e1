//! One address space of the recording: its calls, its fork and its end.

use std::{mem::ManuallyDrop, ops::Range};

use machine::Asid;
use mm::{Backing, Error, FaultError, ObjectError, UserFaultModes};
use sim::Sim;
use trace::mirror::{File, SpaceChange};
use vma::{Advice, Layout, MapFlags, PAGE_SIZE, Profile, VmFlags};

use super::{
    Space, model::Model, objects::key_of, sim_machine::CPUS, sim_machine::SimMachine, touch,
};

/// Pages that parent and child write to after a fork.
const WRITTEN_AFTER_FORK: usize = 8;
/// Pages that are read at the end of an address space.
const READ_AT_END: usize = 4096;

/// An address space with pages, and their expected contents.
pub(super) struct Process {
    /// Dropped on a CPU, by `end`. After a failure it is lost with its machine.
    pub(super) space: ManuallyDrop<Space>,
    pub(super) model: Model,
    tag: Asid,
    /// The CPU of the thread that makes the next call.
    pub(super) cpu: usize,
    /// The CPUs on which it has been active.
    cpus: u64,
}

/// The facts about the VMAs that the model needs before a step.
struct Before {
    /// The end of the heap.
    heap: usize,
    /// The mapped parts of the old range of mremap, which move.
    parts: Vec<Range<usize>>,
}

impl Process {
    /// An empty address space.
    ///
    /// # Errors
    /// A description: no tag, or no memory for its top-level table.
    pub(super) fn new(
        sim_machine: &mut SimMachine,
        cpu: usize,
        profile: Profile,
        layout: Layout,
    ) -> Result<Process, String> {
        let tag = sim_machine.take_tag()?;
        let made = sim_machine.on(cpu, |sim_machine| {
            Space::try_new(&sim_machine.paging, tag, None, profile, layout)
        })?;
        let mut space = made.map_err(|error| format!("no address space: {error}"))?;
        // The recording shows how far a stack grew under the limit of its program.
        space.set_stack_limit(usize::MAX);
        let space = ManuallyDrop::new(space);
        Ok(Process { space, model: Model::default(), tag, cpu, cpus: 0 })
    }

    /// Runs `work` on a CPU that has this space active.
    pub(super) fn on<T>(
        &mut self,
        sim_machine: &mut SimMachine,
        cpu: usize,
        work: impl FnOnce(&mut Self, &mut SimMachine) -> Result<T, String>,
    ) -> Result<T, String> {
        self.cpus |= 1 << cpu;
        sim_machine.on(cpu, |sim_machine| {
            // SAFETY: only the accesses of `touch` are translated. No other tables have the tag,
            // and `end` deactivates these on every CPU.
            unsafe { self.space.activate() };
            work(self, sim_machine)
        })?
    }

    /// Another CPU on which the space has been active.
    fn other_cpu(&self) -> Option<usize> {
        (1..CPUS).map(|step| (self.cpu + step) % CPUS).find(|cpu| self.cpus & 1 << cpu != 0)
    }

    /// Carries out a step, compares its result with the mirror's, and touches changed pages.
    ///
    /// # Errors
    /// A description of what is wrong.
    pub(super) fn step(
        &mut self,
        sim_machine: &mut SimMachine,
        step: &SpaceChange<File>,
        mirror: Result<usize, vma::Error>,
    ) -> Result<(), String> {
        let cpu = self.cpu;
        let (step, before, done) = self.on(sim_machine, cpu, |process, sim_machine| {
            let step = sim_machine.objects.translate(
                &sim_machine.paging,
                step,
                &mut sim_machine.figures,
            )?;
            let before = process.before(&step)?;
            let done = process.carry_out(sim_machine, &step)?;
            Ok((step, before, done))
        })?;
        let step = &step;
        let removed = if done.is_ok() { Some(0) } else { None };
        agree(sim_machine, step, mirror, done)?;
        self.follow(sim_machine, step, mirror, &before, removed);
        let changed = changed(step, mirror, before.heap);
        let mut pages: Vec<usize> = changed.into_iter().flat_map(few_pages).collect();
        if matches!(step, SpaceChange::Brk(_))
            || matches!(step, SpaceChange::Mmap(map) if map.file.is_none())
        {
            pages.pop();
        }
        self.touch(sim_machine, &pages)
    }

    /// The facts about the VMAs that the model needs before a step.
    fn before(&self, step: &SpaceChange<Backing<Sim>>) -> Result<Before, String> {
        let moved = match step {
            SpaceChange::Mremap(map) => map.addr..map.addr.saturating_add(map.old_len),
            _ => 0..0,
        };
        let found = self.space.with_vmas(|vmas| {
            let parts = vmas.areas_from(moved.start).take_while(|area| area.start < moved.end);
            let parts = parts.map(|area| area.start.max(moved.start)..area.end.min(moved.end));
            Ok(Before { heap: vmas.layout().brk, parts: parts.collect() })
        });
        found.map_err(|error| error.to_string())
    }

    /// Touches pages on the CPU of the thread, and reads them on another one.
    fn touch(&mut self, sim_machine: &mut SimMachine, pages: &[usize]) -> Result<(), String> {
        if pages.is_empty() {
            return Ok(());
        }
        let cpu = self.cpu;
        self.on(sim_machine, cpu, |process, sim_machine| {
            pages.iter().try_for_each(|page| touch::page(process, sim_machine, *page))
        })?;
        let Some(other) = self.other_cpu() else { return Ok(()) };
        self.on(sim_machine, other, |process, sim_machine| {
            pages.iter().try_for_each(|page| touch::read(process, sim_machine, *page).map(drop))
        })
    }

    /// Carries out a step on the space, by the call of `mm` where there is one.
    fn carry_out(
        &mut self,
        sim_machine: &mut SimMachine,
        step: &SpaceChange<Backing<Sim>>,
    ) -> Result<Result<usize, Error>, String> {
        let space = &self.space;
        let nothing = |done: Result<(), Error>| done.map(|()| 0);
        let done = match step.clone() {
            SpaceChange::Mmap(map) if map.driver_flags.is_some() => {
                sim_machine.figures.lack("flags that a driver chooses for its VMA");
                space.with_vmas(|vmas| step.carry_out(vmas))
            }
            SpaceChange::Mmap(map) => match map.file {
                None => space.mmap(map.addr, map.len, map.prot, map.flags),
                Some(file) => {
                    space.mmap_object(map.addr, map.len, map.prot, map.flags, file, map.offset)
                }
            },
            SpaceChange::Munmap { addr, len } => nothing(space.munmap(addr, len)),
            SpaceChange::Mprotect { addr, len, prot, pkey } => {
                nothing(space.mprotect(addr, len, prot, pkey))
            }
            SpaceChange::Mremap(request) => space.mremap(request),
            SpaceChange::Brk(to) => space.brk(to),
            SpaceChange::Madvise { addr, len, advice } => nothing(space.madvise(addr, len, advice)),
            SpaceChange::Mlock { addr, len, on_fault } => nothing(space.mlock(addr, len, on_fault)),
            SpaceChange::Munlock { addr, len } => nothing(space.munlock(addr, len)),
            SpaceChange::Mlockall(what) => nothing(space.mlockall(what)),
            SpaceChange::Munlockall => nothing(space.munlockall()),
            SpaceChange::Shmat(request) => space.shmat(request),
            SpaceChange::Shmdt(addr) => nothing(space.shmdt(addr)),
            SpaceChange::Watch { addr, len, modes, uffd } => {
                let mut wanted = UserFaultModes::empty();
                wanted.set(UserFaultModes::MISSING, modes.contains(VmFlags::UFFD_MISSING));
                wanted.set(UserFaultModes::WP, modes.contains(VmFlags::UFFD_WP));
                wanted.set(UserFaultModes::MINOR, modes.contains(VmFlags::UFFD_MINOR));
                nothing(space.userfault_register(addr, len, wanted, uffd))
            }
            SpaceChange::Unwatch { addr, len } => nothing(space.userfault_unregister(addr, len)),
            SpaceChange::CloseWatch(id) => nothing(space.userfault_close(id)),
            SpaceChange::FirstWrite(addr) => return touch::first_write(self, sim_machine, addr),
            SpaceChange::GrowDown { start, .. } => {
                return touch::grow(self, sim_machine, step, start);
            }
            _ => space.with_vmas(|vmas| step.carry_out(vmas)),
        };
        if let Err(Error::NotSupported(what)) = done {
            sim_machine.figures.lack(what);
            return Ok(self.space.with_vmas(|vmas| step.carry_out(vmas)));
        }
        Ok(done)
    }

    /// Changes the model as the step has changed the pages. Pages that MADV_REMOVE frees hold
    /// `removed` now.
    fn follow(
        &mut self,
        sim_machine: &mut SimMachine,
        step: &SpaceChange<Backing<Sim>>,
        result: Result<usize, vma::Error>,
        before: &Before,
        removed: Option<u64>,
    ) {
        let whole = |addr: usize, len: usize| {
            addr..addr.saturating_add(len).checked_next_multiple_of(PAGE_SIZE).unwrap_or(usize::MAX)
        };
        match (step, result) {
            (SpaceChange::Mremap(request), Ok(to)) => self.model.remap(request, to, &before.parts),
            (SpaceChange::Mremap(request), Err(_)) => self.model.doubt_remap(request),
            (SpaceChange::Mmap(map), Ok(at)) => self.model.forget(whole(at, map.len)),
            (SpaceChange::Mmap(map), Err(_)) if map.flags.contains(MapFlags::FIXED) => {
                self.model.doubt(whole(map.addr, map.len));
            }
            (SpaceChange::Shmat(map), Ok(at)) => self.model.forget(whole(at, map.len)),
            (SpaceChange::Adopt(vma), Ok(_)) => self.model.forget(vma.start..vma.end),
            (SpaceChange::Munmap { addr, len }, Ok(_)) => self.model.forget(whole(*addr, *len)),
            (SpaceChange::Settle { start, end, flags: None }, Ok(_)) => {
                self.model.forget(*start..*end)
            }
            (SpaceChange::Brk(_), Ok(now)) => {
                let [old, now] = [before.heap, now].map(|end| end.next_multiple_of(PAGE_SIZE));
                self.model.forget(old.min(now)..old.max(now));
            }
            (SpaceChange::Madvise { addr, len, advice }, result) => match (advice, result) {
                (Advice::Remove, _) => self.remove(sim_machine, whole(*addr, *len), removed),
                (advice, Ok(_)) if drops_pages(*advice) => self.model.forget(whole(*addr, *len)),
                (advice, Err(_)) if drops_pages(*advice) => self.model.doubt(whole(*addr, *len)),
                _ => {}
            },
            _ => {}
        }
    }

    /// MADV_REMOVE has freed the pages of the objects that are mapped in a range: they hold `now`.
    fn remove(&mut self, sim_machine: &mut SimMachine, range: Range<usize>, now: Option<u64>) {
        let areas = self.space.with_vmas(|vmas| {
            Ok(vmas.areas_from(range.start).take_while(|a| a.start < range.end).collect::<Vec<_>>())
        });
        for area in areas.into_iter().flatten() {
            let Some(file) = &area.vma.file else { continue };
            let (start, end) = (area.start.max(range.start), area.end.min(range.end));
            let first = area.vma.offset_at(start) as u64;
            let pages = first..first + ((end - start) / PAGE_SIZE) as u64;
            sim_machine.objects.remove(key_of(file), pages, now);
        }
    }

    /// Forks, and lets both write to pages that they have in common.
    ///
    /// # Errors
    /// A description of what is wrong.
    pub(super) fn fork(&mut self, sim_machine: &mut SimMachine) -> Result<Process, String> {
        sim_machine.figures.forks += 1;
        let (tag, cpu) = (sim_machine.take_tag()?, self.cpu);
        let (space, model) = self.on(sim_machine, cpu, |process, _| {
            let forked = process.space.fork(tag);
            let space = forked.map_err(|error| format!("the fork failed: {error}"))?;
            let mut model = process.model.clone();
            let _ = space.with_vmas(|vmas| {
                model.retain(|page| {
                    let area = vmas.area_at(page);
                    area.is_some_and(|area| !area.vma.flags.contains(VmFlags::WIPEONFORK))
                });
                Ok(())
            });
            Ok((space, model))
        })?;
        let space = ManuallyDrop::new(space);
        let mut child = Process { space, model, tag, cpu: (cpu + 1) % CPUS, cpus: 0 };
        let pages = self.model.pages(WRITTEN_AFTER_FORK);
        child.touch(sim_machine, &pages)?;
        self.touch(sim_machine, &pages)?;
        child.touch(sim_machine, &pages)?;
        Ok(child)
    }

    /// Reads all pages that were written, and ends the space.
    ///
    /// # Errors
    /// A description of what is wrong.
    pub(super) fn end(mut self, sim_machine: &mut SimMachine) -> Result<(), String> {
        let (cpu, pages) = (self.cpu, self.model.pages(READ_AT_END));
        self.on(sim_machine, cpu, |process, sim_machine| {
            pages.iter().try_for_each(|page| touch::read(process, sim_machine, *page).map(drop))
        })?;
        for cpu in (0..CPUS).filter(|cpu| self.cpus & 1 << cpu != 0) {
            // SAFETY: the CPU was idle until now, so no tables are active on it. The space is
            // activated nowhere any more.
            sim_machine.on(cpu, |_| unsafe { self.space.leave() })?;
        }
        let Process { space, tag, .. } = self;
        sim_machine.on(cpu, |_| drop(ManuallyDrop::into_inner(space)))?;
        sim_machine.give_tag(tag);
        Ok(())
    }

    /// Compares the VMAs with the mirror's.
    ///
    /// # Errors
    /// The first that differs.
    pub(super) fn compare(
        &mut self,
        sim_machine: &mut SimMachine,
        mirror: &mut dyn Iterator<Item = (Range<usize>, VmFlags)>,
    ) -> Result<(), String> {
        let cpu = self.cpu;
        self.on(sim_machine, cpu, |process, _| {
            let (mut differs, mut mirror) = (None, mirror.fuse());
            process.space.for_each_vma(|range, flags| {
                let theirs = mirror.next();
                if differs.is_none() && theirs.as_ref() != Some(&(range.clone(), flags)) {
                    differs = Some((Some((range, flags)), theirs));
                }
            });
            let more = mirror.next().map(|theirs| (None, Some(theirs)));
            match differs.or(more) {
                None => Ok(()),
                Some((ours, theirs)) => Err(format!(
                    "the VMAs with pages are not those of the mirror: {}, and not {}",
                    shown(ours),
                    shown(theirs)
                )),
            }
        })
    }
}

fn shown(vma: Option<(Range<usize>, VmFlags)>) -> String {
    vma.map_or("none".into(), |(range, flags)| format!("{:x}-{:x} {flags}", range.start, range.end))
}

/// Whether the advice drops private pages.
fn drops_pages(advice: Advice) -> bool {
    advice.discards() && advice != Advice::Remove || advice == Advice::GuardInstall
}

/// Compares the result of a step with the mirror's. A page that could not be brought in, or freed,
/// is no difference of the VMAs.
fn agree(
    sim_machine: &mut SimMachine,
    step: &SpaceChange<Backing<Sim>>,
    mirror: Result<usize, vma::Error>,
    ours: Result<usize, Error>,
) -> Result<(), String> {
    let populates = matches!(
        step,
        SpaceChange::Madvise { advice: Advice::PopulateRead | Advice::PopulateWrite, .. }
    );
    let lacking = match (mirror, ours) {
        (Ok(theirs), Ok(ours)) if theirs == ours => return Ok(()),
        (Err(theirs), Err(Error::Vma(ours))) if theirs.errno() == ours.errno() => return Ok(()),
        (_, Err(Error::Fault(_) | Error::NotBroughtIn(_))) => {
            "a page that a call was to bring in: it could not be touched"
        }
        (_, Err(Error::Vma(_))) if populates => {
            "a page that a call was to bring in: it could not be touched"
        }
        (_, Err(Error::Collapse(_))) => "MADV_COLLAPSE of pages that cannot be huge",
        (_, Err(Error::Object(ObjectError::NotSupported))) => "MADV_REMOVE of a file's pages",
        (theirs, ours) => {
            return Err(format!(
                "the call with pages gave {}, and the mirror's gave {}",
                said(ours),
                said(theirs)
            ));
        }
    };
    sim_machine.figures.lack(lacking);
    Ok(())
}

fn said(result: Result<usize, impl std::fmt::Display>) -> String {
    result.map_or_else(|error| format!("an error ({error})"), |value| format!("{value:#x}"))
}

/// The ranges that a step changed, which are touched after it.
fn changed(
    step: &SpaceChange<Backing<Sim>>,
    result: Result<usize, vma::Error>,
    heap: usize,
) -> [Range<usize>; 2] {
    let Ok(at) = result else { return [0..0, 0..0] };
    let to = |addr: usize, len: usize| addr..addr.saturating_add(len);
    let range = match *step {
        SpaceChange::Mremap(map) => return [to(at, map.new_len), to(map.addr, map.old_len)],
        SpaceChange::Mmap(ref map) => to(at, map.len),
        SpaceChange::Shmat(ref map) => to(at, map.len),
        SpaceChange::Adopt(ref vma) => vma.start..vma.end,
        SpaceChange::Brk(_) => heap.min(at)..heap.max(at),
        SpaceChange::Munmap { addr, len }
        | SpaceChange::Mprotect { addr, len, .. }
        | SpaceChange::Madvise { addr, len, .. }
        | SpaceChange::Mlock { addr, len, .. }
        | SpaceChange::RemapFilePages { addr, len, .. } => to(addr, len),
        SpaceChange::Settle { start, end, .. } => start..end,
        _ => 0..0,
    };
    [range, 0..0]
}

/// The first, the middle and the last page of a range.
pub(super) fn few_pages(range: Range<usize>) -> impl Iterator<Item = usize> {
    let page = |at: usize| at & !(PAGE_SIZE - 1);
    let (first, last) = (page(range.start), page(range.end.saturating_sub(1)));
    let middle = page(first + last.saturating_sub(first) / 2);
    let more = [middle, last].into_iter().filter(move |at| *at > first);
    let mut pages: Vec<usize> = std::iter::once(first).chain(more).collect();
    pages.dedup();
    pages.into_iter().filter(move |_| range.start < range.end)
}

/// Whether a failed touch is a refusal.
pub(super) fn is_refusal(error: &FaultError) -> bool {
    matches!(error, FaultError::Unmapped(_) | FaultError::Denied(..) | FaultError::Guard(_))
}
