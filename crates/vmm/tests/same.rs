//! Random operations on these types and on those of rust-vmm, with the same results.

use proptest::prelude::*;
use std::sync::Arc;
use vm_allocator::{AllocPolicy, Error};
use vm_memory::{
    Bytes, GuestAddress, GuestMemoryBackend, GuestMemoryMmap, GuestMemoryRegion, GuestRegionMmap,
};
use vmm::{AddressAllocator, GuestRegions};

#[derive(Clone, Debug)]
enum Op {
    Allocate(u64, u64, AllocPolicy),
    /// As above, between limits.
    Within(u64, u64, AllocPolicy, u64, u64),
    /// Frees the nth allocated range, or one that is not.
    Free(usize),
    FreeOther(u64, u64),
}

fn op() -> impl Strategy<Value = Op> {
    let policy = prop_oneof![
        4 => Just(AllocPolicy::FirstMatch),
        2 => Just(AllocPolicy::LastMatch),
        2 => (0u64..0x900).prop_map(AllocPolicy::ExactMatch),
    ];
    prop_oneof![
        6 => (0u64..0x60, prop_oneof![(0u32..7).prop_map(|n| 1 << n), 0u64..9], policy)
            .prop_map(|(size, align, policy)| Op::Allocate(size, align, policy)),
        2 => (0u64..0x60, (0u32..7).prop_map(|n| 1 << n), 0u64..0x900, 0u64..0x200, any::<bool>())
            .prop_map(|(size, align, first, more, lowest)| {
                let policy = if lowest { AllocPolicy::FirstMatch } else { AllocPolicy::LastMatch };
                Op::Within(size, align, policy, first, first + more)
            }),
        3 => any::<usize>().prop_map(Op::Free),
        1 => (0u64..0x900, 0u64..0x40).prop_map(|(start, more)| Op::FreeOther(start, more)),
    ]
}

/// An address space as a list of addresses in use.
struct Naive {
    base: u64,
    used: Vec<bool>,
}

impl Naive {
    fn allocate(&mut self, size: u64, align: u64, policy: AllocPolicy) -> Option<u64> {
        self.allocate_in(0, u64::MAX, size, align, policy)
    }

    fn allocate_in(
        &mut self,
        first: u64,
        last: u64,
        size: u64,
        align: u64,
        policy: AllocPolicy,
    ) -> Option<u64> {
        let base = self.base;
        let limit = last.saturating_add(1).max(first);
        let (from, end) = (base.max(first), (base + self.used.len() as u64).min(limit));
        let free = |start: &u64| {
            start.is_multiple_of(align)
                && (*start..start + size)
                    .all(|at| (from..end).contains(&at) && !self.used[(at - base) as usize])
        };
        let start = match policy {
            AllocPolicy::FirstMatch => (from..end).find(free),
            AllocPolicy::LastMatch => (from..end).rev().find(free),
            AllocPolicy::ExactMatch(start) => Some(start).filter(free),
        }?;
        self.mark(start, size, true);
        Some(start)
    }

    fn available(&self) -> u64 {
        self.used.iter().filter(|used| !**used).count() as u64
    }

    fn mark(&mut self, start: u64, size: u64, used: bool) {
        let first = (start - self.base) as usize;
        self.used[first..first + size as usize].fill(used);
    }
}

proptest! {
    /// `vm-allocator` is compared until a range is freed, and for the lowest place: version 0.1
    /// does not join all free neighbours, and its highest place is one below the highest.
    #[test]
    fn allocators_agree(
        base in 0u64..0x200,
        size in 1u64..0x800,
        firsts in 0usize..20,
        ops in prop::collection::vec(op(), 1..200),
    ) {
        let mut ours = AddressAllocator::new(base, size).unwrap();
        let mut theirs = vm_allocator::AddressAllocator::new(base, size).unwrap();
        let mut naive = Naive { base, used: vec![false; size as usize] };
        prop_assert_eq!((ours.base(), ours.end()), (theirs.base(), theirs.end()));
        let mut allocated = Vec::new();
        // Whether `vm-allocator` may differ.
        let mut all = false;
        let first = |_| Op::Allocate(firsts as u64 + 1, 4, AllocPolicy::FirstMatch);
        for op in (0..firsts).map(first).chain(ops) {
            match op {
                Op::Allocate(size, align, policy) => {
                    all |= !matches!(policy, AllocPolicy::FirstMatch);
                    let result = ours.allocate(size, align, policy);
                    if !all {
                        prop_assert_eq!(result, theirs.allocate(size, align, policy), "{:?}", op);
                    }
                    match vm_allocator::Constraint::new(size, align, policy) {
                        Err(error) => prop_assert_eq!(result, Err(error)),
                        Ok(_) => prop_assert_eq!(
                            result.map(|range| range.start()).ok(),
                            naive.allocate(size, align, policy),
                            "{:?}", op
                        ),
                    }
                    allocated.extend(result);
                }
                Op::Within(size, align, policy, first, last) => {
                    all = true;
                    let limits = vm_allocator::RangeInclusive::new(first, last).unwrap();
                    let result = ours.allocate_in(&limits, size, align, policy);
                    match vm_allocator::Constraint::new(size, align, policy) {
                        Err(error) => prop_assert_eq!(result, Err(error)),
                        Ok(_) => prop_assert_eq!(
                            result.map(|range| range.start()).ok(),
                            naive.allocate_in(first, last, size, align, policy),
                            "{:?}", op
                        ),
                    }
                    allocated.extend(result);
                }
                Op::Free(n) if !allocated.is_empty() => {
                    let range = allocated.swap_remove(n % allocated.len());
                    prop_assert_eq!(ours.free(&range), Ok(()));
                    naive.mark(range.start(), range.len(), false);
                    all = true;
                }
                Op::Free(_) => {}
                Op::FreeOther(start, more) => {
                    let range = vm_allocator::RangeInclusive::new(start, start + more).unwrap();
                    let hit = allocated.iter().filter(|one| one.overlaps(&range));
                    let lowest = hit.min_by_key(|one| one.start()).copied();
                    prop_assert_eq!(ours.overlapping(&range), lowest);
                    if !allocated.contains(&range) {
                        prop_assert_eq!(ours.free(&range), Err(Error::ResourceNotAvailable));
                    }
                }
            }
        }
    }

    /// The allocated and free ranges are all of the space, and are counted right.
    #[test]
    fn ranges_fill_the_space(base in 0u64..0x200, ops in prop::collection::vec(op(), 1..100)) {
        let mut ours = AddressAllocator::new(base, 0x400).unwrap();
        let mut naive = Naive { base, used: vec![false; 0x400] };
        for op in ops {
            match op {
                Op::Allocate(size, align, policy) => {
                    if let Ok(range) = ours.allocate(size, align, policy) {
                        naive.mark(range.start(), range.len(), true);
                    }
                }
                Op::Free(n) => {
                    let all: Vec<_> = ours.iter().collect();
                    if let Some(range) = all.get(n % all.len().max(1)) {
                        ours.free(range).unwrap();
                        naive.mark(range.start(), range.len(), false);
                    }
                }
                _ => {}
            }
            prop_assert_eq!(ours.available(), naive.available());
            let used = ours.iter().map(|range| (range, true));
            let mut all: Vec<_> = used.chain(ours.free_ranges().map(|range| (range, false))).collect();
            all.sort_by_key(|(range, _)| range.start());
            let mut at = base;
            for (range, used) in all {
                prop_assert_eq!(range.start(), at);
                let is = (range.start()..=range.end()).all(|at| naive.used[(at - base) as usize] == used);
                prop_assert!(is, "{:?}", range);
                at = range.end() + 1;
            }
            prop_assert_eq!(at, base + 0x400);
        }
    }

    #[test]
    fn guest_memories_agree(
        regions in prop::collection::vec((0u64..40, 1u64..4), 1..12),
        accesses in prop::collection::vec((0u64..0x2c000, 1usize..0x3000), 1..30),
    ) {
        let mut ours = GuestRegions::new();
        let mut theirs = GuestMemoryMmap::<()>::new();
        for (page, pages) in regions {
            let region = || GuestRegionMmap::from_range(
                GuestAddress(page << 12), (pages << 12) as usize, None,
            ).unwrap();
            let inserted = ours.insert(Arc::new(region()));
            match theirs.insert_region(Arc::new(region())) {
                Ok(with) => {
                    prop_assert!(inserted.is_ok());
                    theirs = with;
                }
                Err(_) => prop_assert!(inserted.is_err()),
            }
        }
        prop_assert_eq!(ours.num_regions(), theirs.num_regions());
        prop_assert!(ours.iter().map(|r| r.start_addr()).eq(theirs.iter().map(|r| r.start_addr())));
        prop_assert_eq!(ours.last_addr(), theirs.last_addr());
        for (n, (address, len)) in accesses.into_iter().enumerate() {
            let at = GuestAddress(address);
            let same = |region: Option<GuestAddress>| region;
            prop_assert_eq!(
                same(ours.find_region(at).map(|r| r.start_addr())),
                same(theirs.find_region(at).map(|r| r.start_addr()))
            );
            prop_assert_eq!(ours.get(at).is_some(), theirs.address_in_range(at));
            let inside = |at: u64| theirs.find_region(GuestAddress(at)).map(|r| r.start_addr());
            let lowest = (address..address + len as u64).step_by(1 << 12)
                .chain([address + len as u64 - 1]).find_map(inside);
            let found = ours.overlapping(at, len as u64);
            prop_assert_eq!(found.map(|region| region.start_addr()), lowest);
            let data = vec![n as u8 + 1; len];
            prop_assert_eq!(ours.write(&data, at).ok(), theirs.write(&data, at).ok());
            prop_assert_eq!(ours.check_range(at, len), theirs.check_range(at, len));
            let (mut one, mut two) = (vec![0; len], vec![0; len]);
            prop_assert_eq!(ours.read(&mut one, at).ok(), theirs.read(&mut two, at).ok());
            prop_assert_eq!(one, two);
        }
        // A clone does not change with the original.
        let copy = ours.clone();
        for region in theirs.iter() {
            let (base, len) = (region.start_addr(), region.len());
            prop_assert!(ours.remove(base, len + 1).is_err());
            prop_assert_eq!(ours.remove(base, len).unwrap().start_addr(), base);
            prop_assert!(ours.remove(base, len).is_err());
        }
        prop_assert_eq!((ours.num_regions(), copy.num_regions()), (0, theirs.num_regions()));
    }
}
