//! The allocator compared with a model, and its calls on many threads at once.

use super::*;
use crate::testing::Host;
use crate::{Frame, FrameRange, VirtAddr, VirtRange};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::vec::Vec;

fn span(start: u64, len: u64) -> VirtRange {
    VirtRange::new(VirtAddr::new(start), len).unwrap()
}

/// A call on one of three CPUs.
#[derive(Clone, Debug)]
enum Call {
    Add(u64, u64),
    Alloc(u64, u32),
    AllocAt(u64, u64),
    /// The range with this number, or one near it.
    Free(usize, u64, u64),
}

fn calls() -> impl Strategy<Value = Vec<(usize, Call)>> {
    let call = prop_oneof![
        1 => (0u64..500, 1u64..200).prop_map(|(start, len)| Call::Add(start, len)),
        6 => (0u64..40, 0u32..6).prop_map(|(len, align)| Call::Alloc(len, align)),
        2 => (0u64..600, 0u64..60).prop_map(|(start, len)| Call::AllocAt(start, len)),
        6 => (0usize..40, Just(0u64), Just(0u64)).prop_map(|(at, a, b)| Call::Free(at, a, b)),
        1 => (0usize..40, 0u64..3, 0u64..3).prop_map(|(at, a, b)| Call::Free(at, a, b)),
    ];
    proptest::collection::vec((0usize..3, call), 1..200)
}

/// The free and the allocated points.
#[derive(Default)]
struct Model {
    /// Whether the point was added, and is free.
    points: BTreeMap<u64, bool>,
    allocated: Vec<(u64, u64)>,
}

impl Model {
    fn is_free(&self, start: u64, len: u64) -> bool {
        (start..start + len).all(|point| self.points.get(&point) == Some(&true))
    }

    fn mark(&mut self, start: u64, len: u64, free: bool) {
        self.points.extend((start..start + len).map(|point| (point, free)));
    }

    fn has_room(&self, len: u64, align: u64) -> bool {
        self.points.keys().any(|at| at.is_multiple_of(align) && self.is_free(*at, len))
    }
}

/// Whether the call succeeds. With few records, it may fail for want of them, and changes nothing.
fn expect(result: Result<(), RangesError>, sure: bool, wanted: Result<(), RangesError>) -> bool {
    if result == Err(RangesError::OutOfRecords) {
        assert!(!sure, "there are records");
        return false;
    }
    assert_eq!(result, wanted);
    result.is_ok()
}

/// Runs the calls; with `sure`, there are records for all.
fn run<const RECORDS: usize>(calls: Vec<(usize, Call)>, sure: bool) {
    let host = Host::new(3);
    let ranges = Ranges::<VirtAddr, 3, RECORDS>::new(40);
    let mut model = Model::default();
    for (cpu, call) in calls {
        host.be(cpu);
        match call {
            Call::Add(start, len) => {
                let overlaps = (start..start + len).any(|at| model.points.contains_key(&at));
                let wanted = if overlaps { Err(RangesError::Overlaps) } else { Ok(()) };
                if expect(ranges.add(&host, span(start, len)), sure, wanted) {
                    model.mark(start, len, true);
                }
            }
            Call::Alloc(len, align) => {
                let align = 1 << align;
                let result = ranges.alloc(&host, len, align);
                let wanted = match () {
                    () if len == 0 => Err(RangesError::Empty),
                    () if model.has_room(len, align) => Ok(()),
                    () => Err(RangesError::OutOfSpace),
                };
                if expect(result.map(drop), sure, wanted) {
                    let start = result.unwrap().start().get();
                    assert!(start.is_multiple_of(align) && model.is_free(start, len));
                    assert_eq!(result.unwrap().len(), len);
                    model.mark(start, len, false);
                    model.allocated.push((start, len));
                }
            }
            Call::AllocAt(start, len) => {
                let wanted = match () {
                    () if len == 0 => Err(RangesError::Empty),
                    () if model.is_free(start, len) => Ok(()),
                    () => Err(RangesError::InUse),
                };
                if expect(ranges.alloc_at(&host, span(start, len)), sure, wanted) {
                    model.mark(start, len, false);
                    model.allocated.push((start, len));
                }
            }
            Call::Free(at, below, more) => {
                let Some(&(start, len)) = model.allocated.get(at) else { continue };
                let (start, len) = (start.saturating_sub(below), len + more);
                let at = model.allocated.iter().position(|one| *one == (start, len));
                let wanted = at.map(drop).ok_or(RangesError::NotAllocated);
                // It needs no record.
                if expect(ranges.free(&host, span(start, len)), true, wanted) {
                    model.allocated.swap_remove(at.unwrap());
                    model.mark(start, len, true);
                }
            }
        }
        let free = model.points.values().filter(|free| **free).count() as u64;
        assert_eq!(ranges.available(&host), free);
        for set in ranges.own.iter().chain([&ranges.common]) {
            lock(&host, set).checked();
        }
    }
}

proptest! {
    #[test]
    fn agrees_with_a_model(calls in calls()) {
        run::<400>(calls, true);
    }

    #[test]
    fn agrees_with_a_model_when_records_run_out(calls in calls()) {
        run::<5>(calls, false);
    }
}

/// No point is allocated twice, none is lost, and a failure for want of space is true: three
/// threads hold at most 18 ranges of at most 8 points, so one of the holes between them has room.
#[test]
fn threads_never_share_a_point_and_lose_none() {
    const POINTS: usize = 400;
    static RANGES: Ranges<VirtAddr, 3, 64> = Ranges::new(32);
    static OWNERS: [AtomicUsize; POINTS] = [const { AtomicUsize::new(0) }; POINTS];
    let host = Host::new(4);
    RANGES.add(&host, span(0, POINTS as u64)).unwrap();
    let body = |cpu: usize| {
        let host = host.clone();
        move || {
            host.be(cpu);
            let mut mine: Vec<VirtRange> = Vec::new();
            let mark = |range: VirtRange, from: usize, to: usize| {
                for at in range.start().get()..range.start().get() + range.len() {
                    // Relaxed: the locks order the owners of a point.
                    assert_eq!(OWNERS[at as usize].swap(to, Ordering::Relaxed), from);
                }
            };
            let mut random = cpu as u64 + 1;
            for round in 0..3000 {
                random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                let (len, place) = (1 + (random >> 33) % 8, (random >> 40) % 392);
                if mine.len() == 6 {
                    let range = mine.swap_remove((random >> 50) as usize % mine.len());
                    mark(range, cpu + 1, 0);
                    RANGES.free(&host, range).unwrap();
                    continue;
                }
                let range = if round % 16 == 0 {
                    let range = span(place, len);
                    match RANGES.alloc_at(&host, range) {
                        Ok(()) => range,
                        Err(error) => {
                            assert_eq!(error, RangesError::InUse);
                            continue;
                        }
                    }
                } else {
                    RANGES.alloc(&host, len, 1).unwrap()
                };
                mark(range, 0, cpu + 1);
                mine.push(range);
            }
            // Another CPU's lists.
            host.be(3);
            for range in mine {
                mark(range, cpu + 1, 0);
                RANGES.free(&host, range).unwrap();
            }
        }
    };
    std::thread::scope(|scope| (0..3).for_each(|cpu| drop(scope.spawn(body(cpu)))));
    assert_eq!(RANGES.available(&host), POINTS as u64);
    RANGES.alloc_at(&host, span(0, POINTS as u64)).unwrap();
}

/// The ends of the space, lengths that wrap, and alignments that no address has.
#[test]
fn edges() {
    let host = Host::new(1);
    let ranges = Ranges::<VirtAddr, 1, 8>::new(0);
    assert_eq!(ranges.add(&host, span(5, 0)), Err(RangesError::Empty));
    ranges.add(&host, span(u64::MAX - 9, 10)).unwrap();
    assert_eq!(ranges.alloc(&host, u64::MAX, 1), Err(RangesError::OutOfSpace));
    assert_eq!(ranges.alloc(&host, 1, 1 << 63), Err(RangesError::OutOfSpace));
    assert_eq!(ranges.alloc(&host, 1, 3), Err(RangesError::Alignment));
    assert_eq!(ranges.alloc(&host, 1, 0), Err(RangesError::Alignment));
    let all = ranges.alloc(&host, 10, 1).unwrap();
    assert_eq!(all.last().unwrap().get(), u64::MAX);
    ranges.free(&host, all).unwrap();
    ranges.alloc_at(&host, span(u64::MAX, 1)).unwrap();
    ranges.alloc_at(&host, span(u64::MAX - 3, 2)).unwrap();
    assert_eq!(ranges.free(&host, span(u64::MAX - 3, 3)), Err(RangesError::NotAllocated));
    assert_eq!(ranges.available(&host), 7);

    // All numbers below 2^64 - 1.
    let ranges = Ranges::<VirtAddr, 1, 8>::new(1 << 20);
    ranges.add(&host, span(0, u64::MAX)).unwrap();
    assert_eq!(ranges.alloc(&host, u64::MAX, 1 << 63).unwrap().start().get(), 0);
    // Their number would be no length.
    assert_eq!(ranges.add(&host, span(u64::MAX, 1)), Err(RangesError::TooMany));
    assert_eq!(ranges.available(&host), 0);

    let frames = Ranges::<Frame, 1, 8>::new(64);
    frames.add(&host, FrameRange::new(Frame::new(Frame::LIMIT - 4).unwrap(), 4).unwrap()).unwrap();
    assert_eq!(frames.alloc(&host, 4, 4).unwrap().end(), None);
}

/// No order in which ranges come and go makes the tree deep: not that in which places of nodes lie
/// in memory, nor one that follows a hash of them.
#[test]
fn no_order_of_ranges_makes_the_tree_deep() {
    const RECORDS: usize = if cfg!(miri) { 300 } else { 20_000 };
    static RANGES: Ranges<VirtAddr, 1, RECORDS> = Ranges::new(1);
    let host = Host::new(1);
    let hash = |at: u32| {
        let mixed = at.wrapping_mul(0x9e37_79b1);
        let mixed = (mixed ^ mixed >> 15).wrapping_mul(0x85eb_ca6b);
        (mixed ^ mixed >> 13).wrapping_mul(0xc2b2_ae35)
    };
    let sorted: fn(u32) -> u32 = |at| at;
    for key in [sorted, hash, |at| !at] {
        let places: Vec<u64> = (1..=RECORDS as u32).map(|at| u64::from(key(at)) * 2).collect();
        for place in &places {
            RANGES.add(&host, span(*place, 1)).unwrap();
        }
        // It checks the balance.
        assert_eq!(lock(&host, &RANGES.common).checked().len(), RECORDS);
        for place in &places {
            lock(&host, &RANGES.common).remove(*place, 1).unwrap();
        }
    }
}
