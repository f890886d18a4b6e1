//! Random calls with reclaim, against a plain map of pages.

use super::*;

#[derive(Clone, Debug)]
enum Op {
    Write(usize),
    Read(usize),
    Reclaim(usize),
    Unmap(usize, usize),
    Map(usize, usize),
    Protect(usize, usize, u32),
    Discard(usize, usize),
    Move(usize, usize),
    Fork,
    Exit,
    Full(bool),
}

const PAGES: usize = 24;

fn op() -> impl Strategy<Value = (usize, Op)> {
    let range = || (0..PAGES, 1..6_usize).prop_map(|(from, len)| (from, len.min(PAGES - from)));
    let op = prop_oneof![
        8 => (0..PAGES).prop_map(Op::Write),
        4 => (0..PAGES).prop_map(Op::Read),
        6 => (1..12_usize).prop_map(Op::Reclaim),
        1 => range().prop_map(|(from, len)| Op::Unmap(from, len)),
        3 => range().prop_map(|(from, len)| Op::Map(from, len)),
        2 => (range(), prop_oneof![Just(1_u32), Just(3)])
            .prop_map(|((from, len), prot)| Op::Protect(from, len, prot)),
        1 => range().prop_map(|(from, len)| Op::Discard(from, len)),
        1 => (0..PAGES, 0..PAGES).prop_map(|(from, to)| Op::Move(from, to)),
        2 => Just(Op::Fork),
        2 => Just(Op::Exit),
        1 => any::<bool>().prop_map(Op::Full),
    ];
    (0..3_usize, op)
}

/// The rights and the first word of each page.
type Model = [Option<(u32, u64)>; PAGES];

fn carry_out(space: &Space, model: &mut Model, op: &Op, number: u64) {
    let at = |page: usize| AT + page * PAGE;
    match *op {
        Op::Write(page) => {
            let done = space.write(at(page), &number.to_le_bytes());
            match &mut model[page] {
                Some((3, value)) => {
                    done.unwrap();
                    *value = number;
                }
                _ => assert!(done.is_err()),
            }
        }
        Op::Read(page) => check(space, model, page),
        Op::Reclaim(want) => {
            let done = space.reclaim(want).unwrap();
            assert!(done.taken() <= want, "{done:?}");
        }
        Op::Unmap(from, len) => {
            space.munmap(at(from), len * PAGE).unwrap();
            model[from..from + len].fill(None);
        }
        Op::Map(from, len) => {
            space.mmap(at(from), len * PAGE, 3, FIXED).unwrap();
            model[from..from + len].fill(Some((3, 0)));
        }
        Op::Protect(from, len, prot) => {
            let _hole = space.mprotect(at(from), len * PAGE, prot, None);
            let pages = model[from..from + len].iter_mut();
            pages.map_while(Option::as_mut).for_each(|page| page.0 = prot);
        }
        Op::Discard(from, len) => {
            let _holes = space.madvise(at(from), len * PAGE, Advice::DontNeed);
            model[from..from + len].iter_mut().flatten().for_each(|page| page.1 = 0);
        }
        Op::Move(from, to) if from != to && model[from].is_some() => {
            let moved = space.mremap(RemapRequest::moving(at(from), PAGE, at(to)));
            moved.unwrap();
            model[to] = model[from].take();
        }
        _ => {}
    }
}

fn check(space: &Space, model: &Model, page: usize) {
    match model[page] {
        Some((_, value)) => assert_eq!(word(space, AT + page * PAGE), value, "page {page}"),
        None => assert!(space.read(AT + page * PAGE, &mut [0]).is_err()),
    }
}

proptest! {
    #![proptest_config(cases(150, 2_000))]

    #[test]
    fn memory_is_as_without_reclaim(ops in vec(op(), 1..90)) {
        with_swap(1024, |_, shared, ram, _| {
            let first = new_space(shared, 2).unwrap();
            let mut all: Vec<(Space, Model)> = vec![(first, [None; PAGES])];
            for (number, (which, op)) in (1..).zip(&ops) {
                let which = which % all.len();
                match op {
                    Op::Fork if all.len() < 4 => {
                        let child = all[which].0.fork(Asid(2 + all.len() as u16)).unwrap();
                        let model = all[which].1;
                        all.push((child, model));
                    }
                    Op::Exit if all.len() > 1 => drop(all.pop()),
                    Op::Full(full) => ram.is_full.store(*full, Ordering::Relaxed),
                    op => {
                        let (space, model) = &mut all[which];
                        carry_out(space, model, op, number);
                    }
                }
            }
            for (space, model) in &all {
                (0..PAGES).for_each(|page| check(space, model, page));
            }
        });
    }
}
