//! A newcomer's first program: a kernel and a user space on a machine with the default
//! configuration, without any other preparation.

mod common;

use common::*;
use machine::*;
use paging::*;
use sim::{Config, Grace, Program, Violation, stopped};
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

/// A reservation between any two steps of the making of the first space reaches it or is refused,
/// also if its top-level table was constructed before. The table goes back to the list in its new
/// constructed state.
#[test]
#[cfg_attr(miri, ignore = "Miri has no coroutines")]
fn a_top_level_table_that_grew_is_as_constructed() {
    const STEPS: u64 = 700;
    let more = virt(TOP + (1 << 39));
    right(STEPS, |steps| {
        let (sim, shared) = machine_of::<X86_64L4>(Config { cpus: 2, ..Config::default() });
        let kernel = sim.on_cpu(0, || Arc::new(Space::<Grace>::kernel(&shared).unwrap()));
        let kernel = Leaked::new(kernel);
        let user = |kernel: &Arc<Space>| Space::user(&shared, Asid(1), Some(kernel.clone()));
        let (mut program, mut grown) = (None, None);
        let make: Program = Box::new(|| program = Some(Leaked::new(user(&kernel).unwrap())));
        let grow = Box::new(|| grown = Some(kernel.reserve(pages(more.get(), 1))));
        let stops = stopped(&sim, 0, steps, vec![make, grow])?.is_some();
        assert!(!stops || steps < STEPS - 1, "there are more steps");
        sim.on_cpu(0, || {
            let has = |space: &Space| {
                // SAFETY: a table.
                let entry = unsafe { sim.entry(space.root(), X86_64L4::index(more, 3)) };
                entry.unwrap().load() != 0
            };
            let program = Leaked::into_inner(program.unwrap());
            assert_eq!(has(&program), grown.unwrap().is_ok());
            let root = program.root();
            drop(program);
            let program = user(&kernel).unwrap();
            assert_eq!((program.root(), has(&program)), (root, grown.unwrap().is_ok()));
            drop((program, Leaked::into_inner(kernel)));
        });
        Ok(all_given_back(&sim, &shared)?)
    });
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
