//! Numbers at the ends of their types: each call returns, and the machine finds nothing wrong.

use std::panic::{AssertUnwindSafe, catch_unwind};

use machine::{Frame, VirtAddr};
use mm::*;
use vma::{VmFlags, WholeVma};

use super::*;

const HALF: usize = 1 << 47;
const TOP: usize = usize::MAX;
const NUMBERS: [usize; 19] = [
    0,
    1,
    PAGE - 1,
    PAGE,
    AT,
    AT + 1,
    AT + 3 * PAGE,
    2 << 20,
    HALF - 2 * PAGE,
    HALF - PAGE,
    HALF - 1,
    HALF,
    HALF + PAGE,
    TOP / 2,
    TOP / 2 + 1,
    TOP & !((2 << 20) - 1),
    TOP - 2 * PAGE,
    TOP & !(PAGE - 1),
    TOP,
];
/// A map of shared memory.
const OBJECT: usize = AT + 8 * PAGE;

struct World<'a> {
    space: &'a Space,
    memory: Memfd,
}

type Call = fn(&World<'_>, usize, usize);

impl World<'_> {
    fn file(&self) -> Backing<sim::Sim> {
        opened(&self.memory)
    }

    /// The maps of the start.
    fn begin_again(&self) {
        let layout = Layout { mmap_base: BASE, start_brk: HEAP, brk: HEAP, start_stack: 0 };
        self.space.exec(layout).unwrap();
        self.space.mmap(AT, 4 * PAGE, 3, FIXED).unwrap();
        self.space.mmap_object(OBJECT, 4 * PAGE, 3, SHARED, self.file(), 0).unwrap();
        self.space.write(AT, &[1]).unwrap();
    }
}

/// Calls each with all pairs of numbers.
fn with_all_numbers(calls: &[(&str, Call)]) {
    with_space(512, |_, shared, space| {
        let memory = memfd(shared, 4);
        let world = World { space, memory };
        let mut failed = Vec::new();
        for a in NUMBERS {
            for b in NUMBERS {
                for (name, call) in calls {
                    world.begin_again();
                    if catch_unwind(AssertUnwindSafe(|| call(&world, a, b))).is_err() {
                        failed.push(format!("{name}({a:#x}, {b:#x})"));
                    }
                }
            }
        }
        assert!(failed.is_empty(), "{failed:?}");
    });
}

/// As much as a test can allocate.
fn bytes(len: usize) -> Vec<u8> {
    vec![0; len.min(16 * PAGE)]
}

#[test]
fn calls_of_a_program() {
    with_all_numbers(&[
        ("mmap", |world, a, b| {
            let space = world.space;
            for flags in [PRIVATE, FIXED, MapFlags::SHARED | MapFlags::ANONYMOUS] {
                _ = space.mmap(a, b, 3, flags);
            }
        }),
        ("mmap_object", |world, a, b| {
            let space = world.space;
            _ = space.mmap_object(0, b, 3, MapFlags::SHARED, world.file(), a);
            if space.mmap_object(AT, 2 * PAGE, 3, SHARED, world.file(), a).is_ok() {
                _ = space.shared_place(AT + PAGE);
                _ = space.read(AT + PAGE, &mut [0]);
                _ = space.madvise(AT, 2 * PAGE, Advice::Remove);
                _ = space.msync(AT, 2 * PAGE, SyncFlags::SYNC);
                _ = space.mincore(AT, &mut [0; 2]);
            }
        }),
        ("munmap", |world, a, b| _ = world.space.munmap(a, b)),
        ("mprotect", |world, a, b| _ = world.space.mprotect(a, b, 1, None)),
        ("brk", |world, a, b| {
            let exec = |start_brk, brk, mmap_base| {
                world.space.exec(Layout { mmap_base, start_brk, brk, start_stack: a }).unwrap();
            };
            for layout in [(HEAP, HEAP, BASE), (b, b, a), (a, b, a)] {
                exec(layout.0, layout.1, layout.2);
                for to in [a, b, b.wrapping_add(PAGE), b.wrapping_sub(PAGE)] {
                    _ = world.space.brk(to);
                }
                if let Ok(at) = world.space.mmap(0, PAGE, 3, PRIVATE) {
                    world.space.write(at, &[1]).unwrap();
                    assert!(at < HALF);
                }
            }
        }),
        ("mlock", |world, a, b| {
            _ = world.space.mlock(a, b, false);
            _ = world.space.munlock(a, b);
        }),
        ("madvise", |world, a, b| {
            for advice in (0..110).filter_map(Advice::from_number) {
                _ = world.space.madvise(a, b, advice);
            }
        }),
        ("mremap", |world, a, b| {
            let sizes = [(a, b, PAGE), (AT, a, b), (a, PAGE, b), (OBJECT, a, b), (AT, PAGE, PAGE)];
            for (addr, old_len, new_len) in sizes {
                for to in [None, Some(a), Some(AT + 16 * PAGE)] {
                    for (fixed, dont_unmap) in [(to, None), (None, to)] {
                        let request = RemapRequest {
                            addr,
                            old_len,
                            new_len,
                            may_move: true,
                            fixed,
                            dont_unmap,
                        };
                        _ = world.space.mremap(request);
                    }
                }
            }
        }),
        ("msync", |world, a, b| {
            _ = world.space.msync(a, b, SyncFlags::SYNC | SyncFlags::INVALIDATE);
        }),
    ]);
}

#[test]
fn accesses_and_listings() {
    with_all_numbers(&[
        ("fault", |world, a, _| {
            for access in [Access::Read, Access::Write, Access::Execute] {
                _ = world.space.handle_fault(VirtAddr::new(a as u64), access);
            }
            _ = world.space.mark_accessed(VirtAddr::new(a as u64));
        }),
        ("copies", |world, a, b| {
            _ = world.space.read(a, &mut bytes(b));
            _ = world.space.write(a, &bytes(b));
            _ = world.space.peek(a, &mut bytes(b));
            _ = world.space.poke(a, &bytes(b));
        }),
        ("pins", |world, a, b| {
            let mut frames = vec![Frame::default(); bytes(b).len() / PAGE + 1];
            _ = world.space.pin_pages(a, Access::Write, &mut frames);
        }),
        ("listings", |world, a, b| {
            let (space, pages) = (world.space, bytes(b).len() / PAGE + 1);
            _ = space.mincore(a, &mut vec![0; pages]);
            space.pagemap(a, &mut vec![0; pages]);
            _ = space.resident(a..b);
            _ = space.usage(a..b);
            _ = space.shared_place(a);
            let return_mask = PageCategories::PRESENT;
            _ = space.scan(a..b, &Scan { return_mask, ..Scan::default() });
        }),
        ("monitor", |world, a, b| {
            let (space, both) = (world.space, UserFaultModes::MISSING | UserFaultModes::WP);
            _ = space.userfault_register(a, b, both, Uffd::new(1));
            _ = space.userfault_copy(a, &bytes(b), false);
            _ = space.userfault_zeropage(a, b);
            _ = space.userfault_continue(a, b, true);
            _ = space.userfault_poison(a, b);
            _ = space.userfault_write_protect(a, b, true);
            _ = space.userfault_move(a, b, PAGE, true);
            _ = space.userfault_move(AT, a, b, true);
            _ = space.userfault_unregister(a, b);
        }),
    ]);
}

#[test]
fn calls_of_a_host() {
    with_all_numbers(&[
        ("vmas", |world, a, b| {
            let space = world.space;
            _ = space.with_vmas(|calls| calls.mseal(a, b));
            _ = space.with_vmas(|calls| calls.mbind(a, b, None));
            _ = space.with_vmas(|calls| calls.remap_file_pages(OBJECT, a, b));
            _ = space.with_vmas(|calls| calls.remap_file_pages(a, PAGE, b));
            _ = space.with_vmas(|calls| calls.settle(a, b, Some(VmFlags::READ)));
            _ = space.with_vmas(|calls| calls.grow_down(a, b));
            _ = space.with_vmas(|calls| calls.expand_stack(a, b));
            _ = space.with_vmas(|calls| calls.first_write(a));
            _ = space.with_vmas(|calls| calls.likely_place(a));
        }),
        ("adopt", |world, a, b| {
            for (start, end) in [(a, b), (AT, AT + PAGE)] {
                let flags = VmFlags::from_prot(3) | VmFlags::SHARED;
                let file = Some(world.file());
                let whole = WholeVma { start, end, flags, pgoff: a, file, name: None };
                _ = world.space.with_vmas(|calls| calls.adopt(whole));
                _ = world.space.read(AT, &mut [0]);
                _ = world.space.shared_place(AT);
                _ = world.space.madvise(AT, PAGE, Advice::Remove);
                _ = world.space.msync(AT, PAGE, SyncFlags::SYNC);
            }
            world.memory.set_size(PAGE as u64).unwrap();
            world.memory.set_size(4 * PAGE as u64).unwrap();
        }),
        ("object", |world, a, b| {
            let (memory, a, b) = (&*world.memory, a as u64, b as u64);
            _ = memory.punch_hole(a..b);
            _ = memory.read(a, &mut [0; 16]);
            _ = MemoryPages::remove(memory, a..b);
            _ = Object::bring_in(memory, a);
            _ = Object::page(memory, u64::MAX - 1);
            _ = Object::is_current(memory, a, Frame::default());
            assert!(Object::cached(memory).is_none());
            _ = memory.write(a, &[0; 16]);
            _ = memory.set_size(a);
            memory.set_size(0).unwrap();
            memory.set_size(4 * PAGE as u64).unwrap();
        }),
    ]);
}
