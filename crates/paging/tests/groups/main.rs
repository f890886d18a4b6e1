//! Groups of pages, which hardware caches as one translation. The machine reports a group that is
//! changed in part, an entry that joins or leaves one without break-before-make, and translations
//! that no flush has dropped.

#[path = "../common/mod.rs"]
mod common;

mod change;
mod fork;
mod make;
mod race;
mod random;

use common::*;
use grace::Reclaim;
use machine::*;
use paging::*;
use sim::{Config, Grace, Sim, Want};
use std::sync::Arc;

type Tables<F> = PageTables<Sim, F, Grace>;

/// Pages of which hardware has nothing to mark.
const HOT: Attrs = Attrs::new(Attrs::USER_RW.flags.union(Flags::ACCESSED).union(Flags::DIRTY));
const HOT_RO: Attrs = Attrs::new(Attrs::USER_RO.flags.union(Flags::ACCESSED));

/// Groups that the tests use, side by side, at the end of a table.
const GROUPS: u64 = 4;
/// The CPU that looks at the tables, and makes no access.
const LOOKS: usize = 2;

/// Runs tests of a module with each format that has groups.
macro_rules! with_each {
    ($($module:ident: $($test:ident)*;)*) => {
        $($(#[test]
        fn $test() {
            $module::$test::<Aarch64>();
            $module::$test::<Aarch64G16>();
            $module::$test::<Aarch64G64>();
            $module::$test::<Aarch64Stage2>();
            $module::$test::<Sv39Napot>();
            $module::$test::<Sv48Napot>();
            $module::$test::<Sv57Napot>();
        })*)*
    };
}

with_each! {
    make:
        one_walk_caches_a_group
        only_what_fits_is_a_group
        a_page_in_the_way
        pins_go_across_groups
        pages_of_groups_become_a_large_page;
    change:
        a_part_is_unmapped
        a_whole_group_is_unmapped_without_a_break
        one_page_changes
        a_panic_leaves_single_pages
        a_panic_in_a_collapse_leaves_single_pages
        pages_of_groups_move;
    fork:
        forks_keep_groups_until_a_write
        groups_of_a_table_that_was_left
        a_copy_fails_within_a_group
        pinned_pages_of_a_group_are_copied
        pages_are_taken_back_from_all
        a_panic_takes_pages_back_from_all;
}

struct World<F: OnSim> {
    sim: Sim,
    paging: Arc<Paging<Sim, F>>,
    tables: Tables<F>,
    /// Frames for the pages, and as many others.
    frames: [Frame; 2],
}

fn group<F: Format>() -> u64 {
    F::GROUP.unwrap().bytes()
}

/// The number of pages of a group.
fn count<F: Format>() -> u64 {
    group::<F>() / F::PAGE.bytes()
}

fn base<F: Format>() -> u64 {
    3 * F::LARGE.bytes() - GROUPS * group::<F>()
}

/// The page with this number.
fn at<F: Format>(page: u64) -> VirtAddr {
    virt(base::<F>() + page * F::PAGE.bytes())
}

fn part<F: Format>(first: u64, len: u64) -> VirtRange {
    pages_of::<F>(at::<F>(first).get(), len)
}

fn all<F: Format>() -> VirtRange {
    part::<F>(0, GROUPS * count::<F>())
}

impl<F: OnSim> World<F> {
    fn new() -> World<F> {
        let order = F::GROUP.unwrap().order() + GROUPS.ilog2() as u8;
        let (frames, tlb_entries) = ((4 << order) + 1024, 4096);
        let config = Config { cpus: 3, frames, tlb_entries, ..Config::default() };
        let (sim, paging) = machine_of::<F>(config);
        let (tables, frames) = sim.on_cpu(0, || {
            let tables = Tables::<F>::user(&paging, Asid(1), None).unwrap();
            (tables, [block(&sim, order), block(&sim, order)])
        });
        World { sim, paging, tables, frames }
    }

    fn frame(&self, of: usize, page: u64) -> Frame {
        self.frames[of].checked_add(page * F::PAGE.frames()).unwrap()
    }

    /// Maps pages to their frames.
    fn map(&self, first: u64, len: u64, attrs: Attrs) {
        let range = part::<F>(first, len);
        self.sim.on_cpu(0, || self.tables.map_own(range, self.frame(0, first), attrs).unwrap());
    }

    /// Maps pages whose entries hold references to their block, as a fork demands.
    fn map_counted(&self, len: u64, attrs: Attrs) {
        self.map(0, len, attrs);
        (0..len).for_each(|page| assert!(self.paging.hold_entry(self.frame(0, page))));
    }

    fn get(&self, page: u64) -> Option<Mapping> {
        self.sim.on_cpu(LOOKS, || self.tables.walk(&Grace::pin()).get(at::<F>(page)))
    }

    /// The groups, by number.
    fn groups(&self) -> Vec<u64> {
        groups_of(&self.sim, &self.tables)
    }

    /// Uses the page on both CPUs.
    fn touch(&self, page: u64, write: bool) -> Result<Frame, FaultKind> {
        let [one, other] = [0, 1].map(|cpu| touch_on(&self.sim, cpu, &self.tables, page, write));
        assert_eq!(one, other);
        one
    }

    /// Writes to the first pages, on both CPUs.
    fn touch_all(&self, pages: u64) {
        for page in 0..pages {
            assert_eq!(self.touch(page, true), Ok(self.frame(0, page)));
        }
    }

    /// Checks that no CPU holds a translation that the tables do not allow.
    fn flushed(&self) {
        self.sim.check_flushed(self.tables.root(), self.tables.space(), all::<F>());
    }

    fn unmap(&self, range: VirtRange) -> usize {
        let mut gone = 0;
        self.sim.on_cpu(0, || self.tables.unmap_own(range, |_| gone += 1).unwrap().flush());
        gone
    }

    /// A fork of the space, whose entries hold references. Called on a CPU.
    fn fork(&self, pinned: bool) -> Tables<F> {
        // SAFETY: the entries hold references, and the calls are the tests'.
        let (child, pending) = unsafe { self.tables.fork(Asid(2), pinned) }.unwrap();
        pending.flush();
        child
    }

    /// Unmaps all pages of both spaces of a fork, drops their references, and drops the child.
    fn end_fork(&self, child: Tables<F>) {
        self.sim.on_cpu(0, || {
            for tables in [&child, &self.tables] {
                let mut gone = Vec::new();
                let pending = tables.unmap_own(all::<F>(), |page| gone.push(page.frame));
                pending.unwrap().flush();
                for frame in gone {
                    // SAFETY: the entry held it, and is gone.
                    unsafe { self.paging.release_entry(frame) };
                }
            }
            drop(child);
            assert!(self.sim.settle());
        });
        assert_eq!(self.sim.info(self.frames[0]).unwrap().refs(), 1);
    }

    fn end(self) {
        self.unmap(all::<F>());
        self.flushed();
        let World { sim, paging, tables, frames } = self;
        sim.on_cpu(0, || {
            drop(tables);
            frames.into_iter().for_each(|frame| release(&sim, frame));
            assert!(sim.settle());
            paging.quick().drain();
        });
        sim.check_leaks().unwrap();
    }
}

/// The groups of these tables, by number. Each is whole.
fn groups_of<F: OnSim>(sim: &Sim, tables: &Tables<F>) -> Vec<u64> {
    let found = |page| sim.on_cpu(LOOKS, || tables.walk(&Grace::pin()).group_of(at::<F>(page)));
    let is_group = |number: &u64| {
        let pages = number * count::<F>()..(number + 1) * count::<F>();
        let whole = part::<F>(pages.start, count::<F>());
        let found: Vec<_> = pages.map(found).collect();
        let is = found[0].is_some();
        assert!(found.iter().all(|found| *found == is.then_some(whole)), "{found:?}");
        is
    };
    (0..GROUPS).filter(is_group).collect()
}

fn touch_on<F: OnSim>(
    sim: &Sim,
    cpu: usize,
    tables: &Tables<F>,
    page: u64,
    write: bool,
) -> Result<Frame, FaultKind> {
    sim.on_cpu(cpu, || {
        tables.activate_own();
        let want = Want { write, user: true, ..Want::default() };
        let once = || sim.translate(at::<F>(page), want);
        // A page that has gained rights may fault once.
        let into = once().or_else(|_| once());
        into.map(Frame::containing).map_err(|fault| fault.kind)
    })
}
