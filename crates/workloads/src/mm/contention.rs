//! Faults of one CPU, alone and while another CPU maps and unmaps in the same space without pause.

use super::loops::{CORTEN, Cpu, WILL_IT_SCALE};
use super::memory::{SharedMemory, populate};
use super::{NAME, SpaceContext, SpaceKind};
use crate::barrier::{Background, Watch, at_once};
use crate::error::Error;
use crate::lab::Lab;
use crate::timing::{Rounds, Timer};
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use grace::Concurrent;
use lock_api::RawRwLockFair;
use machine::Machine;
use report::{Report, Row, Target};

/// Batches of a round, as a multiple of the lab's.
const LONGER: usize = 4;

pub(super) fn measure<M: Machine, G: Concurrent, R: RawRwLockFair + Send + Sync + 'static>(
    lab: &Lab<'_, M, G, R>,
    context: &Arc<SpaceContext<M>>,
    report: &mut Report,
) -> Result<(), Error> {
    if lab.host.machine.count() < 2 {
        return Ok(());
    }
    (lab.progress)("mm: faults while another CPU maps and unmaps");
    for way in SpaceKind::ALL {
        let mut times: [Rounds; 2] = Default::default();
        for _ in 0..lab.scale.rounds {
            for (times, contended) in times.iter_mut().zip([false, true]) {
                times.push(round(lab, context, way, contended)?);
            }
        }
        for (times, case) in times.iter().zip(["faults alone", "faults with a mapper"]) {
            report.rows.extend(times.rows(&Row::new(NAME, case, way.name(), 1, 1), "time", "ns"));
        }
        let ratio = times[1].times(&times[0]);
        let row = Row::new(NAME, "faults with a mapper", way.name(), 1, 1);
        report.rows.push(row.with("of the time alone", ratio, ""));
        if way == SpaceKind::Ours && lab.at_once {
            let target = "time of a fault with a mapper, of that alone";
            report.targets.push(Target::at_most(NAME, target, ratio, 1.15));
        }
    }
    Ok(())
}

/// Processor time of a fault.
fn round<M: Machine, G: Concurrent, R: RawRwLockFair + Send + Sync + 'static>(
    lab: &Lab<'_, M, G, R>,
    context: &Arc<SpaceContext<M>>,
    way: SpaceKind,
    contended: bool,
) -> Result<f64, Error> {
    let find = |name| CORTEN.iter().chain(&WILL_IT_SCALE).find(|which| which.name == name);
    let (Some(faults), Some(maps)) = (find("fault 1 page"), find("mmap1")) else {
        return Ok(f64::NAN);
    };
    let space: SharedMemory = lab.on_first(|| {
        let space = way.make::<M, G, R>(context)?;
        populate(&*space)?;
        Ok::<_, Error>(space)
    })?;
    let measure = |_: usize, watch: &Watch<'_, M>| {
        let cpu = Cpu::new(0);
        space.enter();
        let timer = Timer::new(lab.time);
        let mut times = Rounds::default();
        watch.start();
        let mut result = Ok(());
        for _ in 0..lab.scale.batches * LONGER / 8 + 1 {
            result = result.and((faults.begin)(&*space, &cpu, 0));
            (lab.host.quiet)();
            times.push(timer.each(faults.batch, || {
                result = result
                    .and((0..faults.batch).try_for_each(|run| (faults.once)(&*space, &cpu, run)));
            }));
        }
        watch.stop();
        space.leave();
        result.map(|()| times.median())
    };
    let mut others: Vec<Background<'_, M, Error>> = Vec::new();
    if contended {
        others.push(Box::new(|barrier, watch| {
            let cpu = Cpu::new(1);
            space.enter();
            watch.start();
            let mut result = Ok(());
            while !barrier.is_over() && result.is_ok() {
                result = (maps.once)(&*space, &cpu, 0);
                (lab.host.quiet)();
            }
            space.leave();
            result
        }));
    }
    let taken = at_once(lab, 1, measure, others);
    lab.on_first(|| drop(space));
    lab.settle(&context.paging);
    Ok(taken?.time)
}
