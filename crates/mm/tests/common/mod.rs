//! Shared by the tests: a machine, address spaces on it, touches that fault, and CPUs that race.
#![allow(dead_code, reason = "each test uses some of it")]

use std::{
    cell::Cell,
    mem::ManuallyDrop,
    sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
    sync::{Arc, OnceLock},
};

use machine::{Asid, Frame, Memory, PageSize, Translated, VirtAddr};
use mm::*;
use paging::{Format, Paging, Tag, X86_64L4};
use proptest::prelude::ProptestConfig;
use sim::{
    Arch, Checks, Config, Failure, Grace, Program, Report, Sim, Stale, explore, seeded, stopped,
};

pub(crate) type Space = SpaceOf<X86_64L4>;
pub(crate) type SpaceOf<F> = AddressSpace<Sim, F, Grace>;
pub(crate) type PagingOf<F> = Arc<Paging<Sim, F>>;
pub(crate) type SharedPaging = PagingOf<X86_64L4>;
pub(crate) type Memfd = mm::Shared<Shmem<Sim>>;

pub(crate) const PAGE: usize = 4096;
pub(crate) const HUGE: usize = 512 * PAGE;
pub(crate) const BASE: usize = 0x7000_0000;
pub(crate) const HEAP: usize = 0x1000_0000;
pub(crate) const PRIVATE: MapFlags = MapFlags::PRIVATE.union(MapFlags::ANONYMOUS);
pub(crate) const FIXED: MapFlags = PRIVATE.union(MapFlags::FIXED);

pub(crate) fn paging(sim: &Sim) -> SharedPaging {
    Paging::try_new(sim.clone(), PageSize::Size1G).unwrap()
}

pub(crate) fn new_space<F: Format>(shared: &PagingOf<F>, asid: u16) -> Result<SpaceOf<F>, Error> {
    tagged_space(shared, Asid(asid).into())
}

pub(crate) fn tagged_space<F: Format>(shared: &PagingOf<F>, tag: Tag) -> Result<SpaceOf<F>, Error> {
    let layout = Layout { mmap_base: BASE, start_brk: HEAP, brk: HEAP, start_stack: 0 };
    SpaceOf::try_new(shared, tag, None, Profile::LINUX_6_18, layout)
}

/// Makes a space that of this CPU.
pub(crate) fn activate<F: Format>(space: &SpaceOf<F>) {
    // SAFETY: the tests need no other mapping, and no other tables have the tag.
    unsafe { space.activate() }
}

/// This CPU uses no address of the space any more.
pub(crate) fn leave<F: Format>(space: &SpaceOf<F>) {
    // SAFETY: as the function says.
    unsafe { space.leave() }
}

/// Runs a test on CPU 0 of a new machine. Then drops what it returns, when no space is active, and
/// checks that no frame is left.
pub(crate) fn on_machine<T>(
    config: Config,
    swap: Option<Arc<dyn Swap>>,
    test: impl FnOnce(&Sim, &SharedPaging) -> T,
) {
    on_machine_of::<X86_64L4, T>(config, swap, test);
}

/// As [`on_machine`], with tables of another format.
pub(crate) fn on_machine_of<F: Format, T>(
    config: Config,
    swap: Option<Arc<dyn Swap>>,
    test: impl FnOnce(&Sim, &PagingOf<F>) -> T,
) {
    let sim = Sim::new(config).unwrap();
    let shared = Paging::<Sim, F>::try_with_swap(sim.clone(), PageSize::Size1G, swap).unwrap();
    let left = sim.on_cpu(0, || test(&sim, &shared));
    sim.on_cpu(0, || drop(left));
    all_given_back(&sim, &shared).unwrap();
}

/// A machine of one CPU with this many frames.
pub(crate) fn one_cpu(frames: u64) -> Config {
    Config { cpus: 1, frames, ..Config::default() }
}

/// Runs a test in a space that is active on the only CPU of a machine with this many frames. Then
/// ends the space, and checks that no frame is left.
pub(crate) fn with_space(frames: u64, test: impl FnOnce(&Sim, &SharedPaging, &Space)) {
    with_space_of(Arch::X86_64, frames, test);
}

/// As [`with_space`], on a machine whose hardware walks tables of this format.
pub(crate) fn with_space_of<F: Format>(
    arch: Arch,
    frames: u64,
    test: impl FnOnce(&Sim, &PagingOf<F>, &SpaceOf<F>),
) {
    on_machine_of(Config { arch, ..one_cpu(frames) }, None, |sim, shared: &PagingOf<F>| {
        let space = new_space(shared, 1).unwrap();
        activate(&space);
        test(sim, shared, &space);
        space
    });
}

/// A machine on which a CPU accesses pages that another one unmaps: it may use an old translation
/// until the flush.
pub(crate) const RACING: Checks = Checks { stale: Stale::Freed, walked: true, ..Checks::ALL };

pub(crate) fn racing(cpus: usize, frames: u64) -> Config {
    Config { cpus, frames, checks: RACING, ..Config::default() }
}

/// A machine whose CPUs race on one space. A run that fails leaks the space: there is no CPU on
/// which it could be dropped.
pub(crate) struct RaceOf<F: Format> {
    pub(crate) sim: Sim,
    pub(crate) shared: PagingOf<F>,
    pub(crate) space: ManuallyDrop<SpaceOf<F>>,
}

pub(crate) type Race = RaceOf<X86_64L4>;

impl<F: Format> RaceOf<F> {
    pub(crate) fn new(config: Config, prepare: impl FnOnce(&SpaceOf<F>)) -> Self {
        Self::with(config, None, |_, space| prepare(space)).0
    }

    /// `prepare` gets the new space on CPU 0. It is not active there afterwards.
    pub(crate) fn with<T>(
        config: Config,
        swap: Option<Arc<dyn Swap>>,
        prepare: impl FnOnce(&PagingOf<F>, &mut SpaceOf<F>) -> T,
    ) -> (Self, T) {
        let sim = Sim::new(config).unwrap();
        let shared = Paging::<Sim, F>::try_with_swap(sim.clone(), PageSize::Size1G, swap).unwrap();
        let (space, made) = sim.on_cpu(0, || {
            let mut space = new_space(&shared, 1).unwrap();
            let made = prepare(&shared, &mut space);
            (ManuallyDrop::new(space), made)
        });
        (RaceOf { sim, shared, space }, made)
    }

    /// A program that begins with the space active.
    pub(crate) fn active<'a>(&'a self, program: impl FnOnce() + Send + 'a) -> Program<'a> {
        Box::new(move || {
            activate(&self.space);
            program();
        })
    }

    /// Drops `more`, then the space, and checks that nothing is left.
    pub(crate) fn end<T>(self, more: T) -> Result<(), Failure> {
        let RaceOf { sim, shared, space } = self;
        sim.on_cpu(0, || {
            assert!(sim.settle());
            drop(more);
            drop(ManuallyDrop::into_inner(space));
        });
        Ok(all_given_back(&sim, &shared)?)
    }
}

/// A child that a CPU of a race makes. A failure leaks it: there is no CPU on which it could be
/// dropped.
#[derive(Default)]
pub(crate) struct Forked(OnceLock<ManuallyDrop<Space>>);

impl Forked {
    /// Forks, once.
    pub(crate) fn make(&self, parent: &Space) -> &Space {
        let child = ManuallyDrop::new(parent.fork(Asid(2)).unwrap());
        assert!(self.0.set(child).is_ok());
        self.0.get().unwrap()
    }

    /// The child of the fork that has ended.
    pub(crate) fn end(self) -> Space {
        ManuallyDrop::into_inner(self.0.into_inner().expect("the fork has ended"))
    }
}

/// Runs a test from each of the first seeds.
pub(crate) fn each_seed(seeds: u64, run: impl Fn(u64) -> Result<(), Failure> + Sync) {
    explore(seeds, run).unwrap_or_else(|failure| panic!("{failure}"));
}

/// How two calls meet: in an order from a seed, or one stops while the other runs whole.
pub(crate) struct Meeting {
    seed: u64,
    /// The steps after which a call stops, and whether it is the second.
    stop: Option<(u64, bool)>,
    has_stopped: Cell<bool>,
}

impl Meeting {
    pub(crate) fn run(&self, sim: &Sim, mut calls: [Program<'_>; 2]) -> Result<(), Failure> {
        let Some((steps, second)) = self.stop else {
            return seeded(sim, self.seed, calls.into()).map(drop);
        };
        if second {
            calls.reverse();
        }
        self.has_stopped.set(stopped(sim, self.seed, steps, calls.into())?.is_some());
        Ok(())
    }
}

/// Runs a test of two calls from each of the first seeds. Then each call stops at each of its steps
/// in turn, while the other one runs whole.
pub(crate) fn each_meeting(seeds: u64, run: impl Fn(&Meeting) -> Result<(), Failure> + Sync) {
    let meeting = |seed, stop| Meeting { seed, stop, has_stopped: Cell::new(false) };
    each_seed(seeds, |seed| run(&meeting(seed, None)));
    // Without optimizations, a sample.
    let stride = if cfg!(debug_assertions) { 7 } else { 1 };
    for second in [false, true] {
        for steps in (0..).step_by(stride) {
            let meeting = meeting(0, Some((steps, second)));
            let place = if second { "second" } else { "first" };
            run(&meeting)
                .unwrap_or_else(|failure| panic!("the {place} call stops at {steps}: {failure}"));
            if !meeting.has_stopped.get() {
                break;
            }
        }
    }
}

/// A small generator of its own for each CPU of each seed.
pub(crate) fn random(seed: u64, cpu: usize) -> impl FnMut(usize) -> usize + Send {
    let mut state = seed.wrapping_mul(0x9e37_79b9) + cpu as u64;
    move |below| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_041);
        (state >> 33) as usize % below
    }
}

/// Calls `attempt` with 1, 2, ... until it says that no allocation of this number was made. There
/// are more than `least`.
pub(crate) fn each_allocation(least: u64, mut attempt: impl FnMut(u64) -> bool) {
    let last = (1..2000).find(|nth| !attempt(*nth)).expect("a call makes few allocations");
    assert!(last > least, "only {last} allocations");
}

/// Makes a call whose allocation of this number fails, and if `lasting` all after it. Returns also
/// whether one has failed.
pub(crate) fn without_frames<T>(
    sim: &Sim,
    nth: u64,
    lasting: bool,
    call: impl FnOnce() -> T,
) -> (T, bool) {
    sim.fail_alloc(nth, lasting);
    let done = call();
    let failed = sim.alloc_failed();
    sim.fail_alloc(0, false);
    (done, failed)
}

/// Reads a word as a program does: a fault is handled, and the access repeated.
pub(crate) fn load<F: Format>(sim: &Sim, space: &SpaceOf<F>, at: usize) -> Result<u64, FaultError> {
    let at = VirtAddr::new(at as u64);
    loop {
        // SAFETY: a program's memory, which no Rust code holds a reference to.
        match unsafe { sim.load(at) } {
            Ok(value) => return Ok(value),
            Err(_) => space.handle_fault(at, Access::Read)?,
        };
    }
}

/// Writes a word in the same way.
pub(crate) fn store<F: Format>(
    sim: &Sim,
    space: &SpaceOf<F>,
    at: usize,
    value: u64,
) -> Result<(), FaultError> {
    let at = VirtAddr::new(at as u64);
    loop {
        // SAFETY: as for `load`.
        match unsafe { sim.store(at, value) } {
            Ok(()) => return Ok(()),
            Err(_) => space.handle_fault(at, Access::Write)?,
        };
    }
}

/// A word, as the kernel reads it for a program: by the tables, not by what this CPU has cached.
pub(crate) fn word<F: Format>(space: &SpaceOf<F>, at: usize) -> u64 {
    let mut word = [0; 8];
    space.read(at, &mut word).unwrap();
    u64::from_le_bytes(word)
}

/// A byte, in the same way.
pub(crate) fn byte<F: Format>(space: &SpaceOf<F>, at: usize) -> u8 {
    let mut byte = [9];
    space.read(at, &mut byte).unwrap();
    byte[0]
}

/// The listing of `/proc/PID/maps`.
pub(crate) fn listing<F: Format>(space: &SpaceOf<F>) -> String {
    let mut text = String::new();
    space.write_maps(&mut text).unwrap();
    text
}

/// The entry of `/proc/PID/pagemap` for a page.
pub(crate) fn pagemap_entry(space: &Space, at: usize) -> u64 {
    let mut entry = [0];
    space.pagemap(at, &mut entry);
    entry[0]
}

/// A memfd of this many pages, which is still empty.
pub(crate) fn memfd(shared: &SharedPaging, pages: usize) -> Memfd {
    let memory = Shmem::memfd(shared, "name", 1).unwrap();
    memory.set_size((pages * PAGE) as u64).unwrap();
    memory
}

/// The memfd, opened for writing.
pub(crate) fn opened(memory: &Memfd) -> Backing<Sim> {
    Backing::open(memory.clone(), true).unwrap()
}

/// The words of a frame that the caller has pinned. They are accessed by atomic instructions only.
pub(crate) fn pinned_words(sim: &Sim, frame: Frame) -> &[AtomicU64; PAGE / 8] {
    // SAFETY: the frame is pinned, a page long, and its words are accessed as the function says, or
    // by the CPUs of the machine.
    unsafe { sim.frame_ptr(frame).unwrap().cast().as_ref() }
}

/// A property is checked with so many cases in a debug build, and in a release build; or with as
/// many as PROPTEST_CASES says.
pub(crate) fn cases(debug: u32, release: u32) -> ProptestConfig {
    let config = ProptestConfig { failure_persistence: None, ..ProptestConfig::default() };
    let cases = match std::env::var_os("PROPTEST_CASES") {
        Some(_) => config.cases,
        None if cfg!(debug_assertions) => debug,
        None => release,
    };
    ProptestConfig { cases, ..config }
}

/// A monitor that resolves nothing (UFFD_FEATURE_SIGBUS), with these features. It counts.
#[derive(Default)]
pub(crate) struct Never {
    pub(crate) asynchronous: bool,
    pub(crate) marks_absent: bool,
    pub(crate) writes: AtomicUsize,
    pub(crate) missing: AtomicUsize,
}

impl UserFaultHandler for Never {
    fn handle(&self, fault: UserFault) -> bool {
        let count = match fault.kind {
            UserFaultKind::WriteProtected => &self.writes,
            _ => &self.missing,
        };
        count.fetch_add(1, Relaxed);
        false
    }

    fn is_write_protect_async(&self, _: u64) -> bool {
        self.asynchronous
    }

    fn marks_absent_pages(&self, _: u64) -> bool {
        self.marks_absent
    }
}

/// The name of a file, for a [`PageSource`].
#[macro_export]
macro_rules! named {
    ($inode:expr, $path:expr) => {
        fn device(&self) -> (u32, u32) {
            (8, 1)
        }

        fn inode(&self) -> u64 {
            $inode
        }

        fn write_path(&self, out: &mut dyn std::fmt::Write) -> std::fmt::Result {
            out.write_str($path)
        }
    };
}

/// A file of zeros.
pub(crate) struct Zeros;

impl PageSource for Zeros {
    crate::named!(1, "/zeros");

    fn read(&self, _: u64, _: &mut [u8; PAGE]) -> Result<(), ObjectError> {
        Ok(())
    }

    fn write(&self, _: u64, _: &[u8; PAGE]) -> Result<(), ObjectError> {
        Ok(())
    }
}

/// Makes every CPU give back its cached pages, and checks that no frame is left allocated. Call it
/// when no address space is left.
pub(crate) fn all_given_back<F: Format>(
    sim: &Sim,
    shared: &PagingOf<F>,
) -> Result<(), Box<Report>> {
    for cpu in 0..sim.config().cpus {
        sim.on_cpu(cpu, || {
            assert!(sim.settle(), "something is never freed");
            shared.quick().drain();
        });
    }
    sim.check_leaks()
}
