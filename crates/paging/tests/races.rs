//! CPUs that map, unmap, protect, split and walk in the same tables, under the deterministic
//! driver.

mod common;

use common::*;
use grace::Reclaim;
use machine::*;
use paging::*;
use sim::{Checks, Config, Failure, Grace, Program, Sim, Stale, Want, seeded};

const SEEDS: u64 = 300;
/// The last pages of a table, and of the one above, so that borders are near.
const AT: u64 = 0x3fff_e000;

/// A CPU that accesses pages of another owner races with unmaps: it may use an old translation
/// until the flush.
fn config() -> Config {
    let checks = Checks { stale: Stale::Freed, walked: true, ..Checks::ALL };
    Config { cpus: 3, frames: 96, tick: Some(23), speculation: 100, checks, ..Config::default() }
}

fn activate(space: &Space) {
    space.activate_own();
}

/// As a page-fault handler: the page is mapped, so the fault was spurious. It does not repeat; on
/// hardware that does not guarantee that, the handler flushes.
fn spurious(sim: &Sim, at: VirtAddr) {
    if !sim.config().faults_drop {
        let range = VirtRange::new(at.align_down(PageSize::Size4K), 0x1000).unwrap();
        let (space, stride) = (Some(Asid(1)), PageSize::Size4K);
        sim.flush(Flush::Range { space, range, stride, tables: true });
    }
}

fn store(sim: &Sim, at: VirtAddr, value: u64) {
    let store = || sim.store_own(at, value);
    store().or_else(|_| (spurious(sim, at), store()).1).unwrap();
}

fn load(sim: &Sim, at: VirtAddr) -> u64 {
    let load = || sim.load_own(at);
    load().or_else(|_| (spurious(sim, at), load()).1).unwrap()
}

/// Ends a run: the address space is active on no CPU. All that was retired is freed; one table is
/// left, then none.
fn finish(sim: &Sim, shared: &Shared, space: Leaked<Space>) -> Result<(), Failure> {
    sim.on_cpu(0, || {
        assert!(sim.settle());
        assert_eq!(tables(sim), 1, "empty tables stay");
        let all = VirtRange::new(virt(0), 1 << 47).unwrap();
        sim.check_flushed(space.root(), space.space(), all);
        sim.check_upper_flushed(space.root(), space.space(), all);
    });
    end(sim, shared, space)
}

/// Each CPU maps, uses and unmaps its own pages, next to those of the other; tables come and go. A
/// third CPU reads.
fn neighbours(config: Config, seed: u64) -> Result<(), Failure> {
    let (sim, shared) = machine_of::<X86_64L4>(config);
    let space: Leaked<Space> = leaked_user(&sim, &shared);
    let owner = |cpu: u64| {
        let (sim, space) = (&sim, &space);
        Box::new(move || {
            activate(space);
            for round in 0..3 {
                let range = pages(AT + (cpu << 12) + ((round & 1) << 21), 1);
                let frame = block(sim, 0);
                sim.check_reuse(Some(Asid(1)), range);
                space.map_own(range, frame, Attrs::USER_RW).unwrap();
                store(sim, range.start(), cpu + round);
                let pending = space.protect_own(range, Flags::READ | Flags::USER).unwrap();
                assert_eq!(pending.range(), Some(range));
                pending.flush();
                assert_eq!(load(sim, range.start()), cpu + round);
                let mut gone = None;
                space.unmap_own(range, |page| gone = Some(page)).unwrap().flush();
                let gone = gone.unwrap();
                assert_eq!((gone.frame, gone.page), (frame, range.start()));
                assert!(gone.attrs.flags.contains(Flags::ACCESSED | Flags::DIRTY));
                sim.check_flushed(space.root(), Some(Asid(1)), range);
                release(sim, frame);
                Grace::reclaim(usize::MAX);
            }
        }) as Program
    };
    // Reads by hardware and in software.
    let reader = || {
        activate(&space);
        for round in 0..6 {
            let at = virt(AT + ((round % 4) << 12));
            let _ = sim.translate(at, Want::default());
            let guard = Grace::pin();
            if let Some(page) = space.walk(&guard).get(at) {
                assert_eq!(page.page, at);
            }
            let seen = space.walk(&guard).pages(pages(AT, 600)).count();
            assert!(seen <= 4, "{seen} pages");
        }
    };
    seeded(&sim, seed, vec![owner(0), owner(1), Box::new(reader)])?;
    finish(&sim, &shared, space)
}

#[test]
fn tables_come_and_go_under_readers() {
    for faults_drop in [true, false] {
        right(SEEDS, |seed| neighbours(Config { faults_drop, ..config() }, seed));
    }
}

/// One CPU splits pieces off a large page and unmaps them, while another uses the rest and a third
/// walks.
fn pieces(seed: u64) -> Result<(), Failure> {
    let (sim, shared) = machine_of::<X86_64L4>(Config { frames: 1200, tick: Some(97), ..config() });
    let (space, large) = sim.on_cpu(0, || {
        let space = Space::<Grace>::user(&shared, Asid(1), None).unwrap();
        let large = block(&sim, 9);
        space.map_own(pages(0x20_0000, 512), large, Attrs::USER_RW).unwrap();
        (Leaked::new(space), large)
    });
    let (piece, other) = (pages(0x20_7000, 2), virt(0x20_1000));
    let splitter = || {
        activate(&space);
        let failed = space.unmap_own(piece, |_| ()).map(drop);
        assert_eq!(refused(failed), Error::Cut(virt(0x20_0000), PageSize::Size2M));
        space.split_own(piece.start(), PageSize::Size4K).unwrap().flush();
        let mut gone = Vec::new();
        space.unmap_own(piece, |page| gone.push(page)).unwrap().flush();
        sim.check_flushed(space.root(), Some(Asid(1)), piece);
        let frames: Vec<u64> = gone.iter().map(|page| page.frame.number()).collect();
        assert_eq!(frames, [large.number() + 7, large.number() + 8]);
    };
    let user = || {
        activate(&space);
        for round in 0..4 {
            store(&sim, other, round);
            assert_eq!(load(&sim, other), round);
            let _ = sim.translate(piece.start(), Want::default());
        }
    };
    let walker = || {
        for _ in 0..4 {
            let page = space.walk(&<Grace as grace::Reclaim>::pin()).get(other).unwrap();
            assert_eq!(page.frame_of(other).unwrap().number(), large.number() + 1);
        }
    };
    seeded(&sim, seed, vec![Box::new(splitter), Box::new(user), Box::new(walker)])?;
    sim.on_cpu(0, || {
        let mut dirty = 0;
        let count = |page: Mapping| dirty += u64::from(page.attrs.flags.contains(Flags::DIRTY));
        space.unmap_own(pages(0x20_0000, 512), count).unwrap().flush();
        assert!(dirty >= 1, "the dirty bit is lost");
        release(&sim, large);
    });
    finish(&sim, &shared, space)
}

#[test]
fn large_pages_are_split_under_users() {
    right(SEEDS / 2, pieces);
}

/// The kernel's half is shared by every space. A kernel mapping appears in spaces made before it;
/// the kernel's top-level entries are fixed.
fn kernel(seed: u64) -> Result<(), Failure> {
    const TOP: u64 = 0xffff_8000_0000_0000;
    let (sim, shared) = machine_of::<X86_64L4>(Config { checks: Checks::ALL, ..config() });
    let at = pages(TOP + 0x5000, 1);
    let (kernel, users) = sim.on_cpu(0, || {
        let kernel = std::sync::Arc::new(Space::<Grace>::kernel(&shared).unwrap());
        kernel.reserve(pages(TOP, 1)).unwrap();
        // SAFETY: a table.
        let entry = unsafe { sim.entry(kernel.root(), 256) }.unwrap().load();
        sim.constructed(QUICK_ROOT, move |index| if index == 256 { entry } else { 0 });
        let user = |asid| Space::user(&shared, Asid(asid), Some(kernel.clone())).unwrap();
        let users = [user(1), user(2)];
        assert!(matches!(Space::<Grace>::kernel(&shared), Err(Error::SecondKernel)));
        let elsewhere = pages(TOP + (1 << 39), 1);
        let failed = kernel.map_own(elsewhere, unused_block(), Attrs::KERNEL_RW).unwrap_err();
        assert_eq!(failed.error, Error::TopLevelFixed(elsewhere.start()));
        drop(failed);
        let failed = users[0].map_own(at, unused_block(), Attrs::KERNEL_RW);
        assert_eq!(refused(failed), Error::Kernel(at.start()));
        (Leaked::new(kernel), Leaked::new(users))
    });
    let turn = std::sync::atomic::AtomicU32::new(0);
    let is = |value: u32| {
        sim.step(SharedAccess::Other);
        turn.load(std::sync::atomic::Ordering::SeqCst) == value
    };
    let set = |value| turn.store(value, std::sync::atomic::Ordering::SeqCst);
    let mapper = || {
        activate(&users[0]);
        for round in 0..2 {
            let frame = block(&sim, 0);
            sim.check_reuse(None, at);
            kernel.map_own(at, frame, Attrs::KERNEL_RW).unwrap();
            // The kernel tolerates no fault at all.
            sim.store_own(at.start(), round).unwrap();
            set(2 * round as u32 + 1);
            while !is(2 * round as u32 + 2) {
                sim.relax();
            }
            kernel.unmap_own(at, |_| ()).unwrap().flush();
            release(&sim, frame);
            Grace::reclaim(usize::MAX);
        }
    };
    let user = || {
        activate(&users[1]);
        for round in 0..2 {
            while !is(2 * round as u32 + 1) {
                sim.relax();
            }
            assert_eq!(sim.load_own(at.start()), Ok(round));
            set(2 * round as u32 + 2);
        }
    };
    seeded(&sim, seed, vec![Box::new(mapper), Box::new(user)])?;
    sim.on_cpu(0, || {
        // The root, the reserved table, two tables for the page, and two user roots.
        assert_eq!(tables(&sim), 6);
        kernel.prune_own(pages(TOP, 1 << 18)).unwrap().flush();
        assert!(sim.settle());
        assert_eq!(tables(&sim), 4);
    });
    sim.on_cpu(0, || drop((Leaked::into_inner(users), Leaked::into_inner(kernel))));
    Ok(all_given_back(&sim, &shared)?)
}

fn unused_block() -> Frame {
    Frame::new(1 << 20).unwrap()
}

#[test]
fn the_kernels_half_is_every_spaces() {
    right(SEEDS, kernel);
}

/// A deferred flush that others are added to, performed once.
#[test]
fn deferred_flushes_are_done_later() {
    let (sim, shared) = machine_of::<X86_64L4>(Config { cpus: 2, frames: 96, ..Config::default() });
    let space = sim.on_cpu(1, || {
        let space = Space::<Grace>::user(&shared, Asid(1), None).unwrap();
        activate(&space);
        Leaked::new(space)
    });
    sim.on_cpu(0, || {
        let ranges = [pages(0x1000, 1), pages(0x4000_0000, 2), pages(0x7f_ffff_f000, 1)];
        let frames: Vec<Frame> = ranges.iter().map(|_| block(&sim, 1)).collect();
        let mut deferred = space.deferred_flush();
        for (range, frame) in ranges.iter().zip(&frames) {
            space.map_own(*range, *frame, Attrs::USER_RW).unwrap();
            space.unmap_own(*range, |_| ()).unwrap().defer_to(&mut deferred);
        }
        assert_eq!(deferred.range(), VirtRange::between(virt(0x1000), virt(0x80_0000_0000)));
        assert_eq!(tables(&sim), 1 + 3 * 3, "the unlinked tables do not wait");
        let before = sim.stats();
        space.flush_deferred(deferred);
        assert_eq!((sim.stats() - before).flushes, 1, "only the CPU that uses the space flushes");
        space.flush_deferred(space.deferred_flush());
        assert_eq!((sim.stats() - before).flushes, 1);
        frames.into_iter().for_each(|frame| release(&sim, frame));
    });
    finish(&sim, &shared, space).unwrap();
}

/// Deferred flushes of pages of two sizes, and of tables, are merged. The one flush drops all of
/// it, in whatever order they were added.
#[test]
fn joined_deferred_flushes_are_all_done() {
    let (sim, shared) =
        machine_of::<X86_64L4>(Config { cpus: 2, frames: 4096, ..Config::default() });
    let space: Leaked<Space> = leaked_user(&sim, &shared);
    // A large page, a small one, and one that is alone in its tables.
    let kinds = [pages(0x20_0000, 512), pages(0x80_5000, 1), pages(0x7f_ffff_e000, 1)];
    // These keep the tables of the first two alive.
    let neighbours = [pages(0x40_0000, 512), pages(0x80_7000, 1)];
    let map = |range: &VirtRange| {
        let frame = block(&sim, if range.len() == 4096 { 0 } else { 9 });
        space.map_own(*range, frame, Attrs::USER_RW).unwrap();
        frame
    };
    let kept: Vec<Frame> = sim.on_cpu(0, || neighbours.iter().map(map).collect());
    let orders = [[0, 1], [1, 0], [1, 2], [2, 1], [0, 2], [2, 0]];
    for (order, by_join) in orders.iter().flat_map(|order| [(order, false), (order, true)]) {
        let ranges = order.map(|kind| kinds[kind]);
        let frames = sim.on_cpu(0, || ranges.map(|range| map(&range)));
        sim.on_cpu(1, || {
            activate(&space);
            ranges.iter().for_each(|range| store(&sim, range.start(), 1));
        });
        sim.on_cpu(0, || {
            let mut deferred = space.deferred_flush();
            for range in ranges {
                let pending = space.unmap_own(range, |_| ()).unwrap();
                match by_join {
                    true => deferred.join(pending.defer()),
                    false => pending.defer_to(&mut deferred),
                }
            }
            let before = sim.stats();
            space.flush_deferred(deferred);
            assert_eq!((sim.stats() - before).flushes, 1);
            for range in ranges {
                sim.check_flushed(space.root(), space.space(), range);
                sim.check_upper_flushed(space.root(), space.space(), range);
            }
            frames.into_iter().for_each(|frame| release(&sim, frame));
            assert!(sim.settle());
        });
    }
    sim.on_cpu(0, || {
        neighbours.iter().for_each(|range| space.unmap_own(*range, |_| ()).unwrap().flush());
        kept.into_iter().for_each(|frame| release(&sim, frame));
    });
    finish(&sim, &shared, space).unwrap();
}

/// Accessed and dirty bits set while another CPU protects or unmaps the page are not lost.
fn marked(seed: u64, protect: bool) -> Result<(), Failure> {
    let checks = Checks { stale: Stale::Off, ..Checks::ALL };
    let (sim, shared) =
        machine_of::<X86_64L4>(Config { cpus: 2, frames: 64, checks, ..Config::default() });
    let range = pages(0x5000, 1);
    let (space, frame) = sim.on_cpu(0, || {
        let space = Space::<Grace>::user(&shared, Asid(1), None).unwrap();
        let frame = block(&sim, 0);
        space.map_own(range, frame, Attrs::USER_RW).unwrap();
        (Leaked::new(space), frame)
    });
    let (mut wrote, mut dirty) = (false, false);
    let changer = || {
        if protect {
            space.protect_own(range, Flags::READ | Flags::USER).unwrap().flush();
        }
        let gone = |page: Mapping| dirty = page.attrs.flags.contains(Flags::DIRTY);
        space.unmap_own(range, gone).unwrap().flush();
    };
    let user = || {
        activate(&space);
        wrote = sim.store_own(range.start(), 1).is_ok();
    };
    seeded(&sim, seed, vec![Box::new(changer) as Program, Box::new(user)])?;
    assert!(!wrote || dirty, "seed {seed}: written, and not dirty");
    sim.on_cpu(0, || release(&sim, frame));
    finish(&sim, &shared, space)
}

#[test]
fn marks_are_not_lost() {
    for protect in [false, true] {
        right(3000, |seed| marked(seed, protect));
    }
}

/// One CPU enters and leaves a space, repeatedly, while the other changes a mapping there. The CPU
/// is in the set of the space's CPUs before it translates, by speculation, too.
fn come_and_go(seed: u64) -> Result<(), Failure> {
    let checks = Checks { freed_cached: true, ..config().checks };
    let (sim, shared) =
        machine_of::<X86_64L4>(Config { cpus: 2, speculation: 1000, checks, ..config() });
    let space = |asid| Leaked::new(Space::<Grace>::user(&shared, Asid(asid), None).unwrap());
    let (first, second) = sim.on_cpu(0, || (space(1), space(2)));
    let (range, neighbour) = (pages(AT, 1), pages(AT + 0x1000, 1));
    // The tables stay, so the flush comes right after the entry is cleared.
    let stays = sim.on_cpu(0, || {
        let frame = block(&sim, 0);
        first.map_own(neighbour, frame, Attrs::USER_RW).unwrap();
        frame
    });
    let changer = || {
        for _ in 0..12 {
            let frame = block(&sim, 0);
            first.map_own(range, frame, Attrs::USER_RW).unwrap();
            (0..8).for_each(|_| sim.step(SharedAccess::Other));
            first.unmap_own(range, |_| ()).unwrap().flush();
            sim.check_flushed(first.root(), first.space(), range);
            release(&sim, frame);
        }
    };
    let user = || {
        for _ in 0..20 {
            activate(&first);
            let _ = sim.translate(range.start(), Want::default());
            activate(&second);
            // SAFETY: other tables are active here.
            unsafe { first.leave() };
        }
    };
    seeded(&sim, seed, vec![Box::new(changer) as Program, Box::new(user)])?;
    sim.on_cpu(0, || {
        first.unmap_own(neighbour, |_| ()).unwrap().flush();
        release(&sim, stays);
        drop(Leaked::into_inner(second));
    });
    finish(&sim, &shared, first)
}

#[test]
fn a_cpu_is_known_before_it_translates() {
    right(SEEDS, come_and_go);
}
