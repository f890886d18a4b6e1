//! All calls on all CPUs in random order. CPUs unmap areas of other CPUs, and enter and leave idle;
//! some tick, some do not, and one never starts. With ample and with scarce address space.

use super::{Ends, PAGE, World, machine, on, race, right};
use crate::{Error, Options};
use machine::{Frame, SharedAccess, Step, VirtAddr};
use oorandom::Rand32;
use paging::Attrs;
use sim::Failure;
use spin::mutex::SpinMutex;
use std::sync::Arc;
use std::vec;
use std::vec::Vec;

const CPUS: usize = 3;

/// A mapping, with a mark in the first word of its first and its last page.
struct Mapped {
    at: VirtAddr,
    pages: u64,
    /// The frame, if the caller supplied it.
    frame: Option<Frame>,
    ram: bool,
    mark: u64,
}

/// The parameters of a test.
#[derive(Clone, Copy)]
struct MixSpace {
    ram: bool,
    areas: bool,
    /// Areas have at least 50 pages, all of one frame.
    large: bool,
    mib: u64,
    rounds: u32,
    /// The limit of waiting pages per CPU, beyond which CPUs are interrupted.
    patience: u64,
}

const RAM: MixSpace =
    MixSpace { ram: true, areas: false, large: false, mib: 32, rounds: 30, patience: 40_000 };
const AREAS: MixSpace = MixSpace { ram: false, areas: true, rounds: 40, ..RAM };
/// Four blocks in all, in one zone, and frequent broadcasts.
const SHORT: MixSpace = MixSpace { areas: true, mib: 8, rounds: 40, patience: 100, ..RAM };
/// Each CPU's zone has room for a few areas; further areas come from other zones.
const STEAL: MixSpace = MixSpace { large: true, mib: 16, rounds: 60, patience: 1000, ..AREAS };

struct Mix<'a> {
    world: &'a World,
    kind: MixSpace,
    /// For each CPU, the mappings that it is to unmap.
    mail: &'a [SpinMutex<Vec<Mapped>>; CPUS],
}

impl Mix<'_> {
    fn map(&self, random: &mut Rand32) -> Result<Mapped, Error> {
        let world = self.world;
        let mark = u64::from(random.rand_u32());
        let ram = self.kind.ram && (!self.kind.areas || random.rand_range(0..3) != 0);
        let vmap = world.vmap();
        let large = [64, 64, 17, 70][random.rand_range(0..4) as usize];
        let pages = if ram {
            [1, 4, 64, large][random.rand_range(0..4) as usize]
        } else if self.kind.large {
            random.rand_range(50..128).into()
        } else {
            random.rand_range(1..6).into()
        };
        let frame = || world.frame();
        let mapped = |at, frame| Mapped { at, pages, frame, ram, mark };
        let frames = |frame| vec![frame; pages as usize];
        let of_caller = |map: &dyn Fn(&[Frame]) -> Result<VirtAddr, Error>| {
            let frame = frame();
            let at = map(&frames(frame)).inspect_err(|_| world.release(&[frame]))?;
            Ok(mapped(at, Some(frame)))
        };
        let done = match random.rand_range(0..4) {
            _ if ram => of_caller(&|frames| vmap.vm_map_ram(frames, Attrs::KERNEL_RW)),
            kind if kind == 0 || self.kind.large => {
                of_caller(&|frames| vmap.vmap(frames, Attrs::KERNEL_RW))
            }
            1 => vmap.vzalloc(pages * PAGE).map(|at| mapped(at, None)),
            2 => {
                let at = vmap.vmalloc(PAGE * 3)?;
                // SAFETY: the memory is not used yet.
                let moved = unsafe { vmap.vrealloc(at, pages * PAGE) };
                // SAFETY: it is still at its old address, and ours.
                let moved = moved.inspect_err(|_| unsafe { vmap.vfree(at) }.unwrap());
                moved.map(|at| mapped(at, None))
            }
            _ => vmap.vmalloc(pages * PAGE).map(|at| mapped(at, None)),
        };
        done.inspect(|mapped| {
            world.store(mapped.at, mark);
            world.store(last(mapped), mark);
        })
    }

    fn unmap(&self, mapped: Mapped) {
        let (world, vmap) = (self.world, self.world.vmap());
        assert_eq!(world.load(last(&mapped)), mapped.mark);
        assert_eq!(world.load(mapped.at), mapped.mark);
        match mapped.frame {
            Some(_) if mapped.ram => vmap.end_ram(mapped.at, mapped.pages as usize).unwrap(),
            Some(_) => vmap.end_vmap(mapped.at).unwrap(),
            // SAFETY: no code uses it any more.
            None => unsafe { vmap.vfree(mapped.at) }.unwrap(),
        }
        mapped.frame.inspect(|frame| world.release(&[*frame]));
    }

    fn run(&self, seed: u64, cpu: usize) {
        let mut random = Rand32::new(seed * CPUS as u64 + cpu as u64);
        for _ in 0..self.kind.rounds {
            match random.rand_range(0..64) {
                0 => self.world.vmap().poll(),
                1 => self.world.vmap().purge(),
                2 => self.world.vmap().vm_unmap_aliases(),
                3 => self.world.tlb_grace.flush(),
                4 | 5 => {
                    self.world.stop();
                    (0..random.rand_range(0..200))
                        .for_each(|_| self.world.sim.step(SharedAccess::Other));
                    self.world.start();
                }
                6..34 => match self.map(&mut random) {
                    Ok(mapped) => {
                        let to = if random.rand_range(0..2) == 0 {
                            cpu
                        } else {
                            random.rand_range(0..CPUS as u32) as usize
                        };
                        self.mail[to].lock().push(mapped);
                    }
                    Err(error) => {
                        assert!(self.kind.mib < 32 && matches!(error, Error::NoSpace(_)), "{error}")
                    }
                },
                _ => {
                    let mapped = self.mail[cpu].lock().pop();
                    mapped.into_iter().for_each(|mapped| self.unmap(mapped));
                }
            }
        }
    }
}

fn last(mapped: &Mapped) -> VirtAddr {
    mapped.at.checked_add((mapped.pages - 1) * PAGE).unwrap()
}

fn mix(kind: MixSpace, seed: u64) -> Result<(), Failure> {
    // The last CPU never starts.
    let (config, ticking) = machine(seed, CPUS + 1);
    let options = Options { bytes_per_interrupt: kind.patience * PAGE, ..Options::default() };
    let world = World::ticking(config, kind.mib, options, ticking);
    let mail: Arc<[SpinMutex<Vec<Mapped>>; CPUS]> = Default::default();
    let cpu = |world: &Arc<World>, cpu| {
        let mail = mail.clone();
        on(world, move |world| Mix { world, kind, mail: &mail }.run(seed, cpu))
    };
    let finish = |world: &World| {
        let mix = Mix { world, kind, mail: &mail };
        mail.iter().for_each(|mail| mail.lock().drain(..).for_each(|mapped| mix.unmap(mapped)));
    };
    let programs = |world: &Arc<World>| (0..CPUS).map(|number| cpu(world, number)).collect();
    race(seed, world, programs, finish)
}

#[test]
fn small_maps() {
    right(|seed| mix(RAM, seed));
}

#[test]
fn areas() {
    right(|seed| mix(AREAS, seed));
}

#[test]
fn next_to_no_space() {
    right(|seed| mix(SHORT, seed));
}

#[test]
fn from_other_zones() {
    right(|seed| mix(STEAL, seed));
}
