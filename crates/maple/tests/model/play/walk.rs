//! Moves cursors step by step, and compares their positions with the model.

use super::*;
use maple::Index;

/// The moves of both kinds of cursor. A macro instead of a trait, whose lifetimes would obscure the
/// test.
macro_rules! stroll {
    ($cursor:ident, $world:ident, $place:ident, $step:expr) => {{
        let (oracle, scale) = (&$world.oracle, $world.scale);
        let read =
            |(range, item): (RangeInclusive<Index>, &crate::ledger::Content)| (range, item.value());
        match $step {
            Move::Walk => {
                assert_eq!($cursor.walk().map(|item| item.value()), $place.walk(oracle));
            }
            Move::Set(cell) => {
                $cursor.set(scale.last(cell));
                $place = Place::start(scale.last(cell));
            }
            Move::Reset => {
                $cursor.reset();
                $place = Place::start($place.min);
            }
            Move::Next(cell) => {
                let limit = scale.first(cell);
                let expected = $place.find(oracle, limit, false, true);
                assert_eq!($cursor.next(limit).map(read), expected);
            }
            Move::Prev(cell) => {
                let limit = scale.last(cell);
                let expected = $place.find(oracle, limit, true, true);
                assert_eq!($cursor.prev(limit).map(read), expected);
            }
            Move::Find(cell) => {
                let limit = scale.first(cell);
                let expected = $place.find(oracle, limit, false, false);
                assert_eq!($cursor.find(limit).map(read), expected);
            }
            Move::FindRev(cell) => {
                let limit = scale.last(cell);
                let expected = $place.find(oracle, limit, true, false);
                assert_eq!($cursor.find_rev(limit).map(read), expected);
            }
            Move::NextRange(cell) => {
                let limit = scale.first(cell);
                let expected = $place.step(oracle, limit, false);
                let found = $cursor.next_range(limit);
                let found = found.map(|(r, item)| (*r.start(), *r.end(), item.map(|i| i.value())));
                assert_eq!(found, expected);
            }
            Move::PrevRange(cell) => {
                let limit = scale.last(cell);
                let expected = $place.step(oracle, limit, true);
                let found = $cursor.prev_range(limit);
                let found = found.map(|(r, item)| (*r.start(), *r.end(), item.map(|i| i.value())));
                assert_eq!(found, expected);
            }
            Move::Area(area) => {
                let (bounds @ (first, last), size, align) = $world.area(area);
                let found = if area.high {
                    $cursor.empty_area_rev(first..=last, size, align)
                } else {
                    $cursor.empty_area(first..=last, size, align)
                };
                match oracle.fits(bounds, size, align, area.high, found) {
                    Some(index) => $place.arrive(oracle.at(index)),
                    None => $place.state = maple::cursor::State::Nowhere,
                }
            }
            Move::Pause | Move::Store(_) | Move::Erase | Move::Preallocate(_) | Move::Budget(_) => {
            }
        }
        let seen = Place {
            state: $cursor.state(),
            min: *$cursor.range().start(),
            max: *$cursor.range().end(),
        };
        assert_eq!(seen, $place, "after {:?}", $step);
    }};
}

pub(super) fn cursor<'t, const S: bool, R: Reclaim, A: NodeAlloc>(
    writer: &mut Writer<'t, Item<S>, R, A>,
    world: &mut World,
    cell: u16,
    moves: &[Move],
    alone: bool,
) {
    let mut place = Place::start(world.scale.first(cell));
    let mut cursor = writer.cursor(place.min);
    let mut budget = None;
    for &step in moves {
        match step {
            Move::Budget(n) => budget = Some(usize::from(n % 8)),
            Move::Preallocate(cells) => {
                let (first, last) = world.scale.range(cells);
                cursor.preallocate(first..=last).unwrap();
            }
            Move::Store(cells) => {
                let (first, last) = world.scale.range(cells);
                let (item, value) = world.item();
                let outcome = with_budget(budget, || cursor.store(first..=last, item))
                    .map_err(|refused| given_back(refused, value));
                if done(outcome, budget.take().is_some()) {
                    world.oracle.set(first, last, Some(value));
                    place.arrive((first, last, None));
                } else {
                    place.pause();
                }
            }
            Move::Erase => cursor_erase(&mut cursor, world, &mut place, budget.take(), alone),
            Move::Pause => {
                let paused = cursor.pause();
                place.pause();
                assert_eq!(paused.index(), place.min);
                cursor = writer.resume(paused);
            }
            _ => {}
        }
        stroll!(cursor, world, place, step);
    }
}

fn cursor_erase<const S: bool, R: Reclaim, A: NodeAlloc>(
    cursor: &mut WriteCursor<'_, '_, Item<S>, R, A>,
    world: &mut World,
    place: &mut Place,
    budget: Option<usize>,
    alone: bool,
) {
    let (min, max, value) = world.oracle.at(place.min);
    match with_budget(budget, || cursor.erase()) {
        Err(error) => {
            assert!(budget.is_some() && error == Error::OutOfMemory, "{error}");
            place.pause();
            return;
        }
        Ok(None) => assert_eq!(value, None),
        Ok(Some((range, erased))) => {
            assert_eq!((range, Some(erased.get().value())), (min..=max, value));
            assert_eq!(erased.into_inner().is_ok(), alone);
            world.oracle.set(min, max, None);
        }
    }
    place.arrive(world.oracle.at(place.min));
}

/// Reads with a cursor while no writer is active.
pub(crate) fn read<const S: bool, R: Reclaim, A: NodeAlloc, L>(
    tree: &maple::MapleTree<Item<S>, R, A, L>,
    world: &mut World,
    (start, moves): &(Option<u16>, Vec<Move>),
) {
    let mut guard = tree.pin();
    let mut place = Place::start(world.scale.first(start.unwrap_or(0)));
    // Resumes where another reader paused, although the tree has changed since.
    let resumed = if start.is_none() { world.paused.take() } else { None };
    let mut paused = resumed.map(|(paused, at)| {
        place = at;
        paused
    });
    let mut moves = moves.iter();
    loop {
        let mut cursor = match paused {
            Some(paused) => tree.resume(&guard, paused),
            None => tree.cursor(&guard, place.min),
        };
        let mut more = false;
        for &step in moves.by_ref() {
            if matches!(step, Move::Pause) {
                more = true;
                break;
            }
            stroll!(cursor, world, place, step);
        }
        paused = Some(cursor.pause());
        place.pause();
        if !more {
            break;
        }
        guard = tree.pin();
    }
    world.paused = paused.map(|paused| (paused, place));
    let found: Vec<_> =
        tree.iter(&guard, 0..=Index::MAX).map(|(range, item)| (range, item.value())).collect();
    assert!(world.oracle.entries().eq(found));
    assert_eq!(tree.largest_gap(&guard), world.oracle.largest_gap());
    let area = Area {
        bounds: Cells { from: 0, more: u16::MAX, trim: (false, false) },
        size: 2,
        align: 1,
        high: false,
    };
    let (bounds, size, align) = world.area(area);
    let low = tree.empty_area(&guard, bounds.0..=bounds.1, size, align);
    world.oracle.fits(bounds, size, align, false, low);
    let high = tree.empty_area_rev(&guard, bounds.0..=bounds.1, size, align);
    world.oracle.fits(bounds, size, align, true, high);
}
