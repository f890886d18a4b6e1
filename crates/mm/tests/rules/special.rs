//! exec, a debugger's copies, the memory of devices, and promises of shared memory.

use crate::common::*;
use machine::{Asid, Frame, FrameRange, VirtAddr};
use mm::*;
use paging::{Cache, Encrypted, Flags, X86_64L4};
use sim::Arch;

const SHARED: MapFlags = MapFlags::SHARED.union(MapFlags::ANONYMOUS);

#[test]
fn exec_leaves_nothing_behind() {
    with_space(256, |sim, _, space| {
        let at = space.mmap(0, 4 * PAGE, 3, PRIVATE).unwrap();
        space.mmap(0, 4 * PAGE, 3, SHARED | MapFlags::POPULATE).unwrap();
        store(sim, space, at, 1).unwrap();
        space.brk(HEAP + 0x5000).unwrap();
        let what = LockAll { current: false, future: true, on_fault: false };
        space.mlockall(what).unwrap();
        let layout = Layout { mmap_base: BASE, start_brk: 0x2000, brk: 0x2000, start_stack: 0 };
        space.exec(layout).unwrap();
        let maps = listing(space);
        assert_eq!((maps.as_str(), space.totals()), ("", Totals::default()));
        assert!(matches!(load(sim, space, at), Err(FaultError::Unmapped(_))));
        // The new program begins with its own heap, which is not locked.
        assert_eq!(space.brk(0x5000).unwrap(), 0x5000);
        assert_eq!(space.totals().locked, 0);
        assert_eq!(load(sim, space, 0x3000), Ok(0));
    });
}

#[test]
fn exec_leaves_what_a_fork_shares() {
    with_space(256, |_, _, space| {
        let at = space.mmap(0, PAGE, 3, PRIVATE).unwrap();
        space.write(at, &[7]).unwrap();
        let child = space.fork(Asid(2)).unwrap();
        // The child's tables are shared, but the whole range goes: no copy is needed.
        child.exec(Layout::default()).unwrap();
        assert_eq!(byte(space, at), 7, "the parent keeps its memory");
    });
}

#[test]
fn segments_of_a_locked_program_are_brought_in() {
    with_space(256, |_, shared, space| {
        space.mlockall(LockAll { current: false, future: true, on_fault: false }).unwrap();
        let len = 3 * PAGE;
        let segment = Shmem::segment(shared, 1, 2, len as u64).unwrap();
        let segment = Backing::open(segment, true).unwrap();
        let at = space.shmat(AttachRequest::new(segment, len)).unwrap();
        assert_eq!(space.resident(at..at + len), 3);
    });
}

#[test]
fn a_debugger_writes_where_the_program_may_not() {
    with_space(256, |sim, shared, space| {
        for prot in [0, 1, 5] {
            let at = space.mmap(0, 2 * PAGE, prot, PRIVATE).unwrap();
            assert!(space.write(at, &[1]).is_err());
            space.poke(at + PAGE - 1, &[1, 2]).unwrap();
            let mut found = [0; 2];
            space.peek(at + PAGE - 1, &mut found).unwrap();
            assert_eq!(found, [1, 2]);
            let denied = store(sim, space, at, 1);
            assert!(matches!(denied, Err(FaultError::Denied(..))), "the right is not given");
        }
        // A private map of an object gets a copy; the object stays.
        let memory = Shmem::memfd(shared, "text", 1).unwrap();
        memory.write(0, b"text").unwrap();
        let file = Backing::open(memory.clone(), false).unwrap();
        let text = space.mmap_object(0, PAGE, 5, MapFlags::PRIVATE, file.clone(), 0).unwrap();
        let other = space.mmap_object(0, PAGE, 1, MapFlags::PRIVATE, file.clone(), 0).unwrap();
        let mut found = [0; 4];
        space.read(text, &mut found).unwrap();
        space.poke(text, &[0xcc]).unwrap();
        space.read(text, &mut found).unwrap();
        assert_eq!(&found, b"\xccext");
        space.read(other, &mut found).unwrap();
        assert_eq!(&found, b"text");
        memory.read(0, &mut found);
        assert_eq!(&found, b"text");
        // A shared map that is not writable is refused, and so are holes and guards.
        let shared = space.mmap_object(0, PAGE, 1, MapFlags::SHARED, file, 0).unwrap();
        assert!(matches!(space.poke(shared, b"x").unwrap_err().error, FaultError::Denied(..)));
        assert!(matches!(
            space.peek(0x1000, &mut found).unwrap_err().error,
            FaultError::Unmapped(_)
        ));
        let guard = space.mmap(0, PAGE, 3, PRIVATE).unwrap();
        space.madvise(guard, PAGE, Advice::GuardInstall).unwrap();
        assert!(matches!(space.poke(guard, b"x").unwrap_err().error, FaultError::Guard(_)));
    });
}

#[test]
fn what_a_debugger_writes_a_fork_does_not_share() {
    with_space(256, |_, _, space| {
        let at = space.mmap(0, PAGE, 1, PRIVATE).unwrap();
        space.poke(at, b"old").unwrap();
        let child = space.fork(Asid(2)).unwrap();
        space.poke(at, b"new").unwrap();
        let mut found = [0; 3];
        child.peek(at, &mut found).unwrap();
        assert_eq!(&found, b"old");
        // The last holder takes the page over.
        drop(child);
        space.poke(at, b"end").unwrap();
        space.read(at, &mut found).unwrap();
        assert_eq!(&found, b"end");
    });
}

fn range(first: u64, len: u64) -> FrameRange {
    FrameRange::new(Frame::new(first).unwrap(), len).unwrap()
}

/// In a guest whose memory is encrypted, the host emulates the device.
#[test]
fn the_memory_of_a_device_is_shared_with_the_host() {
    type Sev = Encrypted<X86_64L4, 51, true>;
    with_space_of::<Sev>(Arch::X86_64Sev, 256, |sim, shared, space| {
        // SAFETY: no program accesses it here.
        let device = unsafe {
            let frames = range(0x4_0000, 8);
            DeviceMemory::try_new(shared, frames, Cache::Uncached, "/dev/x", (9, 1), 5)
        };
        let device = Backing::open(device.unwrap(), true).unwrap();
        let at = space.mmap_object(0, PAGE, 3, MapFlags::SHARED, device, 0).unwrap();
        let own = space.mmap(0, PAGE, 3, PRIVATE).unwrap();
        space.handle_fault(VirtAddr::new(at as u64), Access::Write).unwrap();
        store(sim, space, own, 1).unwrap();
        for (at, shared) in [(at, true), (own, false)] {
            let guard = <sim::Grace as grace::Reclaim>::pin();
            let page = space.walk(&guard).get(VirtAddr::new(at as u64)).unwrap();
            assert_eq!(page.attrs.flags.contains(Flags::DECRYPTED), shared);
        }
        // A pin finds the frame, not one beyond memory.
        let mut frames = [Frame::default()];
        drop(space.pin_pages(own, Access::Write, &mut frames).unwrap());
    });
}

#[test]
fn the_memory_of_a_device_is_mapped_and_never_counted() {
    with_space(256, |sim, shared, space| {
        let first = 0x4_0000;
        // SAFETY: no program accesses it here.
        let device = unsafe {
            DeviceMemory::try_new(shared, range(first, 8), Cache::Uncached, "/dev/x", (9, 1), 5)
        };
        let device = Backing::open(device.unwrap(), true).unwrap();
        let at = space.mmap_object(0, 4 * PAGE, 3, MapFlags::SHARED, device.clone(), PAGE).unwrap();
        let fault = |page: usize| {
            space.handle_fault(VirtAddr::new((at + page * PAGE) as u64), Access::Write)
        };
        fault(2).unwrap();
        let guard = <sim::Grace as grace::Reclaim>::pin();
        let page = space.walk(&guard).get(VirtAddr::new((at + 2 * PAGE) as u64)).unwrap();
        assert_eq!(page.frame.number(), first + 3);
        assert_eq!(page.attrs.cache, Cache::Uncached);
        assert!(page.attrs.flags.contains(Flags::WRITE));
        drop(guard);
        assert_eq!(space.totals().resident, 0);
        let mut frames = [Frame::default()];
        assert!(space.pin_pages(at, Access::Read, &mut frames).is_err());
        assert!(space.poke(at, b"x").is_err());
        let mut smaps = String::new();
        space.write_smaps(&mut smaps).unwrap();
        assert!(smaps.contains("VmFlags: rd wr sh mr mw me ms pf io de dd "), "{smaps}");
        // Rights change, and the memory type stays.
        space.mprotect(at, 4 * PAGE, 1, None).unwrap();
        let guard = <sim::Grace as grace::Reclaim>::pin();
        let page = space.walk(&guard).get(VirtAddr::new((at + 2 * PAGE) as u64)).unwrap();
        assert_eq!(page.attrs.cache, Cache::Uncached);
        assert!(!page.attrs.flags.contains(Flags::WRITE));
        drop(guard);
        let grown = space.mremap(RemapRequest::resizing(at, 4 * PAGE, 5 * PAGE));
        assert!(grown.is_err());
        let private = space.mmap_object(0, PAGE, 3, MapFlags::PRIVATE, device.clone(), 0);
        assert_eq!(private.unwrap_err().errno(), 22);
        let beyond = space.mmap_object(0, PAGE, 1, MapFlags::SHARED, device, 8 * PAGE).unwrap();
        assert!(matches!(load(sim, space, beyond), Err(FaultError::Object(..))));
        let own = space.mmap(0, PAGE, 3, PRIVATE).unwrap();
        let pins = space.pin_pages(own, Access::Write, &mut frames).unwrap();
        let own = pins.frames()[0].number();
        drop(pins);
        // SAFETY: it is refused.
        let memory = unsafe {
            DeviceMemory::try_new(shared, range(own, 1), Cache::Uncached, "/dev/y", (9, 1), 6)
        };
        assert_eq!(memory.err(), Some(ObjectError::Foreign));
        let child = space.fork(Asid(2)).unwrap();
        drop(child);
        space.munmap(at, 4 * PAGE).unwrap();
    });
}

#[test]
fn shared_memory_is_promised_as_a_whole() {
    with_space(256, |sim, shared, _| {
        let rule = Overcommit::Never { limit: 8 * PAGE };
        let commitment = Commitment::try_new(sim, rule).unwrap();
        let mut space = new_space(shared, 2).unwrap();
        space.set_commitment(&commitment);
        let at = space.mmap(0, 5 * PAGE, 3, SHARED).unwrap();
        assert_eq!(commitment.promised(), 5 * PAGE);
        assert_eq!(space.mmap(0, 4 * PAGE, 3, SHARED).unwrap_err().errno(), 12);
        // With this rule NORESERVE has no effect.
        let unreserved = SHARED | MapFlags::NORESERVE;
        assert_eq!(space.mmap(0, 4 * PAGE, 3, unreserved).unwrap_err().errno(), 12);
        // A child shares the object, which is promised once; a part that is unmapped stays.
        let child = space.fork(Asid(3)).unwrap();
        space.munmap(at, 5 * PAGE).unwrap();
        assert_eq!(commitment.promised(), 5 * PAGE);
        drop(child);
        sim.settle();
        assert_eq!(commitment.promised(), 0);
        let segment = Shmem::segment(shared, 1, 2, 2 * PAGE as u64).unwrap();
        segment.set_commitment(&commitment).unwrap();
        assert_eq!(segment.set_size(9 * PAGE as u64), Err(ObjectError::Overcommit));
        segment.set_size(PAGE as u64 + 1).unwrap();
        assert_eq!(commitment.promised(), 2 * PAGE);
        segment.set_size(1).unwrap();
        assert_eq!(commitment.promised(), PAGE);
        drop(segment);
        assert_eq!(commitment.promised(), 0);
    });
}
