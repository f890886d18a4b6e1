//! Page tables against a model, a map of pages. Memory runs out at each place where it is needed
//! (I7).

mod common;

use common::*;
use machine::*;
use paging::*;
use proptest::prelude::*;
use sim::{Config, Grace, Sim};
use std::collections::{BTreeMap, BTreeSet};

/// Where pages are mapped: across a border of tables at each level, and at the end of the lower
/// half of 48 bits.
fn base<F: Format>(number: usize) -> u64 {
    match number {
        0 => 2 << F::shift(1),
        1 => (1 << F::shift(2)) - F::LARGE.bytes(),
        // Three levels end below.
        2 if F::shift(3) < F::LOWER_BITS => (1 << F::shift(3)) - F::LARGE.bytes(),
        2 => (2 << F::shift(2)) - F::LARGE.bytes(),
        _ => (1 << F::LOWER_BITS.min(47)) - (window::<F>() << F::PAGE.shift()),
    }
}
const BASES: usize = 4;
/// Pages of three lowest tables.
fn window<F: Format>() -> u64 {
    3 * F::ENTRIES as u64
}
/// Places in the window are drawn as if tables had so many entries.
const DRAWN: u64 = 512;

#[derive(Clone, Debug)]
enum Op {
    Map {
        frame: u64,
        attrs: usize,
    },
    MapOver {
        frame: u64,
        attrs: usize,
    },
    Unmap,
    Protect {
        rights: Flags,
    },
    /// Into large pages, or into the smallest.
    Split {
        large: bool,
    },
}

#[derive(Clone, Debug)]
struct Call {
    base: usize,
    first: u64,
    len: u64,
    op: Op,
    /// Whether memory runs out, once at every place, before the call succeeds.
    starve: bool,
}

fn call() -> impl Strategy<Value = Call> {
    let rights = prop::sample::select(vec![
        Flags::READ | Flags::USER,
        Flags::READ | Flags::WRITE | Flags::USER,
        Flags::READ | Flags::EXECUTE | Flags::USER,
        Flags::empty(),
        Flags::WRITE | Flags::USER,
        Flags::READ | Flags::EXECUTE,
    ]);
    let op = prop_oneof![
        4 => (0u64..1 << 20, 0..ATTRS.len()).prop_map(|(frame, attrs)| Op::Map { frame, attrs }),
        2 => (0u64..1 << 20, 0..ATTRS.len())
            .prop_map(|(frame, attrs)| Op::MapOver { frame, attrs }),
        3 => Just(Op::Unmap),
        2 => rights.prop_map(|rights| Op::Protect { rights }),
        1 => any::<bool>().prop_map(|large| Op::Split { large }),
    ];
    // Some pages, or whole tables of them.
    let small = (0..3 * DRAWN, 1u64..40);
    let large = (0u64..3, 1u64..4).prop_map(|(first, len)| (first * DRAWN, len * DRAWN));
    let edge =
        (0u64..3, 0u64..8, 1u64..600).prop_map(|(first, off, len)| (first * DRAWN + off, len));
    (0..BASES, prop_oneof![small, large, edge], op, any::<bool>()).prop_map(
        |(base, (first, len), op, starve)| Call {
            base,
            first,
            len: len.min(3 * DRAWN - first),
            op,
            starve,
        },
    )
}

/// Pages with the last ones become groups, where they fit and the format has them.
const ATTRS: [Attrs; 5] = [
    Attrs::USER_RW,
    Attrs { soft: 5, cache: Cache::WriteCombining, ..Attrs::USER_RO },
    Attrs { key: 3, ..Attrs::new(Flags::READ.union(Flags::EXECUTE).union(Flags::USER)) },
    Attrs::new(Attrs::USER_RW.flags.union(Flags::ACCESSED).union(Flags::DIRTY)),
    Attrs { soft: 2, ..Attrs::new(Attrs::USER_RO.flags.union(Flags::ACCESSED)) },
];

/// Attributes that the format has. Where it has pages that are shared with the host, some are.
fn attrs_of<F: Format>(number: usize) -> Attrs {
    let key = if F::KEYS == 1 { 0 } else { ATTRS[number].key };
    let soft = ATTRS[number].soft & ((1 << F::SOFT_BITS.min(15)) - 1);
    let kind = if number % 2 == 1 { F::DEVICE } else { Flags::empty() };
    Attrs { key, soft, flags: ATTRS[number].flags | kind, ..ATTRS[number] }
}

/// From page number to frame number and attributes.
type Model = BTreeMap<u64, (u64, Attrs)>;

/// The contents of the tables, and the number of tables that these need.
fn look<F: Format>(space: &PageTables<Sim, F, Grace>) -> (Model, usize, Vec<Mapping>) {
    let guard = <Grace as grace::Reclaim>::pin();
    let all = VirtRange::new(virt(0), 1 << F::LOWER_BITS).unwrap();
    let found: Vec<Mapping> = space.walk(&guard).pages(all).collect();
    let mut ways = BTreeSet::from([(F::LEVELS - 1, 0)]);
    let mut model = Model::new();
    for page in &found {
        for level in F::level_of(page.size).unwrap()..F::LEVELS {
            ways.insert((level, page.page.get() >> F::shift(level + 1)));
        }
        for (number, value) in pieces::<F>(page) {
            assert_eq!(model.insert(number, value), None);
        }
    }
    (model, ways.len(), found)
}

/// The smallest pages of a page.
fn pieces<F: Format>(page: &Mapping) -> impl Iterator<Item = (u64, (u64, Attrs))> {
    let &Mapping { page, size, frame, attrs } = page;
    let (first, count) = (page.get() >> F::PAGE.shift(), size.bytes() >> F::PAGE.shift());
    (0..count).map(move |piece| (first + piece, (frame.number() + piece * F::PAGE.frames(), attrs)))
}

/// The pages of a call, which was drawn for other tables.
fn drawn<F: Format>(call: &Call) -> core::ops::Range<u64> {
    let (tables, entries) = (F::ENTRIES as u64, call.first % DRAWN);
    let first = call.first / DRAWN * tables + entries;
    let len = call.len / DRAWN * tables + call.len % DRAWN;
    let start = base::<F>(call.base) >> F::PAGE.shift();
    start + first..start + (first + len).min(window::<F>())
}

/// The first frame of a mapping, below the machine's own memory, which begins at frame 2^20. Half
/// of them are aligned such that large pages fit.
fn memory<F: Format>(frame: u64, first: u64) -> u64 {
    let (each, entries) = (F::PAGE.frames(), F::ENTRIES as u64);
    let most = (1 << 20) / each - 2 * window::<F>();
    let (even, page) = (frame & 1 == 0, frame / each % most);
    each * if even { page & !(entries - 1) | first & (entries - 1) } else { page }
}

fn apply<F: Format>(
    space: &PageTables<Sim, F, Grace>,
    model: &mut Model,
    call: &Call,
) -> Result<(), Error> {
    let numbers = drawn::<F>(call);
    let first = numbers.start;
    let range = pages_of::<F>(first << F::PAGE.shift(), numbers.end - first);
    match &call.op {
        Op::Map { frame, attrs } => {
            let (each, frame) = (F::PAGE.frames(), memory::<F>(*frame, first));
            let attrs = attrs_of::<F>(*attrs);
            let result = space.map_own(range, Frame::new(frame).unwrap(), attrs);
            let occupied = model.range(numbers.clone()).next().map(|(page, _)| *page);
            match (result, occupied) {
                (Ok(()), None) => model.extend(
                    numbers.map(|number| (number, (frame + (number - first) * each, attrs))),
                ),
                (Err(Failed { error, pending }), at) => {
                    pending.flush();
                    if let Error::Occupied(found) = error {
                        // The page that contains the first occupied address.
                        let guard = <Grace as grace::Reclaim>::pin();
                        let page = space.walk(&guard).get(virt(at.unwrap() << F::PAGE.shift()));
                        assert_eq!(Some(found), page.map(|page| page.page));
                    }
                    return Err(error);
                }
                (Ok(()), Some(at)) => panic!("mapped over page {at:#x}"),
            }
        }
        Op::MapOver { frame, attrs } => {
            let (each, frame) = (F::PAGE.frames(), memory::<F>(*frame, first));
            let (attrs, mut gone) = (attrs_of::<F>(*attrs), BTreeMap::new());
            let replace = |page: Mapping| gone.extend(pieces::<F>(&page));
            let result = space.map_over_own(range, Frame::new(frame).unwrap(), attrs, replace);
            match result {
                Ok(pending) => pending.flush(),
                Err(Failed { error, pending }) => {
                    pending.flush();
                    assert!(gone.is_empty());
                    return Err(error);
                }
            }
            #[expect(clippy::incompatible_msrv, reason = "tests run with the newest compiler")]
            let expected: Model = model.extract_if(numbers.clone(), |_, _| true).collect();
            assert_eq!(gone, expected);
            model.extend(numbers.map(|number| (number, (frame + (number - first) * each, attrs))));
        }
        Op::Unmap => {
            let mut gone = BTreeMap::new();
            let pending = space
                .unmap_own(range, |page| gone.extend(pieces::<F>(&page)))
                .map_err(|failed| failed.error)?;
            pending.flush();
            #[expect(clippy::incompatible_msrv, reason = "tests run with the newest compiler")]
            let expected: Model = model.extract_if(numbers, |_, _| true).collect();
            assert_eq!(gone, expected);
        }
        Op::Protect { rights } => {
            let pending = space.protect_own(range, *rights).map_err(|failed| failed.error)?;
            let lost = model
                .range(numbers.clone())
                .filter(|(_, (_, attrs))| !(attrs.flags & Flags::RIGHTS & !*rights).is_empty());
            let lost: Vec<u64> = lost.map(|(number, _)| *number).collect();
            let owes = pending.range();
            assert_eq!(lost.is_empty(), pending.is_nothing());
            assert!(lost.iter().all(|page| owes.unwrap().contains(virt(page << F::PAGE.shift()))));
            pending.flush();
            for (_, (_, attrs)) in model.range_mut(numbers) {
                *attrs = attrs.with_rights(*rights);
            }
        }
        Op::Split { large } => {
            let size = if *large { F::LARGE } else { F::PAGE };
            space.split_own(range.start(), size).map_err(|failed| failed.error)?.flush();
        }
    }
    Ok(())
}

fn run<F: OnSim>(calls: Vec<Call>) {
    let frames = 64 * F::PAGE.frames();
    let (sim, paging) = machine_of::<F>(Config { cpus: 1, frames, ..Config::default() });
    sim.on_cpu(0, || {
        let space = PageTables::<Sim, F, Grace>::user(&paging, Asid(1), None).unwrap();
        let mut model = Model::new();
        for call in calls {
            for left in if call.starve { 0 } else { 64 }..=64 {
                assert!(sim.settle());
                paging.quick().drain();
                let before = look(&space);
                let mut hogs = Vec::new();
                while sim.free_count() / F::PAGE.frames() > left {
                    hogs.push(block(&sim, F::PAGE.order()));
                }
                let result = apply(&space, &mut model, &call);
                hogs.into_iter().for_each(|frame| release(&sim, frame));
                assert!(sim.settle());
                let (found, tables, _) = look(&space);
                assert_eq!(found, model, "after {call:?}: {result:?}");
                assert_eq!(common::tables(&sim), tables, "after {call:?}: {result:?}");
                match result {
                    Err(Error::Frames(_)) => assert!(left < 16, "there is memory"),
                    // Any other error comes before a change, or the change is undone.
                    Err(error) => {
                        assert_eq!(look(&space).2, before.2, "{error}");
                        explained(&call, &before.2, error);
                        break;
                    }
                    Ok(()) => break,
                }
            }
        }
        let all = VirtRange::new(virt(0), 1 << F::LOWER_BITS).unwrap();
        space
            .unmap_own(all, |page| {
                assert_eq!(model[&(page.page.get() >> F::PAGE.shift())].0, page.frame.number())
            })
            .unwrap()
            .flush();
        assert!(sim.settle());
        assert_eq!(common::tables(&sim), 1);
        drop(space);
        paging.quick().drain();
    });
    sim.check_leaks().unwrap();
}

/// Checks the cause of an error.
fn explained(call: &Call, before: &[Mapping], error: Error) {
    match (&call.op, error) {
        (Op::Map { .. }, Error::Occupied(_)) => {}
        (Op::Protect { rights }, Error::Format(FormatError::Rights(_))) => {
            assert_eq!(*rights, Flags::WRITE | Flags::USER);
        }
        (Op::Protect { rights }, Error::NotUser(_)) => assert!(!rights.contains(Flags::USER)),
        (Op::Unmap | Op::MapOver { .. } | Op::Protect { .. }, Error::Cut(at, size)) => {
            assert!(before.iter().any(|page| (page.page, page.size) == (at, size)));
        }
        (_, error) => panic!("{call:?}: {error}"),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 32, ..ProptestConfig::default() })]
    #[test]
    fn tables_are_a_map_of_pages(calls in prop::collection::vec(call(), 1..24)) {
        run::<X86_64L4>(calls);
    }

    #[test]
    fn with_five_levels(calls in prop::collection::vec(call(), 1..12)) {
        run::<X86_64L5>(calls.clone());
        run::<Sev>(calls);
    }

    #[test]
    fn of_a_guest(calls in prop::collection::vec(call(), 1..12)) {
        run::<Ept4>(calls.clone());
        run::<Npt4>(calls.clone());
        run::<Aarch64Stage2>(calls);
    }

    #[test]
    fn with_break_before_make(calls in prop::collection::vec(call(), 1..12)) {
        run::<Aarch64>(calls);
    }

    #[test]
    fn with_groups(calls in prop::collection::vec(call(), 1..12)) {
        run::<Sv39Napot>(calls.clone());
        run::<Sv48Napot>(calls);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 4, ..ProptestConfig::default() })]
    #[test]
    fn with_larger_granules(calls in prop::collection::vec(call(), 1..8)) {
        run::<Aarch64G16>(calls.clone());
        run::<Aarch64G16L3>(calls.clone());
        run::<Aarch64G64>(calls);
    }

    #[test]
    fn with_larger_granules_and_addresses(calls in prop::collection::vec(call(), 1..4)) {
        run::<Aarch64G16Lpa2>(calls.clone());
        run::<Aarch64G64Lpa>(calls);
    }
}

/// At the end of the lower half, with a page of each size.
#[test]
fn each_size_at_the_end() {
    fn once<F: OnSim>() {
        let (sim, paging) = machine_of::<F>(Config { cpus: 1, ..Config::default() });
        sim.on_cpu(0, || {
            let space = PageTables::<Sim, F, Grace>::user(&paging, Asid(1), None).unwrap();
            let mut sizes: Vec<_> = F::sizes().collect();
            sizes.sort_unstable();
            let (top, page, largest) =
                (1 << F::LOWER_BITS, F::PAGE.bytes(), *sizes.last().unwrap());
            let len: u64 = sizes.iter().map(|size| size.bytes()).sum();
            let range = VirtRange::new(virt(top - len), len).unwrap();
            let first = Frame::new(3 * largest.frames() - (len >> 12)).unwrap();
            space.map_own(range, first, Attrs::USER_RW).unwrap();
            let (_, tables, found) = look(&space);
            assert_eq!(found.iter().map(|page| page.size).collect::<Vec<_>>(), sizes);
            assert_eq!(common::tables(&sim), tables);
            if F::PAGE != PageSize::Size4K {
                // No page of 4 KiB, nor half of one.
                let small = space.unmap_own(VirtRange::new(range.start(), 4096).unwrap(), |_| ());
                assert_eq!(refused(small), Error::Misaligned(virt(top - len + 4095)));
                let size = refused(space.split_own(virt(top - 1), PageSize::Size4K));
                assert_eq!(size, Error::Format(FormatError::Size(PageSize::Size4K)));
                let odd = first.checked_add(1).unwrap();
                let failed = space.map_own(range, odd, Attrs::USER_RW);
                assert_eq!(refused(failed), Error::Format(FormatError::Misaligned(odd, F::PAGE)));
            }
            space.split_own(virt(top - 1), F::PAGE).unwrap().flush();
            let pieces = F::ENTRIES + (sizes.len() - 2) * (F::ENTRIES - 1);
            assert_eq!(look(&space).2.len(), sizes.len() - 1 + pieces);
            let guard = <Grace as grace::Reclaim>::pin();
            let last = space.walk(&guard).get(virt(top - page)).unwrap().frame;
            assert_eq!(last.number(), 3 * largest.frames() - F::PAGE.frames());
            drop(guard);
            space.unmap_own(range, |_| ()).unwrap().flush();
            let beyond = space.map_own(pages_of::<F>(top, 1), first, Attrs::USER_RW);
            assert_eq!(refused(beyond), Error::NotCanonical(virt(top)));
        });
        all_given_back(&sim, &paging).unwrap();
    }
    once::<Sv39>();
    once::<Sv48>();
    once::<Sv57>();
    once::<X86_64L5>();
    once::<Aarch64>();
    once::<Aarch64Lpa2>();
    once::<Aarch64G16L3>();
    once::<Aarch64G16>();
    once::<Aarch64G16Lpa2>();
    once::<Aarch64G64>();
    once::<Aarch64G64Lpa>();
}
