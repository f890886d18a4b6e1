//! Objects that a host maps by the calls on VMAs.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU8, Ordering::Relaxed},
    },
};

use machine::{Frame, FrameRange, FrameSource};
use mm::*;
use paging::Cache;
use sim::{Config, Failure, Program, Sim, seeded};
use vma::{MapRequest, VmFlags, WholeVma};

use super::*;

fn request(file: &Backing<Sim>, flags: MapFlags) -> MapRequest<Backing<Sim>> {
    let file = Some(file.clone());
    MapRequest { addr: AT, len: PAGE, prot: 3, flags, file, offset: 0, driver_flags: None }
}

fn whole(file: &Backing<Sim>, flags: VmFlags, pages: usize) -> WholeVma<Backing<Sim>> {
    let (start, end) = (AT, AT + pages * PAGE);
    WholeVma { start, end, flags, pgoff: 0, file: Some(file.clone()), name: None }
}

/// `with_vmas` checks objects as `mmap_object` does. Otherwise the frame numbers of one machine
/// would be frames of another.
#[test]
fn an_object_of_another_machine_is_refused() {
    let other = Sim::new(Config { cpus: 1, frames: 64, ..Config::default() }).unwrap();
    let memory = Shmem::memfd(&paging(&other), "foreign", 1).unwrap();
    let file = opened(&memory);
    with_space(256, |_, _, space| {
        let refused = [
            space.mmap_object(AT, PAGE, 3, SHARED, file.clone(), 0).map(drop),
            space.with_vmas(|calls| calls.mmap(request(&file, SHARED))).map(drop),
            space.with_vmas(|calls| calls.adopt(whole(&file, VmFlags::READ, 1))),
        ];
        for refused in refused {
            assert_eq!(refused.unwrap_err().errno(), 22);
        }
        assert_eq!(space.sizes().total, 0);
    });
}

fn anonymous_at(addr: usize) -> MapRequest<Backing<Sim>> {
    let flags = MapFlags::PRIVATE | MapFlags::ANONYMOUS | MapFlags::FIXED;
    MapRequest { addr, flags, ..MapRequest::anonymous(PAGE, 3) }
}

/// The pages of a space serve no other VMAs: those of a copy could give pages rights that the
/// space's own VMAs do not allow, and move pages that no VMA keeps still.
#[test]
fn the_pages_of_a_space_serve_no_copy_of_its_vmas() {
    with_space(256, |sim, _, space| {
        let anonymous = MapFlags::PRIVATE | MapFlags::ANONYMOUS | MapFlags::FIXED;
        space.mmap(AT, 2 * PAGE, 3, anonymous).unwrap();
        store(sim, space, AT, 5).unwrap();
        space.mprotect(AT, 2 * PAGE, 1, None).unwrap();
        let outcome = space.with_vmas(|calls| {
            let mut copy = calls.duplicate(Profile::LINUX_6_18)?;
            let mut other = copy.get_mut().with_host(&mut **calls.host());
            assert_eq!(other.mprotect(AT, PAGE, 3, None), Err(vma::Error::NotHere));
            assert_eq!(other.munmap(AT, PAGE), Err(vma::Error::NotHere));
            // Nor does it promise memory for them.
            let more = other.mmap(anonymous_at(AT + (1 << 30)));
            assert_eq!(more, Err(vma::Error::NotHere));
            // An error that a closure has seen is not that of the call.
            let request = MapRequest { len: 4 << 20, ..anonymous_at(2 << 20) };
            calls.mmap(request)?;
            assert!(calls.madvise(2 << 20, 4 << 20, Advice::Collapse).is_err());
            Ok(7)
        });
        assert_eq!(outcome, Ok(7));
        assert!(store(sim, space, AT, 6).is_err(), "the page stays read-only");
        assert_eq!(load(sim, space, AT), Ok(5));
    });
}

/// Nor is a private map of a device's memory made.
#[test]
fn a_private_map_of_a_device_is_refused() {
    with_space(256, |_, shared, space| {
        let frames = FrameRange::new(Frame::new(1 << 30).unwrap(), 1).unwrap();
        // SAFETY: nothing accesses the memory in this test.
        let device = unsafe {
            DeviceMemory::try_new(shared, frames, Cache::default(), "/dev/test", (1, 1), 1)
        };
        let file = Backing::open(device.unwrap(), true).unwrap();
        let private = MapFlags::PRIVATE | MapFlags::FIXED;
        let refused = space.with_vmas(|calls| calls.mmap(request(&file, private))).unwrap_err();
        assert_eq!(refused.errno(), 22);
        let refused = space.with_vmas(|calls| calls.adopt(whole(&file, VmFlags::READ, 1)));
        assert_eq!(refused.unwrap_err().errno(), 22);
    });
}

/// An object finds the VMAs that the host stores as a whole.
#[test]
fn an_adopted_map_loses_the_pages_of_its_object() {
    with_space(256, |sim, shared, space| {
        let memory = memfd(shared, 2);
        let file = opened(&memory);
        let flags = VmFlags::from_prot(3) | VmFlags::SHARED | VmFlags::MAYREAD | VmFlags::MAYWRITE;
        space.with_vmas(|calls| calls.adopt(whole(&file, flags, 2))).unwrap();
        store(sim, space, AT + PAGE, 1).unwrap();
        memory.set_size(PAGE as u64).unwrap();
        assert_eq!(space.resident(AT..AT + 2 * PAGE), 0, "truncation takes the page back");
        assert!(matches!(load(sim, space, AT + PAGE), Err(FaultError::Object(..))));
    });
}

/// A VMA that the host makes of several has one object.
#[test]
fn maps_of_different_objects_do_not_become_one() {
    with_space(256, |_, shared, space| {
        let memory = memfd(shared, 2);
        space.mmap_object(AT, PAGE, 3, SHARED, opened(&memory), 0).unwrap();
        space.mmap(AT + PAGE, PAGE, 3, FIXED).unwrap();
        let settle = |flags| space.with_vmas(|calls| calls.settle(AT, AT + 2 * PAGE, flags));
        assert!(settle(Some(VmFlags::READ)).is_err());
        let mut vmas = 0;
        space.for_each_vma(|_, _| vmas += 1);
        assert_eq!(vmas, 2);
        settle(None).unwrap();
    });
}

/// Shared memory without an object has no pages that a write could find.
#[test]
fn shared_memory_has_an_object() {
    with_space(256, |_, _, space| {
        let flags = VmFlags::READ | VmFlags::WRITE | VmFlags::SHARED;
        let (start, end) = (AT, AT + PAGE);
        let whole = WholeVma { start, end, flags, pgoff: 0, file: None, name: None };
        assert!(space.with_vmas(|calls| calls.adopt(whole)).is_err());
        space.mmap(AT, PAGE, 3, FIXED).unwrap();
        space.read(AT, &mut [0]).unwrap();
        assert!(space.with_vmas(|calls| calls.settle(start, end, Some(flags))).is_err());
        space.write(AT, &[1]).unwrap();
    });
}

/// One CPU writes to an object, another one seals it. The contents after the seal stay.
fn write_during_seal(seed: u64) -> Result<(), Failure> {
    let sim = Sim::new(Config { cpus: 2, frames: 64, ..Config::default() }).unwrap();
    let shared = paging(&sim);
    let memory = sim.on_cpu(0, || {
        let memory = Shmem::memfd(&shared, "name", 1).unwrap();
        memory.write(0, &[1; 16]).unwrap();
        memory
    });
    let sealed = AtomicU8::new(0);
    let read = || {
        let mut found = [0];
        memory.read(0, &mut found);
        found[0]
    };
    let programs: [Program<'_>; 2] = [
        Box::new(|| _ = memory.write(0, &[2; 16])),
        Box::new(|| {
            memory.add_seals(Seals::WRITE).unwrap();
            sealed.store(read(), Relaxed);
        }),
    ];
    seeded(&sim, seed, programs.into())?;
    sim.on_cpu(0, || assert_eq!(read(), sealed.load(Relaxed), "a sealed object has changed"));
    sim.on_cpu(0, || drop(memory));
    Ok(all_given_back(&sim, &shared)?)
}

/// The object and the group of a host that seals an object.
type Sealed = OnceLock<(WeakShared<Shmem<Sim>>, WeakShared<FrameGroup<Sim>>)>;

/// A host that seals an object when a write to it needs room.
struct SealsFirst(Arc<Sealed>);

impl OnLimit for SealsFirst {
    fn make_room(&self, _: usize) -> bool {
        let (memory, group) = self.0.get().unwrap();
        memory.upgrade().unwrap().add_seals(Seals::WRITE).unwrap();
        group.upgrade().unwrap().set_limit(8);
        true
    }
}

/// The seal comes between the first look of a write and its copy.
#[test]
fn a_write_looks_for_seals_when_it_has_its_pages() {
    with_space(64, |sim, shared, _| {
        let sealed = Arc::new(Sealed::new());
        let group = FrameGroup::try_new(sim, 0, Box::new(SealsFirst(sealed.clone()))).unwrap();
        let memory = Shmem::memfd(shared, "name", 1).unwrap();
        memory.set_group(&group).unwrap();
        sealed.set((mm::Shared::downgrade(&memory), mm::Shared::downgrade(&group))).unwrap();
        assert_eq!(memory.write(0, &[2; 16]), Err(ObjectError::Sealed));
        assert_eq!((memory.size(), memory.read(0, &mut [1])), (0, 0));
    });
}

#[test]
fn a_sealed_object_does_not_change() {
    each_seed(300, write_during_seal);
}

/// Nor does it by a pin that has outlived its map.
#[test]
fn an_object_with_a_pinned_page_is_not_sealed() {
    with_space(256, |_, shared, space| {
        let memory = Shmem::memfd(shared, "name", 1).unwrap();
        memory.write(0, &[1; 16]).unwrap();
        space.mmap_object(AT, PAGE, 3, SHARED, opened(&memory), 0).unwrap();
        let mut frames = [Frame::default()];
        let pins = space.pin_pages(AT, Access::Write, &mut frames).unwrap();
        space.munmap(AT, PAGE).unwrap();
        assert_eq!(memory.add_seals(Seals::WRITE), Err(ObjectError::Sealed));
        assert_eq!(memory.seals(), Seals::default());
        drop(pins);
        memory.add_seals(Seals::WRITE).unwrap();
    });
}

/// The function that puts a page in is called again, during a hole, and before a panic. The test's
/// end finds each frame free, or leaked where an entry was promised.
#[test]
fn a_page_goes_in_once() {
    with_space(256, |sim, shared, _| {
        let memory = memfd(shared, 2);
        let fill = |_: Frame| Ok(());
        let filled = memory.fill(0, &fill, &mut |frame, put| {
            assert!(put());
            memory.punch_hole(0..PAGE as u64).unwrap();
            assert!(!put(), "a second time");
            // SAFETY: the reference for an entry, which is not stored.
            unsafe { sim.release(frame) }.unwrap();
        });
        assert_eq!((filled, memory.is_present(0)), (Ok(true), false));
        let not = memory.fill(0, &fill, &mut |_, _| {});
        assert_eq!((not, memory.is_present(0)), (Ok(false), false));
        let mut frame = None;
        let panics = catch_unwind(AssertUnwindSafe(|| {
            memory.fill(0, &fill, &mut |page, put| {
                assert!(put());
                frame = Some(page);
                panic!("a host");
            })
        }));
        assert!(panics.is_err() && memory.is_present(0));
        // SAFETY: as above.
        unsafe { sim.release(frame.unwrap()) }.unwrap();
        // Sealed, and beyond the end.
        assert_eq!(memory.fill(2, &fill, &mut |_, _| {}), Err(ObjectError::BeyondEnd));
        memory.add_seals(Seals::WRITE).unwrap();
        let sealed = memory.fill(1, &fill, &mut |_, put| assert!(!put()));
        assert_eq!((sealed, memory.is_present(1)), (Err(ObjectError::Sealed), false));
        // A write that is refused leaves nothing.
        let free = sim.free_frames();
        assert_eq!(memory.write(1 << 30, &[1]), Err(ObjectError::Sealed));
        assert_eq!(sim.free_frames(), free);
    });
}
