//! The world of a run: one or two processes, their maps, and the visible state.

use std::{
    mem::ManuallyDrop,
    sync::{Arc, OnceLock, atomic::Ordering::SeqCst},
};

use crate::{
    common::*,
    host::{ASKS, ASYNC, Disk, OnDisk, Refuses, Slots, TELLS, uffd},
    ops::{at, end},
};
use machine::{Frame, FrameRange, PageSize, Step};
use mm::*;
use paging::{Cache, Paging, Swap, TlbGrace, X86_64L4};
use sim::{Config, Sim};

/// The memory of the processes at the beginning. Each world is built the same way each time.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(crate) enum WorldKind {
    /// Private memory: two written pages, the zero page, an absent one, a guard page, a read-only
    /// one, a hole, a written one.
    Anon,
    /// The same, in a parent and its child.
    Forked,
    /// Private memory with a monitor: two written pages, one of them write-protected, the zero
    /// page, and an absent one.
    Watched,
    /// The same, with write-protection that needs no monitor, and tells of scans.
    Tracked,
    /// The same, with a monitor that is told of each change.
    Told,
    /// As `Anon`, in a group that counts frames.
    Grouped,
    /// Private memory, of which two pages are in swap.
    Swapped,
    /// The same, in a parent and its child. The swap takes no second reference.
    Tight,
    /// A memfd of five and a half pages: one process maps it shared, the other one private.
    Memfd,
    /// The same memfd, which no process maps shared yet.
    Unmapped,
    /// The same memfd, mapped shared, with a monitor.
    MemfdWatched,
    /// The same memfd with all its pages, mapped shared, with a monitor of minor faults.
    Minor,
    /// A file of three and a half pages: one process maps it shared, the other one private.
    File,
    /// Two ranges of 2 MiB: none of the first has a page, and half of it is read-only. The second
    /// has small pages.
    Huge,
    /// A huge page and the huge zero page, with a monitor.
    HugeWatched,
    /// A huge page and the huge zero page, in a parent and its child.
    HugeForked,
    /// As `Anon`, where munmap waits for TLB grace periods.
    Graced,
    /// The memory of a device.
    Device,
}

impl WorldKind {
    pub(crate) const ALL: [WorldKind; 18] = [
        WorldKind::Anon,
        WorldKind::Forked,
        WorldKind::Watched,
        WorldKind::Tracked,
        WorldKind::Told,
        WorldKind::Grouped,
        WorldKind::Swapped,
        WorldKind::Tight,
        WorldKind::Memfd,
        WorldKind::Unmapped,
        WorldKind::MemfdWatched,
        WorldKind::Minor,
        WorldKind::File,
        WorldKind::Huge,
        WorldKind::HugeWatched,
        WorldKind::HugeForked,
        WorldKind::Graced,
        WorldKind::Device,
    ];

    pub(crate) fn is_huge(self) -> bool {
        matches!(self, WorldKind::Huge | WorldKind::HugeWatched | WorldKind::HugeForked)
    }

    pub(crate) fn has_memfd(self) -> bool {
        matches!(
            self,
            WorldKind::Memfd | WorldKind::Unmapped | WorldKind::MemfdWatched | WorldKind::Minor
        )
    }

    /// Whether maps of objects are looked at.
    pub(crate) fn has_object(self) -> bool {
        self.has_memfd() || self == WorldKind::File
    }

    pub(crate) fn is_watched(self) -> bool {
        matches!(
            self,
            WorldKind::Watched
                | WorldKind::Tracked
                | WorldKind::Told
                | WorldKind::MemfdWatched
                | WorldKind::Minor
                | WorldKind::HugeWatched
        )
    }

    pub(crate) fn has_swap(self) -> bool {
        matches!(self, WorldKind::Swapped | WorldKind::Tight)
    }

    /// The number of processes.
    pub(crate) fn processes(self) -> usize {
        match self {
            WorldKind::Forked
            | WorldKind::Tight
            | WorldKind::Memfd
            | WorldKind::Unmapped
            | WorldKind::File => 2,
            WorldKind::HugeForked => 2,
            _ => 1,
        }
    }
}

/// An object and how programs have opened it.
pub(crate) struct Opened<T: ?Sized + 'static> {
    pub(crate) object: Shared<T>,
    pub(crate) rw: Backing<Sim>,
    pub(crate) ro: Backing<Sim>,
}

pub(crate) struct World {
    pub(crate) kind: WorldKind,
    pub(crate) sim: Sim,
    shared: SharedPaging,
    swap: Arc<Slots>,
    pub(crate) disk: Arc<Disk>,
    pub(crate) processes: Vec<Space>,
    /// The children of the calls of fork, by the places of these calls in the program.
    pub(crate) forks: Vec<OnceLock<Space>>,
    pub(crate) memfd: Opened<Shmem<Sim>>,
    pub(crate) file: Opened<File<Sim, OnDisk>>,
    pub(crate) segment: Backing<Sim>,
    pub(crate) device: Backing<Sim>,
    pub(crate) monitor: Arc<Refuses>,
    pub(crate) group: Shared<FrameGroup<Sim>>,
}

pub(crate) const MEMFD_BYTES: u64 = 5 * PAGE as u64 + HALF;
pub(crate) const FILE_BYTES: u64 = 3 * PAGE as u64 + HALF;
pub(crate) const HALF: u64 = PAGE as u64 / 2;
/// The most operations of a program.
pub(crate) const OPS: usize = 14;

impl World {
    /// Builds a world for this many CPUs. A run that fails leaks it: there is no CPU on which it
    /// could be dropped.
    pub(crate) fn build(kind: WorldKind, cpus: usize, tick: Option<u64>) -> ManuallyDrop<World> {
        let frames = if kind.is_huge() { 1 << 13 } else { 256 };
        let config = Config { cpus, frames, tick, checks: RACING, events: 64, ..Config::default() };
        let sim = Sim::new(config).unwrap();
        let swap = Arc::new(Slots::default());
        let kept = kind.has_swap().then(|| swap.clone() as Arc<dyn Swap>);
        let shared: SharedPaging =
            Paging::<_, X86_64L4>::try_with_swap(sim.clone(), PageSize::Size1G, kept).unwrap();
        ManuallyDrop::new(sim.clone().on_cpu(0, || World::with(kind, sim, shared, swap)))
    }

    fn with(kind: WorldKind, sim: Sim, shared: SharedPaging, swap: Arc<Slots>) -> World {
        let disk = Arc::new(Disk::default());
        let memfd = Shmem::memfd(&shared, "x", 3).unwrap();
        let source = OnDisk { sim: sim.clone(), disk: disk.clone() };
        let file = File::try_new(&shared, source, FILE_BYTES).unwrap();
        let segment = Shmem::segment(&shared, 7, 5, 2 * PAGE as u64).unwrap();
        let frames = FrameRange::new(Frame::new(0x4_0000).unwrap(), 8).unwrap();
        // SAFETY: the machine has no memory there, and programs do not access it: they only fault.
        let device = unsafe {
            DeviceMemory::try_new(&shared, frames, Cache::WriteBack, "/dev/x", (9, 1), 6)
        };
        let open = |writable| Backing::open(memfd.clone(), writable).unwrap();
        let (rw, ro) = (open(true), open(false));
        let memfd = Opened { object: memfd, rw, ro };
        let open = |writable| Backing::open(file.clone(), writable).unwrap();
        let (rw, ro) = (open(true), open(false));
        let file = Opened { object: file, rw, ro };
        let mut world = World {
            kind,
            processes: vec![new_space(&shared, 1).unwrap()],
            forks: (0..OPS).map(|_| OnceLock::new()).collect(),
            segment: Backing::open(segment, true).unwrap(),
            device: Backing::open(device.unwrap(), true).unwrap(),
            monitor: Arc::new(Refuses::new(&sim)),
            group: FrameGroup::try_new(&sim, usize::MAX, Box::new(())).unwrap(),
            sim,
            shared,
            swap,
            disk,
            memfd,
            file,
        };
        world.processes[0].set_userfault_handler(world.monitor.clone());
        world.fill();
        // The calls of the program itself are what is looked at.
        for space in &world.processes {
            space.clear_referenced().unwrap();
        }
        // SeqCst: as in `hold`.
        world.swap.is_tight.store(kind == WorldKind::Tight, SeqCst);
        world
    }

    fn fill(&mut self) {
        match self.kind {
            WorldKind::Anon
            | WorldKind::Watched
            | WorldKind::Tracked
            | WorldKind::Told
            | WorldKind::Swapped => {
                self.anonymous();
            }
            WorldKind::Grouped => {
                self.processes[0].set_group(&self.group).unwrap();
                self.anonymous();
            }
            WorldKind::Graced => {
                let periods = TlbGrace::try_new(self.sim.clone()).unwrap();
                // SAFETY: no CPU has the space active, and these are the machine's periods.
                unsafe { self.processes[0].set_unmap_policy(UnmapPolicy::Grace(periods)) }.unwrap();
                self.anonymous();
            }
            WorldKind::Forked | WorldKind::Tight => {
                self.anonymous();
                let child = self.processes[0].fork(machine::Asid(2)).unwrap();
                self.processes.push(child);
            }
            WorldKind::Memfd | WorldKind::Unmapped | WorldKind::MemfdWatched | WorldKind::Minor => {
                self.of_memfd()
            }
            WorldKind::File => self.of_file(),
            WorldKind::Huge | WorldKind::HugeWatched => self.huge(),
            WorldKind::HugeForked => {
                self.huge();
                let child = self.processes[0].fork(machine::Asid(2)).unwrap();
                self.processes.push(child);
            }
            WorldKind::Device => {
                let flags = MapFlags::SHARED | MapFlags::FIXED;
                let device = self.device.clone();
                self.processes[0].mmap_object(at(0), 4 * PAGE, 3, flags, device, 0).unwrap();
            }
        }
    }

    fn anonymous(&mut self) {
        let space = &self.processes[0];
        space.mmap(at(0), 8 * PAGE, 3, FIXED).unwrap();
        for page in [0, 1, 5, 7] {
            space.write(at(page), &(u64::from(page) + 1).to_le_bytes()).unwrap();
        }
        space.read(at(2), &mut [0; 8]).unwrap();
        space.mprotect(at(5), PAGE, 1, None).unwrap();
        space.munmap(at(6), PAGE).unwrap();
        if self.kind.has_swap() {
            space.clear_referenced().unwrap();
            space.reclaim(2).unwrap();
        }
        if self.kind.is_watched() {
            let monitor = match self.kind {
                WorldKind::Tracked => ASYNC,
                WorldKind::Told => TELLS,
                _ => ASKS,
            };
            self.watch(monitor, 4);
        } else {
            space.madvise(at(4), PAGE, Advice::GuardInstall).unwrap();
        }
    }

    /// Registers the first pages, and protects the second one.
    fn watch(&self, monitor: u64, pages: u8) {
        let space = &self.processes[0];
        let modes = match monitor {
            ASYNC => UserFaultModes::WP,
            _ if self.kind == WorldKind::Minor => UserFaultModes::WP | UserFaultModes::MINOR,
            _ => UserFaultModes::WP | UserFaultModes::MISSING,
        };
        space.userfault_register(at(0), end(pages - 1) - at(0), modes, uffd(monitor)).unwrap();
        if !self.kind.is_huge() {
            space.userfault_write_protect(at(1), PAGE, true).unwrap();
        }
    }

    fn of_memfd(&mut self) {
        let memfd = &self.memfd.object;
        memfd.set_size(MEMFD_BYTES).unwrap();
        let present: &[u64] =
            if self.kind == WorldKind::Minor { &[0, 1, 2, 3, 4] } else { &[0, 1, 3] };
        for &page in present {
            memfd.write(page * PAGE as u64, &(page + 1).to_le_bytes()).unwrap();
        }
        memfd.write(5 * PAGE as u64, &6_u64.to_le_bytes()).unwrap();
        self.processes.push(new_space(&self.shared, 2).unwrap());
        let [space, other] = &self.processes[..] else { unreachable!() };
        let shared = MapFlags::SHARED | MapFlags::FIXED;
        // The list of the object's maps is full: the next one drops what is stale.
        for _ in 0..if self.kind.is_watched() { 0 } else { 7 } {
            space.mmap_object(at(0), PAGE, 3, shared, self.memfd.rw.clone(), 0).unwrap();
            space.munmap(at(0), PAGE).unwrap();
        }
        match self.kind {
            WorldKind::Unmapped => {}
            WorldKind::MemfdWatched | WorldKind::Minor => {
                space.mmap_object(at(0), 6 * PAGE, 3, shared, self.memfd.rw.clone(), 0).unwrap();
                space.read(at(0), &mut [0; 8]).unwrap();
                self.watch(ASKS, 4);
                self.processes.pop();
            }
            _ => {
                space.mmap_object(at(0), 6 * PAGE, 3, shared, self.memfd.rw.clone(), 0).unwrap();
                let flags = MapFlags::PRIVATE | MapFlags::FIXED;
                other.mmap_object(at(0), 6 * PAGE, 3, flags, self.memfd.rw.clone(), 0).unwrap();
                other.write(at(1), &12_u64.to_le_bytes()).unwrap();
            }
        }
    }

    fn of_file(&mut self) {
        self.disk.set_size(FILE_BYTES);
        for page in 0..4_u64 {
            let mut bytes = Box::new([0; PAGE]);
            bytes[..8].copy_from_slice(&(page + 1).to_le_bytes());
            self.disk.pages.lock().unwrap().insert(page, bytes);
        }
        self.processes.push(new_space(&self.shared, 2).unwrap());
        let [space, other] = &self.processes[..] else { unreachable!() };
        let flags = MapFlags::SHARED | MapFlags::FIXED;
        space.mmap_object(at(0), 4 * PAGE, 3, flags, self.file.rw.clone(), 0).unwrap();
        let flags = MapFlags::PRIVATE | MapFlags::FIXED;
        other.mmap_object(at(0), 4 * PAGE, 3, flags, self.file.rw.clone(), 0).unwrap();
        space.write(at(0), &10_u64.to_le_bytes()).unwrap();
        space.read(at(1), &mut [0; 8]).unwrap();
        other.write(at(1), &12_u64.to_le_bytes()).unwrap();
    }

    fn huge(&mut self) {
        let space = &self.processes[0];
        space.set_huge_pages(HugePages::Always).unwrap();
        space.mmap(at(0), end(7) - at(0), 3, FIXED).unwrap();
        if self.kind != WorldKind::Huge {
            space.read(at(0), &mut [0; 8]).unwrap();
            space.write(at(5), &6_u64.to_le_bytes()).unwrap();
            if self.kind == WorldKind::HugeWatched {
                self.watch(ASKS, 8);
            }
            return;
        }
        space.set_huge_pages(HugePages::Never).unwrap();
        for page in [5, 6] {
            space.write(at(page), &(u64::from(page) + 1).to_le_bytes()).unwrap();
        }
        space.set_huge_pages(HugePages::Always).unwrap();
        space.mprotect(at(0), end(2) - at(0), 1, None).unwrap();
    }

    /// Sets the size of the file, as a host does it: one call at a time, and never with more on the
    /// disk than in the file.
    pub(crate) fn set_file_size(&self, bytes: u64) -> Result<(), ObjectError> {
        let Disk { size, resizing, .. } = &*self.disk;
        // SeqCst: as above.
        while resizing.swap(true, SeqCst) {
            self.sim.relax();
        }
        let grows = bytes > size.load(SeqCst);
        if grows {
            self.disk.set_size(bytes);
        }
        let done = self.file.object.set_size(bytes);
        if !grows {
            self.disk.set_size(bytes);
        }
        resizing.store(false, SeqCst);
        done
    }

    /// Ends the world. Returns what is left over.
    pub(crate) fn end(self) -> Result<(), sim::Failure> {
        let World { sim, shared, swap, .. } = &self;
        let (sim, shared, swap) = (sim.clone(), shared.clone(), swap.clone());
        sim.on_cpu(0, || {
            assert!(sim.settle(), "something is never freed");
            drop(self);
        });
        assert_eq!(swap.ram.used(), 0, "a slot of swap is left");
        Ok(all_given_back(&sim, &shared)?)
    }
}
