//! While one CPU parts groups, others store to their pages, pin them, walk to them, and unmap some:
//! each waits or begins again, and finds the page. While one CPU fails to make a group, another
//! uses the page in the way.

use super::*;
use sim::{Checks, Failure, Program, Stale, seeded};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

fn beside_a_part<F: OnSim>(seed: u64) -> Result<(), Failure> {
    let n = count::<F>();
    let order = F::GROUP.unwrap().order();
    // CPUs may use a page until it is flushed.
    let checks = Checks { stale: Stale::Freed, ..Checks::ALL };
    let (frames, speculation) = ((2 << order) + 1024, [0, 200][seed as usize % 2]);
    let config = Config { cpus: 4, frames, checks, speculation, ..Config::default() };
    let (sim, paging) = machine_of::<F>(config);
    let tables: Leaked<Tables<F>> = leaked_user(&sim, &paging);
    let first = sim.on_cpu(0, || {
        let first = block(&sim, order);
        tables.map_own(part::<F>(0, n), first, HOT).unwrap();
        first
    });
    let done = AtomicBool::new(false);
    let start = at::<F>(0);
    let used = PagesInUse { sim: &sim, tables: &tables, start, first, done: &done };
    let (used, tables_) = (&used, &tables);
    let parter = Box::new(move || {
        tables_.activate_own();
        // Takes a page out, by one of the calls, and parts the group by it.
        match seed % 3 {
            0 => tables_.unmap_own(part::<F>(3, 1), |_| ()).unwrap().flush(),
            1 => tables_.protect_own(part::<F>(3, 1), Attrs::USER_RO.flags).unwrap().flush(),
            _ => {
                let decide = |_| (EntryChange::Clear, ());
                tables_.with_entry_own(&Grace::pin(), at::<F>(3), decide).unwrap().1.flush();
            }
        }
        used.done.store(true, Relaxed);
    }) as Program;
    let unmapper = Box::new(move || {
        tables_.activate_own();
        // Early, late, and at the moment of the break.
        for _ in 0..seed % 64 * 4 {
            used.sim.step(SharedAccess::Other);
        }
        let mut gone = Vec::new();
        let last = part::<F>(n - 2, 2);
        tables_.unmap_own(last, |page| gone.push(page.frame)).unwrap().flush();
        assert_eq!(gone, [used.frame(n - 2), used.frame(n - 1)]);
        assert_eq!(tables_.walk(&Grace::pin()).get(last.start()), None);
    }) as Program;
    let programs = vec![parter, used.storer(4, seed), used.looker(5), unmapper];
    seeded(&sim, seed, programs)?;
    sim.check_flushed(tables.root(), tables.space(), part::<F>(0, n));
    assert_eq!(groups_of(&sim, &tables), []);
    sim.on_cpu(0, || {
        let found = tables.walk(&Grace::pin()).pages(part::<F>(0, n)).count() as u64;
        assert_eq!(found, n - 2 - u64::from(seed % 3 != 1));
        tables.unmap_own(part::<F>(0, n), |_| ()).unwrap().flush();
        release(&sim, first);
    });
    end(&sim, &paging, tables)
}

#[test]
fn a_part_beside_all_that_uses_the_group() {
    let seeds = if cfg!(debug_assertions) { 150 } else { 2000 };
    common::right(seeds, beside_a_part::<Aarch64>);
    common::right(seeds, beside_a_part::<Sv39Napot>);
    common::right(seeds / 10, beside_a_part::<Aarch64G64>);
}

/// A group around a page that is there would lead CPUs to other frames at its address.
fn beside_a_failure<F: OnSim>(seed: u64) -> Result<(), Failure> {
    let n = count::<F>();
    let checks = Checks { stale: Stale::Freed, ..Checks::ALL };
    let (sim, paging) = machine_of::<F>(Config { frames: 1024, checks, ..Config::default() });
    // Frames beyond the machine's memory.
    let (page, others) = (Frame::new(1 << 24).unwrap(), Frame::new(1 << 25).unwrap());
    let there = 1 + seed % (n - 1);
    let tables: Leaked<Tables<F>> = leaked_user(&sim, &paging);
    sim.on_cpu(0, || tables.map_own(part::<F>(there, 1), page, HOT).unwrap());
    let (sim_, tables_, done) = (&sim, &tables, &AtomicBool::new(false));
    let mapper = Box::new(move || {
        for _ in 0..4 {
            let failed = tables_.map_own(part::<F>(0, n), others, HOT);
            assert_eq!(refused(failed), Error::Occupied(at::<F>(there)));
        }
        done.store(true, Relaxed);
    }) as Program;
    let user = Box::new(move || {
        tables_.activate_own();
        let want = Want { user: true, ..Want::default() };
        for _ in (0..2000).take_while(|_| !done.load(Relaxed)) {
            // It may fault, or cache a page that is mapped for a moment.
            let _ = sim_.translate(at::<F>(there - 1), want);
            let into = sim_.translate(at::<F>(there), want);
            assert_eq!(into.map(Frame::containing), Ok(page));
        }
    }) as Program;
    seeded(&sim, seed, vec![mapper, user])?;
    sim.on_cpu(0, || tables.unmap_own(part::<F>(0, n), |_| ()).unwrap().flush());
    end(&sim, &paging, tables)
}

#[test]
fn a_page_in_the_way_is_used_meanwhile() {
    common::right(60, beside_a_failure::<Aarch64>);
    common::right(60, beside_a_failure::<Sv39Napot>);
}
