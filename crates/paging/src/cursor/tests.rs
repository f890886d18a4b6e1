//! Sweeps while a lock is held: they wait for the lock of every table in which a page could appear.

use super::SweepChange;
use crate::common::*;
use crate::lock::lock;
use crate::{Aarch64, Aarch64G64, Attrs, Encrypted, Flags, X86_64L4};
use core::mem::ManuallyDrop;
use core::sync::atomic::{AtomicU32, Ordering::SeqCst};
use machine::{Asid, Frame, PageSize, SharedAccess, Step, VirtAddr, VirtRange};
use sim::{Config, Grace, Program, Sim, seeded};
use std::boxed::Box;
use std::vec;

const AT: u64 = 0x4000_0000;
const FREE: u32 = 0;
const HELD: u32 = 1;
const RELEASED: u32 = 2;

/// One CPU holds the lock of the table of this level on the way to `at`, while another sweeps a
/// range without pages. Asserts that the sweep ends after the lock is released.
fn sweep_waits(level: u8, at: u64, range: VirtRange) {
    let (sim, paging) = machine_of::<X86_64L4>(Config { frames: 64, ..Config::default() });
    let space = sim.on_cpu(0, || {
        // Leaked by a failed run: there is no CPU on which it could be dropped.
        ManuallyDrop::new(Space::<Grace>::user(&paging, Asid(1), None).unwrap())
    });
    let page = pages(AT, 1);
    // Beyond the machine's memory.
    let device = Frame::new(1 << 24).unwrap();
    sim.on_cpu(0, || space.map_own(page, device, Attrs::USER_RW).unwrap());
    let state = AtomicU32::new(FREE);
    // SeqCst: the driver runs one CPU at a time.
    let go_on = |to| {
        sim.step(SharedAccess::Other);
        state.store(to, SeqCst);
    };
    let holder = || {
        let guard = <Grace as grace::Reclaim>::pin();
        let walk = space.walk(&guard);
        let spot = walk.find(VirtAddr::new(at), level).unwrap();
        assert_eq!(spot.level, level);
        let held = lock::<_, X86_64L4>(&sim, spot.entry.table(), VirtAddr::new(at)).unwrap();
        go_on(HELD);
        (0..200).for_each(|_| sim.relax());
        go_on(RELEASED);
        drop(held);
    };
    let sweeper = || {
        while state.load(SeqCst) == FREE {
            sim.relax();
        }
        space.swept(range, |_| SweepChange::Keep);
        assert_eq!(state.load(SeqCst), RELEASED, "the sweep took no lock");
    };
    let programs: vec::Vec<Program> = vec![Box::new(holder), Box::new(sweeper)];
    seeded(&sim, 0, programs).unwrap_or_else(|failure| panic!("{failure}"));
    sim.on_cpu(0, || {
        space.unmap_own(page, |_| ()).unwrap().flush();
        drop(ManuallyDrop::into_inner(space));
    });
}

#[test]
fn a_sweep_takes_the_lock_of_a_table_without_pages() {
    // In the table of the mapped page, but not that page.
    sweep_waits(0, AT, pages(AT + 0x5000, 3));
}

/// Where the tables end: 2 MiB, 1 GiB and 512 GiB that have no table.
#[test]
fn a_sweep_takes_the_lock_of_the_table_above_a_hole() {
    sweep_waits(1, AT, pages(AT + 0x20_0000, 1));
    sweep_waits(2, AT, pages(2 * AT, 1));
    sweep_waits(3, AT, pages(1 << 40, 1));
    // At the end of a range that begins below it.
    sweep_waits(1, AT, pages(AT + 0x1000, 512));
}

/// The flush of a page without rights is by the granule, not by frames: TLBI of AArch64 has no
/// place for the address bits below it.
#[test]
fn a_flush_is_by_the_granule() {
    let config = Config { cpus: 1, frames: 256, ..Config::default() };
    let (sim, paging) = machine_of::<Aarch64G64>(config);
    sim.on_cpu(0, || {
        let space = crate::PageTables::<_, _, Grace>::user(&paging, Asid(1), None).unwrap();
        let page = pages(AT, 16);
        let (device, none) = (Frame::new(1 << 24).unwrap(), Attrs::default());
        space.map_own(page, device, none).unwrap();
        let pending = space.unmap_own(page, |_| ()).unwrap();
        assert_eq!(pending.gather.what, Some((page, PageSize::Size64K)));
        pending.flush();
    });
}

/// In a realm, the bit that says whether a page is shared is one of its address.
#[test]
fn a_page_of_another_kind_is_another_address() {
    type Realm = crate::PageTables<Sim, Encrypted<Aarch64, 47, false>, Grace>;
    let private = Attrs::USER_RW;
    let shared = Attrs { flags: private.flags | Flags::DECRYPTED, ..private };
    assert!(Realm::must_break(private, shared, true));
    assert!(Realm::must_break(shared, private, true));
    assert!(!Realm::must_break(private, private, true));
    assert!(!Realm::must_break(shared, shared, true));
}
