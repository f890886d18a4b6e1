//! The address space held for mapped buffers, after a long run.
//!
//! Each CPU has buffers of a directory, with the sizes of [`Random::directory`]. In each step a
//! random one is unmapped and another is mapped. In the end every second buffer is unmapped, which
//! leaves many holes, and the address space is measured again.
//!
//! The address space held is that which nothing else can use: areas with their guards, blocks with
//! any page in use, and addresses that wait for a flush. A second figure is without the addresses
//! that wait.

use super::random::Random;
use super::{AFTER, Areas, BEFORE, Both, NAME, NODES, QUIET, Rig, TICKS};
use crate::error::Error;
use crate::meeting::{Watch, at_once};
use alloc::format;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};
use grace::Concurrent;
use machine::{Machine, Translated, VirtAddr};
use report::{Report, Row};

/// Buffers of a CPU.
const BUFFERS: usize = 256;

/// Measures on the most CPUs.
pub(super) fn measure<M: Machine + Translated, G: Concurrent, R: Sync>(
    rig: &Rig<'_, '_, M, G, R>,
    both: &Both<M, G>,
    report: &mut Report,
) -> Result<(), Error> {
    let cpus = rig.lab.cpus.last().copied().unwrap_or(1);
    (rig.lab.progress)(&format!("vmap: address space held, on {cpus} CPUs"));
    let steps = rig.lab.scale.batches * 250;
    let like = |case: &str, name: &str| Row::new(NAME, case, name, cpus, 0);
    held(rig, &both.old, cpus, steps / 50, &like(QUIET, BEFORE), report)?;
    held(rig, &both.nodes, cpus, steps, &like(QUIET, NODES), report)?;
    held(rig, &both.new, cpus, steps, &like(QUIET, AFTER), report)?;
    let ticking = || held(rig, &both.new, cpus, steps, &like(TICKS, AFTER), report);
    both.new.ticking(rig, ticking).unwrap_or(Ok(()))
}

fn held<M: Machine + Translated, G: Concurrent, R: Sync>(
    rig: &Rig<'_, '_, M, G, R>,
    areas: &impl Areas,
    cpus: usize,
    steps: usize,
    like: &Row,
    report: &mut Report,
) -> Result<(), Error> {
    let used = || rig.on_first(areas, || Ok(areas.info().0));
    rig.settle(areas);
    let before = used()?;
    // The address and the pages of each buffer.
    let empty = || (AtomicU64::new(0), AtomicU64::new(0));
    let buffers: Vec<_> = (0..cpus * BUFFERS).map(|_| empty()).collect();
    // Relaxed, here and below: each CPU uses its own, and they are read between the runs.
    let unmap = |(at, pages): &(AtomicU64, AtomicU64)| match pages.swap(0, Ordering::Relaxed) {
        0 => Ok(()),
        pages => areas.unmap(VirtAddr::new(at.load(Ordering::Relaxed)), pages as usize),
    };
    let run = |cpu: usize, watch: &Watch<'_, M>| {
        rig.inside(areas, || {
            let mut random = Random::new(cpu);
            let own = &buffers[cpu * BUFFERS..][..BUFFERS];
            watch.start();
            rig.repeat(steps, || {
                let buffer = &own[random.below(BUFFERS)];
                unmap(buffer)?;
                let pages = random.directory();
                let at = areas.map(rig.frames(pages))?;
                buffer.0.store(at.get(), Ordering::Relaxed);
                buffer.1.store(pages as u64, Ordering::Relaxed);
                rig.touch(at, pages, cpu)
            })?;
            Ok(0.0)
        })
    };
    let ran = at_once(rig.lab, cpus, run, Vec::new());
    let mut look = |when: &str| {
        // Relaxed: as above.
        let mapped: u64 = buffers.iter().map(|buffer| buffer.1.load(Ordering::Relaxed)).sum();
        let held = |used: u64| used.saturating_sub(before) as f64 / (mapped << 12) as f64;
        let like = Row { case: format!("{when}, {}", like.case), ..like.clone() };
        report.rows.push(like.with("held per byte mapped", held(used()?), "bytes"));
        rig.settle(areas);
        let metric = "held per byte mapped, nothing waits";
        report.rows.push(like.with(metric, held(used()?), "bytes"));
        Ok::<_, Error>(())
    };
    let unmap_all =
        |step: usize| rig.on_first(areas, || buffers.iter().step_by(step).try_for_each(unmap));
    if ran.is_ok() {
        look("a long run")?;
        unmap_all(2)?;
        look("half of it gone")?;
    }
    ran.map(drop).and(unmap_all(1))
}
