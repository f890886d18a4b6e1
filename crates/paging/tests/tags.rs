//! Assigned tags: more spaces than tags, several CPUs, and no IPI for a tag that changes hands.

mod common;

use common::*;
use machine::*;
use paging::*;
use sim::{Checks, Config, Failure, Grace, Program, Sim, Stale, seeded};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

const AT: u64 = 0x5000;

fn assigned(shared: &Shared) -> Space {
    Space::user(shared, Tag::Assigned, None).unwrap()
}

fn activate(space: &Space) {
    space.activate_own();
}

fn machine(cpus: usize, tags: u32) -> (Sim, Shared) {
    let (sim, shared) =
        machine_of::<X86_64L4>(Config { cpus, frames: 256, tags, ..Config::default() });
    (sim, shared)
}

/// A space with one page, whose first word is `number`.
fn numbered(sim: &Sim, shared: &Shared, number: u64) -> (Space, Frame) {
    let (space, frame) = (assigned(shared), numbered_page(sim, number));
    space.map_own(pages(AT, 1), frame, Attrs::USER_RO).unwrap();
    (space, frame)
}

fn number(sim: &Sim) -> Option<u64> {
    sim.load_own(virt(AT)).ok()
}

fn remove(sim: &Sim, space: &Space) {
    let mut gone = None;
    space.unmap_own(pages(AT, 1), |page| gone = Some(page.frame)).unwrap().flush();
    release(sim, gone.unwrap());
}

/// Spaces in turn, more than there are tags. Each finds its own page, and no other CPU hears of it.
#[test]
fn more_spaces_than_tags() {
    let (sim, shared) = machine(2, 6);
    sim.on_cpu(1, || ());
    let spaces = sim.on_cpu(0, || {
        let spaces: Vec<_> = (1..=20).map(|of| numbered(&sim, &shared, of).0).collect();
        for _ in 0..3 {
            for (space, of) in spaces.iter().zip(1..) {
                activate(space);
                assert_eq!(number(&sim), Some(of));
                assert!(space.space().is_some_and(|tag| (1..6).contains(&tag.0)));
                assert_eq!(space.cpus(), CpuSet::first(1));
            }
        }
        assert!(shared.tag_generations() >= 60 / 5, "{}", shared.tag_generations());
        let before = sim.stats();
        let active = spaces.last().unwrap();
        for space in &spaces[..10] {
            assert!(space.cpus().is_empty(), "it has lost its tag");
            remove(&sim, space);
        }
        assert_eq!((sim.stats() - before).flushes, 0, "no CPU uses what it has cached");
        remove(&sim, active);
        assert_eq!((sim.stats() - before).flushes, 1);
        assert_eq!(number(&sim), None);
        spaces[10..19].iter().for_each(|space| remove(&sim, space));
        Leaked::new(spaces)
    });
    sim.on_cpu(0, || drop(Leaked::into_inner(spaces)));
    assert_eq!(sim.stats().ipis_sent, 0);
    all_given_back(&sim, &shared).unwrap();
}

/// Two spaces with tags keep what is cached: nothing is flushed from the second round on, and no
/// tag changes hands.
#[test]
fn a_steady_state_flushes_nothing() {
    let (sim, shared) = machine(1, 4096);
    sim.on_cpu(0, || {
        let spaces = [1, 2].map(|of| numbered(&sim, &shared, of).0);
        let before = sim.stats();
        for round in 0..10 {
            let of = round % 2;
            activate(&spaces[of]);
            assert_eq!(number(&sim), Some(of as u64 + 1));
        }
        let done = sim.stats() - before;
        assert_eq!((done.flushes, done.hits), (2, 8));
        spaces.iter().for_each(|space| remove(&sim, space));
        let other = assigned(&shared);
        activate(&other);
        let before = sim.stats();
        drop(spaces);
        assert_eq!((sim.stats() - before).flushes, 0, "a space with a tag ends without a flush");
        Leaked::new(other)
    });
}

/// Fixed tags stay their spaces'. A fixed tag that could be another space's by now is refused.
#[test]
fn fixed_tags_are_not_handed_out() {
    let (sim, shared) = machine(1, 8);
    sim.on_cpu(0, || {
        let fixed = |tag| Space::user(&shared, Asid(tag), None);
        let first = [1, 4].map(|tag| fixed(tag).unwrap());
        drop(fixed(5));
        let spaces: Vec<_> = (1..=9).map(|of| numbered(&sim, &shared, of).0).collect();
        for space in spaces.iter().chain(&spaces) {
            activate(space);
            assert!([2, 3, 6, 7].contains(&space.space().unwrap().0));
        }
        for tag in [0, 2, 3, 6, 7, 8] {
            assert_eq!(fixed(tag).map(drop), Err(Error::Tag(Asid(tag))));
        }
        // SAFETY: the space has no pages.
        let child = unsafe { first[0].fork(Asid(2), false) }.map(drop);
        assert_eq!(child.map_err(|failed| failed.error), Err(Error::Tag(Asid(2))));
        let again = fixed(5).unwrap();
        activate(&again);
        assert_eq!(number(&sim), None);
        spaces.iter().for_each(|space| remove(&sim, space));
        drop((first, spaces));
        Leaked::new(again)
    });
}

/// With too few tags, spaces share one, and keep nothing. With none left, they are refused.
#[test]
fn too_few_tags() {
    for tags in [1, 2, 5] {
        let (sim, shared) = machine(3, tags);
        sim.on_cpu(0, || {
            let fixed =
                (1..tags as u16 - 1).map(|tag| Space::<Grace>::user(&shared, Asid(tag), None));
            let fixed: Vec<_> = fixed.collect();
            let spaces: Vec<_> = (1..=4).map(|of| numbered(&sim, &shared, of).0).collect();
            let tag = spaces[0].space();
            assert_eq!(tag, Some(Asid(tags as u16 - 1)));
            for _ in 0..2 {
                for (space, of) in spaces.iter().zip(1..) {
                    activate(space);
                    assert_eq!((number(&sim), space.space()), (Some(of), tag));
                }
            }
            spaces.iter().for_each(|space| remove(&sim, space));
            drop(fixed);
            Leaked::new(spaces)
        });
    }
    let (sim, shared) = machine(1, 3);
    sim.on_cpu(0, || {
        let _fixed = [1, 2].map(|tag| Space::<Grace>::user(&shared, Asid(tag), None).unwrap());
        let failed = Space::<Grace>::user(&shared, Tag::Assigned, None);
        assert_eq!(failed.map(drop), Err(Error::NoTag));
    });
}

/// A CPU that has entered gets the flushes, whether the space has a tag or not.
#[test]
fn a_cpu_that_has_entered_gets_flushes_without_a_tag() {
    let (sim, shared) = machine(2, 6);
    let (space, _) = sim.on_cpu(0, || numbered(&sim, &shared, 1));
    sim.on_cpu(1, || space.enter());
    sim.on_cpu(0, || {
        assert_eq!(space.cpus(), CpuSet::only(CpuId::new(1).unwrap()));
        let before = sim.stats();
        remove(&sim, &space);
        assert_eq!((sim.stats() - before).ipis_sent, 1);
    });
    // SAFETY: it was never active.
    sim.on_cpu(1, || unsafe { space.leave() });
    assert!(space.cpus().is_empty());
    sim.on_cpu(0, || drop(space));
    all_given_back(&sim, &shared).unwrap();
}

/// A deferred flush names the tag that the space has when it is performed; a dropped one flushes
/// everything.
#[test]
fn a_deferred_flush_waits_while_the_tag_changes() {
    for dropped in [false, true] {
        let (sim, shared) = machine(1, 4);
        sim.on_cpu(0, || {
            let spaces: Vec<_> = (1..=5).map(|of| numbered(&sim, &shared, of).0).collect();
            let (space, others) = spaces.split_first().unwrap();
            activate(space);
            assert_eq!(number(&sim), Some(1));
            let before = space.space();
            let mut deferred = space.deferred_flush();
            others.iter().for_each(activate);
            activate(space);
            assert_eq!(number(&sim), Some(1));
            assert_ne!(space.space(), before, "the test is about another tag");
            let mut gone = None;
            let pending = space.unmap_own(pages(AT, 1), |page| gone = Some(page.frame)).unwrap();
            pending.defer_to(&mut deferred);
            match dropped {
                true => drop(deferred),
                false => space.flush_deferred(deferred),
            }
            release(&sim, gone.unwrap());
            assert_eq!(number(&sim), None);
            others.iter().for_each(|space| remove(&sim, space));
            Leaked::new(spaces)
        });
    }
}

const SPACES: usize = 8;

/// Three CPUs run more spaces than there are tags, and replace the pages of spaces that others may
/// have active.
fn turns(seed: u64) -> Result<(), Failure> {
    let checks = Checks { stale: Stale::Freed, walked: true, freed_cached: true, ..Checks::ALL };
    let config =
        Config { cpus: 3, frames: 512, tags: 7, checks, speculation: 300, ..Config::default() };
    let (sim, shared) = machine_of::<X86_64L4>(config);
    let spaces: Vec<_> = sim.on_cpu(0, || {
        (0..SPACES as u64).map(|of| Leaked::new(numbered(&sim, &shared, of).0)).collect()
    });
    let busy: Vec<_> = spaces.iter().map(|_| AtomicBool::new(false)).collect();
    let program = |cpu: u64| {
        let (sim, shared, spaces, busy) = (&sim, &shared, &spaces, &busy);
        Box::new(move || {
            let mut random = seed * 3 + cpu + 1;
            let mut below = |end: u64| {
                // Knuth's MMIX generator; its high bits.
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (random >> 33) % end
            };
            let mut own = None;
            for round in 0..14 {
                let of = below(SPACES as u64) as usize;
                let space: &Space = &spaces[of];
                activate(space);
                if let Some(found) = number(sim) {
                    assert_eq!(found, of as u64);
                }
                let other = below(SPACES as u64) as usize;
                // SeqCst: a lock of the test.
                if below(2) == 0 && !busy[other].swap(true, Ordering::SeqCst) {
                    let (space, mut gone) = (&spaces[other], None);
                    let range = pages(AT, 1);
                    let pending = space.unmap_own(range, |page| gone = Some(page.frame)).unwrap();
                    match below(3) {
                        0 => space.flush_deferred(pending.defer()),
                        _ => pending.flush(),
                    }
                    release(sim, gone.unwrap());
                    let frame = numbered_page(sim, other as u64);
                    space.map_own(range, frame, Attrs::USER_RO).unwrap();
                    busy[other].store(false, Ordering::SeqCst);
                }
                if round % 5 == 4 {
                    // A space that comes and goes, with the tag of another.
                    let (new, _) = numbered(sim, shared, 100);
                    activate(&new);
                    assert_eq!(number(sim), Some(100));
                    remove(sim, &new);
                    activate(space);
                    drop(new);
                }
                if let Some(before) = own.replace(of)
                    && before != of
                {
                    match below(4) {
                        // SAFETY: another space is active.
                        0 => unsafe { spaces[before].leave() },
                        1 => {}
                        // SAFETY: another space is active.
                        _ => unsafe { spaces[before].idle() },
                    }
                }
            }
        }) as Program
    };
    seeded(&sim, seed, (0..3).map(program).collect())?;
    assert!(shared.tag_generations() > 0);
    sim.on_cpu(0, || {
        for space in spaces {
            let space = Leaked::into_inner(space);
            remove(&sim, &space);
            drop(space);
        }
    });
    Ok(all_given_back(&sim, &shared)?)
}

#[test]
#[cfg_attr(miri, ignore = "Miri has no coroutines")]
fn spaces_take_turns_on_three_cpus() {
    right(400, turns);
}

/// A CPU has a space active throughout, while another one goes through all tags. Flushes of the
/// active space still reach it.
fn active_throughout(seed: u64) -> Result<(), Failure> {
    let (sim, shared) = machine(2, 6);
    let spaces: Vec<_> =
        sim.on_cpu(0, || (0..7).map(|of| Leaked::new(numbered(&sim, &shared, of).0)).collect());
    let (ready, done) = (AtomicU64::new(0), AtomicU64::new(0));
    let stays = || {
        activate(&spaces[0]);
        assert_eq!(number(&sim), Some(0));
        let tag = spaces[0].space();
        ready.store(1, Ordering::SeqCst);
        while done.load(Ordering::SeqCst) == 0 {
            sim.relax();
        }
        assert_eq!((number(&sim), spaces[0].space()), (None, tag));
    };
    let goes = || {
        while ready.load(Ordering::SeqCst) == 0 {
            sim.relax();
        }
        for space in spaces[1..].iter().chain(&spaces[1..]) {
            activate(space);
        }
        assert!(shared.tag_generations() > 0);
        assert!(spaces[0].cpus().contains(CpuId::default()));
        let before = sim.stats();
        remove(&sim, &spaces[0]);
        assert_eq!((sim.stats() - before).ipis_sent, 1);
        done.store(1, Ordering::SeqCst);
    };
    seeded(&sim, seed, vec![Box::new(stays) as Program, Box::new(goes)])?;
    sim.on_cpu(0, || {
        spaces[1..].iter().for_each(|space| remove(&sim, space));
        spaces.into_iter().for_each(|space| drop(Leaked::into_inner(space)));
    });
    Ok(all_given_back(&sim, &shared)?)
}

#[test]
#[cfg_attr(miri, ignore = "Miri has no coroutines")]
fn an_active_space_keeps_its_tag() {
    right(200, active_throughout);
}
