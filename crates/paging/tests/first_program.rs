//! A newcomer's first program: a kernel and a user space on a machine with the default
//! configuration, without any other preparation.

mod common;

use common::*;
use machine::*;
use paging::*;
use sim::{Config, Grace, Violation};
use std::sync::Arc;

const TOP: u64 = 0xffff_8000_0000_0000;

#[test]
fn a_program_beside_the_kernel() {
    let (sim, shared) = machine_of::<X86_64L4>(Config::default());
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

/// A reservation also reaches a top-level table that was constructed before it, and the table goes
/// back to the list in its new constructed state.
#[test]
fn a_top_level_table_that_grew_is_as_constructed() {
    let (sim, shared) = machine_of::<X86_64L4>(Config::default());
    sim.on_cpu(0, || {
        let kernel = Arc::new(Space::<Grace>::kernel(&shared).unwrap());
        kernel.reserve(pages(TOP, 1)).unwrap();
        // A table that was constructed when the kernel had one entry, and waits on the list.
        // SAFETY: the kernel's tables stay.
        let early = unsafe { shared.quick().alloc(QUICK_ROOT) }.unwrap();
        // SAFETY: it came from this list, is unchanged, and has no user.
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

/// A page that is given to another list than it came from is reported, whatever its contents.
#[test]
fn a_page_on_the_wrong_list_is_reported() {
    let (sim, shared) = machine_of::<X86_64L4>(Config::default());
    let failed = sim::seeded(
        &sim,
        0,
        vec![Box::new(|| {
            // SAFETY: no top-level table.
            let page = unsafe { shared.quick().alloc(QUICK_TABLE) }.unwrap();
            // SAFETY: none. It came from the other list, which must be reported.
            unsafe { shared.quick().free(QUICK_ROOT, page) }.unwrap();
        })],
    );
    let failed = failed.unwrap_err();
    let report = failed.report().unwrap_or_else(|| panic!("{failed}"));
    let wrong = matches!(report.violation, Violation::OtherList { list: 1, made_for: 0, .. });
    assert!(wrong, "{report}");
}
