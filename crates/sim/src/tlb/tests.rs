use super::*;
use crate::format::Arch;
use proptest::prelude::*;

/// Pages in a small part of the address space, around a 2 MiB boundary.
const BASE: u64 = 0x4000_0000 - 16 * 4096;
const X86: Format = Format { arch: Arch::X86_64, levels: 4 };

fn space(number: u16) -> Option<Asid> {
    (number < 3).then_some(Asid(number))
}

fn translation(page: u64, large: bool, number: u16, since: u64) -> Translation {
    let size = if large { PageSize::Size2M } else { PageSize::Size4K };
    Translation {
        page: VirtAddr::new(BASE + page * 4096).align_down(size),
        size,
        space: space(number),
        root: Frame::default(),
        top: None,
        frame: Frame::default(),
        rights: Rights::ALL,
        dirty: false,
        group: false,
        since,
        memory: 0,
        place: (Frame::default(), 0),
    }
}

#[derive(Clone, Debug)]
enum Step {
    Insert { page: u64, large: bool, space: u16 },
    Range { from: u64, pages: u64, space: u16, large: bool },
    Space(u16),
    All,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let insert = (0..32u64, prop::bool::weighted(0.2), 0..4u16)
        .prop_map(|(page, large, space)| Step::Insert { page, large, space });
    let range = (0..32u64, 0..9u64, 0..4u16, any::<bool>())
        .prop_map(|(from, pages, space, large)| Step::Range { from, pages, space, large });
    let step = prop_oneof![8 => insert, 4 => range, 1 => (0..3u16).prop_map(Step::Space), 1 => Just(Step::All)];
    prop::collection::vec(step, 0..60)
}

/// Whether a flush covers a translation, in the terms of the contract: page by page.
fn covered(held: &Translation, what: Flush) -> bool {
    match what {
        Flush::Range { space, range, stride, .. } => {
            (space.is_none() || held.space == space)
                && range.pages(stride).any(|at| held.covers(at))
        }
        Flush::Space(space) => held.space == Some(space),
        Flush::All => true,
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None, cases: if cfg!(miri) { 2 } else { 512 }, ..ProptestConfig::default()
    })]
    /// Against a list without a limit. Every translation found was cached and not dropped since. If
    /// the TLB is large enough, all of these are found.
    #[test]
    fn as_a_list(script in steps(), entries in prop_oneof![Just(1usize), Just(3), Just(8), Just(24), Just(4096)]) {
        let (mut tlb, mut uppers) = (Tlb::new(entries), Uppers::new(X86, 4));
        let mut all: Vec<Translation> = Vec::new();
        for (step, since) in script.into_iter().zip(1..) {
            let what = match step {
                Step::Insert { page, large, space } => {
                    let new = translation(page, large, space, since);
                    all.retain(|held| (held.page, held.size, held.space) != (new.page, new.size, new.space));
                    all.push(new);
                    tlb.insert(new);
                    continue;
                }
                Step::Range { from, pages, space: number, large } => Flush::Range {
                    space: space(number),
                    range: VirtRange::new(VirtAddr::new(BASE + from * 4096 + 8), pages * 4096).unwrap(),
                    stride: if large { PageSize::Size2M } else { PageSize::Size4K },
                    tables: false,
                },
                Step::Space(number) => Flush::Space(Asid(number)),
                Step::All => Flush::All,
            };
            let dropped = flush(&mut tlb, &mut uppers, what);
            let before = all.len();
            all.retain(|held| !covered(held, what));
            if entries == 4096 {
                prop_assert_eq!(dropped, before - all.len());
            }
        }
        prop_assert!(tlb.iter().count() <= entries.max(1));
        prop_assert_eq!(tlb.sizes.iter().sum::<usize>(), tlb.iter().count());
        for held in tlb.iter() {
            prop_assert!(all.iter().any(|known| known.since == held.since), "{held:?} was dropped");
        }
        for page in (0..32).step_by(if cfg!(miri) { 5 } else { 1 }) {
            let at = VirtAddr::new(BASE + page * 4096 + 100);
            for number in 0..3 {
                let fits = |held: &&Translation| held.covers(at) && (held.space.is_none() || held.space == space(number));
                let found = tlb.find(Asid(number), at);
                prop_assert!(found.is_none_or(|found| fits(&&found)));
                if entries == 4096 {
                    prop_assert_eq!(found.is_some(), all.iter().any(|held| fits(&held)));
                }
            }
        }
    }

    /// The cache of upper levels returns the lowest entry for the address and the space, until a
    /// flush says that tables were unlinked.
    #[test]
    fn upper_levels(levels in prop::collection::vec((0u8..3, 0u64..4, 0u16..2), 1..8), flushed in 0u64..4) {
        let (mut tlb, mut uppers) = (Tlb::new(8), Uppers::new(X86, 8));
        let address = |part: u64| VirtAddr::new(part << 39 | 0x1234_5000);
        for (level, part, space) in &levels {
            let start = address(*part);
            let (space, table) = (Asid(*space), Frame::default());
            let upper = Upper {
                level: *level,
                start,
                bits: 0,
                space,
                root: table,
                table,
                rights: Rights::ALL,
                place: (table, 0),
                since: 0,
            };
            uppers.insert(start, upper);
        }
        for tables in [false, true] {
            let range = VirtRange::new(address(flushed), 1).unwrap();
            flush(&mut tlb, &mut uppers, Flush::Range { space: Some(Asid(1)), range, stride: PageSize::Size4K, tables });
            for part in 0..4 {
                for number in 0..2 {
                    let fits = |(_, known, space): &&(u8, u64, u16)| *known == part && *space == number;
                    let lowest = levels.iter().filter(fits).map(|(level, ..)| *level).min();
                    let gone = tables && part == flushed && number == 1;
                    let found = uppers.find(Asid(number), address(part)).map(|upper| upper.level);
                    prop_assert_eq!(found, lowest.filter(|_| !gone));
                }
            }
        }
    }
}

#[test]
fn of_two_sizes_the_older_is_used() {
    for large_first in [true, false] {
        let mut tlb = Tlb::new(64);
        for (since, large) in [(1, large_first), (2, !large_first)] {
            tlb.insert(translation(20, large, 1, since));
        }
        let found = tlb.find(Asid(1), VirtAddr::new(BASE + 20 * 4096));
        assert_eq!(found.map(|found| found.since), Some(1));
    }
}
