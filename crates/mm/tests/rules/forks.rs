//! Random calls, touches, forks and exits of several processes, on the machine in software and on a
//! plain model: an array of pages for each process.

use crate::common::*;
use machine::{Asid, VirtAddr};
use mm::*;
use paging::Tag;
use proptest::{collection::vec, prelude::*};
use sim::{Config, Sim};

/// Pages of the window: some on both sides of the border of two tables, and some far away, below
/// another entry of the top-level table.
const NEAR: usize = 10;
const PAGES: usize = 14;
const PROCESSES: usize = 4;

fn at(page: usize) -> usize {
    match page {
        ..NEAR => 0x3fff_b000 + page * PAGE,
        _ => 0x1234_5670_0000 - 2 * PAGE + (page - NEAR) * PAGE,
    }
}

#[derive(Clone, Debug)]
enum Op {
    Map { from: usize, len: usize, prot: u32 },
    Unmap { from: usize, len: usize },
    Protect { from: usize, len: usize, prot: u32 },
    Discard { from: usize, len: usize },
    Advise { from: usize, len: usize, advice: Advice },
    Load { page: usize },
    Store { page: usize, value: u64 },
    Fork,
    Exit,
}

fn op() -> impl Strategy<Value = (usize, Op)> {
    let end = |from| if from < NEAR { NEAR } else { PAGES };
    let range =
        (0..PAGES, 1..6_usize).prop_map(move |(from, len)| (from, len.min(end(from) - from)));
    // Hardware cannot make a page writable and not readable.
    let prot = prop_oneof![Just(0_u32), Just(1), Just(3), Just(3), Just(7)];
    let advice = prop_oneof![
        Just(Advice::DontFork),
        Just(Advice::DoFork),
        Just(Advice::WipeOnFork),
        Just(Advice::KeepOnFork),
    ];
    let op = prop_oneof![
        3 => (range.clone(), prot.clone()).prop_map(|((from, len), prot)| Op::Map { from, len, prot }),
        2 => range.clone().prop_map(|(from, len)| Op::Unmap { from, len }),
        2 => (range.clone(), prot).prop_map(|((from, len), prot)| Op::Protect { from, len, prot }),
        2 => range.clone().prop_map(|(from, len)| Op::Discard { from, len }),
        1 => (range, advice).prop_map(|((from, len), advice)| Op::Advise { from, len, advice }),
        6 => (0..PAGES).prop_map(|page| Op::Load { page }),
        9 => (0..PAGES, 1..u64::MAX).prop_map(|(page, value)| Op::Store { page, value }),
        3 => Just(Op::Fork),
        2 => Just(Op::Exit),
    ];
    (0..PROCESSES, op)
}

/// A mapped page: its rights, its first word, whether it is present, and the effect of fork on it.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Page {
    prot: u32,
    value: u64,
    present: bool,
    inherited: bool,
    wiped: bool,
}

type Model = [Option<Page>; PAGES];

struct Process {
    space: Space,
    model: Model,
}

struct World<'s> {
    sim: &'s Sim,
    processes: [Option<Process>; PROCESSES],
    tag: fn(usize) -> Tag,
}

impl World<'_> {
    fn carry_out(&mut self, who: usize, op: &Op) {
        if let Op::Fork = op {
            return self.fork(who);
        }
        if let Op::Exit = op {
            let alive = self.processes.iter().flatten().count();
            if alive > 1
                && let Some(gone) = self.processes[who].take()
            {
                let other = self.processes.iter().flatten().next().unwrap();
                activate(&other.space);
                leave(&gone.space);
                drop(gone);
            }
            return;
        }
        let Some(process) = &mut self.processes[who] else { return };
        activate(&process.space);
        process.carry_out(self.sim, op);
    }

    fn fork(&mut self, who: usize) {
        let Some(free) = self.processes.iter().position(Option::is_none) else { return };
        let Some(parent) = &self.processes[who] else { return };
        let space = parent.space.fork((self.tag)(free)).unwrap();
        let model = parent.model.map(|page| {
            let page = page.filter(|page| page.inherited)?;
            let (value, present) = if page.wiped { (0, false) } else { (page.value, page.present) };
            Some(Page { value, present, ..page })
        });
        self.processes[free] = Some(Process { space, model });
    }
}

impl Process {
    fn carry_out(&mut self, sim: &Sim, op: &Op) {
        let Process { space, model } = self;
        match *op {
            Op::Map { from, len, prot } => {
                assert_eq!(space.mmap(at(from), len * PAGE, prot, FIXED), Ok(at(from)));
                let page = Page { prot, value: 0, present: false, inherited: true, wiped: false };
                model[from..from + len].fill(Some(page));
            }
            Op::Unmap { from, len } => {
                assert_eq!(space.munmap(at(from), len * PAGE), Ok(()));
                model[from..from + len].fill(None);
            }
            Op::Protect { from, len, prot } => {
                // The call stops at the first hole.
                let pages = model[from..from + len].iter_mut();
                pages.map_while(Option::as_mut).for_each(|page| page.prot = prot);
                let _stopped = space.mprotect(at(from), len * PAGE, prot, None);
            }
            Op::Discard { from, len } => {
                for page in model[from..from + len].iter_mut().flatten() {
                    (page.value, page.present) = (0, false);
                }
                let _holes = space.madvise(at(from), len * PAGE, Advice::DontNeed);
            }
            Op::Advise { from, len, advice } => {
                for page in model[from..from + len].iter_mut().flatten() {
                    match advice {
                        Advice::DontFork => page.inherited = false,
                        Advice::DoFork => page.inherited = true,
                        Advice::WipeOnFork => page.wiped = true,
                        _ => page.wiped = false,
                    }
                }
                let _holes = space.madvise(at(from), len * PAGE, advice);
            }
            Op::Load { page } => {
                let found = load(sim, space, at(page));
                let addr = VirtAddr::new(at(page) as u64);
                let expected = match &mut model[page] {
                    None => Err(FaultError::Unmapped(addr)),
                    Some(Page { prot: 0, .. }) => Err(FaultError::Denied(addr, Access::Read)),
                    Some(page) => {
                        page.present = true;
                        Ok(page.value)
                    }
                };
                assert_eq!(found, expected);
            }
            Op::Store { page, value } => {
                let stored = store(sim, space, at(page), value);
                let addr = VirtAddr::new(at(page) as u64);
                let expected = match &mut model[page] {
                    None => Err(FaultError::Unmapped(addr)),
                    Some(page) if page.prot & 2 == 0 => {
                        Err(FaultError::Denied(addr, Access::Write))
                    }
                    Some(page) => {
                        (page.value, page.present) = (value, true);
                        Ok(())
                    }
                };
                assert_eq!(stored, expected);
            }
            Op::Fork | Op::Exit => {}
        }
    }

    /// Compares what can be read, at the end.
    fn check_contents(&self) {
        let readable = |model: &Option<Page>| model.is_some_and(|page| page.prot != 0);
        for (page, model) in self.model.iter().enumerate().filter(|(_, model)| readable(model)) {
            let word = word(&self.space, at(page));
            assert_eq!(Some(word), model.map(|page| page.value), "page {page}");
        }
    }

    /// Compares what is present.
    fn check(&self) {
        for (page, model) in self.model.iter().enumerate() {
            let present = self.space.resident(at(page)..at(page) + PAGE) == 1;
            assert_eq!(present, model.is_some_and(|page| page.present), "page {page}");
        }
    }
}

proptest! {
    #![proptest_config(cases(300, 1500))]

    #[test]
    fn processes_see_their_own_memory(ops in vec(op(), 1..80)) {
        run(&ops, 4096, |free| Asid(free as u16 + 1).into());
    }

    /// Two tags for up to four processes.
    #[test]
    fn processes_share_the_tags(ops in vec(op(), 1..80)) {
        run(&ops, 3, |_| Tag::Assigned);
    }
}

fn run(ops: &[(usize, Op)], tags: u32, tag: fn(usize) -> Tag) {
    let config = Config { speculation: 50, tags, ..one_cpu(512) };
    on_machine(config, None, |sim, shared| {
        let space = tagged_space(shared, tag(0)).unwrap();
        let mut processes = [const { None }; PROCESSES];
        processes[0] = Some(Process { space, model: [None; PAGES] });
        let mut world = World { sim, processes, tag };
        for (who, op) in ops {
            world.carry_out(*who, op);
            world.processes.iter().flatten().for_each(Process::check);
        }
        world.processes.iter().flatten().for_each(Process::check_contents);
        world.processes
    });
}
