//! Random calls on maps of objects in several processes, beside truncation and holes, on the
//! machine in software and on a plain model.

mod common;

use std::sync::Arc;

use common::*;
use machine::{Asid, FrameSource, VirtAddr};
use mm::*;
use proptest::{collection::vec, prelude::*};
use sim::{Config, Sim};

/// Pages of the window, on both sides of the border of two tables.
const PAGES: usize = 10;
const PROCESSES: usize = 3;
const OBJECTS: usize = 2;
/// The most pages of an object, on both sides of the border of two nodes of its index.
const MOST: u64 = 8;
const FIRST: u64 = 508;

fn at(page: usize) -> usize {
    0x3fff_b000 + page * PAGE
}

#[derive(Clone, Debug)]
enum Op {
    Map { from: usize, len: usize, prot: u32, shared: bool, object: usize, index: u64 },
    Unmap { from: usize, len: usize },
    Protect { from: usize, len: usize, prot: u32 },
    Move { from: usize, to: usize },
    Discard { from: usize, len: usize },
    Remove { from: usize, len: usize },
    Load { page: usize },
    Store { page: usize, value: u64 },
    Fork,
    Exit,
    SetSize { object: usize, pages: u64 },
    Punch { object: usize, from: u64, len: u64 },
    Write { object: usize, index: u64, value: u64 },
    Read { object: usize, index: u64 },
}

fn op() -> impl Strategy<Value = (usize, Op)> {
    let range = (0..PAGES, 1..6_usize).prop_map(|(from, len)| (from, len.min(PAGES - from)));
    let prot = prop_oneof![Just(0_u32), Just(1), Just(3), Just(3)];
    let object = 0..OBJECTS;
    let op = prop_oneof![
        5 => (range.clone(), prot.clone(), any::<bool>(), object.clone(), 0..MOST).prop_map(
            |((from, len), prot, shared, object, index)| Op::Map {
                from, len, prot, shared, object, index
            }
        ),
        1 => range.clone().prop_map(|(from, len)| Op::Unmap { from, len }),
        2 => (range.clone(), prot).prop_map(|((from, len), prot)| Op::Protect { from, len, prot }),
        2 => (0..PAGES, 0..PAGES).prop_map(|(from, to)| Op::Move { from, to }),
        1 => range.clone().prop_map(|(from, len)| Op::Discard { from, len }),
        1 => range.prop_map(|(from, len)| Op::Remove { from, len }),
        8 => (0..PAGES).prop_map(|page| Op::Load { page }),
        10 => (0..PAGES, 1..u64::MAX).prop_map(|(page, value)| Op::Store { page, value }),
        3 => Just(Op::Fork),
        1 => Just(Op::Exit),
        3 => (object.clone(), 0..=MOST).prop_map(|(object, pages)| Op::SetSize { object, pages }),
        2 => (object.clone(), 0..MOST, 1..4_u64)
            .prop_map(|(object, from, len)| Op::Punch { object, from, len }),
        2 => (object.clone(), 0..MOST, 1..u64::MAX)
            .prop_map(|(object, index, value)| Op::Write { object, index, value }),
        2 => (object, 0..MOST).prop_map(|(object, index)| Op::Read { object, index }),
    ];
    (0..PROCESSES, op)
}

/// A mapped page: its place in an object, and the copy that a private map has made.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Page {
    prot: u32,
    shared: bool,
    object: usize,
    index: u64,
    copy: Option<u64>,
}

type Window = [Option<Page>; PAGES];

struct Process {
    space: Space,
    window: Window,
}

/// The first words of an object's pages, and its size in pages. A page that was never used is 0.
#[derive(Clone, Default)]
struct Contents {
    words: [u64; MOST as usize],
    size: u64,
}

struct World<'s> {
    sim: &'s Sim,
    processes: [Option<Process>; PROCESSES],
    objects: [(Arc<Shmem<Sim>>, Contents); OBJECTS],
}

/// The error of an access to an address.
#[derive(PartialEq, Debug)]
enum Refused {
    Unmapped,
    Denied,
    BeyondEnd,
}

fn refused(error: FaultError) -> Refused {
    match error {
        FaultError::Unmapped(_) => Refused::Unmapped,
        FaultError::Denied(..) => Refused::Denied,
        FaultError::Object(_, ObjectError::BeyondEnd) => Refused::BeyondEnd,
        error => panic!("{error}"),
    }
}

impl World<'_> {
    fn carry_out(&mut self, of: usize, op: &Op) {
        match *op {
            Op::Fork => self.fork(of),
            Op::Exit => self.exit(of),
            Op::SetSize { object, pages } => {
                let (memory, contents) = &mut self.objects[object];
                memory.set_size((FIRST + pages) * PAGE as u64).unwrap();
                contents.size = pages;
                contents.words[pages as usize..].fill(0);
                for page in self.processes.iter_mut().flatten().flat_map(|p| p.window.iter_mut()) {
                    if let Some(page) = page
                        && page.object == object
                        && page.index >= pages
                    {
                        page.copy = None;
                    }
                }
            }
            Op::Punch { object, from, len } => {
                let (memory, contents) = &mut self.objects[object];
                let bytes = |page: u64| (FIRST + page) * PAGE as u64;
                memory.punch_hole(bytes(from)..bytes(from + len)).unwrap();
                let end = (from + len).min(contents.size).max(from);
                if from < contents.size {
                    contents.words[from as usize..end as usize].fill(0);
                }
            }
            Op::Write { object, index, value } => {
                let (memory, contents) = &mut self.objects[object];
                if index < contents.size {
                    memory.write((FIRST + index) * PAGE as u64, &value.to_le_bytes()).unwrap();
                    contents.words[index as usize] = value;
                }
            }
            Op::Read { object, index } => {
                let (memory, contents) = &self.objects[object];
                let mut bytes = [0; 8];
                let read = memory.read((FIRST + index) * PAGE as u64, &mut bytes);
                assert_eq!(read, if index < contents.size { 8 } else { 0 });
                assert_eq!(u64::from_le_bytes(bytes), contents.words[index as usize]);
            }
            _ => self.call(of, op),
        }
    }

    fn fork(&mut self, of: usize) {
        let Some(free) = self.processes.iter().position(Option::is_none) else { return };
        let Some(parent) = &self.processes[of] else { return };
        let space = parent.space.fork(Asid(free as u16 + 1)).unwrap();
        self.processes[free] = Some(Process { space, window: parent.window });
    }

    fn exit(&mut self, of: usize) {
        if self.processes.iter().flatten().count() < 2 {
            return;
        }
        let Some(gone) = self.processes[of].take() else { return };
        let other = self.processes.iter().flatten().next().unwrap();
        // SAFETY: the test needs no other mapping, and no other tables have the tag.
        unsafe { other.space.activate() };
        // SAFETY: another space is active, and this one is dropped.
        unsafe { gone.space.leave() };
    }

    fn call(&mut self, of: usize, op: &Op) {
        let Some(process) = &mut self.processes[of] else { return };
        let (space, window) = (&process.space, &mut process.window);
        // SAFETY: the test needs no other mapping, and no other tables have the tag.
        unsafe { space.activate() };
        match *op {
            Op::Map { from, len, prot, shared, object, index } => {
                let kind = if shared { MapFlags::SHARED } else { MapFlags::PRIVATE };
                let file = Backing::open(self.objects[object].0.clone(), true);
                let offset = (FIRST + index) as usize * PAGE;
                let flags = kind | MapFlags::FIXED;
                space.mmap_object(at(from), len * PAGE, prot, flags, file, offset).unwrap();
                for (page, index) in window[from..from + len].iter_mut().zip(index..) {
                    *page = Some(Page { prot, shared, object, index, copy: None });
                }
            }
            Op::Unmap { from, len } => {
                space.munmap(at(from), len * PAGE).unwrap();
                window[from..from + len].fill(None);
            }
            Op::Protect { from, len, prot } => {
                let whole = window[from..from + len].iter().all(Option::is_some);
                let done = space.mprotect(at(from), len * PAGE, prot, None);
                assert_eq!(done.is_ok(), whole);
                // Up to the first hole.
                for page in window[from..from + len].iter_mut().map_while(Option::as_mut) {
                    page.prot = prot;
                }
            }
            Op::Move { from, to } => {
                if from == to || window[from].is_none() {
                    return;
                }
                let request = RemapRequest {
                    addr: at(from),
                    old_len: PAGE,
                    new_len: PAGE,
                    may_move: true,
                    fixed: Some(at(to)),
                    dont_unmap: None,
                };
                space.mremap(request).unwrap();
                window[to] = window[from].take();
            }
            Op::Discard { from, len } => {
                let _hole = space.madvise(at(from), len * PAGE, Advice::DontNeed);
                for page in window[from..from + len].iter_mut().flatten() {
                    page.copy = None;
                }
            }
            Op::Remove { from, len } => {
                let outcome = space.madvise(at(from), len * PAGE, Advice::Remove);
                let mut all = true;
                for page in window[from..from + len].iter() {
                    let Some(page) = page else { continue };
                    all &= page.shared;
                    if !all {
                        break;
                    }
                    let contents = &mut self.objects[page.object].1;
                    if let Some(word) = contents.words.get_mut(page.index as usize) {
                        *word = 0;
                    }
                }
                all &= window[from..from + len].iter().all(Option::is_some);
                assert_eq!(outcome.is_ok(), all, "{outcome:?}");
            }
            Op::Load { page } => {
                let found = load(self.sim, space, at(page)).map_err(refused);
                let expected = match window[page] {
                    None => Err(Refused::Unmapped),
                    Some(page) if page.prot == 0 => Err(Refused::Denied),
                    Some(page) => self.word(page),
                };
                assert_eq!(found, expected, "page {page}");
            }
            Op::Store { page, value } => {
                let found = store(self.sim, space, at(page), value).map_err(refused);
                let contents = |page: Page| &self.objects[page.object].1;
                let expected = match window[page] {
                    None => Err(Refused::Unmapped),
                    Some(page) if page.prot & 2 == 0 => Err(Refused::Denied),
                    Some(page) if page.index >= contents(page).size => Err(Refused::BeyondEnd),
                    Some(_) => Ok(()),
                };
                assert_eq!(found, expected, "page {page}");
                if let (Ok(()), Some(page)) = (expected, &mut window[page]) {
                    match page.shared {
                        true => self.objects[page.object].1.words[page.index as usize] = value,
                        false => page.copy = Some(value),
                    }
                }
            }
            _ => unreachable!("the other operations are no calls of one process"),
        }
    }

    /// What a program reads from a page that is readable.
    fn word(&self, page: Page) -> Result<u64, Refused> {
        let contents = &self.objects[page.object].1;
        match page.copy {
            Some(copy) => Ok(copy),
            None if page.index < contents.size => Ok(contents.words[page.index as usize]),
            None => Err(Refused::BeyondEnd),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if cfg!(debug_assertions) { 200 } else { 4000 },
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn as_the_model(ops in vec(op(), 1..90)) {
        let sim = Sim::new(Config { cpus: 1, frames: 512, speculation: 50, ..Config::default() }).unwrap();
        let shared = paging(&sim);
        let processes = sim.on_cpu(0, || {
            let objects = core::array::from_fn(|number| {
                let memory = Shmem::memfd(&shared, "test", number as u64 + 1);
                memory.set_size((FIRST + MOST) * PAGE as u64).unwrap();
                (memory, Contents { size: MOST, ..Contents::default() })
            });
            let space = new_space(&shared, 1).unwrap();
            // SAFETY: the test needs no other mapping, and no other tables have the tag.
            unsafe { space.activate() };
            let first = Process { space, window: Default::default() };
            let mut world =
                World { sim: &sim, processes: [Some(first), None, None], objects };
            for (of, op) in &ops {
                world.carry_out(*of, op);
            }
            // Every page of every process, at the end.
            for of in 0..PROCESSES {
                for page in 0..PAGES {
                    world.carry_out(of, &Op::Load { page });
                }
            }
            world.processes
        });
        // No space is active on the CPU any more.
        sim.on_cpu(0, || drop(processes));
        all_given_back(&sim, &shared).unwrap();
    }
}

/// Runs `test` with a space that is active.
fn with_space(test: impl FnOnce(&Sim, &Shared, &Space)) {
    let sim = Sim::new(Config { cpus: 1, frames: 256, ..Config::default() }).unwrap();
    let shared = paging(&sim);
    let space = sim.on_cpu(0, || {
        let space = new_space(&shared, 1).unwrap();
        // SAFETY: the test needs no other mapping, and no other tables have the tag.
        unsafe { space.activate() };
        test(&sim, &shared, &space);
        space
    });
    // It is not active on the CPU any more.
    sim.on_cpu(0, || drop(space));
    all_given_back(&sim, &shared).unwrap();
}

const SHARED: MapFlags = MapFlags::SHARED.union(MapFlags::ANONYMOUS);

#[test]
fn a_fork_shares_anonymous_shared_memory() {
    with_space(|sim, _, space| {
        let near = space.mmap(0, 2 * PAGE, 3, SHARED).unwrap();
        store(sim, space, near, 1).unwrap();
        let child = space.fork(Asid(2)).unwrap();
        store(sim, space, near + PAGE, 2).unwrap();
        // SAFETY: as in `with_space`.
        unsafe { child.activate() };
        assert_eq!(load(sim, &child, near), Ok(1));
        assert_eq!(load(sim, &child, near + PAGE), Ok(2));
        store(sim, &child, near, 3).unwrap();
        // SAFETY: as in `with_space`; the child is dropped.
        unsafe {
            space.activate();
            child.leave();
        }
        assert_eq!(load(sim, space, near), Ok(3));
        let mut maps = String::new();
        space.write_maps(&mut maps).unwrap();
        assert!(maps.contains("rw-s") && maps.contains("/dev/zero (deleted)"), "{maps}");
    });
}

#[test]
fn the_rest_of_the_last_page_becomes_zeros() {
    with_space(|sim, shared, space| {
        let memory = Shmem::memfd(shared, "name", 1);
        memory.set_size(2 * PAGE as u64).unwrap();
        let file = Backing::open(memory.clone(), true);
        let near = space.mmap_object(0, 2 * PAGE, 3, MapFlags::SHARED, file, 0).unwrap();
        for word in [0, 8, PAGE] {
            store(sim, space, near + word, 7).unwrap();
        }
        memory.set_size(8).unwrap();
        assert_eq!(load(sim, space, near), Ok(7));
        assert_eq!(load(sim, space, near + 8), Ok(0));
        let beyond =
            FaultError::Object(VirtAddr::new((near + PAGE) as u64), ObjectError::BeyondEnd);
        assert_eq!(load(sim, space, near + PAGE), Err(beyond));
        memory.set_size(2 * PAGE as u64).unwrap();
        assert_eq!(load(sim, space, near + PAGE), Ok(0));
    });
}

#[test]
fn seals_forbid_what_they_say() {
    with_space(|sim, shared, space| {
        let memory = Shmem::memfd(shared, "name", 1);
        memory.set_size(PAGE as u64).unwrap();
        let open = || Backing::open(memory.clone(), true);
        let map = |prot, flags| space.mmap_object(0, PAGE, prot, flags, open(), 0);
        let writable = map(3, MapFlags::SHARED).unwrap();
        assert_eq!(memory.add_seals(Seals::WRITE), Err(ObjectError::Sealed));
        assert_eq!(memory.seals(), Seals::default());
        space.munmap(writable, PAGE).unwrap();
        memory.add_seals(Seals::WRITE).unwrap();
        memory.add_seals(Seals::SHRINK).unwrap();
        assert_eq!(map(3, MapFlags::SHARED).unwrap_err().errno(), 1);
        let private = map(3, MapFlags::PRIVATE).unwrap();
        store(sim, space, private, 1).unwrap();
        assert_eq!(memory.write(0, &[1]), Err(ObjectError::Sealed));
        assert_eq!(memory.set_size(0), Err(ObjectError::Sealed));
        memory.set_size(2 * PAGE as u64).unwrap();
        memory.add_seals(Seals::SEAL).unwrap();
        assert_eq!(memory.add_seals(Seals::GROW), Err(ObjectError::Sealed));
    });
}

#[test]
fn msync_says_what_linux_says() {
    with_space(|_, _, space| {
        let near = space.mmap(0, 3 * PAGE, 3, SHARED).unwrap();
        space.munmap(near + PAGE, PAGE).unwrap();
        let errno = |flags| space.msync(near, 3 * PAGE, flags).map_err(|error| error.errno());
        assert_eq!(errno(SyncFlags::SYNC), Err(12));
        assert_eq!(errno(SyncFlags::ASYNC), Err(12));
        assert_eq!(errno(SyncFlags::SYNC | SyncFlags::ASYNC), Err(22));
        assert!(space.msync(near, PAGE, SyncFlags::SYNC).is_ok());
        space.mlock(near, PAGE, false).unwrap();
        assert_eq!(errno(SyncFlags::INVALIDATE), Err(16));
        assert_eq!(space.msync(near + 1, PAGE, SyncFlags::SYNC).unwrap_err().errno(), 22);
    });
}

#[test]
fn a_page_of_an_object_is_in_core_though_it_is_not_mapped() {
    with_space(|sim, _, space| {
        let near = space.mmap(0, 2 * PAGE, 3, SHARED).unwrap();
        store(sim, space, near, 1).unwrap();
        space.madvise(near, PAGE, Advice::DontNeed).unwrap();
        let mut found = [9; 2];
        space.mincore(near, &mut found).unwrap();
        assert_eq!((found, space.resident(near..near + 2 * PAGE)), ([1, 0], 0));
        assert_eq!(load(sim, space, near), Ok(1));
    });
}

#[test]
fn an_object_of_another_machine_is_refused() {
    with_space(|_, _, space| {
        let other = Sim::new(Config::default()).unwrap();
        let memory = Shmem::memfd(&paging(&other), "name", 1);
        let file = Backing::open(memory, true);
        let refused = space.mmap_object(0, PAGE, 3, MapFlags::SHARED, file, 0);
        assert_eq!(refused, Err(Error::Object(ObjectError::Foreign)));
    });
}

#[test]
fn segments_are_attached_and_detached() {
    with_space(|sim, shared, space| {
        let segment = Shmem::segment(shared, 0x2a, 3, 2 * PAGE as u64).unwrap();
        let attach = |addr, read_only| {
            space.shmat(AttachRequest {
                segment: Backing::open(segment.clone(), true),
                len: 2 * PAGE,
                addr,
                read_only,
                exec: false,
                replace: false,
                round: false,
            })
        };
        let first = attach(None, false).unwrap();
        let second = attach(None, true).unwrap();
        store(sim, space, first + PAGE, 5).unwrap();
        assert_eq!(load(sim, space, second + PAGE), Ok(5));
        let denied = FaultError::Denied(VirtAddr::new(second as u64), Access::Write);
        assert_eq!(store(sim, space, second, 5), Err(denied));
        space.shmdt(first).unwrap();
        assert_eq!(space.shmdt(first).unwrap_err().errno(), 22);
        assert_eq!(load(sim, space, second + PAGE), Ok(5));
        let mut maps = String::new();
        space.write_maps(&mut maps).unwrap();
        assert!(maps.contains("/SYSV0000002a (deleted)"), "{maps}");
    });
}

/// Each allocation of a call fails in turn, and nothing has changed.
#[test]
fn calls_on_objects_fail_whole() {
    for nth in 1..100 {
        let mut failed = false;
        with_space(|sim, shared, space| {
            let memory = Shmem::memfd(shared, "name", 1);
            memory.set_size(2 * PAGE as u64).unwrap();
            let open = || Backing::open(memory.clone(), true);
            let (near, far) = (0x3fff_f000, 0x55_0000_0000);
            let map =
                |at, flags| space.mmap_object(at, 2 * PAGE, 3, flags | MapFlags::FIXED, open(), 0);
            map(near, MapFlags::PRIVATE).unwrap();
            let listing = || {
                let mut maps = String::new();
                space.write_maps(&mut maps).unwrap();
                maps
            };
            let before = listing();
            sim.fail_alloc(nth, true);
            let mut outcomes = vec![
                map(far, MapFlags::SHARED).map(drop),
                load(sim, space, near).map(drop).map_err(Error::from),
                store(sim, space, near + PAGE, 1).map_err(Error::from),
                memory.write(PAGE as u64, &[1]).map_err(Error::from),
            ];
            failed = sim.alloc_failed();
            sim.fail_alloc(0, false);
            assert!(failed || outcomes.iter().all(Result::is_ok), "{outcomes:?}");
            if outcomes[0].is_err() {
                assert_eq!(listing(), before);
            }
            for error in outcomes.drain(..).filter_map(Result::err) {
                assert_eq!(error.errno(), 12, "{error}");
            }
            // Nothing takes memory: the object becomes shorter, the maps go.
            sim.fail_alloc(1, true);
            memory.set_size(0).unwrap();
            memory.set_size(PAGE as u64).unwrap();
            assert!(!sim.alloc_failed(), "a truncation asked for memory");
            sim.fail_alloc(0, false);
            assert_eq!(load(sim, space, near), Ok(0));
        });
        if !failed {
            assert!(nth > 8, "only {nth} allocations");
            return;
        }
    }
    unreachable!("the calls make few allocations");
}

/// A page that a fork shares, whose frame has no more references to give, cannot be copied: the
/// fault says so, and does not try without end.
#[test]
fn a_shared_page_with_too_many_references_fails() {
    with_space(|sim, _, space| {
        let near = space.mmap(0, PAGE, 3, PRIVATE).unwrap();
        store(sim, space, near, 1).unwrap();
        let child = space.fork(Asid(2)).unwrap();
        let mut frames = [machine::Frame::default()];
        let pins = space.pin_pages(near, Access::Read, &mut frames).unwrap();
        let (frame, info) = (pins.frames()[0], sim.info(pins.frames()[0]).unwrap());
        // The copy of the table takes its reference first.
        let write =
            |space: &Space| space.handle_fault(VirtAddr::new(near as u64), Access::Write).map(drop);
        let taken: u32 = (0..32).rev().map(|bit| 1 << bit).filter(|pins| info.try_pin(*pins)).sum();
        assert!(matches!(write(&child), Err(FaultError::OutOfMemory(_))));
        for bit in (0..32).filter(|bit| taken >> bit & 1 != 0) {
            // SAFETY: these pins were taken above.
            unsafe { sim.unpin(frame, 1 << bit) }.unwrap();
        }
        drop(pins);
        assert_eq!(write(&child), Ok(()));
        drop(child);
    });
}

/// A frame has no more references to give: the fault says so, and does not try without end.
#[test]
fn a_page_with_too_many_references_fails() {
    with_space(|sim, shared, space| {
        let memory = Shmem::memfd(shared, "name", 1);
        memory.write(0, &[1]).unwrap();
        let frame = memory.page(0).unwrap();
        let info = sim.info(frame).unwrap();
        let pins: u32 = (0..32).rev().map(|bit| 1 << bit).filter(|pins| info.try_pin(*pins)).sum();
        let file = Backing::open(memory.clone(), true);
        let near = space.mmap_object(0, PAGE, 3, MapFlags::SHARED, file, 0).unwrap();
        let failed = space.handle_fault(VirtAddr::new(near as u64), Access::Read);
        assert!(matches!(failed, Err(FaultError::OutOfMemory(_))), "{failed:?}");
        for bit in (0..32).filter(|bit| pins >> bit & 1 != 0) {
            // SAFETY: these pins were taken above.
            unsafe { sim.unpin(frame, 1 << bit) }.unwrap();
        }
        // SAFETY: `page` took this reference.
        unsafe { sim.release(frame) }.unwrap();
        assert_eq!(load(sim, space, near), Ok(1));
    });
}
