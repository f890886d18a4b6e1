//! Random calls on some groups, against a map of pages. After each, both CPUs use random pages, and
//! no CPU holds a translation that the tables do not allow.

use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;

/// The state of a page: which of its two frames it has, and its rights.
type Page = (usize, Flags);

#[derive(Clone, Debug)]
enum Op {
    Map {
        hot: bool,
        write: bool,
    },
    Unmap,
    Protect(Flags),
    /// Changes of single pages, which follow from the number.
    Sweep(u64),
    Entry(u8),
}

#[derive(Clone, Debug)]
struct Call {
    op: Op,
    /// In sixteenths of a group.
    first: u64,
    len: u64,
    /// For accesses.
    seed: u64,
}

const RW: Flags = Attrs::USER_RW.flags;
const RO: Flags = Attrs::USER_RO.flags;

fn call() -> impl Strategy<Value = Call> {
    let op = prop_oneof![
        5 => (prop::bool::weighted(0.8), any::<bool>())
            .prop_map(|(hot, write)| Op::Map { hot, write }),
        2 => Just(Op::Unmap),
        1 => prop::sample::select(vec![RW, RO, Flags::empty()]).prop_map(Op::Protect),
        2 => any::<u64>().prop_map(Op::Sweep),
        3 => (0..4u8).prop_map(Op::Entry),
    ];
    let whole = (0..GROUPS, 1..=GROUPS).prop_map(|(first, len)| (first * 16, len * 16));
    let part = (0..GROUPS * 16, 1..40u64);
    (op, prop_oneof![whole, part], any::<u64>()).prop_map(|(op, (first, len), seed)| Call {
        op,
        first,
        len,
        seed,
    })
}

/// A number below `limit` that follows from others.
fn draw(seed: u64, number: u64, limit: u64) -> u64 {
    let mixed =
        (seed ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (mixed ^ mixed >> 31) % limit
}

fn marked(rights: Flags) -> Attrs {
    let dirty = if rights.contains(Flags::WRITE) { Flags::DIRTY } else { Flags::empty() };
    let accessed = if rights.is_empty() { Flags::empty() } else { Flags::ACCESSED };
    Attrs::new(rights | accessed | dirty)
}

impl<F: OnSim> World<F> {
    fn apply(&self, model: &mut BTreeMap<u64, Page>, call: &Call) {
        let scale = count::<F>() / 16;
        let first = call.first * scale;
        let len = (call.len * scale).min(GROUPS * count::<F>() - first);
        let (pages, range) = (first..first + len, part::<F>(first, len));
        match call.op {
            Op::Map { hot, write } => {
                let rights = if write { RW } else { RO };
                let attrs = if hot { marked(rights) } else { Attrs::new(rights) };
                match self.tables.map_own(range, self.frame(0, first), attrs) {
                    Ok(()) => {
                        assert!(model.range(pages.clone()).next().is_none());
                        model.extend(pages.map(|page| (page, (0, rights))));
                    }
                    Err(failed) => {
                        let (occupied, _) = model.range(pages).next().expect("a page in the way");
                        assert_eq!(failed.error, Error::Occupied(at::<F>(*occupied)));
                    }
                }
            }
            Op::Unmap => {
                let mut gone = Vec::new();
                let each = |page: Mapping| gone.push((page.page, page.frame));
                self.tables.unmap_own(range, each).unwrap().flush();
                let known = pages.filter_map(|page| Some((page, model.remove(&page)?)));
                let known = known.map(|(page, (of, _))| (at::<F>(page), self.frame(of, page)));
                assert_eq!(gone, known.collect::<Vec<_>>());
            }
            Op::Protect(rights) => {
                self.tables.protect_own(range, rights).unwrap().flush();
                model.range_mut(pages).for_each(|(_, page)| page.1 = rights);
            }
            Op::Sweep(seed) => {
                let mut pending = self.tables.no_flush();
                let change = |page: Mapping| {
                    let number = (page.page.get() - base::<F>()) / F::PAGE.bytes();
                    let known = model.get_mut(&number).expect("an unknown page");
                    assert_eq!(page.frame, self.frame(known.0, number));
                    assert_eq!(page.attrs.flags & Flags::RIGHTS, known.1);
                    match draw(seed, number / (1 + seed % 7), 8) {
                        0..3 => {
                            model.remove(&number);
                            SweepChange::Clear
                        }
                        3 if known.1 == RO => {
                            *known = (1 - known.0, RO);
                            SweepChange::Replace(self.frame(known.0, number), marked(RO))
                        }
                        4 if !known.1.is_empty() => {
                            known.1 = RO;
                            SweepChange::Set(Attrs::new(RO))
                        }
                        5 => SweepChange::Age,
                        6 => SweepChange::Clean,
                        _ => SweepChange::Keep,
                    }
                };
                self.tables.sweep_own(range, &mut pending, change).unwrap();
                pending.flush();
            }
            Op::Entry(kind) => {
                let decide = |page: Option<Mapping>| {
                    let known = model.get(&first).copied();
                    assert_eq!(
                        page.map(|page| (page.frame, page.attrs.flags & Flags::RIGHTS)),
                        known.map(|(of, rights)| (self.frame(of, first), rights))
                    );
                    let change = match (kind, known) {
                        (0, Some(_)) => {
                            model.remove(&first);
                            EntryChange::Clear
                        }
                        (1, of) => {
                            let of = of.map_or(0, |(of, _)| of);
                            model.insert(first, (of, RW));
                            EntryChange::Set(self.frame(of, first), marked(RW))
                        }
                        (2, Some((of, RO))) => {
                            model.insert(first, (1 - of, RO));
                            EntryChange::Replace(self.frame(1 - of, first), marked(RO))
                        }
                        _ => EntryChange::Keep,
                    };
                    (change, ())
                };
                let guard = Grace::pin();
                self.tables.with_entry_own(&guard, at::<F>(first), decide).unwrap().1.flush();
            }
        }
    }

    /// Uses some pages, most often near the changed ones.
    fn use_some(&self, model: &BTreeMap<u64, Page>, call: &Call) {
        let all = GROUPS * count::<F>();
        for number in 0..6 {
            let near = call.first * (count::<F>() / 16) + draw(call.seed, number, 24);
            let page = if number < 4 { near % all } else { draw(call.seed, number, all) };
            let write = draw(call.seed, number + 100, 2) == 0;
            let known = model.get(&page);
            let expected = match known {
                None => Err(FaultKind::NotPresent),
                Some((_, rights)) if rights.is_empty() => Err(FaultKind::NotPresent),
                Some((_, rights)) if write && !rights.contains(Flags::WRITE) => {
                    Err(FaultKind::Protection)
                }
                Some((of, _)) => Ok(self.frame(*of, page)),
            };
            assert_eq!(self.touch(page, write), expected, "page {page}, {call:?}");
        }
    }
}

/// Begins with a group at each place.
fn run<F: OnSim>(calls: &[Call]) {
    let world = World::<F>::new();
    let pages = GROUPS * count::<F>();
    world.map(0, pages, HOT);
    assert_eq!(world.groups().len() as u64, GROUPS);
    let mut model: BTreeMap<u64, Page> = (0..pages).map(|page| (page, (0, RW))).collect();
    for call in calls {
        world.sim.on_cpu(0, || world.apply(&mut model, call));
        world.flushed();
        world.groups();
        world.use_some(&model, call);
        world.flushed();
    }
    world.end();
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 48, ..ProptestConfig::default() })]
    #[test]
    fn random_calls(calls in prop::collection::vec(call(), 1..24)) {
        run::<Aarch64>(&calls);
        run::<Aarch64Stage2>(&calls);
        run::<Sv48Napot>(&calls);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 6, ..ProptestConfig::default() })]
    #[test]
    fn random_calls_with_larger_granules(calls in prop::collection::vec(call(), 1..12)) {
        run::<Aarch64G16>(&calls);
        run::<Aarch64G64>(&calls);
    }
}
