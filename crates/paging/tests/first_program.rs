//! The first program of a newcomer: a kernel, and a program's space beside it, on a machine as it
//! is by default. Nothing needs to be said to the machine beforehand.

mod common;

use common::*;
use machine::*;
use paging::*;
use sim::{Config, Grace, Sim, Violation};
use std::sync::Arc;

const TOP: u64 = 0xffff_8000_0000_0000;

#[test]
fn a_program_beside_the_kernel() {
    let sim = Sim::new(Config::default()).unwrap();
    let shared = paging(&sim);
    sim.on_cpu(0, || {
        let kernel = Arc::new(Space::<Grace>::kernel(&shared).unwrap());
        kernel.reserve(pages(TOP, 1)).unwrap();
        for _ in 0..2 {
            let program = Space::user(&shared, Asid(1), Some(kernel.clone())).unwrap();
            drop(program);
        }
    });
    all_given_back(&sim, &shared).unwrap();
}

/// What is reserved after the first top-level table was taken from its list reaches that table too,
/// and the table is given back as it is then.
#[test]
fn a_top_level_table_that_grew_is_as_constructed() {
    let sim = Sim::new(Config::default()).unwrap();
    let shared = paging(&sim);
    sim.on_cpu(0, || {
        let kernel = Arc::new(Space::<Grace>::kernel(&shared).unwrap());
        kernel.reserve(pages(TOP, 1)).unwrap();
        // A table that was constructed when the kernel had one entry, and waits on the list.
        // SAFETY: the kernel's tables stay.
        let early = unsafe { shared.quick().alloc(QUICK_ROOT) }.unwrap();
        // SAFETY: it came from this list, is as it was, and nobody uses it.
        unsafe { shared.quick().free(QUICK_ROOT, early) }.unwrap();
        kernel.reserve(pages(TOP + (1 << 39), 1)).unwrap();
        let program = Space::user(&shared, Asid(1), Some(kernel.clone())).unwrap();
        assert_eq!(program.root(), early);
        drop(program);
        let program = Space::user(&shared, Asid(1), Some(kernel)).unwrap();
        assert_eq!(program.root(), early);
    });
    all_given_back(&sim, &shared).unwrap();
}

/// A page given to another list than it came from is reported, whatever is in it.
#[test]
fn a_page_on_the_wrong_list_is_reported() {
    let sim = Sim::new(Config::default()).unwrap();
    let shared = paging(&sim);
    let failed = sim::seeded(
        &sim,
        0,
        vec![Box::new(|| {
            // SAFETY: no top-level table.
            let page = unsafe { shared.quick().alloc(QUICK_TABLE) }.unwrap();
            // SAFETY: none: it came from the other list.
            unsafe { shared.quick().free(QUICK_ROOT, page) }.unwrap();
        })],
    );
    let failed = failed.unwrap_err();
    let report = failed.report().unwrap_or_else(|| panic!("{failed}"));
    let wrong = matches!(report.violation, Violation::OtherList { list: 1, made_for: 0, .. });
    assert!(wrong, "{report}");
}
