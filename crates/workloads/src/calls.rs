//! The `calls` experiment: single calls, timed as Linux's were in the same emulator (see
//! [`CASES`]).
//!
//! A time is that of the wall clock over all operations of all CPUs together. Instructions are
//! counted where the lab can count.
//!
//! The Linux figures are from a kernel module, on one CPU and on two at once, with nothing else to
//! do. There are two kernels, both without mitigations: Debian's, and a lean build without
//! hardening. The times were taken on another day, on a host like this one. The instructions depend
//! on neither. As in that module, an operation includes unpinning.

use crate::barrier::{Watch, at_once};
use crate::error::Error;
use crate::experiment::{Experiment, Needs, Part};
use crate::lab::Lab;
use crate::space::{Space, range_of};
use crate::timing::Rounds;
use crate::vmap::{Areas, LazyAreas, Rig, fewer, with_rig};
use alloc::format;
use alloc::vec::Vec;
use grace::Concurrent;
use lock_api::RawRwLockFair;
use machine::{Frame, Machine, NodePolicy, Translated};
use paging::unpin;
use report::{Report, Row, Target};

const NAME: &str = "calls";
const OURS: &str = "ours";
const PEERS: [&str; 2] = ["Linux 6.12, Debian's", "Linux 6.12, lean"];
/// Pages that are mapped; and the most pages that are pinned at once.
const PAGES: usize = 4;
const MOST: usize = 16;
/// Operations of a CPU in a batch.
const BATCH: usize = 25;

/// The operation.
#[derive(Clone, Copy, PartialEq, Eq)]
enum CallKind {
    /// `vm_map_ram`, a word written in each page, `vm_unmap_ram`.
    Ram,
    /// The same, and a purge of all lazily unmapped addresses.
    Purged,
    /// `vmap`, `vunmap`.
    Vmap,
    /// `vmalloc`, `vfree`.
    Vmalloc,
    /// `get_user_pages_fast`, and unpinning.
    Fast,
    /// The same under the address space's lock.
    Locked,
    /// A frame allocated and freed.
    Frame,
}

/// An operation on so many pages; whether beating Linux is a target; and the figures of the two
/// kernels, Debian's and lean: nanoseconds on one CPU, on two, and instructions on one.
struct CallCase {
    call: CallKind,
    name: &'static str,
    size: usize,
    target: bool,
    linux: [[f64; 2]; 3],
}

const NONE: f64 = f64::NAN;

#[rustfmt::skip]
const CASES: [CallCase; 9] = [
    CallCase { call: CallKind::Ram, name: "vm_map_ram, touch, vm_unmap_ram", size: PAGES, target: true,
        linux: [[1779.0, 1489.0], [1310.0, 676.0], [1344.0, 1130.0]] },
    CallCase { call: CallKind::Vmap, name: "vmap, vunmap", size: PAGES, target: true,
        linux: [[3026.0, 2974.0], [2270.0, 1317.0], [3321.0, 2510.0]] },
    CallCase { call: CallKind::Vmalloc, name: "vmalloc, vfree", size: PAGES, target: true,
        linux: [[5143.0, 4086.0], [3692.0, 2138.0], [5700.0, 4482.0]] },
    CallCase { call: CallKind::Purged, name: "vm_map_ram, touch, vm_unmap_ram, purge", size: PAGES, target: false,
        linux: [[13995.0, 11966.0], [51747.0, NONE], [7500.0, NONE]] },
    CallCase { call: CallKind::Fast, name: "get_user_pages_fast", size: 1, target: true,
        linux: [[495.0, 334.0], [295.0, 185.0], [628.0, 480.0]] },
    CallCase { call: CallKind::Fast, name: "get_user_pages_fast", size: MOST, target: true,
        linux: [[2180.0, 1663.0], [1336.0, 946.0], [3787.0, 2571.0]] },
    CallCase { call: CallKind::Locked, name: "get_user_pages, under the lock", size: 1, target: false,
        linux: [[997.0, 755.0], [NONE, 405.0], [1116.0, 862.0]] },
    CallCase { call: CallKind::Locked, name: "get_user_pages, under the lock", size: MOST, target: false,
        linux: [[5903.0, 4458.0], [NONE, 2556.0], [9444.0, 6600.0]] },
    CallCase { call: CallKind::Frame, name: "a frame taken and given back", size: 1, target: false,
        linux: [[760.0, 312.0], [448.0, 165.0], [845.0, 510.0]] },
];

pub(crate) fn experiment<M, G, R>() -> Experiment<M, G, R>
where
    M: Machine + Translated,
    G: Concurrent,
    R: RawRwLockFair + Send + Sync,
{
    Experiment {
        name: NAME,
        help: "Single calls, compared with Linux's in the same emulator: only with samara boot bench",
        parts: Vec::from([Part { needs: Needs::Emulator, run: calls }]),
        work: None,
    }
}

/// Measures single calls on each number of CPUs, compared with Linux's figures. The comparison is
/// valid only in the emulator in which Linux was measured.
///
/// # Errors
/// The machine has too little memory: it takes 520 frames for each CPU.
fn calls<M: Machine + Translated, G: Concurrent, R: RawRwLockFair + Send + Sync>(
    lab: &Lab<'_, M, G, R>,
) -> Result<Report, Error> {
    let most = lab.cpus.iter().copied().max().unwrap_or(1);
    let paging = lab.paging()?;
    let space = lab.on_first(|| Space::<M, G, R>::new(&paging, most))?;
    let result = with_rig(lab, PAGES, |rig, report| {
        LazyAreas::with(rig, 0, |areas| {
            let site = Site { rig, areas, space: &space };
            let mut each = || CASES.iter().try_for_each(|case| site.measure(case, report));
            // With timers no CPU is interrupted, as in Linux.
            areas.ticking(rig, &mut each).unwrap_or_else(each)
        })
    });
    let ended = lab.on_first(|| space.end(most));
    lab.settle(&paging);
    result.and_then(|report| Ok(ended.map(|()| report)?))
}

/// The place of the operations.
struct Site<'s, 'l, 'a, M: Machine, G: Concurrent, R> {
    rig: &'s Rig<'l, 'a, M, G, R>,
    areas: &'s LazyAreas<M, G>,
    space: &'s Space<M, G, R>,
}

impl<M: Machine + Translated, G: Concurrent, R: RawRwLockFair + Send + Sync>
    Site<'_, '_, '_, M, G, R>
{
    /// Makes one operation on this CPU.
    fn once(&self, case: &CallCase, cpu: usize) -> Result<(), Error> {
        let Site { rig, areas, space } = self;
        let machine = rig.lab.host.machine;
        match case.call {
            CallKind::Ram => rig.cycle(*areas, cpu, case.size),
            CallKind::Purged => {
                rig.cycle(*areas, cpu, case.size)?;
                areas.purge();
                Ok(())
            }
            CallKind::Vmap => areas.give_up(areas.keep(rig.frames(case.size))?),
            CallKind::Vmalloc => areas.free(areas.alloc(case.size)?),
            CallKind::Fast | CallKind::Locked => {
                let mut frames = [Frame::default(); MOST];
                let (at, into) = (range_of(cpu).start(), &mut frames[..case.size]);
                let pinned = match case.call {
                    CallKind::Fast => space.pin_fast(at, into),
                    _ => space.pin_locked(at, into),
                };
                // SAFETY: they were pinned just now, and nothing uses them.
                unsafe { unpin(machine, &frames[..pinned]) };
                if pinned == case.size { Ok(()) } else { Err(Error::Full { pages: case.size }) }
            }
            CallKind::Frame => {
                let frame = machine.alloc(0, NodePolicy::Local)?;
                // SAFETY: nothing has used it.
                Ok(unsafe { machine.free(frame) }?)
            }
        }
    }

    fn measure(&self, case: &CallCase, report: &mut Report) -> Result<(), Error> {
        let lab = self.rig.lab;
        let times = lab.scale.batches * BATCH;
        for cpus in lab.cpus.iter().copied() {
            let times = match case.call {
                CallKind::Purged => fewer(times, cpus),
                _ => times,
            };
            (lab.progress)(&format!("calls: {}, {} pages on {cpus} CPUs", case.name, case.size));
            let mut found = Rounds::default();
            for _ in 0..lab.scale.rounds {
                found.push(self.round(case, cpus, times)?);
            }
            let row = Row::new(NAME, case.name, OURS, cpus, case.size);
            report.rows.extend(found.rows(&row, "time", "ns"));
            let linux = case.linux.get(cpus - 1).filter(|_| cpus < 3);
            self.compare(case, cpus, "time", "ns", linux, found.median(), report);
        }
        self.cost(case, report)
    }

    /// Nanoseconds of an operation on so many CPUs at once.
    fn round(&self, case: &CallCase, cpus: usize, times: usize) -> Result<f64, Error> {
        let rig = self.rig;
        let measure = |cpu: usize, watch: &Watch<'_, M>| {
            rig.inside(self.areas, || {
                // The first operations fill caches.
                rig.repeat(times / 8 + 1, || self.once(case, cpu))?;
                watch.start();
                let done = rig.repeat(times, || self.once(case, cpu));
                watch.stop();
                done.map(|()| 0.0)
            })
        };
        let taken = at_once(rig.lab, cpus, measure, Vec::new())?;
        Ok(taken.wall as f64 / (times * cpus) as f64)
    }

    /// Counts the instructions of an operation.
    fn cost(&self, case: &CallCase, report: &mut Report) -> Result<(), Error> {
        let lab = self.rig.lab;
        let row = Row::new(NAME, case.name, OURS, 1, case.size);
        let mut cost = None;
        self.rig.on_first(self.areas, || {
            // Once, to report an error.
            self.once(case, 0)?;
            let mut once = || {
                let _ = core::hint::black_box(self.once(case, 0));
            };
            let mut prepare = || (lab.host.quiet)();
            cost = lab.cost(&mut report.rows, &row, &mut prepare, &mut once);
            Ok(())
        })?;
        if let Some(cost) = cost {
            let linux = Some(&case.linux[2]);
            self.compare(case, 1, "instructions", "", linux, cost.instructions, report);
        }
        Ok(())
    }

    /// Adds Linux's figures next to ours, and the target.
    #[expect(clippy::too_many_arguments, reason = "they are one line of a table")]
    fn compare(
        &self,
        case: &CallCase,
        cpus: usize,
        metric: &str,
        unit: &str,
        linux: Option<&[f64; 2]>,
        ours: f64,
        report: &mut Report,
    ) {
        let Some(linux) = linux else { return };
        for (peer, value) in PEERS.into_iter().zip(linux).filter(|(_, value)| !value.is_nan()) {
            let row = Row::new(NAME, case.name, peer, cpus, case.size);
            report.rows.push(row.with(metric, *value, unit));
        }
        // If the clock counts instructions, its times are no times.
        if case.target && (unit.is_empty() || self.rig.lab.measure_cost.is_none()) {
            let (name, pages) = (case.name, case.size);
            let target =
                format!("{metric} of that of lean Linux: {name}, {pages} pages, {cpus} CPUs");
            report.targets.push(Target::at_most(NAME, target, ours / linux[1], 1.0));
        }
    }
}

/// A CPU has enough pages for the largest call.
const _: () = assert!(crate::space::PAGES >= MOST);
