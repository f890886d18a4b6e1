use super::*;
use crate::Frame;
use buddy_system_allocator::FrameAllocator;
use proptest::prelude::*;
use std::vec;
use std::vec::Vec;

/// Bits at the boundaries of words and levels, compared with a list.
#[test]
fn bits_are_a_set() {
    let deep = if cfg!(miri) { 1 } else { 64 };
    for numbers in [1, 63, 64, 65, 4096, 4097, deep * 4096 + 1] {
        let mut bits = Bits::try_new(&Storage::Heap, numbers).unwrap();
        assert_eq!(bits.first(), None);
        let mut some: Vec<usize> = [0, 1, 63, 64, 4095, 4096, numbers / 2, numbers - 1]
            .into_iter()
            .filter(|number| *number < numbers)
            .collect();
        some.iter().for_each(|number| bits.insert(*number));
        some.sort();
        some.dedup();
        for number in some {
            assert_eq!(bits.first(), Some(number));
            assert!(bits.remove(number) && !bits.remove(number));
        }
        assert_eq!(bits.first(), None);
        bits.insert(numbers - 1);
        assert!(!bits.remove(numbers) && !bits.remove(usize::MAX / 128));
    }
}

/// For any number of numbers, one word at the top is enough: `first` starts there.
#[test]
fn levels_reach_up_to_one_word() {
    for bits in 0..=52 {
        for numbers in [(1usize << bits) - 1, 1 << bits, (1 << bits) + 1] {
            let (levels, depth, total) = levels(numbers.clamp(1, Frame::LIMIT as usize));
            assert_eq!(levels[depth - 1] + 1, total, "{numbers} numbers need another level");
        }
    }
    assert_eq!((levels(1 << 30).1, levels((1 << 30) + 1).1, levels(1 << 52).1), (5, 6, 9));
}

/// Ranges with arbitrary bounds, and the largest possible range.
#[test]
fn all_of_a_range_can_be_had() {
    let large = if cfg!(miri) { 6 } else { 18 };
    for (first, len) in [(0, 1), (1, 1), (3, 7), (511, 2), ((1 << large) - 1, (1 << large) + 2)] {
        let mut buddy = Buddy::try_new(&Storage::Heap, first, len).unwrap();
        let mut all: Vec<u64> = core::iter::from_fn(|| buddy.take(0)).collect();
        assert_eq!(buddy.free(), 0);
        all.sort();
        assert!(all.iter().copied().eq(first..first + len));
        all.iter().for_each(|number| buddy.give(*number, 0));
        let largest =
            (0..=MAX_ORDER).rev().find_map(|order| buddy.take(order).map(|at| (at, order)));
        let (at, order) = largest.unwrap();
        assert!(at % (1 << order) == 0 && at >= first && at + (1 << order) <= first + len);
        // The largest aligned block that fits has merged again.
        let fits = |order: &u32| first.next_multiple_of(1 << order) + (1 << order) <= first + len;
        assert_eq!(u32::from(order), (0..=u32::from(MAX_ORDER)).rev().find(fits).unwrap());
    }
    // The last frames of all.
    let first = Frame::LIMIT - 5;
    let mut buddy = Buddy::try_new(&Storage::Heap, first, 5).unwrap();
    assert_eq!((buddy.take(2), buddy.take(0), buddy.take(0)), (Some(first + 1), Some(first), None));
    let none = Buddy::try_new(&Storage::Heap, 7, 0).unwrap();
    assert!(none.smallest(0).is_none() && !none.covers(7));
}

/// A run is what single takes would have taken.
#[test]
fn a_run_is_of_the_next_frames() {
    let mut holes = numbers(3);
    for most in 0..7 {
        let make = |holes: &[u64]| {
            let mut buddy = Buddy::try_new(&Storage::Heap, 5, 300).unwrap();
            while buddy.take(0).is_some() {}
            (5..305).filter(|number| !holes.contains(number)).for_each(|at| buddy.give(at, 0));
            buddy
        };
        let kept: Vec<u64> = (0..20).map(|_| 5 + holes() % 300).collect();
        let (mut runs, mut singles) = (make(&kept), make(&kept));
        while let Some((first, order)) = runs.take_run(most) {
            assert!(order <= most);
            assert!((first..first + (1 << order)).all(|number| singles.take(0) == Some(number)));
            assert_eq!(runs.free(), singles.free());
        }
        assert_eq!(singles.free(), 0);
    }
}

/// Numbers that look random.
fn numbers(seed: u64) -> impl FnMut() -> u64 {
    let mut state = seed;
    move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        state >> 33
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None, cases: if cfg!(miri) { 2 } else { 256 }, ..ProptestConfig::default()
    })]
    /// Chooses the same blocks as `buddy_system_allocator`, call by call.
    #[test]
    fn as_a_known_one(
        first in 0u64..300, len in 1u64..600,
        script in proptest::collection::vec((0u8..8, any::<bool>(), 0usize..64), 0..200),
    ) {
        let mut buddy = Buddy::try_new(&Storage::Heap, first, len).unwrap();
        let mut known = FrameAllocator::<ORDERS>::new();
        known.add_frame(first as usize, (first + len) as usize);
        let mut held = vec![];
        for (order, take, which) in script {
            if take || held.is_empty() {
                let got = buddy.take(order);
                prop_assert_eq!(got, known.alloc(1 << order).map(|number| number as u64));
                held.extend(got.map(|number| (number, order)));
            } else {
                let (number, order) = held.swap_remove(which % held.len());
                buddy.give(number, order);
                known.dealloc(number as usize, 1 << order);
            }
            prop_assert_eq!(buddy.free(), len - held.iter().map(|(_, order)| 1 << order).sum::<u64>());
        }
    }
}
