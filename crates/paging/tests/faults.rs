//! Page faults concurrent with calls that change their records and sweep the range, under the
//! deterministic driver; and mutants, each with one step left out.

mod common;

use common::*;
use grace::Reclaim;
use machine::*;
use paging::*;
use sim::{Checks, Config, Failure, Grace, Program, Sim, Stale, seeded};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

const SEEDS: u64 = 300;
/// The last pages of a table, and of the one above, so that borders are near.
const AT: u64 = 0x3fff_f000;

/// The record of the range: even while pages may be mapped, odd while it is a hole.
struct Record<'s>(&'s Sim, AtomicU64);

impl Record<'_> {
    fn look(&self) -> u64 {
        self.0.step(SharedAccess::Other);
        // SeqCst: the driver runs one CPU at a time.
        self.1.load(SeqCst)
    }

    fn add_one(&self) {
        self.0.step(SharedAccess::Other);
        // SeqCst: as above.
        self.1.fetch_add(1, SeqCst);
    }
}

fn config() -> Config {
    // A CPU that accesses pages which another unmaps may use an old translation until the flush.
    let checks = Checks { stale: Stale::Freed, walked: true, ..Checks::ALL };
    Config { cpus: 3, frames: 96, tick: Some(23), speculation: 100, checks, ..Config::default() }
}

/// Maps a page if the record is still the one that it saw; stores to it then.
fn fault(sim: &Sim, space: &Space, record: &Record, at: VirtAddr) {
    let seen = record.look();
    if !seen.is_multiple_of(2) {
        return;
    }
    let frame = block(sim, 0);
    let guard = Grace::pin();
    let decide = |found| match found {
        None if record.look() == seen => (EntryChange::Set(frame, Attrs::USER_RW), true),
        _ => (EntryChange::Keep, false),
    };
    let (used, pending) = space.with_entry_own(&guard, at, decide).unwrap();
    drop((guard, pending));
    if used {
        let _ = sim.store_own(at, seen);
    } else {
        release(sim, frame);
    }
}

/// Makes a hole of the range, and ends it again.
fn hole(sim: &Sim, space: &Space, record: &Record, range: VirtRange) {
    let mut gone = Vec::new();
    record.add_one();
    space.swept(range, |page| (gone.push(page.frame), SweepChange::Clear).1);
    sim.check_flushed(space.root(), Some(Asid(1)), range);
    for at in range.pages(PageSize::Size4K) {
        assert_eq!(space.walk(&Grace::pin()).get(at), None, "a page is left in a swept range");
    }
    gone.into_iter().for_each(|frame| release(sim, frame));
    record.add_one();
}

/// Two CPUs fault on the same pages of several tables, while a third makes a hole of them again and
/// again. Tables come and go.
fn faults(config: Config, seed: u64) -> Result<(), Failure> {
    let (sim, shared) = machine_of::<X86_64L4>(config);
    let space: Leaked<Space> = leaked_user(&sim, &shared);
    let (range, record) = (pages(AT, 2), Record(&sim, AtomicU64::new(0)));
    let activate = || {
        space.activate_own();
    };
    let program = |cpu: u64| {
        let (sim, space, record) = (&sim, &space, &record);
        Box::new(move || {
            activate();
            for round in 0..5 {
                fault(sim, space, record, virt(AT + (((round + cpu) % 2) << 12)));
                Grace::reclaim(usize::MAX);
            }
        }) as Program
    };
    let call = || {
        activate();
        (0..3).for_each(|_| hole(&sim, &space, &record, range));
    };
    seeded(&sim, seed, vec![program(0), program(1), Box::new(call)])?;
    sim.on_cpu(0, || {
        hole(&sim, &space, &record, range);
        assert!(sim.settle());
        assert_eq!(tables(&sim), 1, "empty tables stay");
        sim.check_upper_flushed(space.root(), space.space(), range);
    });
    end(&sim, &shared, space)
}

#[test]
fn no_page_is_left_in_a_swept_range() {
    for faults_drop in [true, false] {
        right(SEEDS, |seed| faults(Config { faults_drop, ..config() }, seed));
    }
}

/// A fault has the lock of its table and is about to replace a page, while its space forks to the
/// end, and the child reads the page. No CPU of the child may read the old frame afterwards: the
/// fault gives it back.
#[test]
fn a_page_is_replaced_beside_a_fork() {
    let (sim, shared) = machine_of::<X86_64L4>(Config { cpus: 2, ..config() });
    let read = Attrs { flags: Attrs::USER_RW.flags - Flags::WRITE, ..Attrs::USER_RW };
    let (space, old, new) = sim.on_cpu(0, || {
        let space = Space::<Grace>::user(&shared, Asid(1), None).unwrap();
        let [old, new] = [1, 2].map(|value| numbered_page(&sim, value));
        space.map_own(pages(AT, 1), old, read).unwrap();
        (Leaked::new(space), old, new)
    });
    let activate = |space: &Space<Grace>| space.activate_own();
    let load = || sim.load_own(virt(AT)).unwrap();
    // SeqCst: the driver runs one CPU at a time.
    let [locked, forked, replaced] = [(); 3].map(|()| AtomicU64::new(0));
    let wait_for = |flag: &AtomicU64| {
        while flag.load(SeqCst) == 0 {
            sim.relax();
        }
    };
    let faults = || {
        activate(&space);
        let decide = |found: Option<Mapping>| {
            assert_eq!(found.map(|page| page.frame), Some(old));
            locked.store(1, SeqCst);
            wait_for(&forked);
            (EntryChange::Replace(new, read), ())
        };
        let ((), pending) = space.with_entry_own(&Grace::pin(), virt(AT), decide).unwrap();
        pending.flush();
        replaced.store(1, SeqCst);
    };
    let forks = || {
        activate(&space);
        wait_for(&locked);
        let child = space.fork_own(Asid(2), false);
        let child = Leaked::new(child);
        activate(&child);
        assert_eq!(load(), 1);
        forked.store(1, SeqCst);
        wait_for(&replaced);
        assert_eq!(load(), 2, "the child reads a frame that was given back");
        activate(&space);
        drop(Leaked::into_inner(child));
    };
    seeded(&sim, 1, vec![Box::new(forks), Box::new(faults)]).unwrap();
    sim.on_cpu(0, || {
        space.unmap_own(pages(AT, 1), |_| ()).unwrap().flush();
        [old, new].into_iter().for_each(|frame| release(&sim, frame));
        assert!(sim.settle());
    });
    end(&sim, &shared, space).unwrap();
}
