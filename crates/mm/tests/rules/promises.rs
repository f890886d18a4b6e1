//! Promised memory: as much as the VMAs need, also after failures and forks, and never more than
//! the limit.

use std::mem::ManuallyDrop;

use crate::common::*;
use machine::{Asid, VirtAddr};
use mm::*;
use proptest::{collection::vec, prelude::*};
use sim::{Failure, Program, Sim, seeded};

const AT: usize = 0x3fff_a000;
const PAGES: usize = 12;
const LIMIT: usize = 14 * PAGE;

#[derive(Clone, Debug)]
enum Op {
    Map {
        from: usize,
        len: usize,
        prot: u32,
        reserves: bool,
    },
    Unmap {
        from: usize,
        len: usize,
    },
    Protect {
        from: usize,
        len: usize,
        prot: u32,
    },
    Move {
        from: usize,
        to: usize,
        keeps: bool,
    },
    Brk {
        pages: usize,
    },
    Write {
        page: usize,
    },
    Fork,
    Exit,
    /// The allocation of this number fails.
    Fail {
        nth: u64,
    },
}

fn op() -> impl Strategy<Value = (usize, Op)> {
    let range = (0..PAGES, 1..6_usize).prop_map(|(from, len)| (from, len.min(PAGES - from)));
    let prot = prop_oneof![Just(0_u32), Just(1), Just(3), Just(3)];
    let op = prop_oneof![
        4 => (range.clone(), prot.clone(), any::<bool>())
            .prop_map(|((from, len), prot, reserves)| Op::Map { from, len, prot, reserves }),
        2 => range.clone().prop_map(|(from, len)| Op::Unmap { from, len }),
        2 => (range, prot).prop_map(|((from, len), prot)| Op::Protect { from, len, prot }),
        2 => (0..PAGES, 0..PAGES, any::<bool>())
            .prop_map(|(from, to, keeps)| Op::Move { from, to, keeps }),
        1 => (0..6_usize).prop_map(|pages| Op::Brk { pages }),
        2 => (0..PAGES).prop_map(|page| Op::Write { page }),
        1 => Just(Op::Fork),
        1 => Just(Op::Exit),
        1 => (1..4_u64).prop_map(|nth| Op::Fail { nth }),
    ];
    (0..3_usize, op)
}

/// Carries out a call. Other tests say what it returns.
fn carry_out(sim: &Sim, space: &Space, op: &Op) {
    let at = |page: usize| AT + page * PAGE;
    match *op {
        Op::Map { from, len, prot, reserves } => {
            let reserve = if reserves { MapFlags::empty() } else { MapFlags::NORESERVE };
            let _done = space.mmap(at(from), len * PAGE, prot, FIXED | reserve);
        }
        Op::Unmap { from, len } => {
            let _done = space.munmap(at(from), len * PAGE);
        }
        Op::Protect { from, len, prot } => {
            let _done = space.mprotect(at(from), len * PAGE, prot, None);
        }
        Op::Move { from, to, keeps } => {
            let dont_unmap = keeps.then_some(at(to));
            let request = RemapRequest::moving(at(from), PAGE, at(to));
            let _done = space.mremap(RemapRequest { dont_unmap, ..request });
        }
        Op::Brk { pages } => {
            let _end = space.brk(HEAP + pages * PAGE);
        }
        Op::Write { page } => {
            let _done = space.handle_fault(VirtAddr::new(at(page) as u64), Access::Write);
        }
        Op::Fail { nth } => sim.fail_alloc(nth, false),
        Op::Fork | Op::Exit => {}
    }
}

proptest! {
    #![proptest_config(cases(200, 3000))]

    #[test]
    fn what_is_promised_is_what_the_vmas_need(ops in vec(op(), 1..80)) {
        on_machine(one_cpu(400), None, |sim, shared| {
            let commitment = Commitment::try_new(sim, Overcommit::Never { limit: LIMIT }).unwrap();
            let mut first = new_space(shared, 1).unwrap();
            first.set_commitment(&commitment);
            let mut spaces = [Some(first), None, None];
            for (of, op) in &ops {
                match (op, spaces[*of].is_some()) {
                    (Op::Fork, true) => {
                        if let Some(free) = spaces.iter().position(Option::is_none) {
                            let child = spaces[*of].as_ref().unwrap().fork(Asid(free as u16 + 1));
                            spaces[free] = child.ok();
                        }
                    }
                    (Op::Exit, true) if spaces.iter().flatten().count() > 1 => spaces[*of] = None,
                    (_, true) => carry_out(sim, spaces[*of].as_ref().unwrap(), op),
                    (_, false) => {}
                }
                let needed: usize =
                    spaces.iter().flatten().map(|space| space.sizes().accounted).sum();
                assert_eq!(commitment.promised(), needed, "after {op:?}");
                assert!(needed <= LIMIT, "after {op:?}");
            }
            sim.fail_alloc(0, false);
            drop(spaces);
            assert_eq!(commitment.promised(), 0);
        });
    }
}

/// Two spaces ask on two CPUs at once, and keep what they get. Together they never get more than
/// the limit.
fn at_the_limit(seed: u64) -> Result<(), Failure> {
    let limit = 3 * PAGE;
    let (race, (commitment, other)) = Race::with(racing(2, 96), None, |shared, space| {
        let rule = Overcommit::Never { limit };
        let commitment = Commitment::try_new(shared.machine(), rule).unwrap();
        let mut other = new_space(shared, 2).unwrap();
        space.set_commitment(&commitment);
        other.set_commitment(&commitment);
        (commitment, ManuallyDrop::new(other))
    });
    let spaces = [&*race.space, &*other];
    let programs = spaces.map(|space| -> Program<'_> {
        Box::new(move || {
            let _first = space.mmap(0, 2 * PAGE, 3, PRIVATE);
            let _second = space.mmap(0, PAGE, 3, PRIVATE);
        })
    });
    seeded(&race.sim, seed, programs.into())?;
    race.sim.on_cpu(0, || {
        let needed: usize = spaces.iter().map(|space| space.sizes().accounted).sum();
        assert_eq!(commitment.promised(), needed);
        assert!(needed <= limit, "{needed} bytes are promised");
    });
    let sim = race.sim.clone();
    race.end(ManuallyDrop::into_inner(other))?;
    sim.on_cpu(0, || assert_eq!(commitment.promised(), 0));
    Ok(())
}

#[test]
fn the_limit_holds_for_cpus_that_ask_at_once() {
    each_seed(600, at_the_limit);
}

/// A move that grows over other memory needs no promise for what it replaces; for more it does.
#[test]
fn what_a_move_replaces_is_promised_already() {
    with_space(256, |sim, shared, _| {
        let rule = Overcommit::Never { limit: 4 * PAGE };
        let commitment = Commitment::try_new(sim, rule).unwrap();
        let mut space = new_space(shared, 2).unwrap();
        space.set_commitment(&commitment);
        let (from, to) = (AT, AT + 8 * PAGE);
        space.mmap(from, PAGE, 3, FIXED).unwrap();
        space.mmap(to, 3 * PAGE, 3, FIXED).unwrap();
        let grown = |old, new, at| RemapRequest {
            new_len: new * PAGE,
            ..RemapRequest::moving(at, old * PAGE, to)
        };
        assert_eq!(space.mremap(grown(1, 4, from)), Ok(to));
        assert_eq!((commitment.promised(), space.sizes().accounted), (4 * PAGE, 4 * PAGE));
        space.munmap(to, 4 * PAGE).unwrap();
        space.mmap(from, PAGE, 3, FIXED).unwrap();
        space.mmap(to, PAGE, 3, FIXED).unwrap();
        let refused = space.mremap(grown(1, 5, from));
        assert_eq!(refused, Err(Error::Vma(vma::Error::Overcommit)));
        // As in Linux, the target is unmapped then.
        assert_eq!((commitment.promised(), space.sizes().accounted), (PAGE, PAGE));
    });
}

/// The heuristic refuses only sizes that no host could ever have; without limit nothing is refused.
#[test]
fn rules_of_overcommitment() {
    for (rule, refused) in
        [(Overcommit::Heuristic { memory: 5 * PAGE }, true), (Overcommit::Always, false)]
    {
        with_space(256, |sim, shared, _| {
            let commitment = Commitment::try_new(sim, rule).unwrap();
            let mut space = new_space(shared, 2).unwrap();
            space.mmap(AT, PAGE, 3, FIXED).unwrap();
            space.set_commitment(&commitment);
            assert_eq!(commitment.promised(), PAGE);
            for _ in 0..3 {
                space.mmap(0, 5 * PAGE, 3, PRIVATE).unwrap();
            }
            let large = space.mmap(0, 6 * PAGE, 3, PRIVATE);
            let expected = Err(Error::Vma(vma::Error::Overcommit));
            assert!(if refused { large == expected } else { large.is_ok() });
            let before = commitment.promised();
            shared.quick().drain();
            assert!(without_frames(sim, 1, true, || space.fork(Asid(3))).0.is_err());
            assert_eq!(commitment.promised(), before);
            let child = space.fork(Asid(3)).unwrap();
            assert_eq!(commitment.promised(), 2 * space.sizes().accounted);
            drop((space, child));
            assert_eq!(commitment.promised(), 0);
        });
    }
}
