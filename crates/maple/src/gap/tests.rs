//! Searches for free ranges.

use super::*;
use crate::Index;
use crate::MapleTree;
use crate::testing::visits;
use crate::tests::Dice;

fn want(min: Index, max: Index, size: Index, align: Index) -> Want {
    Want::new(min..=max, size, align).unwrap()
}

#[test]
fn places_in_one_hole() {
    let all = |size, align| want(0, Index::MAX, size, align);
    assert_eq!(all(16, 16).lowest(5, 31), Some(16));
    assert_eq!(all(16, 16).lowest(5, 30), None);
    assert_eq!(all(16, 16).highest(5, 40), Some(16));
    assert_eq!(all(1, 1).lowest(7, 7), Some(7));
    assert_eq!(all(1, 1).highest(7, 7), Some(7));
    assert_eq!(all(2, 1).lowest(7, 7), None);
    assert_eq!(all(2, 1).highest(7, 7), None);
    // The ends of the index range do not wrap.
    assert_eq!(all(1, 1 << 63).lowest(3, Index::MAX), Some(1 << 63));
    assert_eq!(all(1, 1 << 63).lowest((1 << 63) + 1, Index::MAX), None);
    assert_eq!(all(Index::MAX, 1).lowest(2, Index::MAX), None);
    assert_eq!(all(Index::MAX, 1).highest(0, Index::MAX - 2), None);
    assert_eq!(all(4, 1).highest(0, 2), None);
    assert_eq!(all(4, 4).highest(1, 6), None);
    // The bounds cut a hole.
    assert_eq!(want(10, 19, 10, 1).lowest(0, 99), Some(10));
    assert_eq!(want(10, 18, 10, 1).lowest(0, 99), None);
    assert_eq!(want(10, 19, 10, 1).highest(0, 99), Some(10));
    assert_eq!(want(10, 19, 3, 4).highest(0, 99), Some(16));
}

#[test]
fn agrees_with_a_scan() {
    let (holes, searches) = if cfg!(miri) { (40, 8) } else { (2000, 3000) };
    let mut dice = Dice(9);
    let mut tree = MapleTree::<u32>::new();
    let mut writer = tree.get_mut();
    writer.store_range(0..=Index::MAX, 1).unwrap();
    let mut at = 0;
    for _ in 0..holes {
        at += 1 + dice.roll(20);
        let size = 1 + dice.roll(12) * dice.roll(12) / 8;
        writer.erase_range(at..=at + size - 1).unwrap();
        at += size;
    }
    writer.validate().unwrap();
    let top = at + 10;
    let mut free = std::vec![true; top as usize + 1];
    for (range, _) in writer.iter(0..=top) {
        free[*range.start() as usize..=(*range.end()).min(top) as usize].fill(false);
    }
    for _ in 0..searches {
        let (a, b) = (dice.roll(top + 1), dice.roll(top + 1));
        let (min, max) = (a.min(b), a.max(b));
        let (size, align) = (1 + dice.roll(20), 1 << dice.roll(5));
        let fits = |&start: &Index| {
            start % align == 0
                && start + size <= max + 1
                && free[start as usize..(start + size) as usize].iter().all(|&free| free)
        };
        let low = (min..=max).find(fits).ok_or(Error::NoSpace);
        let high = (min..=max).rev().find(fits).ok_or(Error::NoSpace);
        // The search may return another place only after holes failed in that many leaves.
        let patient = |from: Index, to: Index| {
            let long = |at: &Index| (*at..(*at + size).min(top)).all(|at| free[at as usize]);
            let begins = |at: &Index| *at == 0 || !free[*at as usize - 1];
            align == 1 || (from..=to).filter(|at| begins(at) && long(at)).count() < PATIENCE - 1
        };
        let found = writer.empty_area(min..=max, size, align);
        if found != low {
            assert!(
                fits(&found.unwrap()) && !patient(min, low.unwrap()),
                "{min} {max} {size} {align}"
            );
        }
        let found = writer.empty_area_rev(min..=max, size, align);
        if found != high {
            assert!(
                fits(&found.unwrap()) && !patient(high.unwrap(), max),
                "{min} {max} {size} {align}"
            );
        }
    }
}

#[test]
fn holes_that_fail_by_alignment_cost_little() {
    let n = if cfg!(miri) { 100 } else { 20_000 };
    let mut tree = MapleTree::<u32>::new();
    let mut writer = tree.get_mut();
    writer.store_range(0..=Index::MAX, 1).unwrap();
    // These holes are long enough, but contain no multiple of 16 with room behind it.
    for i in 0..n {
        writer.erase_range(i * 32 + 1..=i * 32 + 15).unwrap();
    }
    let far = n * 32;
    writer.erase_range(far + 5..=far + 40).unwrap();
    let height = writer.height();
    let before = visits();
    assert_eq!(writer.empty_area(0..=Index::MAX, 8, 16), Ok(far + 16));
    assert_eq!(writer.empty_area_rev(0..=Index::MAX, 8, 16), Ok(far + 32));
    assert!(visits() - before <= (2 * PATIENCE + 8) * height, "{}", visits() - before);
    // The last place of all is found at any cost.
    writer.store_range(far + 24..=far + 39, 1).unwrap();
    writer.store_range(far + 40..=far + 40, 1).unwrap();
    assert_eq!(writer.empty_area(0..=Index::MAX, 8, 16), Ok(far + 16));
    assert_eq!(writer.empty_area(0..=Index::MAX, 9, 16), Err(Error::NoSpace));
}

#[test]
fn holes_too_small_cost_nothing() {
    let n = if cfg!(miri) { 50 } else { 5000 };
    let mut tree = MapleTree::<u32>::new();
    let mut writer = tree.get_mut();
    writer.store_range(0..=Index::MAX, 1).unwrap();
    for i in 0..n {
        writer.erase_range(i * 10..=i * 10 + 3).unwrap();
    }
    let far = n * 10 + 50;
    writer.erase_range(far..=far + 4).unwrap();
    let height = writer.height();
    let before = visits();
    assert_eq!(writer.empty_area(0..=Index::MAX, 5, 1), Ok(far));
    assert_eq!(writer.empty_area_rev(0..=far - 1, 5, 1), Err(Error::NoSpace));
    assert_eq!(writer.empty_area_rev(0..=Index::MAX, 5, 1), Ok(far));
    assert_eq!(writer.empty_area(0..=Index::MAX, 6, 1), Err(Error::NoSpace));
    // Each search descends at most twice.
    assert!(visits() - before <= 8 * height, "{} nodes for height {height}", visits() - before);
}
