//! Random calls on maps of objects in several processes, during truncation and holes, on
//! the machine in software and on a plain model.

use crate::common::*;
use machine::Asid;
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
    objects: [(mm::Shared<Shmem<Sim>>, Contents); OBJECTS],
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
        activate(&other.space);
        leave(&gone.space);
    }

    fn call(&mut self, of: usize, op: &Op) {
        let Some(process) = &mut self.processes[of] else { return };
        let (space, window) = (&process.space, &mut process.window);
        activate(space);
        match *op {
            Op::Map { from, len, prot, shared, object, index } => {
                let kind = if shared { MapFlags::SHARED } else { MapFlags::PRIVATE };
                let file = Backing::open(self.objects[object].0.clone(), true).unwrap();
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
                let request = RemapRequest::moving(at(from), PAGE, at(to));
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

    /// The word that a program reads from a readable page.
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
    #![proptest_config(cases(200, 4000))]

    #[test]
    fn as_the_model(ops in vec(op(), 1..90)) {
        on_machine(Config { speculation: 50, ..one_cpu(512) }, None, |sim, shared| {
            let objects = core::array::from_fn(|number| {
                let memory = Shmem::memfd(shared, "test", number as u64 + 1).unwrap();
                memory.set_size((FIRST + MOST) * PAGE as u64).unwrap();
                (memory, Contents { size: MOST, ..Contents::default() })
            });
            let space = new_space(shared, 1).unwrap();
            activate(&space);
            let first = Process { space, window: Default::default() };
            let mut world =
                World { sim, processes: [Some(first), None, None], objects };
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
    }
}
