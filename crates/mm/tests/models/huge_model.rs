//! Huge pages by the model: random calls that cut and move them, and a plain map from pages to what
//! they hold.

use std::collections::BTreeMap;

use crate::common::*;
use machine::{Asid, Frame};
use mm::*;
use paging::{Format, Sv48, X86_64L4};
use proptest::{collection::vec, prelude::*};

const AT: usize = 0x4000_0000;

#[derive(Clone, Debug)]
enum Op {
    Map(usize, usize, u32),
    Unmap(usize, usize),
    Protect(usize, usize, u32),
    Discard(usize, usize),
    Guard(usize, usize),
    Move(usize, usize, usize),
    Write(usize),
    Read(usize),
    Fork,
    Exit,
    Pin(usize),
}

const PAGES: usize = 1700;

fn op() -> impl Strategy<Value = Op> {
    // Near the boundaries, and anywhere.
    let page = || {
        prop_oneof![
            (0..4_usize, 0..5_usize).prop_map(|(n, off)| (n * 512 + off).saturating_sub(2)),
            0..PAGES,
        ]
    };
    let range = move || {
        (page(), prop_oneof![1..5_usize, 500..600_usize])
            .prop_map(|(from, len)| (from, len.min(PAGES - from.min(PAGES - 1))))
            .prop_map(|(from, len)| (from.min(PAGES - 1), len))
    };
    let prot = prop_oneof![Just(0_u32), Just(1), Just(3), Just(3), Just(3)];
    prop_oneof![
        4 => (range(), prot.clone()).prop_map(|((from, len), prot)| Op::Map(from, len, prot)),
        2 => range().prop_map(|(from, len)| Op::Unmap(from, len)),
        3 => (range(), prot).prop_map(|((from, len), prot)| Op::Protect(from, len, prot)),
        2 => range().prop_map(|(from, len)| Op::Discard(from, len)),
        1 => range().prop_map(|(from, len)| Op::Guard(from, len)),
        2 => (range(), page()).prop_map(|((from, len), to)| Op::Move(from, len, to)),
        // Alike within 2 MiB: whole pages stay huge.
        3 => (0..3_usize, 0..4_usize, 0..5_usize, 512..1100_usize).prop_map(|(from, to, off, len)| {
            let from = from * 512 + off;
            Op::Move(from, len.min(PAGES - from), to * 512 + off)
        }),
        12 => page().prop_map(Op::Write),
        6 => page().prop_map(Op::Read),
        2 => Just(Op::Fork),
        1 => Just(Op::Exit),
        1 => page().prop_map(Op::Pin),
    ]
}

#[derive(Clone)]
struct Page {
    prot: u32,
    value: u64,
    guard: bool,
}

type Model = BTreeMap<usize, Page>;

struct Process<F: Format> {
    space: SpaceOf<F>,
    model: Model,
}

impl<F: Format> Process<F> {
    fn check(&self, page: usize) {
        let mut bytes = [0; 8];
        let found = self.space.read(AT + page * PAGE, &mut bytes);
        match self.model.get(&page) {
            Some(known) if known.prot != 0 && !known.guard => {
                found.unwrap();
                assert_eq!(u64::from_le_bytes(bytes), known.value, "page {page}");
            }
            _ => assert!(found.is_err(), "page {page}"),
        }
    }

    fn run(&mut self, op: &Op, number: u64) {
        let at = |page: usize| AT + page * PAGE;
        let Process { space, model } = self;
        match *op {
            Op::Map(from, len, prot) => {
                space.mmap(at(from), len * PAGE, prot, FIXED).unwrap();
                let page = Page { prot, value: 0, guard: false };
                model.extend((from..from + len).map(|number| (number, page.clone())));
            }
            Op::Unmap(from, len) => {
                space.munmap(at(from), len * PAGE).unwrap();
                model.retain(|number, _| !(from..from + len).contains(number));
            }
            Op::Protect(from, len, prot) => {
                let done = space.mprotect(at(from), len * PAGE, prot, None);
                let hole = (from..from + len).find(|page| !model.contains_key(page));
                assert_eq!(done.is_ok(), hole.is_none());
                (from..hole.unwrap_or(from + len)).for_each(|number| {
                    model.entry(number).and_modify(|page| page.prot = prot);
                });
            }
            Op::Discard(from, len) => {
                let _holes = space.madvise(at(from), len * PAGE, Advice::DontNeed);
                model.range_mut(from..from + len).for_each(|(_, page)| page.value = 0);
            }
            Op::Guard(from, len) => {
                let _holes = space.madvise(at(from), len * PAGE, Advice::GuardInstall);
                for (_, page) in model.range_mut(from..from + len) {
                    (page.value, page.guard) = (0, true);
                }
            }
            Op::Move(from, len, to) => {
                let (end, to_end) = (from + len, to + len);
                let one = (from..end).all(|page| {
                    model.get(&page).is_some_and(|page| page.prot == model[&from].prot)
                });
                if !one || (from < to_end && to < end) {
                    return;
                }
                let moved = space.mremap(RemapRequest::moving(at(from), len * PAGE, at(to)));
                // Two VMAs with the same rights may stay apart.
                if moved.is_err() {
                    let gone = space.munmap(at(to), len * PAGE);
                    gone.unwrap();
                    model.retain(|page, _| !(to..to_end).contains(page));
                    return;
                }
                for page in 0..len {
                    let was = model.remove(&(from + page)).unwrap();
                    model.insert(to + page, was);
                }
            }
            Op::Write(page) => {
                let done = space.write(at(page), &number.to_le_bytes());
                match model.get_mut(&page) {
                    Some(known) if known.prot == 3 && !known.guard => {
                        done.unwrap();
                        known.value = number;
                    }
                    _ => assert!(done.is_err()),
                }
            }
            Op::Read(page) => self.check(page),
            Op::Pin(page) => {
                let mut frames = [Frame::default(); 3];
                drop(space.pin_pages(at(page), Access::Write, &mut frames));
            }
            Op::Fork | Op::Exit => {}
        }
    }
}

proptest! {
    #![proptest_config(cases(24, 1_000))]

    #[test]
    fn calls_that_cut_huge_pages_are_as_the_model(
        ops in vec((any::<usize>(), op()), 1..60),
    ) {
        as_the_model::<X86_64L4>(&ops);
        // Upper entries that cannot forbid writing: a fork shares the lowest tables.
        as_the_model::<Sv48>(&ops);
    }
}

fn as_the_model<F: Format>(ops: &[(usize, Op)]) {
    on_machine_of::<F, _>(one_cpu(1 << 15), None, |_, shared| {
        let space = new_space(shared, 1).unwrap();
        space.set_huge_pages(HugePages::Always).unwrap();
        let mut processes = vec![Process { space, model: Model::new() }];
        for (number, (which, op)) in (1..).zip(ops) {
            let which = which % processes.len();
            match op {
                Op::Fork if processes.len() < 4 => {
                    let parent = &processes[which];
                    let space = parent.space.fork(Asid(processes.len() as u16 + 1)).unwrap();
                    let model = parent.model.clone();
                    processes.push(Process { space, model });
                }
                Op::Exit if processes.len() > 1 => drop(processes.pop()),
                op => processes[which].run(op, number),
            }
        }
        for process in &processes {
            (0..2 * PAGES).step_by(7).for_each(|page| process.check(page));
        }
    });
}
