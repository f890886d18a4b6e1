//! The heap is exhausted at some point of a call: the call says so, and nothing has changed (I7);
//! or it does without. With memory again, it succeeds. The tests `failure` do the same with frames.

mod common;
#[path = "../../vma/tests/common/failing_heap.rs"]
mod failing_heap;
#[path = "common/ram.rs"]
mod ram;

use std::{fmt::Write, sync::Arc};

use common::{FIXED, Never, PAGE, Zeros};
use failing_heap::{alone, refusing, with_heap};
use machine::{Asid, Frame, FrameRange, FrameSource, PageSize};
use mm::*;
use paging::{Cache, Paging, TlbGrace, X86_64L4};
use ram::Ram;
use sim::{Bare, BareGrace};

const AT: usize = 0x4000_0000;
const FAR: usize = AT + (64 << 21);
const SHARED: usize = AT + 16 * PAGE;
const FRAMES: u64 = 512;

type Space = AddressSpace<Bare, X86_64L4, BareGrace>;

/// Swap in memory, which itself does not fail.
#[derive(Default)]
struct Sure(Ram);

impl Swap for Sure {
    fn write(&self, page: &[u8; PAGE]) -> Option<u64> {
        with_heap(|| self.0.write(page))
    }

    fn read(&self, slot: u64, page: &mut [u8; PAGE]) -> bool {
        self.0.read(slot, page)
    }

    fn hold(&self, slot: u64) -> bool {
        self.0.hold(slot)
    }

    fn release(&self, slot: u64) {
        self.0.release(slot);
    }
}

/// A program's view without touching anything: its VMAs, and which pages are present.
fn seen(space: &Space) -> (String, Vec<usize>) {
    let mut maps = String::new();
    space.write_maps(&mut maps).unwrap();
    writeln!(maps, "{:?}", space.sizes()).unwrap();
    let pages = (0..20).flat_map(|page| [AT + page * PAGE, FAR + page * PAGE]);
    (maps, pages.map(|at| space.resident(at..at + PAGE)).collect())
}

/// A space that two CPUs use: 8 pages at `AT` of which 5 are written, and 2 pages of an object.
struct World {
    bare: Bare,
    paging: Arc<Paging<Bare, X86_64L4>>,
    memory: mm::Shared<Shmem<Bare>>,
    space: Space,
}

impl World {
    fn new(grace: bool) -> World {
        let bare = Bare::new(2, FRAMES).unwrap();
        let swap = Some(Arc::new(Sure::default()) as Arc<dyn Swap>);
        let paging = Paging::<Bare, X86_64L4>::try_with_swap(bare.clone(), PageSize::Size1G, swap);
        let paging = paging.unwrap();
        let (memory, space) = bare.on_cpu(0, || {
            let layout = Layout { mmap_base: 0x7000_0000, ..Layout::default() };
            let profile = Profile::LINUX_6_18;
            let mut space = Space::try_new(&paging, Asid(1), None, profile, layout).unwrap();
            space.set_userfault_handler(Arc::new(Never { marks_absent: true, ..Never::default() }));
            if grace {
                let periods = TlbGrace::try_new(bare.clone()).unwrap();
                // SAFETY: the machine's periods; each CPU that uses the space takes part.
                unsafe { space.set_unmap_policy(UnmapPolicy::Grace(periods)) }.unwrap();
            }
            let memory = Shmem::memfd(&paging, "name", 1).unwrap();
            memory.set_size(2 * PAGE as u64).unwrap();
            (memory, space)
        });
        bare.on_cpu(1, || space.enter());
        bare.on_cpu(0, || {
            space.enter();
            space.mmap(AT, 8 * PAGE, 3, FIXED).unwrap();
            (0..5).for_each(|page| space.write(AT + page * PAGE, &[page as u8 + 1]).unwrap());
            let file = Backing::open(memory.clone(), true).unwrap();
            let flags = MapFlags::SHARED | MapFlags::FIXED;
            space.mmap_object(SHARED, 2 * PAGE, 3, flags, file, 0).unwrap();
            space.write(SHARED, &[9]).unwrap();
        });
        // Two CPUs find VMAs, so a change of them needs new nodes.
        let at = machine::VirtAddr::new(AT as u64);
        bare.on_cpu(1, || space.handle_fault(at, Access::Read)).unwrap();
        World { bare, paging, memory, space }
    }

    fn end(self) {
        let World { bare, paging, memory, space } = self;
        bare.on_cpu(0, || {
            drop(space);
            drop(memory);
            assert!(bare.settle());
            paging.quick().drain();
            assert_eq!(bare.free_frames() as u64, FRAMES);
        });
    }
}

/// Runs `call` with each allocation refused in turn: it alone, or with all that follow. `least`: so
/// many allocations make the call fail, in all its runs together.
fn each_allocation_fails(
    name: &str,
    least: usize,
    is_whole: bool,
    call: impl Fn(&World) -> Result<(), Error>,
) {
    let _alone = alone();
    let mut failures = 0;
    for (grace, all) in [(false, false), (false, true), (true, true)] {
        for nth in 0.. {
            let world = World::new(grace);
            let refused = world.bare.on_cpu(0, || {
                let before = seen(&world.space);
                let (done, refused) = refusing(nth, all, || call(&world));
                if let Err(error) = done {
                    assert!(refused, "{name}: {error} though memory is left");
                    assert_eq!(error.errno(), 12, "{name}: {error}");
                    if is_whole {
                        assert_eq!(seen(&world.space), before, "{name}, {nth}: after {error}");
                    }
                    failures += 1;
                    call(&world).unwrap_or_else(|error| panic!("{name}, with memory: {error}"));
                }
                (0..5).for_each(|page| {
                    let mut found = [0];
                    if world.space.read(AT + page * PAGE, &mut found).is_ok() {
                        let expected = [0, 7, page as u8 + 1];
                        assert!(expected.contains(&found[0]), "{name}: {found:?} in page {page}");
                    }
                });
                refused
            });
            world.end();
            if !refused {
                break;
            }
        }
    }
    assert!(failures >= least, "{name}: only {failures} allocations make it fail");
}

#[test]
fn calls_that_change_vmas() {
    let run = |name, least, call: &dyn Fn(&Space) -> Result<(), Error>| {
        each_allocation_fails(name, least, true, |world| call(&world.space));
    };
    run("mmap", 1, &|space| space.mmap(0, PAGE, 1, FIXED - MapFlags::FIXED).map(drop));
    run("mmap over", 1, &|space| space.mmap(AT + PAGE, PAGE, 1, FIXED).map(drop));
    run("munmap", 1, &|space| space.munmap(AT + PAGE, PAGE));
    run("mprotect", 1, &|space| space.mprotect(AT + PAGE, PAGE, 1, None));
    run("mlock", 1, &|space| space.mlock(AT + PAGE, PAGE, false));
    run("brk", 0, &|space| {
        let end = space.brk(0)?;
        space.brk(end + PAGE).map(drop)
    });
    let fixed = Some(FAR);
    let (addr, old_len, new_len) = (AT, 4 * PAGE, 5 * PAGE);
    let move_it = RemapRequest { fixed, ..RemapRequest::resizing(addr, old_len, new_len) };
    run("mremap", 2, &|space| space.mremap(move_it).map(drop));
    let modes = UserFaultModes::MISSING | UserFaultModes::WP;
    run("register", 1, &|space| space.userfault_register(AT + PAGE, PAGE, modes, Uffd::new(1)));
    for advice in [Advice::DontNeed, Advice::DontFork, Advice::Random] {
        run("madvise", 0, &|space| space.madvise(AT + PAGE, PAGE, advice));
    }
}

#[test]
fn calls_that_change_pages() {
    let run = |name, call: &dyn Fn(&World) -> Result<(), Error>| {
        each_allocation_fails(name, 0, false, call);
    };
    let fault = |error| Error::Fault(error);
    run("faults", &|world| {
        let touch =
            |at, access| world.space.handle_fault(machine::VirtAddr::new(at as u64), access);
        touch(AT + 6 * PAGE, Access::Read).map_err(fault)?;
        touch(AT + 7 * PAGE, Access::Write).map_err(fault)?;
        touch(SHARED + PAGE, Access::Write).map(drop).map_err(fault)
    });
    run("pins", &|world| {
        let mut frames = [Frame::default(); 3];
        drop(world.space.pin_pages(AT + 5 * PAGE, Access::Write, &mut frames).map_err(fault)?);
        world.space.pin_pages_long_term(AT, &mut frames).map(drop).map_err(fault)
    });
    run("guards", &|world| {
        world.space.madvise(AT + 6 * PAGE, PAGE, Advice::GuardInstall)?;
        world.space.madvise(AT + 6 * PAGE, PAGE, Advice::GuardRemove)
    });
    run("reclaim", &|world| {
        world.space.clear_referenced()?;
        for _ in 0..2 {
            world.space.reclaim(8)?;
        }
        (0..5).try_for_each(|page| {
            world.space.write(AT + page * PAGE, &[7]).map_err(|error| fault(error.error))
        })
    });
    run("tracking", &|world| {
        world.space.clear_soft_dirty()?;
        let scan = Scan { return_mask: PageCategories::PRESENT, ..Scan::default() };
        world.space.scan(AT..AT + 8 * PAGE, &scan).map(drop)
    });
    run("objects", &|world| {
        let object = |error| Error::Object(error);
        world.memory.set_size(3 * PAGE as u64).map_err(object)?;
        world.memory.write(2 * PAGE as u64, &[1]).map_err(object)?;
        world.memory.punch_hole(0..PAGE as u64).map_err(object)?;
        world.memory.set_size(2 * PAGE as u64).map_err(object)?;
        world.space.msync(SHARED, PAGE, SyncFlags::SYNC)
    });
    let modes = UserFaultModes::MISSING | UserFaultModes::WP;
    run("monitor", &|world| {
        let space = &world.space;
        space.userfault_register(AT, 8 * PAGE, modes, Uffd::new(1))?;
        space.userfault_write_protect(AT, 8 * PAGE, true)?;
        space.userfault_write_protect(AT, 8 * PAGE, false)?;
        space.userfault_copy(AT + 6 * PAGE, &[7; PAGE], false).map_err(|stopped| stopped.error)?;
        space.userfault_zeropage(AT + 7 * PAGE, PAGE).map_err(|stopped| stopped.error)?;
        space.madvise(AT + 6 * PAGE, 2 * PAGE, Advice::DontNeed)?;
        space.userfault_unregister(AT, 8 * PAGE)
    });
    run("populate", &|world| {
        world.space.madvise(AT, 8 * PAGE, Advice::PopulateWrite)?;
        world.space.madvise(AT, 8 * PAGE, Advice::WillNeed)
    });
}

#[test]
fn new_objects() {
    let object = |error| Error::Object(error);
    each_allocation_fails("memfd", 2, true, |world| {
        Shmem::memfd(&world.paging, "name", 2).map(drop).map_err(object)
    });
    each_allocation_fails("shmget", 2, true, |world| {
        Shmem::segment(&world.paging, 7, 2, PAGE as u64).map(drop).map_err(object)
    });
    each_allocation_fails("open", 1, true, |world| {
        Backing::open(world.memory.clone(), true).map(drop).map_err(object)
    });
    each_allocation_fails("file", 1, true, |world| {
        File::try_new(&world.paging, Zeros, PAGE as u64).map(drop).map_err(object)
    });
    each_allocation_fails("device", 2, true, |world| {
        let frames = FrameRange::new(Frame::new(1 << 20).unwrap(), 1).unwrap();
        // SAFETY: the test maps it nowhere.
        let device = unsafe {
            DeviceMemory::try_new(&world.paging, frames, Cache::WriteBack, "/dev/d", (1, 1), 3)
        };
        device.map(drop).map_err(object)
    });
    each_allocation_fails("shared anonymous memory", 3, true, |world| {
        let flags = MapFlags::SHARED | MapFlags::ANONYMOUS | MapFlags::FIXED;
        world.space.mmap(FAR, PAGE, 3, flags).map(drop)
    });
    each_allocation_fails("group", 2, true, |world| {
        let group = FrameGroup::try_new(&world.bare, 8, Box::new(()));
        group.map(drop).map_err(|error| {
            assert_eq!(error, GroupError::OutOfMemory);
            Error::Vma(vma::Error::OutOfMemory)
        })
    });
    each_allocation_fails("commitment", 2, true, |world| {
        Ok(Commitment::try_new(&world.bare, Overcommit::Always).map(drop)?)
    });
}

#[test]
fn new_spaces() {
    each_allocation_fails("fork", 1, true, |world| {
        let child = world.space.fork(Asid(2))?;
        let mut found = [0];
        child.read(AT, &mut found).unwrap();
        assert_eq!(found, [1]);
        Ok(())
    });
    // A family that is too large for its list.
    each_allocation_fails("forks", 5, true, |world| {
        let first = world.space.fork(Asid(2))?;
        let second = first.fork(Asid(3))?;
        let third = second.fork(Asid(4))?;
        third.fork(Asid(5)).map(|fourth| drop((first, second, third, fourth)))
    });
    each_allocation_fails("fork of pinned pages", 1, true, |world| {
        let mut frames = [Frame::default(); 1];
        let pins = world.space.pin_pages(AT, Access::Write, &mut frames).unwrap();
        world.space.fork(Asid(2)).map(|child| drop((child, pins)))
    });
    each_allocation_fails("exec", 5, true, |world| {
        let profile = Profile::LINUX_6_18;
        Space::try_new(&world.paging, Asid(3), None, profile, Layout::default()).map(drop)
    });
}
