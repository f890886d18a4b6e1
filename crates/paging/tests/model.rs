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
    let (arch, levels) = (F::ARCH, F::LEVELS);
    let frames = 64 * F::PAGE.frames();
    let config = Config { cpus: 1, frames, arch, levels, ..Config::default() };
    let sim = Sim::new(config).unwrap();
    let paging = Paging::<Sim, F>::try_new(sim.clone(), PageSize::Size1G).unwrap();
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

/// At the end of the lower half, with pages of both sizes of a larger granule.
#[test]
fn larger_granules() {
    fn once<F: OnSim>() {
        let frames = 64 * F::PAGE.frames();
        let config =
            Config { cpus: 1, frames, arch: F::ARCH, levels: F::LEVELS, ..Config::default() };
        let sim = &Sim::new(config).unwrap();
        let paging = Paging::<Sim, F>::try_new(sim.clone(), PageSize::Size1G).unwrap();
        sim.on_cpu(0, || {
            let space = PageTables::<Sim, F, Grace>::user(&paging, Asid(1), None).unwrap();
            let (top, page) = (1 << F::LOWER_BITS, F::PAGE.bytes());
            let start = virt(top - F::LARGE.bytes() - page);
            let range = VirtRange::new(start, F::LARGE.bytes() + page).unwrap();
            let first = Frame::new(2 * F::LARGE.frames() - F::PAGE.frames()).unwrap();
            space.map_own(range, first, Attrs::USER_RW).unwrap();
            let (_, tables, found) = look(&space);
            let sizes: Vec<_> = found.iter().map(|page| page.size).collect();
            assert_eq!(sizes, [F::PAGE, F::LARGE]);
            assert_eq!(common::tables(sim), tables);
            // No page of 4 KiB, nor half of one.
            let small = VirtRange::new(start, 4096).unwrap();
            let misaligned = Err(Error::Misaligned(virt(start.get() + 4095)));
            assert_eq!(
                space.unmap_own(small, |_| ()).map(drop).map_err(|failed| failed.error),
                misaligned
            );
            let size = space.split_own(virt(top - 1), PageSize::Size4K).map(drop);
            let size = size.map_err(|failed| failed.error);
            assert_eq!(size, Err(Error::Format(FormatError::Size(PageSize::Size4K))));
            space.split_own(virt(top - 1), F::PAGE).unwrap().flush();
            assert_eq!(look(&space).2.len(), 1 + F::ENTRIES);
            let frame = |at| space.walk(&<Grace as grace::Reclaim>::pin()).get(at).unwrap().frame;
            assert_eq!(frame(virt(top - page)).number(), 3 * F::LARGE.frames() - F::PAGE.frames());
            space.unmap_own(range, |_| ()).unwrap().flush();
            let beyond = VirtRange::new(virt(top), page).unwrap();
            let failed = space.map_own(beyond, first, Attrs::USER_RW).unwrap_err();
            assert_eq!(failed.error, Error::NotCanonical(virt(top)));
            drop(failed);
            let odd = Frame::new(first.number() + 1).unwrap();
            let failed = space.map_own(range, odd, Attrs::USER_RW).unwrap_err();
            assert_eq!(failed.error, Error::Format(FormatError::Misaligned(odd, F::PAGE)));
            drop(failed);
            drop(space);
            sim.settle();
            paging.quick().drain();
        });
        sim.check_leaks().unwrap();
    }
    once::<Aarch64G16L3>();
    once::<Aarch64G16>();
    once::<Aarch64G16Lpa2>();
    once::<Aarch64G64>();
    once::<Aarch64G64Lpa>();
}

/// At the end of the lower half, with pages of all sizes.
#[test]
fn other_architectures() {
    fn once<F: OnSim>(top: u64) {
        let config = Config { cpus: 1, arch: F::ARCH, levels: F::LEVELS, ..Config::default() };
        let sim = &Sim::new(config).unwrap();
        let paging = Paging::<Sim, F>::try_new(sim.clone(), PageSize::Size1G).unwrap();
        sim.on_cpu(0, || {
            let space = PageTables::<Sim, F, Grace>::user(&paging, Asid(1), None).unwrap();
            let range = pages(top - (1 << 30) - 0x20_1000, 1 + 512 + (1 << 18));
            let first = Frame::new((1 << 19) - 512 - 1).unwrap();
            space.map_own(range, first, Attrs::USER_RW).unwrap();
            let (_, tables, found) = look(&space);
            let sizes: Vec<_> = found.iter().map(|page| page.size).collect();
            assert_eq!(sizes, [PageSize::Size4K, PageSize::Size2M, PageSize::Size1G]);
            assert_eq!(common::tables(sim), tables);
            space.split_own(virt(top - 1), PageSize::Size4K).unwrap().flush();
            assert_eq!(look(&space).2.len(), 2 + 511 + 512);
            let last = pages(top - 0x1000, 1);
            let frame = |at| space.walk(&<Grace as grace::Reclaim>::pin()).get(at).unwrap().frame;
            assert_eq!(frame(last.start()).number(), (1 << 19) + (1 << 18) - 1);
            space.unmap_own(range, |_| ()).unwrap().flush();
            let beyond = VirtRange::new(virt(top), 0x1000).unwrap();
            let failed = space.map_own(beyond, first, Attrs::USER_RW).unwrap_err();
            assert_eq!(failed.error, Error::NotCanonical(virt(top)));
            drop(failed);
            drop(space);
            sim.settle();
            paging.quick().drain();
        });
        sim.check_leaks().unwrap();
    }
    once::<Sv39>(1 << 38);
    once::<Sv48>(1 << 47);
    once::<Sv57>(1 << 56);
    once::<X86_64L5>(1 << 56);
    once::<Aarch64>(1 << 47);
    once::<Aarch64Lpa2>(1 << 51);
}
