//! Calls on a machine of memory and threads only, once each: `./check miri` runs them under Miri.
//! Other tests check what the calls do; here each piece of unsafe code runs once.

mod common;

use std::sync::Arc;

use common::{FIXED, HUGE, Never, PAGE, PRIVATE};
use machine::{Asid, Frame, FrameRange, FrameSource, PageSize, VirtAddr};
use mm::*;
use paging::{Cache, Paging, TlbGrace, X86_64L4};
use sim::{Bare, BareGrace};

const AT: usize = 0x4000_0000;
const FAR: usize = AT + 8 * HUGE;

type Space = AddressSpace<Bare, X86_64L4, BareGrace>;
type SharedPaging = Arc<Paging<Bare, X86_64L4>>;

/// Runs a test on CPU 0 in a new space on a machine with two CPUs, of which the other one uses the
/// space, too. Then checks that no frame is left.
fn with_space(frames: u64, test: impl FnOnce(&Bare, &SharedPaging, &mut Space)) {
    let bare = Bare::new(2, frames).unwrap();
    let paging = Paging::<Bare, X86_64L4>::try_new(bare.clone(), PageSize::Size1G).unwrap();
    let mut space = bare.on_cpu(0, || {
        let layout = Layout { mmap_base: 0x7000_0000, ..Layout::default() };
        Space::try_new(&paging, Asid(1), None, Profile::LINUX_6_18, layout).unwrap()
    });
    bare.on_cpu(1, || space.enter());
    bare.on_cpu(0, || {
        space.enter();
        test(&bare, &paging, &mut space);
        drop(space);
        assert!(bare.settle());
        paging.quick().drain();
        assert_eq!(bare.free_frames() as u64, frames);
    });
}

fn byte(space: &Space, at: usize) -> u8 {
    let mut found = [0];
    space.read(at, &mut found).unwrap();
    found[0]
}

#[test]
fn huge_pages() {
    with_space(2048, |_, _, space| {
        space.set_huge_pages(HugePages::Always).unwrap();
        space.mmap(AT, HUGE, 3, FIXED).unwrap();
        // The huge zero page, then a huge page, which a debugger writes, too.
        assert_eq!(byte(space, AT), 0);
        space.write(AT + PAGE, &[1; 9]).unwrap();
        space.poke(AT + PAGE + 1, &[2]).unwrap();
        assert_eq!(space.resident(AT..AT + HUGE), 512);
        let child = space.fork(Asid(2)).unwrap();
        // A write of the child copies a part, and calls split the page.
        child.write(AT + PAGE, &[3]).unwrap();
        space.munmap(AT, PAGE).unwrap();
        assert_eq!((byte(space, AT + PAGE), byte(&child, AT + PAGE)), (1, 3));
        drop(child);
        // A chunk with one page becomes huge.
        space.set_huge_pages(HugePages::Never).unwrap();
        space.mmap(FAR, HUGE, 3, FIXED).unwrap();
        space.write(FAR + PAGE, &[4]).unwrap();
        space.madvise(FAR, HUGE, Advice::Collapse).unwrap();
        assert_eq!((space.resident(FAR..FAR + HUGE), byte(space, FAR + PAGE)), (512, 4));
        let move_it = RemapRequest::moving(FAR, HUGE, AT);
        assert_eq!(space.mremap(move_it), Ok(AT));
        assert_eq!(byte(space, AT + PAGE), 4);
    });
}

#[test]
fn calls_of_a_monitor() {
    with_space(64, |_, _, space| {
        space.set_userfault_handler(Arc::new(Never { marks_absent: true, ..Never::default() }));
        space.mmap(AT, 8 * PAGE, 3, FIXED).unwrap();
        space.mmap(FAR, PAGE, 3, FIXED).unwrap();
        space.write(FAR, &[5]).unwrap();
        let modes = UserFaultModes::MISSING | UserFaultModes::WP;
        space.userfault_register(AT, 8 * PAGE, modes, Uffd::new(1)).unwrap();
        space.userfault_copy(AT, &[3; PAGE], true).unwrap();
        space.userfault_zeropage(AT + PAGE, PAGE).unwrap();
        space.userfault_move(AT + 2 * PAGE, FAR, PAGE, false).unwrap();
        space.userfault_poison(AT + 3 * PAGE, PAGE).unwrap();
        space.userfault_write_protect(AT, 5 * PAGE, true).unwrap();
        let first = [0, 1, 2].map(|page| byte(space, AT + page * PAGE));
        assert_eq!(first, [3, 0, 5]);
        assert!(space.write(AT, &[1]).is_err());
        assert!(space.read(AT + 3 * PAGE, &mut [0]).is_err());
        let scan = Scan {
            category_mask: PageCategories::PRESENT,
            return_mask: PageCategories::PRESENT,
            ..Scan::default()
        };
        let found = space.scan(AT..AT + 8 * PAGE, &scan).unwrap();
        assert_eq!(found.regions.first().map(|region| region.start), Some(AT));
        space.userfault_unregister(AT, 8 * PAGE).unwrap();
        space.write(AT, &[1]).unwrap();
        space.clear_soft_dirty().unwrap();
        space.write(AT, &[2]).unwrap();
    });
}

/// Frames, tables and addresses that wait for a grace period, until it ends, and until a call ends
/// the wait.
#[test]
fn unmapping_by_grace_periods() {
    with_space(128, |bare, _, space| {
        let periods = TlbGrace::try_new(bare.clone()).unwrap();
        // SAFETY: the machine's periods; each CPU that uses the space takes part.
        unsafe { space.set_unmap_policy(UnmapPolicy::Grace(Arc::clone(&periods))) }.unwrap();
        periods.idle_exit();
        for round in 0..6 {
            let at = space.mmap(0, 2 * PAGE, 3, PRIVATE).unwrap();
            space.write(at + PAGE - 1, &[1; 2]).unwrap();
            space.munmap(at, 2 * PAGE).unwrap();
            assert!(space.waiting() > 0);
            match round {
                0 => drop(space.purge()),
                1 => {
                    space.mmap(at, PAGE, 3, FIXED).unwrap();
                    space.munmap(at, PAGE).unwrap();
                }
                _ => {}
            }
            periods.advance(periods.target());
            periods.tick();
            space.poll();
        }
        space.purge();
        assert_eq!(space.waiting(), 0);
    });
}

#[test]
fn pins_and_memory_of_devices() {
    with_space(64, |_, paging, space| {
        space.mmap(AT, 2 * PAGE, 3, FIXED).unwrap();
        space.write(AT, &[1]).unwrap();
        let mut frames = [Frame::default(); 2];
        let pins = space.pin_pages_long_term(AT, &mut frames).unwrap();
        assert_eq!(pins.frames().len(), 2);
        // The fork copies what is pinned.
        let child = space.fork(Asid(2)).unwrap();
        child.write(AT, &[2]).unwrap();
        assert_eq!((byte(space, AT), byte(&child, AT)), (1, 2));
        drop((pins, child));
        let device = FrameRange::new(Frame::new(1 << 20).unwrap(), 2).unwrap();
        // SAFETY: there is no such device, and no access.
        let device =
            unsafe { DeviceMemory::try_new(paging, device, Cache::Uncached, "/dev/x", (9, 1), 5) };
        let device = Backing::open(device.unwrap(), true).unwrap();
        let at = space.mmap_object(0, 2 * PAGE, 3, MapFlags::SHARED, device, 0).unwrap();
        space.handle_fault(VirtAddr::new(at as u64), Access::Write).unwrap();
    });
}
