//! Random calls and touches, on the machine in software and on a plain model: an array of pages.

use crate::common::*;
use machine::VirtAddr;
use mm::*;
use proptest::{collection::vec, prelude::*};
use sim::{Config, Sim};

/// Pages of the window, on both sides of the border of two tables.
const PAGES: usize = 12;
const AT: usize = 0x3fff_a000;

#[derive(Clone, Debug)]
enum Op {
    Map { from: usize, len: usize, prot: u32, populate: bool },
    Unmap { from: usize, len: usize },
    Protect { from: usize, len: usize, prot: u32 },
    Discard { from: usize, len: usize },
    Load { page: usize },
    Store { page: usize, value: u64 },
}

fn op() -> impl Strategy<Value = Op> {
    let range = (0..PAGES, 1..5_usize).prop_map(|(from, len)| (from, len.min(PAGES - from)));
    // Hardware cannot make a page writable and not readable.
    let prot = prop_oneof![Just(0_u32), Just(1), Just(3), Just(3), Just(7)];
    prop_oneof![
        2 => (range.clone(), prot.clone(), any::<bool>()).prop_map(
            |((from, len), prot, populate)| Op::Map { from, len, prot, populate }),
        1 => range.clone().prop_map(|(from, len)| Op::Unmap { from, len }),
        2 => (range.clone(), prot).prop_map(|((from, len), prot)| Op::Protect { from, len, prot }),
        1 => range.prop_map(|(from, len)| Op::Discard { from, len }),
        4 => (0..PAGES).prop_map(|page| Op::Load { page }),
        6 => (0..PAGES, 1..u64::MAX).prop_map(|(page, value)| Op::Store { page, value }),
    ]
}

/// A mapped page: its rights, its first word, and whether it is present.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Page {
    prot: u32,
    value: u64,
    present: bool,
}

type Model = [Option<Page>; PAGES];

fn at(page: usize) -> usize {
    AT + page * PAGE
}

fn carry_out(sim: &Sim, space: &Space, model: &mut Model, op: &Op) {
    match *op {
        Op::Map { from, len, prot, populate } => {
            let more = if populate { MapFlags::POPULATE } else { MapFlags::empty() };
            assert_eq!(space.mmap(at(from), len * PAGE, prot, FIXED | more), Ok(at(from)));
            let present = populate && prot != 0;
            model[from..from + len].fill(Some(Page { prot, value: 0, present }));
        }
        Op::Unmap { from, len } => {
            assert_eq!(space.munmap(at(from), len * PAGE), Ok(()));
            model[from..from + len].fill(None);
        }
        Op::Protect { from, len, prot } => {
            let range = &mut model[from..from + len];
            let hole = range.iter().any(Option::is_none);
            // The call stops at the first hole.
            range.iter_mut().map_while(Option::as_mut).for_each(|page| page.prot = prot);
            let outcome = space.mprotect(at(from), len * PAGE, prot, None);
            assert_eq!(outcome.map_err(|error| error.errno()), if hole { Err(12) } else { Ok(()) });
        }
        Op::Discard { from, len } => {
            let range = &mut model[from..from + len];
            let hole = range.iter().any(Option::is_none);
            for page in range.iter_mut().flatten() {
                (page.value, page.present) = (0, false);
            }
            let outcome = space.madvise(at(from), len * PAGE, Advice::DontNeed);
            assert_eq!(outcome.map_err(|error| error.errno()), if hole { Err(12) } else { Ok(()) });
        }
        Op::Load { page } => {
            let found = load(sim, space, at(page));
            let addr = VirtAddr::new(at(page) as u64);
            let expected = match &mut model[page] {
                None => Err(FaultError::Unmapped(addr)),
                Some(Page { prot: 0, .. }) => Err(FaultError::Denied(addr, Access::Read)),
                Some(page) => {
                    page.present = true;
                    Ok(page.value)
                }
            };
            assert_eq!(found, expected);
        }
        Op::Store { page, value } => {
            let stored = store(sim, space, at(page), value);
            let addr = VirtAddr::new(at(page) as u64);
            let expected = match &mut model[page] {
                None => Err(FaultError::Unmapped(addr)),
                Some(page) if page.prot & 2 == 0 => Err(FaultError::Denied(addr, Access::Write)),
                Some(page) => {
                    (page.value, page.present) = (value, true);
                    Ok(())
                }
            };
            assert_eq!(stored, expected);
        }
    }
}

/// Compares what is mapped and what is present.
fn check(space: &Space, model: &Model) {
    let mut mapped = [false; PAGES];
    space.for_each_vma(|range, _| {
        (0..PAGES).filter(|&page| range.contains(&at(page))).for_each(|page| mapped[page] = true);
    });
    for (page, expected) in model.iter().enumerate() {
        assert_eq!(mapped[page], expected.is_some(), "page {page} is mapped");
        let present = space.resident(at(page)..at(page + 1)) == 1;
        assert_eq!(present, expected.is_some_and(|page| page.present), "page {page} is present");
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 150,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn pages_are_what_the_model_says(ops in vec(op(), 1..80)) {
        let config = Config { cpus: 1, frames: 256, speculation: 50, ..Config::default() };
        let sim = Sim::new(config).unwrap();
        let shared = paging(&sim);
        let mut model: Model = [None; PAGES];
        let space = sim.on_cpu(0, || {
            let space = new_space(&shared, 1).unwrap();
            // SAFETY: the test needs no other mapping, and no other tables have the tag.
            unsafe { space.activate() };
            for op in &ops {
                carry_out(&sim, &space, &mut model, op);
                check(&space, &model);
            }
            space
        });
        sim.on_cpu(0, || drop(space));
        all_given_back(&sim, &shared).unwrap();
    }
}
