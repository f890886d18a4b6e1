//! The program of each CPU, and its checks.

use crate::common::*;
use machine::*;
use oorandom::Rand64;
use paging::{Attrs, Cache};
use sim::{Checks, Config, Grace, Program, threads};
use std::error::Error as Failure;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use vmap::{Allocation, Contents, Error, Guard, Options, Request};

const CPUS: usize = 4;
/// Small enough that space runs out now and then.
const MIB: u64 = 96;
/// Frames for `vmap` and `vm_map_ram`. The first word of each always holds its frame number.
const POOL: usize = 128;
/// The maximum number of areas that wait for one CPU to unmap them.
const MAIL: usize = 60;

/// Statistics.
#[derive(Default)]
pub(crate) struct Done {
    maps: AtomicU64,
    unmaps: AtomicU64,
    moves: AtomicU64,
    reads: AtomicU64,
    naps: AtomicU64,
    /// Calls that failed for lack of space or memory.
    refused: AtomicU64,
}

fn bump(count: &AtomicU64) {
    // Relaxed: a statistic.
    count.fetch_add(1, Relaxed);
}

impl fmt::Display for Done {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Relaxed: as `bump`.
        let count = |count: &AtomicU64| count.load(Relaxed);
        let (maps, unmaps, moves) = (count(&self.maps), count(&self.unmaps), count(&self.moves));
        let (reads, naps, refused) = (count(&self.reads), count(&self.naps), count(&self.refused));
        write!(
            f,
            "{maps} mappings, {unmaps} unmappings, {moves} moves, {reads} reads, {naps} idle \
             periods, {refused} refused for lack of space or memory"
        )
    }
}

/// A mapping.
#[derive(Clone, Copy)]
struct Mapped {
    at: VirtAddr,
    pages: u64,
    kind: MappedKind,
}

#[derive(Clone, Copy)]
enum MappedKind {
    /// Frames of the pool, from this index on.
    Vmap(usize),
    Ram(usize),
    /// Memory; the first word of some pages is this number XOR the page's index.
    Memory(u64),
    Device,
}

/// The pages that are examined, of so many.
fn some(pages: u64) -> impl Iterator<Item = u64> {
    (0..pages).step_by((pages / 8).max(1) as usize).chain([pages - 1])
}

struct Soak {
    world: World,
    pool: Vec<Frame>,
    mail: [Mutex<Vec<Mapped>>; CPUS],
    done: Done,
}

impl Soak {
    fn map(&self, random: &mut Rand64) -> Result<Mapped, Error> {
        let vmap = self.world.vmap();
        let mut roll = |below: u64| random.rand_range(0..below);
        let first = roll(POOL as u64 / 2) as usize;
        let pages = [4, 1 + roll(16), 1 + roll(64)][roll(3) as usize];
        let frames = &self.pool[first..first + pages as usize];
        let (at, pages, kind) = match roll(16) {
            0..7 => (vmap.vm_map_ram(frames, Attrs::KERNEL_RW)?, pages, MappedKind::Ram(first)),
            7..9 => (vmap.vmap(frames, Attrs::KERNEL_RW)?, pages, MappedKind::Vmap(first)),
            9 => {
                let bytes = 1 + roll(3 << 20);
                let device = PhysRange::new(PhysAddr::new(roll(1 << 31)), bytes);
                let device = device.ok_or(Error::ZeroSize)?;
                (vmap.ioremap(device, Cache::Uncached)?, 1, MappedKind::Device)
            }
            call => {
                let pages = [1 + roll(4), pages, pages, 1 + roll(600)][roll(4) as usize];
                let (zero, huge) = (call & 1 == 0, roll(8) == 0);
                let memory = Allocation { zero, huge, ..Allocation::new(pages * PAGE) };
                let guards = [Guard::None, Guard::Above, Guard::Below, Guard::Both];
                let guard = Some(guards[roll(4) as usize]);
                let align = if roll(8) == 0 { PAGE << roll(8) } else { PAGE };
                let request = Request::new(Contents::Memory(memory));
                let at = vmap.create(&Request { align, guard, ..request })?;
                if zero {
                    some(pages).for_each(|page| assert_eq!(self.world.load(of(at, page)), 0));
                }
                (at, pages, MappedKind::Memory(roll(u64::MAX)))
            }
        };
        let mapped = Mapped { at, pages, kind };
        self.mark(&mapped);
        self.check(&mapped);
        Ok(mapped)
    }

    fn mark(&self, mapped: &Mapped) {
        if let MappedKind::Memory(mark) = mapped.kind {
            some(mapped.pages).for_each(|page| self.world.store(of(mapped.at, page), mark ^ page));
        }
    }

    /// Checks that all examined pages are mapped and unchanged.
    fn check(&self, mapped: &Mapped) {
        for page in some(mapped.pages) {
            let expected = match mapped.kind {
                MappedKind::Vmap(first) | MappedKind::Ram(first) => {
                    self.pool[first + page as usize].number()
                }
                MappedKind::Memory(mark) => mark ^ page,
                MappedKind::Device => return,
            };
            assert_eq!(self.world.load(of(mapped.at, page)), expected, "page {page}");
        }
    }

    /// Resizes or unmaps an area. Returns it if it still exists.
    fn unmap(&self, mut mapped: Mapped, random: &mut Rand64) -> Option<Mapped> {
        let vmap = self.world.vmap();
        self.check(&mapped);
        bump(&self.done.unmaps);
        let at = mapped.at;
        let unmapped = match mapped.kind {
            MappedKind::Vmap(_) => vmap.end_vmap(at),
            MappedKind::Ram(_) => vmap.end_ram(at, mapped.pages as usize),
            MappedKind::Device => vmap.end_io(at),
            MappedKind::Memory(_) => match random.rand_range(0..8) {
                0 | 1 => {
                    let pages = 1 + random.rand_range(0..2 * mapped.pages);
                    // SAFETY: no other code uses it.
                    match unsafe { vmap.vrealloc(at, pages * PAGE) } {
                        Ok(moved) => {
                            self.check(&Mapped { at: moved, pages: 1, ..mapped });
                            (mapped.at, mapped.pages) = (moved, pages);
                            self.mark(&mapped);
                            bump(&self.done.moves);
                        }
                        Err(error) => self.refused(error),
                    }
                    return Some(mapped);
                }
                2 => {
                    let _interrupt = self.world.sim.irqs_off();
                    // SAFETY: as above.
                    unsafe { vmap.vfree_atomic(at) }
                }
                // SAFETY: as above.
                _ => unsafe { vmap.vfree(at) },
            },
        };
        unmapped.unwrap_or_else(|error| panic!("{error}"));
        None
    }

    fn refused(&self, error: Error) {
        let full =
            matches!(error, Error::NoSpace(_) | Error::Frames(FrameError::OutOfFrames { .. }));
        assert!(full, "{error}");
        bump(&self.done.refused);
    }

    fn read(&self, random: &mut Rand64) {
        bump(&self.done.reads);
        let vmap = self.world.vmap();
        let info = vmap.get_vmalloc_info();
        assert!(info.largest_free <= info.total);
        let mut end = vmap.space().start();
        vmap.vmallocinfo(|info| {
            assert!(info.range.start() >= end && vmap.space().covers(&info.range), "{info}");
            end = info.range.end().unwrap_or(end);
        });
        let mut bytes = [0; 3 * PAGE as usize];
        let at = virt(vmap.space().start().get() + random.rand_range(0..MIB << 20));
        // SAFETY: words are written through translations only.
        assert!(unsafe { vmap.vread(at, &mut bytes) } <= bytes.len());
        if let Some(area) = vmap.find_vm_area(at) {
            assert!(area.range.contains(at));
        }
    }

    fn mail(&self, cpu: usize) -> std::sync::MutexGuard<'_, Vec<Mapped>> {
        self.mail[cpu].lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self, cpu: usize, seed: u64, goes_on: impl Fn() -> bool) {
        let (world, mut random) = (&self.world, Rand64::new(u128::from(seed) << 8 | cpu as u128));
        world.start();
        while goes_on() {
            let mine = self.mail(cpu).len();
            match random.rand_range(0..512) {
                0 => {
                    bump(&self.done.naps);
                    world.stop();
                    (0..random.rand_range(0..2000)).for_each(|_| world.sim.relax());
                    world.start();
                }
                1 => world.vmap().purge(),
                2 => world.vmap().vm_unmap_aliases(),
                3..6 => {
                    world.vmap().poll();
                    // As in a kernel's idle loop: otherwise, retired memory is freed only when
                    // memory runs out.
                    Grace::reclaim(usize::MAX);
                }
                6..16 => self.read(&mut random),
                roll if mine != 0 && (roll & 1 == 0 || mine > MAIL) => {
                    // A random one, so that some live short and some live long.
                    let which = random.rand_range(0..mine as u64) as usize;
                    let mapped = self.mail(cpu).swap_remove(which);
                    let kept = self.unmap(mapped, &mut random);
                    self.mail(cpu).extend(kept);
                }
                roll if mine <= MAIL => match self.map(&mut random) {
                    Ok(mapped) => {
                        bump(&self.done.maps);
                        let to = if roll & 2 == 0 { cpu } else { roll as usize / 4 % CPUS };
                        self.mail(to).push(mapped);
                    }
                    Err(error) => self.refused(error),
                },
                _ => {}
            }
        }
        world.stop();
    }
}

fn of(at: VirtAddr, page: u64) -> VirtAddr {
    virt(at.get() + page * PAGE)
}

/// Runs for a given time. Returns a summary, or the first failure.
pub(crate) fn soak(
    time: Duration,
    seed: u64,
    checks: Checks,
    progress: impl Fn(String) + Sync,
) -> Result<String, Box<dyn Failure>> {
    let config =
        Config { cpus: CPUS, frames: 12 << 10, tick: Some(5000), checks, ..Config::default() };
    let options = Options { bytes_per_interrupt: 2000 * PAGE, ..Options::default() };
    let world = World::new(config, MIB, options);
    let pool = world.sim.on_cpu(0, || world.frames(POOL));
    world.on(0, || {
        let at = world.vmap().vmap(&pool, Attrs::KERNEL_RW)?;
        let numbers = pool.iter().map(|frame| frame.number()).enumerate();
        numbers.for_each(|(page, number)| world.store(of(at, page as u64), number));
        world.vmap().end_vmap(at)
    })?;
    let soak = Soak { world, pool, mail: Default::default(), done: Done::default() };
    let (began, said) = (Instant::now(), AtomicU64::new(0));
    let goes_on = |cpu| {
        let elapsed = began.elapsed();
        // Relaxed: only one CPU uses it.
        if cpu == 0 && elapsed.as_secs() / 10 > said.load(Relaxed) {
            said.store(elapsed.as_secs() / 10, Relaxed);
            let (info, grace) =
                (soak.world.vmap().get_vmalloc_info(), soak.world.tlb_grace.stats());
            progress(format!(
                "{} of {} s: {}; {} areas, {} broadcasts, {} MiB used, {} MiB waiting, \
                 {} MiB kept",
                elapsed.as_secs(),
                time.as_secs(),
                soak.done,
                info.areas,
                grace.broadcasts,
                info.used >> 20,
                info.waiting >> 20,
                info.kept >> 20
            ));
        }
        elapsed < time
    };
    let (soak_ref, goes_on) = (&soak, &goes_on);
    let program = |cpu| Box::new(move || soak_ref.run(cpu, seed, || goes_on(cpu))) as Program;
    threads(&soak.world.sim, (0..CPUS).map(program).collect())?;

    let (stats, grace) = (soak.world.sim.stats(), soak.world.tlb_grace.stats());
    let done = format!(
        "{}\n{} IPIs, {} broadcasts to {} other CPUs in total, {} flushes, {} ticks",
        soak.done, stats.ipis_sent, grace.broadcasts, grace.interrupted, stats.flushes, stats.ticks
    );
    soak.world.on(1, || {
        let mut random = Rand64::new(u128::from(seed));
        for cpu in 0..CPUS {
            while let Some(mapped) = { soak.mail(cpu).pop() } {
                let kept = soak.unmap(mapped, &mut random);
                soak.mail(cpu).extend(kept);
            }
        }
        soak.world.release(&soak.pool);
    });
    soak.world.end()?;
    Ok(done)
}
