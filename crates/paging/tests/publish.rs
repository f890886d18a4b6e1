//! Entries that become valid are published: once by each call, after its last store. The machine
//! caches absent entries, so an access that comes too early faults, and in the kernel's half it is
//! an error.

mod common;

use common::*;
use grace::Reclaim;
use machine::*;
use paging::*;
use sim::{Config, Grace, Sim};
use std::sync::Arc;

const AT: u64 = 0xffff_c900_0000_0000;
const LOW: u64 = 0x20_0000;

fn config() -> Config {
    Config { cpus: 2, frames: 4096, caches_absent: true, ..Config::default() }
}

/// Calls `f` on CPU 0 with the active tables of a kernel. Another CPU uses them, too.
fn with_kernel<F: OnSim>(f: impl FnOnce(&Sim, &PageTables<Sim, F, Grace>)) {
    let (sim, shared) = machine_of::<F>(Config { ..config() });
    let kernel = sim.on_cpu(0, || {
        let kernel = PageTables::<Sim, F, Grace>::kernel(&shared).unwrap();
        kernel.activate_own();
        f(&sim, &kernel);
        kernel
    });
    sim.on_cpu(0, || drop(kernel));
}

/// The number of times that `call` publishes something.
fn published<T>(sim: &Sim, call: impl FnOnce() -> T) -> (T, u64) {
    let before = sim.stats();
    let result = call();
    (result, (sim.stats() - before).published)
}

fn use_page(sim: &Sim, at: u64) {
    sim.store_own(virt(at), at).unwrap();
    assert_eq!(sim.load_own(virt(at)), Ok(at));
}

/// Each call that maps pages, or gives them rights, in the kernel's half.
fn each_call<F: OnSim>() {
    with_kernel::<F>(|sim, kernel| {
        let page = F::PAGE.bytes();
        let (start, large) = (F::upper_half().get(), F::LARGE.bytes());
        let start = start + (start.wrapping_neg() & (large - 1));
        let range = |at: u64, pages: u64| VirtRange::new(virt(at), pages * page).unwrap();
        let frames = |order: u8| block(sim, order + F::PAGE.order());
        let once = |what: &str, (result, count): (Result<(), Error>, u64), at: u64| {
            result.unwrap_or_else(|error| panic!("{what}: {error}"));
            assert_eq!(count, 1, "{what}");
            use_page(sim, at);
        };

        let first = frames(1);
        let map = || kernel.map_own(range(start, 2), first, Attrs::KERNEL_RW).map_err(error);
        once("map", published(sim, map), start);
        use_page(sim, start + page);

        let (at, frame) = (start + 2 * page, frames(0));
        let map = || kernel.map_frames_own(virt(at), &[frame], Attrs::KERNEL_RW).map_err(error);
        once("map_frames", published(sim, map), at);

        let (at, frame) = (start + 3 * page, frames(0));
        let leaf = kernel.leaf(virt(at)).unwrap();
        // SAFETY: the test's addresses and frame. The leaf's table stays.
        let map = || unsafe { kernel.map_leaf(leaf, virt(at), &[frame], Attrs::KERNEL_RW) };
        once("map_leaf", published(sim, map), at);

        let (at, frame) = (start + 4 * page, frames(0));
        let guard = Grace::pin();
        let set = |_| (EntryChange::Set(frame, Attrs::KERNEL_RW), ());
        let map = || kernel.with_entry_own(&guard, virt(at), set).map(drop).map_err(error);
        once("with_entry", published(sim, map), at);
        drop(guard);

        let (at, frame) = (start + 5 * page, frames(0));
        let over = || kernel.map_over_own(range(at, 1), frame, Attrs::KERNEL_RW, |_| panic!());
        let map = || over().map(PendingFlush::flush).map_err(error);
        once("map_over", published(sim, map), at);
        let at = start + 4 * page;

        // A page loses all rights, and gets them again.
        let none = || kernel.protect_own(range(at, 1), Flags::empty()).map(PendingFlush::flush);
        none().map_err(error).unwrap();
        let all = || kernel.protect_own(range(at, 1), Flags::READ | Flags::WRITE);
        let give = || all().map(PendingFlush::flush).map_err(error);
        once("protect", published(sim, give), at);

        none().map_err(error).unwrap();
        let give = || {
            let mut pending = kernel.no_flush();
            let change = |found: Mapping| {
                SweepChange::Set(found.attrs.with_rights(Flags::READ | Flags::WRITE))
            };
            let swept = kernel.sweep_own(range(at, 1), &mut pending, change);
            pending.flush();
            swept.map(drop)
        };
        once("sweep", published(sim, give), at);

        // Of 512 MiB, with the largest granule.
        if F::LARGE > PageSize::Size2M {
            return;
        }
        // Where the architecture demands break-before-make, the page is absent meanwhile.
        let (at, frame) = (start + large, frames((F::LARGE.order()) - F::PAGE.order()));
        let range = VirtRange::new(virt(at), large).unwrap();
        let map = || kernel.map_own(range, frame, Attrs::KERNEL_RW).map_err(error);
        once("map of a large page", published(sim, map), at);
        let split = || kernel.split_own(virt(at), F::PAGE).map(PendingFlush::flush).map_err(error);
        once("split", published(sim, split), at + 5 * page);
    });
}

fn error<M: Machine, F: Format, G: grace::Concurrent>(failed: Failed<'_, M, F, G>) -> Error {
    failed.error
}

#[test]
fn each_call_publishes_once() {
    each_call::<X86_64L4>();
    each_call::<X86_64L5>();
    each_call::<Aarch64>();
    each_call::<Aarch64G64>();
    each_call::<Sv48>();
}

/// The calls that only programs' tables have: the CPU that makes one uses the pages at once.
#[test]
fn a_program_uses_what_it_has_changed() {
    let (sim, shared) = machine_of::<X86_64L4>(config());
    let space = sim.on_cpu(0, || {
        let space = Space::<Grace>::user(&shared, Asid(1), None).unwrap();
        space.activate_own();

        let frame = block(&sim, 0);
        space.map_own(pages(LOW, 1), frame, Attrs::USER_RW).map_err(error).unwrap();
        let to = LOW + (4 << 20);
        let relocation = space.prepare_relocation(pages(LOW, 1), virt(to)).unwrap();
        let mut pending = space.no_flush();
        // SAFETY: the test's pages, which no other CPU uses.
        let moved = unsafe { space.relocate(relocation, &mut pending) };
        moved.unwrap();
        use_page(&sim, to);
        pending.flush();

        // A large page, where a table with small ones was.
        let (at, large) = (LOW + (8 << 20), PageSize::Size2M);
        let small = block(&sim, 0);
        space.map_own(pages(at, 1), small, Attrs::USER_RW).map_err(error).unwrap();
        let (first, second) = (block(&sim, large.order()), block(&sim, large.order()));
        let mut pending = space.no_flush();
        // SAFETY: as above. The block's contents do not matter.
        let collapsed =
            unsafe { space.collapse(virt(at), first, Attrs::USER_RW, &mut pending, |_| ()) };
        collapsed.unwrap();
        pending.flush();
        use_page(&sim, at + 0x5000);

        let at = at + large.bytes();
        let guard = Grace::pin();
        let set = |_| (EntryChange::Set(second, Attrs::USER_RW), ());
        // SAFETY: as above.
        let set = unsafe { space.with_large(&guard, virt(at), set) };
        set.map_err(error).unwrap().1.flush();
        use_page(&sim, at + 0x7000);
        drop(guard);
        space.unmap_own(VirtRange::new(virt(LOW), 16 << 20).unwrap(), |_| ()).unwrap().flush();
        space
    });
    sim.on_cpu(0, || drop(space));
}

/// A table that another CPU has linked, and not published yet, is published by the call that uses
/// it.
#[test]
fn the_way_is_published_too() {
    with_kernel::<X86_64L4>(|sim, kernel| {
        kernel.reserve(pages(AT, 1)).unwrap();
        let frame = block(sim, 0);
        kernel.map_own(pages(AT, 1), frame, Attrs::KERNEL_RW).map_err(error).unwrap();
        use_page(sim, AT);
    });
}

/// A program's page is published on the CPU that maps it. On another one it faults, until the
/// handler there publishes it.
#[test]
fn a_program_faults_until_its_handler_publishes() {
    let (sim, shared) = machine_of::<X86_64L4>(config());
    let space = sim.on_cpu(0, || {
        let space = Arc::new(Space::<Grace>::user(&shared, Asid(1), None).unwrap());
        space.activate_own();
        space
    });
    let load = || sim.load_own(virt(LOW)).is_ok();
    sim.on_cpu(1, || {
        space.activate_own();
        sim.on_cpu(0, || {
            space.activate_own();
            let frame = block(&sim, 0);
            space.map_own(pages(LOW, 1), frame, Attrs::USER_RW).map_err(error).unwrap();
            assert!(load());
        });
        assert!(!load());
        assert!(!load(), "the fault repeats");
        space.flush_page_here(virt(LOW), PageSize::Size4K);
        assert!(load());
        space.unmap_own(pages(LOW, 1), |_| ()).map_err(error).unwrap().flush();
    });
    sim.on_cpu(0, || drop(space));
}
