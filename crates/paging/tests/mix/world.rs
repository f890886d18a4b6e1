//! The machine, its spaces, and the operations of each CPU.

use crate::common::{OnSim, Own, all_given_back, machine_of};
use crate::space::{LiveSpace, REGIONS};
use grace::Reclaim;
use machine::*;
use paging::*;
use sim::{Checks, Config, Failure, Grace, Program, Sim, Stale, seeded};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

pub(crate) type Tables<F> = PageTables<Sim, F, Grace>;

const CPUS: usize = 3;
/// The maximum number of user spaces.
const HOMES: usize = 2;
/// The number of operations of each CPU.
const OPERATIONS: usize = 20;
/// For the slow CPU in a duel. The others continue until it has finished, but make at most `MOST`.
const LOOKS: usize = 40;
const MOST: usize = 400;
const STARTING: &str = "there are frames at the start";

/// SplitMix64: each CPU draws its operations from its own generator.
pub(crate) struct Rng(u64);

impl Rng {
    pub(crate) fn new(seed: u64) -> Rng {
        Rng(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5851_f42d_4c95_7f2d)
    }

    pub(crate) fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((word ^ (word >> 31)) % limit as u64) as usize
    }

    /// True once in `of` times.
    pub(crate) fn chance(&mut self, of: usize) -> bool {
        self.below(of) == 0
    }
}

pub(crate) struct World<F: OnSim> {
    pub(crate) sim: Sim,
    pub(crate) shared: Arc<Paging<Sim, F>>,
    pub(crate) kernel: Arc<LiveSpace<F>>,
    /// The user spaces; `None` while one is dropped and made anew.
    homes: Vec<Mutex<Option<Arc<LiveSpace<F>>>>>,
    /// Whether large pages are used: they take many frames.
    large: bool,
    /// The slow CPU, if the seed is for a duel: a CPU that mostly reads.
    duel: Option<usize>,
    /// Whether the duel is for kernel pages, which all CPUs change.
    kernel_duel: bool,
    /// The slow CPU has finished.
    over: AtomicBool,
    /// The number of regions used. With one region and one space, CPUs collide most often.
    pub(crate) regions: usize,
    next_id: AtomicU64,
    /// Frames that were written through a translation since they were mapped.
    pub(crate) written: Mutex<BTreeSet<Frame>>,
}

/// One CPU.
pub(crate) struct Cpu<'w, F: OnSim> {
    pub(crate) world: &'w World<F>,
    pub(crate) rng: Rng,
    /// The active space.
    pub(crate) current: Arc<LiveSpace<F>>,
}

fn config<F: OnSim>(rng: &mut Rng, large: bool) -> Config {
    // CPUs also use pages that others map at this moment, and tolerate the fault. A CPU uses the
    // pages that it maps itself at once.
    let (stale, published) = (Stale::Freed, false);
    let checks = Checks { stale, published, walked: true, freed_cached: true, ..Checks::ALL };
    let frames = match rng.below(8) {
        _ if large => 2 * F::LARGE.frames() + 160 * F::PAGE.frames(),
        0 => 56 * F::PAGE.frames(),
        _ => 192 * F::PAGE.frames(),
    };
    Config {
        cpus: CPUS,
        frames,
        nodes: 1 + rng.below(2),
        tlb_entries: [4, 64, 64][rng.below(3)],
        broadcast: F::BREAK_BEFORE_MAKE && !large,
        upper_entries: [0, 2, 8, 8][rng.below(4)],
        tags: [1, 4096, 4096, 4096][rng.below(4)],
        speculation: [0, 200, 1000][rng.below(3)],
        tick: Some([2, 3, 7, 41][rng.below(4)]),
        caches_absent: rng.below(2) == 0,
        checks,
        ..Config::default()
    }
}

/// Timer interrupts give back requested pages of the lists; on one CPU some interrupts are long.
fn interrupts<F: OnSim>(sim: &Sim, shared: &Arc<Paging<Sim, F>>, slow: usize, long: usize) {
    // Weak: the machine owns the handler, which must not keep the `Paging` alive.
    let shared = Arc::downgrade(shared);
    let state = AtomicU64::new(slow as u64);
    let tick = move |sim: &Sim| {
        if let Some(shared) = shared.upgrade() {
            shared.quick().tick();
        }
        let mut rng = Rng::new(state.fetch_add(1, Relaxed));
        if sim.current().index() == slow && long != 0 && rng.chance(long) {
            for _ in 0..32 << rng.below(4) {
                sim.relax();
                Grace::quiescent_state();
            }
            Grace::reclaim(usize::MAX);
        }
    };
    sim.on_tick(tick).unwrap();
}

impl<F: OnSim> World<F> {
    pub(crate) fn run(seed: u64) -> Result<(), Failure> {
        let mut rng = Rng::new(seed ^ 0xabcd);
        let slow = seed as usize % CPUS;
        let duel = rng.chance(2).then_some(slow);
        // With tables of 8192 entries, a split takes long.
        let large = duel.is_none() && rng.chance(3) && (F::ENTRIES <= 2048 || rng.chance(4));
        let (sim, shared) = machine_of::<F>(config::<F>(&mut rng, large));
        let long = if duel.is_some() { 2 } else { [0, 2, 4, 12][rng.below(4)] };
        interrupts(&sim, &shared, slow, long);
        let counts = match duel {
            Some(_) => (1, 1),
            None => ([1, REGIONS][rng.below(2)], 1 + rng.below(HOMES)),
        };
        let mut world = sim.on_cpu(0, || World::new(&sim, &shared, large, counts));
        world.duel = duel;
        world.kernel_duel = duel.is_some() && rng.chance(3);
        let program = |cpu: usize| {
            let world = &world;
            let rng = Rng::new(seed << 3 | cpu as u64);
            Box::new(move || {
                let mut cpu = Cpu { world, rng, current: Arc::clone(&world.kernel) };
                // A CPU with the kernel's own tables active uses only the kernel's half, and needs
                // flushes, too.
                let first = world.home(&mut cpu.rng).filter(|_| !cpu.rng.chance(4));
                cpu.activate(first.unwrap_or_else(|| Arc::clone(&world.kernel)));
                let looks = world.duel == Some(world.sim.current().index());
                let count = if looks { LOOKS } else { OPERATIONS };
                (0..count).for_each(|_| cpu.operate());
                // In a duel the others make changes for as long as the slow one reads.
                match world.duel {
                    Some(slow) if slow == world.sim.current().index() => {
                        world.over.store(true, Relaxed)
                    }
                    Some(_) => cpu.operate_until_over(),
                    None => {}
                }
            }) as Program
        };
        seeded(&sim, seed, (0..CPUS).map(program).collect())?;
        sim.on_cpu(0, || world.end());
        all_given_back(&sim, &shared)?;
        assert_eq!(shared.waiting(), 0, "tables wait forever");
        assert_eq!(Arc::strong_count(&shared), 1, "chains that are back keep the `Paging` alive");
        Ok(())
    }

    fn new(
        sim: &Sim,
        shared: &Arc<Paging<Sim, F>>,
        large: bool,
        (regions, homes): (usize, usize),
    ) -> World<F> {
        let kernel = LiveSpace::kernel(Tables::kernel(shared).expect(STARTING));
        for region in 0..REGIONS {
            kernel.tables.reserve(kernel.region(region)).expect(STARTING);
        }
        let world = World {
            sim: sim.clone(),
            shared: Arc::clone(shared),
            kernel: Arc::new(kernel),
            homes: (0..homes).map(|_| Mutex::default()).collect(),
            large,
            duel: None,
            kernel_duel: false,
            over: AtomicBool::new(false),
            regions,
            next_id: AtomicU64::new(1),
            written: Mutex::default(),
        };
        for home in 0..homes {
            *world.homes[home].lock().unwrap() = world.new_space(home);
        }
        world
    }

    /// Makes a user space, with the same tag each time; `None` if there are no frames.
    fn new_space(&self, home: usize) -> Option<Arc<LiveSpace<F>>> {
        let kernel = Arc::clone(&self.kernel.tables);
        let id = self.next_id.fetch_add(1, Relaxed);
        match Tables::user(&self.shared, Asid(home as u16 + 1), Some(kernel)) {
            Ok(tables) => Some(Arc::new(LiveSpace::program(tables, id))),
            Err(Error::Frames(_)) => None,
            Err(error) => panic!("{error}"),
        }
    }

    /// One of the user spaces.
    pub(crate) fn home(&self, rng: &mut Rng) -> Option<Arc<LiveSpace<F>>> {
        self.homes[rng.below(self.homes.len())].lock().unwrap().clone()
    }

    /// Checks that no TLB has a translation of an address that is about to be reused. With one tag
    /// for all spaces, translations of other spaces are allowed.
    pub(crate) fn check_reuse(&self, live: &LiveSpace<F>, range: VirtRange) {
        if self.sim.config().tags != 1 || live.is_kernel() {
            self.sim.check_reuse(live.tables.space(), range);
        }
    }

    /// Checks that all pending flushes of the range were performed.
    pub(crate) fn flushed(&self, live: &LiveSpace<F>, range: VirtRange) {
        if self.sim.config().tags != 1 || live.is_kernel() {
            self.sim.check_flushed(live.tables.root(), live.tables.space(), range);
        }
    }

    pub(crate) fn release(&self, frame: Frame) {
        crate::common::release(&self.sim, frame);
    }

    /// Drops an unused space with all its mappings.
    fn drop_space(&self, live: LiveSpace<F>) {
        let frames = live.frames();
        live.into_tables();
        frames.into_iter().for_each(|frame| self.release(frame));
    }

    fn end(self) {
        for home in &self.homes {
            if let Some(live) = home.lock().unwrap().take() {
                self.drop_space(Arc::into_inner(live).expect("a CPU still has a space"));
            }
        }
        let World { sim, kernel, .. } = self;
        let kernel = Arc::into_inner(kernel).expect("a CPU still has the kernel's tables");
        let frames = kernel.frames();
        kernel.into_tables();
        frames.into_iter().for_each(|frame| crate::common::release(&sim, frame));
    }
}

impl<F: OnSim> Cpu<'_, F> {
    /// Activates a space on this CPU.
    pub(crate) fn activate(&mut self, live: Arc<LiveSpace<F>>) {
        live.tables.activate_own();
        let before = std::mem::replace(&mut self.current, live);
        if !before.is_kernel() && !Arc::ptr_eq(&before, &self.current) && self.rng.chance(3) {
            // SAFETY: other tables are active here.
            unsafe { before.tables.leave() };
        }
    }

    /// One CPU reads or changes pages slowly; the others change the same pages again and again.
    fn duel(&mut self, slow: bool) {
        if self.world.kernel_duel {
            return self.change_kernel();
        }
        match (slow, self.rng.below(8)) {
            (true, 0..5) => self.pin(),
            (true, 5 | 6) => self.change_small(),
            (true, _) if self.rng.chance(2) => self.walk(),
            (true, _) => self.come_and_go(),
            (false, 0..6) => self.again(),
            (false, 6) => self.empty(),
            (false, _) => self.change_small(),
        }
    }

    fn operate_until_over(&mut self) {
        for _ in 0..MOST {
            if self.world.over.load(Relaxed) {
                return;
            }
            self.operate();
        }
    }

    fn operate(&mut self) {
        if self.current.is_closing() {
            self.activate(Arc::clone(&self.world.kernel));
        }
        if let Some(slow) = self.world.duel {
            return self.duel(self.world.sim.current().index() == slow);
        }
        match self.rng.below(24) {
            0 | 1 => self.switch(),
            2 => self.drop_and_make(),
            3 => self.give_memory_back(),
            4..7 if self.world.large => self.large(),
            5..8 => self.change_kernel(),
            8..15 => self.change_small(),
            15..20 => self.pin(),
            20 => self.walk(),
            _ => self.touch(),
        }
    }

    /// Leaves a space and enters it again: this CPU must be in its set before it translates.
    fn come_and_go(&mut self) {
        for _ in 0..4 {
            let Some(live) = self.world.home(&mut self.rng) else { return };
            self.activate(live);
            self.touch();
            let before = self.current.clone();
            self.activate(Arc::clone(&self.world.kernel));
            // SAFETY: the kernel's tables are active here.
            unsafe { before.tables.leave() };
        }
    }

    fn switch(&mut self) {
        if let Some(live) = self.world.home(&mut self.rng) {
            self.activate(live);
        }
        self.touch();
    }

    /// Drops a space with its mapped pages, and makes another with its tag.
    fn drop_and_make(&mut self) {
        let world = self.world;
        let home = self.rng.below(world.homes.len());
        let Some(live) = world.homes[home].lock().unwrap().take() else { return };
        live.close();
        // Two CPUs that each drop a space must not wait for each other.
        self.activate(Arc::clone(&world.kernel));
        while Arc::strong_count(&live) != 1 {
            world.sim.relax();
        }
        world.drop_space(Arc::into_inner(live).expect("it was the last"));
        let made = world.new_space(home);
        *world.homes[home].lock().unwrap() = made.clone();
        if let Some(live) = made {
            self.activate(live);
            self.change_small();
        }
    }

    fn give_memory_back(&mut self) {
        let quick = self.world.shared.quick();
        match self.rng.below(4) {
            0 => drop(quick.drain()),
            1 => drop(quick.trim(QUICK_TABLE, 0, 4)),
            2 => Grace::flush(&Grace::pin()),
            _ => drop(Grace::reclaim(usize::MAX)),
        }
    }
}

/// The first address of the kernel's half, for these tables.
pub(crate) fn upper<F: OnSim>() -> VirtAddr {
    F::upper_half()
}
