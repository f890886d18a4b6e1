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
    let (arch, levels, frames) = (F::ARCH, F::LEVELS, (2 << order) + 1024);
    let speculation = [0, 200][seed as usize % 2];
    let config = Config { cpus: 4, frames, arch, levels, checks, speculation, ..Config::default() };
    let sim = Sim::new(config).unwrap();
    let paging = Paging::<Sim, F>::try_new(sim.clone(), PageSize::Size1G).unwrap();
    let (tables, first) = sim.on_cpu(0, || {
        let tables = Tables::<F>::user(&paging, Asid(1), None).unwrap();
        let first = block(&sim, order);
        tables.map_own(part::<F>(0, n), first, HOT).unwrap();
        (tables, first)
    });
    let right = |page: u64| first.checked_add(page * F::PAGE.frames()).unwrap();
    let (sim_, tables_, done) = (&sim, &tables, &AtomicBool::new(false));
    // SAFETY: the test needs no other mapping.
    let activate = move || unsafe { tables_.activate() };
    let parter = Box::new(move || {
        activate();
        // Takes a page out, by one of the calls, and parts the group by it.
        match seed % 3 {
            0 => tables_.unmap_own(part::<F>(3, 1), |_| ()).unwrap().flush(),
            1 => tables_.protect_own(part::<F>(3, 1), Attrs::USER_RO.flags).unwrap().flush(),
            _ => {
                let decide = |_| (EntryChange::Clear, ());
                tables_.with_entry_own(&Grace::pin(), at::<F>(3), decide).unwrap().1.flush();
            }
        }
        done.store(true, Relaxed);
    }) as Program;
    let storer = Box::new(move || {
        activate();
        for number in (0..2000).take_while(|_| !done.load(Relaxed)) {
            let at = at::<F>(4 + (seed + number) % 4);
            let mut tries = 0;
            // SAFETY: the memory is this test's.
            while let Err(fault) = unsafe { sim_.store(at, number) } {
                let broken = matches!(fault.kind, FaultKind::NotPresent | FaultKind::Protection);
                assert!(broken && tries < 1000, "{fault}");
                tries += 1;
                // As the handler of a page fault.
                sim_.published(Some(Asid(1)), VirtRange::new(at, 8).unwrap());
                sim_.relax();
            }
        }
    }) as Program;
    let looker = Box::new(move || {
        activate();
        let at = at::<F>(5);
        for _ in (0..2000).take_while(|_| !done.load(Relaxed)) {
            let page = tables_.walk(&Grace::pin()).get(at).expect("the page is always there");
            assert_eq!(page.frame, right(5));
            let mut frames = [right(0)];
            let pins = tables_.get_user_pages_fast(at, true, &mut frames, |_, _| {
                sim_.relax();
                true
            });
            assert_eq!(pins.expect("the page is always there").frames(), [right(5)]);
        }
    }) as Program;
    let unmapper = Box::new(move || {
        activate();
        // Early, late, and at the moment of the break.
        for _ in 0..seed % 64 * 4 {
            sim_.step(SharedAccess::Other);
        }
        let mut gone = Vec::new();
        let last = part::<F>(n - 2, 2);
        tables_.unmap_own(last, |page| gone.push(page.frame)).unwrap().flush();
        assert_eq!(gone, [right(n - 2), right(n - 1)]);
        assert_eq!(tables_.walk(&Grace::pin()).get(last.start()), None);
    }) as Program;
    if let Err(failure) = seeded(&sim, seed, vec![parter, storer, looker, unmapper]) {
        // No CPU is left on which they could be dropped.
        std::mem::forget(tables);
        return Err(failure);
    }
    sim.check_flushed(tables.root(), tables.space(), part::<F>(0, n));
    assert_eq!(groups_of(&sim, &tables), []);
    sim.on_cpu(0, || {
        let found = tables.walk(&Grace::pin()).pages(part::<F>(0, n)).count() as u64;
        assert_eq!(found, n - 2 - u64::from(seed % 3 != 1));
        tables.unmap_own(part::<F>(0, n), |_| ()).unwrap().flush();
        drop(tables);
        release(&sim, first);
    });
    Ok(all_given_back(&sim, &paging)?)
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
    let (arch, levels) = (F::ARCH, F::LEVELS);
    let config = Config { cpus: 2, frames: 1024, arch, levels, checks, ..Config::default() };
    let sim = Sim::new(config).unwrap();
    let paging = Paging::<Sim, F>::try_new(sim.clone(), PageSize::Size1G).unwrap();
    // Frames beyond the machine's memory.
    let (page, others) = (Frame::new(1 << 24).unwrap(), Frame::new(1 << 25).unwrap());
    let there = 1 + seed % (n - 1);
    let tables = sim.on_cpu(0, || {
        let tables = Tables::<F>::user(&paging, Asid(1), None).unwrap();
        tables.map_own(part::<F>(there, 1), page, HOT).unwrap();
        tables
    });
    let (sim_, tables_, done) = (&sim, &tables, &AtomicBool::new(false));
    let mapper = Box::new(move || {
        for _ in 0..4 {
            let failed = tables_.map_own(part::<F>(0, n), others, HOT).unwrap_err();
            assert_eq!(failed.error, Error::Occupied(at::<F>(there)));
        }
        done.store(true, Relaxed);
    }) as Program;
    let user = Box::new(move || {
        // SAFETY: the test needs no other mapping.
        unsafe { tables_.activate() };
        let want = Want { user: true, ..Want::default() };
        for _ in (0..2000).take_while(|_| !done.load(Relaxed)) {
            // It may fault, or cache a page that is mapped for a moment.
            let _ = sim_.translate(at::<F>(there - 1), want);
            let into = sim_.translate(at::<F>(there), want);
            assert_eq!(into.map(Frame::containing), Ok(page));
        }
    }) as Program;
    if let Err(failure) = seeded(&sim, seed, vec![mapper, user]) {
        std::mem::forget(tables);
        return Err(failure);
    }
    sim.on_cpu(0, || {
        tables.unmap_own(part::<F>(0, n), |_| ()).unwrap().flush();
        drop(tables);
    });
    Ok(all_given_back(&sim, &paging)?)
}

#[test]
fn a_page_in_the_way_is_used_meanwhile() {
    common::right(60, beside_a_failure::<Aarch64>);
    common::right(60, beside_a_failure::<Sv39Napot>);
}
