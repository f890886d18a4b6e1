//! A guest whose memory is encrypted: the bit that says so is in entries, and in no frame.

mod common;

use common::*;
use grace::Reclaim;
use machine::*;
use paging::*;
use sim::{Config, Grace, Sim};
use std::sync::Arc;

type Tables = PageTables<Sim, Sev, Grace>;

const AT: u64 = 0x4000_0000;
const C_BIT: u64 = 1 << 51;

fn machine() -> (Sim, Arc<Paging<Sim, Sev>>) {
    machine_of(Config { cpus: 1, ..Config::default() })
}

/// Runs a test on a CPU that has the tables active.
fn in_tables(test: impl FnOnce(&Sim, &Tables)) {
    let (sim, paging) = machine();
    let tables = sim.on_cpu(0, || {
        let tables = Tables::user(&paging, Asid(1), None).unwrap();
        tables.activate_own();
        test(&sim, &tables);
        tables
    });
    sim.on_cpu(0, || drop(tables));
}

/// A page of each kind is used by the CPU, found by a lookup and by a pin, and keeps its kind when
/// its rights change.
#[test]
fn pages_are_private_or_shared_and_have_the_same_frames() {
    in_tables(|sim, tables| {
        let (private, shared) = (block(sim, 0), block(sim, 0));
        let decrypted = Attrs::USER_RW.flags | Flags::DECRYPTED;
        let attrs = Attrs { flags: decrypted, ..Attrs::USER_RW };
        tables.map_own(pages(AT, 1), private, Attrs::USER_RW).unwrap();
        tables.map_own(pages(AT + 4096, 1), shared, attrs).unwrap();
        for (at, frame, kind) in
            [(AT, private, Flags::empty()), (AT + 4096, shared, Flags::DECRYPTED)]
        {
            sim.store_own(virt(at), at).unwrap();
            let found = tables.walk(&Grace::pin()).get(virt(at)).unwrap();
            assert_eq!((found.frame, found.attrs.flags & Flags::DECRYPTED), (frame, kind));
            let mut into = [Frame::default()];
            let pins = tables.get_user_pages_fast_only(virt(at), true, &mut into).unwrap();
            assert_eq!(pins.frames(), [frame]);
            drop(pins);
            tables.protect_own(pages(at, 1), Flags::READ | Flags::USER).unwrap().flush();
            let found = tables.walk(&Grace::pin()).get(virt(at)).unwrap();
            assert_eq!(found.attrs.flags & Flags::DECRYPTED, kind);
        }
        tables.unmap_own(pages(AT, 2), |_| ()).unwrap().flush();
        for frame in [private, shared] {
            release(sim, frame);
        }
    });
}

/// A cached translation of a page of the other kind is flushed, whether the page becomes shared or
/// private.
#[test]
fn a_page_that_changes_its_kind_is_flushed() {
    in_tables(|sim, tables| {
        let frame = block(sim, 0);
        tables.map_own(pages(AT, 1), frame, Attrs::USER_RW).unwrap();
        for kind in [Flags::DECRYPTED, Flags::empty()] {
            sim.store_own(virt(AT), 1).unwrap();
            let attrs = Attrs { flags: Attrs::USER_RW.flags | kind, ..Attrs::USER_RW };
            let before = sim.stats().flushes;
            tables.swept(pages(AT, 1), |_| SweepChange::Set(attrs));
            assert_eq!(sim.stats().flushes, before + 1, "{kind:?}");
        }
        tables.unmap_own(pages(AT, 1), |_| ()).unwrap().flush();
        release(sim, frame);
    });
}

/// A large page that is shared with the host stays so when it is split, rejoined, forked, and left
/// without rights.
#[test]
fn a_large_page_keeps_its_kind() {
    let (sim, paging) = machine();
    let (tables, child) = sim.on_cpu(0, || {
        let tables = Tables::user(&paging, Asid(1), None).unwrap();
        let frame = block(&sim, Sev::LARGE.order());
        let whole = VirtRange::new(virt(AT), Sev::LARGE.bytes()).unwrap();
        let flags = Attrs::USER_RW.flags | Flags::DECRYPTED;
        tables.map_own(whole, frame, Attrs { flags, ..Attrs::USER_RW }).unwrap();
        let check = |tables: &Tables, at: u64| {
            let guard = Grace::pin();
            let range = VirtRange::new(virt(at), Sev::LARGE.bytes()).unwrap();
            let pages: Vec<Mapping> = tables.walk(&guard).pages(range).collect();
            assert!(!pages.is_empty());
            assert!(pages.iter().all(|page| page.attrs.flags.contains(Flags::DECRYPTED)));
        };
        check(&tables, AT);
        tables.split_own(virt(AT), PageSize::Size4K).unwrap().flush();
        check(&tables, AT);
        assert_eq!(tables.rejoin_own(virt(AT)), Ok(true));
        check(&tables, AT);
        tables.split_own(virt(AT), PageSize::Size4K).unwrap().flush();
        let child = tables.fork_own(Asid(2), false);
        check(&tables, AT);
        check(&child, AT);
        for space in [&tables, &child] {
            space.protect_own(whole, Flags::empty()).unwrap().flush();
            check(space, AT);
        }
        (tables, child)
    });
    sim.on_cpu(0, || drop((tables, child)));
}

/// No other format has such pages, and says so.
#[test]
fn other_formats_refuse_shared_pages() {
    let attrs = Attrs::new(Flags::READ | Flags::DECRYPTED);
    let wanted = Err(FormatError::Rights(attrs.flags));
    let frame = Frame::default();
    assert_eq!(X86_64L4::page(PageSize::Size4K, frame, attrs), wanted);
    assert_eq!(Aarch64::page(PageSize::Size4K, frame, attrs), wanted);
    assert_eq!(Sv48::page(PageSize::Size4K, frame, attrs), wanted);
    let entry = Sev::page(PageSize::Size4K, frame, Attrs::new(Flags::READ)).unwrap();
    assert_eq!(entry & C_BIT, C_BIT);
}
