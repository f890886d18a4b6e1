//! Carries out an operation.

use std::collections::VecDeque;

use crate::{
    common::*,
    host::uffd,
    ops::*,
    out::{OpResult, done, word},
    world::{HALF, World, WorldKind},
};
use machine::{Asid, Step};
use mm::*;
use sim::Sim;
use vma::{MapRequest, VmFlags};

/// A program's place in a world: its process, and its state.
pub(crate) struct Hand<'w> {
    pub(crate) world: &'w World,
    pub(crate) process: usize,
    /// Its pin, the page, and whether it is for writing.
    pub(crate) pin: Option<(UserPins<'w, Sim>, bool)>,
    /// The objects and offsets that a MADV_REMOVE under way has found.
    pub(crate) to_remove: VecDeque<(Backing<Sim>, u64)>,
}

impl<'w> Hand<'w> {
    pub(crate) fn new(world: &'w World, process: usize) -> Self {
        Hand { world, process, pin: None, to_remove: VecDeque::new() }
    }

    pub(crate) fn space(&self) -> &'w Space {
        &self.world.processes[self.process]
    }

    /// Carries out the operation `op`, the `number`th of the program, on the CPU where the process
    /// is active.
    pub(crate) fn apply(&mut self, op: Op, number: usize) -> OpResult {
        let (world, space) = (self.world, self.space());
        let sim = &world.sim;
        let value = 0x1000 + number as u64;
        let from_half = HALF as usize;
        match op {
            Op::Load(page) => word(load(sim, space, at(page))),
            Op::LoadTail(page) => word(load(sim, space, at(page) + from_half)),
            Op::Store(page) => done(store(sim, space, at(page), value)),
            Op::StoreTail(page) => done(store(sim, space, at(page) + from_half, value)),
            Op::Map(..) => self.map(op),
            Op::Unmap(page, pages) => done(space.munmap(at(page), len(page, pages))),
            Op::Protect(page, pages, prot) => {
                done(space.mprotect(at(page), len(page, pages), prot, None))
            }
            Op::Pkey(page, pages, key) => {
                done(space.mprotect(at(page), len(page, pages), 3, Some(key)))
            }
            Op::Grow(..)
            | Op::Shrink(..)
            | Op::Move(..)
            | Op::DontUnmap(..)
            | Op::Duplicate(..) => self.remap(op),
            Op::Brk(pages) => word(space.brk(HEAP + usize::from(pages) * PAGE).map(|at| at as u64)),
            Op::Advise(page, pages, advice) => {
                done(space.madvise(at(page), len(page, pages), advice))
            }
            Op::Lock(page, pages) => done(space.mlock(at(page), len(page, pages), false)),
            Op::LockOnFault(page, pages) => done(space.mlock(at(page), len(page, pages), true)),
            Op::Unlock(page, pages) => done(space.munlock(at(page), len(page, pages))),
            Op::LockAll(current, future) => {
                done(space.mlockall(LockAll { current, future, on_fault: false }))
            }
            Op::UnlockAll => done(space.munlockall()),
            Op::LockVmas(page, pages) => {
                done(space.with_vmas(|calls| calls.mlock(at(page), len(page, pages), false)))
            }
            Op::LockAllVmas(current, future) => {
                let what = LockAll { current, future, on_fault: false };
                done(space.with_vmas(|calls| calls.mlockall(what)))
            }
            Op::MapVmas(..) => self.map(op),
            Op::BringIn(page) => {
                let _later = self.bring_in(page);
                OpResult::default()
            }
            Op::BringInIfLocked(page) => {
                if self.flags_at(page).is_some_and(|flags| flags.contains(VmFlags::LOCKED)) {
                    let _later = self.bring_in(page);
                }
                OpResult::default()
            }
            Op::ObjectIn(page, writes) => {
                self.object_in(page, writes);
                OpResult::default()
            }
            Op::Touch(page, writes) => {
                let access = if writes { Access::Write } else { Access::Read };
                let _again = space.handle_fault(machine::VirtAddr::new(at(page) as u64), access);
                OpResult::default()
            }
            Op::Zap(page) => {
                // Guard pages are no removal of which a monitor is told.
                let zap = || space.madvise(at(page), len(page, 1), Advice::DontNeed);
                let _refused = world.monitor.unheard(zap);
                OpResult::default()
            }
            Op::Announce(page) => {
                if self.flags_at(page).is_some_and(|flags| flags.intersects(VmFlags::UFFD)) {
                    world.monitor.note("remove", [at(page)]);
                }
                OpResult::default()
            }
            Op::Announced(page, advice) => {
                done(world.monitor.unheard(|| space.madvise(at(page), len(page, 1), advice)))
            }
            Op::FindToRemove(page, pages) => self.find_to_remove(page, pages),
            Op::RemoveFound => match self.to_remove.pop_front() {
                None => OpResult::default(),
                Some((file, page)) => {
                    let memory = file.object().in_memory().ok_or(ObjectError::NotSupported);
                    done(memory.and_then(|memory| memory.remove(page..page + 1)))
                }
            },
            Op::BringInLocked(page) => self.bring_in(page),
            Op::Mincore(page, pages) => {
                let mut found = vec![0; usize::from(pages)];
                done(space.mincore(at(page), &mut found)).with(|| found.into_iter().map(u64::from))
            }
            Op::Msync(page, pages) => {
                done(space.msync(at(page), len(page, pages), SyncFlags::SYNC))
            }
            Op::MsyncInvalidate(page, pages) => {
                done(space.msync(at(page), len(page, pages), SyncFlags::INVALIDATE))
            }
            Op::Fork => match space.fork(Asid(8 + number as u16)) {
                Ok(child) => {
                    assert!(world.forks[number].set(child).is_ok(), "each fork has its place");
                    OpResult::default()
                }
                Err(error) => error.into(),
            },
            Op::Exec => {
                let layout = Layout { mmap_base: BASE, start_brk: HEAP, brk: HEAP, start_stack: 0 };
                done(space.exec(layout))
            }
            Op::Mseal(page, pages) => {
                done(space.with_vmas(|calls| calls.mseal(at(page), len(page, pages))))
            }
            Op::Mbind(page, pages) => {
                done(space.with_vmas(|calls| calls.set_home_node(at(page), len(page, pages), 0)))
            }
            Op::Settle(page, pages) => done(space.with_vmas(|calls| {
                let flags = calls.area_at(at(page)).map(|area| area.vma.flags);
                match flags {
                    Some(_) => calls.settle(at(page), at(page) + len(page, pages), flags),
                    None => Err(vma::Error::Unmapped),
                }
            })),
            Op::Attach(page) => done(space.shmat(AttachRequest {
                addr: Some(at(page)),
                replace: true,
                ..AttachRequest::new(world.segment.clone(), 2 * PAGE)
            })),
            Op::Detach(page) => done(space.shmdt(at(page))),
            Op::SetSize(..)
            | Op::Punch(..)
            | Op::ReadObject(..)
            | Op::WriteObject(..)
            | Op::Seal(_)
            | Op::Sync(..)
            | Op::Evict(_) => self.object(op, value),
            Op::Register(page, pages, modes, fd) => {
                done(space.userfault_register(at(page), len(page, pages), modes, uffd(fd)))
            }
            Op::Unregister(page, pages) => {
                done(space.userfault_unregister(at(page), len(page, pages)))
            }
            Op::Close(uffd) => done(space.userfault_close(uffd)),
            Op::Copy(page, pages, protect) => {
                let mut from = vec![0; len(page, pages)];
                for page in from.chunks_mut(PAGE) {
                    page[..8].copy_from_slice(&value.to_le_bytes());
                }
                self.resolve(|done| space.userfault_copy(at(page) + done, &from[done..], protect))
            }
            Op::ZeroPage(page, pages) => self
                .resolve(|done| space.userfault_zeropage(at(page) + done, len(page, pages) - done)),
            Op::Continue(page, pages, protect) => self.resolve(|done| {
                space.userfault_continue(at(page) + done, len(page, pages) - done, protect)
            }),
            Op::Poison(page, pages) => self
                .resolve(|done| space.userfault_poison(at(page) + done, len(page, pages) - done)),
            Op::MovePages(to, from, pages, holes) => self.resolve(|done| {
                let len = len(from, pages) - done;
                space.userfault_move(at(to) + done, at(from) + done, len, holes)
            }),
            Op::WriteProtect(page, pages, protect) => self.resolve(|_| {
                space
                    .userfault_write_protect(at(page), len(page, pages), protect)
                    .map_err(|error| Resolved { done: 0, error })
            }),
            Op::ClearSoftDirty => done(space.clear_soft_dirty()),
            Op::ClearReferenced => done(space.clear_referenced()),
            Op::SoftDirty(page, pages) => OpResult::words((page..page + pages).map(|page| {
                let mut entry = [0];
                space.pagemap(at(page), &mut entry);
                u64::from(entry[0] & pagemap::SOFT_DIRTY != 0)
            })),
            Op::Scan(page, pages, marks) => self.scan(page, pages, marks),
            // It chooses pages by their accessed bits, which TLBs cache: the pages that it found
            // are no result.
            Op::Reclaim(pages) => done(space.reclaim(pages.into())),
            Op::Pin(page) | Op::PinRead(page) | Op::PinLong(page) => self.pin(op, page),
            Op::PinnedStore | Op::PinnedLoad => self.pinned(op, value),
            Op::Unpin => {
                self.pin = None;
                OpResult::default()
            }
            Op::Read(page, pages) => self.read(page, pages),
            Op::Write(page, pages) => self.write(page, pages, value),
            Op::CopyIn(page) => {
                let mut found = [0; 8];
                // SAFETY: the process is active on this CPU.
                done(unsafe { space.copy_from_user(at(page), &mut found) })
                    .with(|| [u64::from_le_bytes(found)])
            }
            Op::CopyOut(page) => {
                // SAFETY: as above.
                done(unsafe { space.copy_to_user(at(page), &value.to_le_bytes()) })
            }
            Op::Peek(page) => {
                let mut found = [0; 8];
                done(space.peek(at(page), &mut found)).with(|| [u64::from_le_bytes(found)])
            }
            Op::Poke(page) => done(space.poke(at(page), &value.to_le_bytes())),
            Op::ReadOther(page) => self.other().read(page, 1),
            Op::WriteOther(page) => self.other().write(page, 1, value),
            Op::Listing => {
                let mut words = Vec::new();
                space.for_each_vma(|range, flags| {
                    words.extend([range.start as u64, range.end as u64, flags.bits()]);
                });
                OpResult::words(words)
            }
        }
    }

    /// Makes a call of a monitor, of which some bytes are done already. A monitor that has not read
    /// an event yet reads it, and calls again.
    fn resolve(&self, call: impl Fn(usize) -> Result<(), Resolved>) -> OpResult {
        let mut bytes = 0;
        loop {
            match call(bytes) {
                Err(Resolved { done, error: Error::UserFault(UserFaultError::Changing) }) => {
                    bytes += done;
                    self.world.sim.relax();
                }
                made => return done(made),
            }
        }
    }

    fn other(&self) -> Hand<'w> {
        Hand::new(self.world, (self.process + 1) % self.world.processes.len())
    }

    fn map(&self, op: Op) -> OpResult {
        let (Op::Map(what, page, pages, prot, how) | Op::MapVmas(what, page, pages, prot, how)) =
            op
        else {
            unreachable!()
        };
        let (world, space) = (self.world, self.space());
        let mut flags = match how {
            How::Plain => MapFlags::FIXED,
            How::Populate => MapFlags::FIXED | MapFlags::POPULATE,
            How::Locked => MapFlags::FIXED | MapFlags::LOCKED,
            How::NoReplace => MapFlags::FIXED | MapFlags::FIXED_NOREPLACE,
        };
        let (shared, private) = (MapFlags::SHARED, MapFlags::PRIVATE);
        let (memfd, file) = (&world.memfd, &world.file);
        let of = match what {
            What::Anon => (PRIVATE, None),
            What::Stack => (PRIVATE | MapFlags::GROWSDOWN, None),
            What::Zeros => (shared | MapFlags::ANONYMOUS, None),
            What::Memfd | What::MemfdOff => (shared, Some(&memfd.rw)),
            What::MemfdRo => (shared, Some(&memfd.ro)),
            What::MemfdPrivate => (private, Some(&memfd.rw)),
            What::File => (shared, Some(&file.rw)),
            What::FilePrivate => (private, Some(&file.ro)),
            What::Device => (shared, Some(&world.device)),
        };
        flags |= of.0;
        let offset = usize::from(page) + if what == What::MemfdOff { 2 } else { 0 };
        let (at, len) = (at(page), len(page, pages));
        if let Op::MapVmas(..) = op {
            let (addr, file, offset) =
                (at, of.1.cloned(), if of.1.is_some() { offset * PAGE } else { 0 });
            let request = MapRequest { addr, len, prot, flags, file, offset, driver_flags: None };
            let mut lost = Vec::new();
            space.for_each_vma(|range, flags| {
                if world.kind == WorldKind::Told && flags.intersects(VmFlags::UFFD) {
                    let within = range.start.max(at)..range.end.min(at + len);
                    lost.extend(within.step_by(PAGE));
                }
            });
            let mapped = done(space.with_vmas(|calls| calls.mmap(request)));
            if mapped.error.is_none() {
                // Calls on VMAs alone tell no monitor.
                world.monitor.note("unmap", lost);
            }
            return mapped;
        }
        done(match of.1 {
            None => space.mmap(at, len, prot, flags),
            Some(file) => space.mmap_object(at, len, prot, flags, file.clone(), offset * PAGE),
        })
    }

    fn remap(&self, op: Op) -> OpResult {
        let in_place = |page, pages, new_len| RemapRequest {
            may_move: false,
            ..RemapRequest::resizing(at(page), len(page, pages), new_len)
        };
        let moving = |page, pages, to| RemapRequest::moving(at(page), len(page, pages), at(to));
        let request = match op {
            Op::Grow(page, pages) => in_place(page, pages, len(page, pages + 1)),
            Op::Shrink(page, pages) => in_place(page, pages, len(page, pages - 1)),
            Op::Move(page, pages, to) => moving(page, pages, to),
            Op::DontUnmap(page, pages, to) => {
                RemapRequest { dont_unmap: Some(at(to)), ..moving(page, pages, to) }
            }
            Op::Duplicate(page, pages, to) => {
                RemapRequest { old_len: 0, ..moving(page, pages, to) }
            }
            _ => unreachable!(),
        };
        done(self.space().mremap(request))
    }

    fn object(&self, op: Op, value: u64) -> OpResult {
        let world = self.world;
        let (memfd, file) = (&*world.memfd.object, &*world.file.object);
        let bytes = |page: u8| u64::from(page) * PAGE as u64;
        match op {
            Op::SetSize(Which::Memfd, halves) => done(memfd.set_size(u64::from(halves) * HALF)),
            Op::SetSize(Which::File, halves) => done(world.set_file_size(u64::from(halves) * HALF)),
            Op::Punch(_, page) => done(memfd.punch_hole(bytes(page)..bytes(page + 1))),
            Op::ReadObject(of, page) => {
                let mut found = [0; 8];
                let read = match of {
                    Which::Memfd => Ok(memfd.read(bytes(page), &mut found)),
                    Which::File => file.read(bytes(page), &mut found),
                };
                done(read).with(|| [u64::from_le_bytes(found)])
            }
            Op::WriteObject(Which::Memfd, page) => {
                done(memfd.write(bytes(page), &value.to_le_bytes()))
            }
            Op::WriteObject(Which::File, page) => {
                done(file.write(bytes(page), &value.to_le_bytes()))
            }
            Op::Seal(seals) => done(memfd.add_seals(Seals(seals))),
            Op::Sync(page, pages) => done(file.sync(u64::from(page)..u64::from(page + pages))),
            // Whether a page goes depends on references, which faults take for a moment.
            Op::Evict(page) => {
                file.evict(page.into());
                OpResult::default()
            }
            _ => unreachable!(),
        }
    }
}
