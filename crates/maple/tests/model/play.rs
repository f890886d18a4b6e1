//! Runs a script on a tree and on the model, and compares them after every step.

#[path = "play/walk.rs"] // the fuzz target takes this file in by its path too
mod walk;

use crate::ledger::{Item, Ledger, with_budget};
use crate::oracle::{Oracle, Place};
use crate::script::{Area, Cells, Move, Op, Scale};
use grace::Reclaim;
use maple::{Error, Index, NodeAlloc, Paused, Refused, WriteCursor, Writer};
use std::ops::RangeInclusive;
use std::sync::Arc;

use walk::cursor;
pub(crate) use walk::read;

/// The model and its state.
pub(crate) struct World {
    /// The expected contents of the tree.
    pub(crate) oracle: Oracle,
    /// The live entries.
    pub(crate) ledger: Arc<Ledger>,
    /// Converts cells to indices.
    pub(crate) scale: Scale,
    /// The position at which a reader paused.
    pub(crate) paused: Option<(Paused, Place)>,
    /// Nothing is ever deferred, so the counts are exact.
    pub(crate) exact: bool,
    cyclic: Index,
    /// A cyclic allocation took the largest index, and none has started again from the first index
    /// since.
    wrapped: bool,
}

impl World {
    /// An empty world.
    pub(crate) fn new(scale: Scale) -> Self {
        World {
            oracle: Oracle::default(),
            ledger: Arc::default(),
            scale,
            paused: None,
            exact: false,
            cyclic: 0,
            wrapped: false,
        }
    }

    /// The world of a duplicate of the tree, with the same ledger.
    pub(crate) fn fork(&self) -> Self {
        World { oracle: self.oracle.clone(), ledger: self.ledger.clone(), paused: None, ..*self }
    }

    fn item<const S: bool>(&mut self) -> (Item<S>, u64) {
        let value = self.ledger.value();
        (Item::new(&self.ledger, value), value)
    }

    /// The bounds, size and alignment of a search at this scale.
    fn area(&self, area: Area) -> ((Index, Index), Index, Index) {
        let size = match area.size {
            // Sometimes close to the largest possible sizes.
            size @ 0xfff0.. => Index::MAX - Index::from(size - 0xfff0),
            size => Index::from(size) + 1,
        };
        (self.scale.range(area.bounds), size, 1 << (area.align % 24))
    }
}

/// The contents of the tree, read in every way, equal those of the model.
pub(crate) fn check<const S: bool, R: Reclaim, A: NodeAlloc>(
    writer: &mut Writer<'_, Item<S>, R, A>,
    oracle: &Oracle,
) {
    if let Err(violation) = writer.validate() {
        panic!("{violation}\n{}", writer.dump());
    }
    let all = 0..=Index::MAX;
    let expected: Vec<_> = oracle.entries().collect();
    let found: Vec<_> =
        writer.iter(all.clone()).map(|(range, item)| (range, item.value())).collect();
    assert_eq!(found, expected, "\n{}", writer.dump());
    let found: Vec<_> = writer.iter(all).rev().map(|(range, item)| (range, item.value())).collect();
    assert!(found.iter().rev().eq(&expected));
    let spans = oracle.spans();
    let mut cursor = writer.cursor(0);
    for &(min, max, value) in &spans {
        let found =
            cursor.next_range(Index::MAX).map(|(range, item)| (range, item.map(|i| i.value())));
        assert_eq!(found, Some((min..=max, value)));
    }
    assert!(cursor.next_range(Index::MAX).is_none());
    for &(min, max, value) in spans.iter().rev() {
        let found = cursor.prev_range(0).map(|(range, item)| (range, item.map(|i| i.value())));
        assert_eq!(found, Some((min..=max, value)));
    }
    assert!(cursor.prev_range(0).is_none());
    let stats = writer.stats();
    assert_eq!((stats.entries, stats.entries + stats.holes), (expected.len(), spans.len()));
    assert_eq!((stats.height, stats.nodes == 0), (writer.height(), expected.is_empty()));
    assert_eq!(writer.is_empty(), expected.is_empty());
    assert_eq!(writer.largest_gap(), oracle.largest_gap(), "\n{}", writer.dump());
}

/// Whether the write succeeded. Out of memory is the only permitted error, and only if `may_fail`.
fn done(outcome: Result<(), Error>, may_fail: bool) -> bool {
    match outcome {
        Ok(()) => true,
        Err(Error::OutOfMemory) if may_fail => false,
        Err(error) => panic!("{error}"),
    }
}

/// A refused write returns its entry unchanged.
fn given_back<const S: bool>(refused: Refused<Item<S>>, value: u64) -> Error {
    assert_eq!(refused.entry.value(), value);
    refused.error
}

fn store<const S: bool, R: Reclaim, A: NodeAlloc>(
    writer: &mut Writer<'_, Item<S>, R, A>,
    world: &mut World,
    (first, last): (Index, Index),
    budget: Option<usize>,
) {
    let (item, value) = world.item();
    let outcome = with_budget(budget, || writer.store_range(first..=last, item))
        .map_err(|refused| given_back(refused, value));
    if done(outcome, budget.is_some()) {
        world.oracle.set(first, last, Some(value));
    }
}

fn insert<const S: bool, R: Reclaim, A: NodeAlloc>(
    writer: &mut Writer<'_, Item<S>, R, A>,
    world: &mut World,
    (first, last): (Index, Index),
) {
    let (item, value) = world.item();
    let outcome =
        writer.insert_range(first..=last, item).map_err(|refused| given_back(refused, value));
    let in_the_way = world.oracle.overlapping(first, last).next();
    match in_the_way {
        Some((range, _)) => {
            let (start, end) = range.into_inner();
            assert_eq!(outcome, Err(Error::Occupied { start, end }));
        }
        None => {
            assert_eq!(outcome, Ok(()));
            world.oracle.set(first, last, Some(value));
        }
    }
}

fn erase<const S: bool, R: Reclaim, A: NodeAlloc>(
    writer: &mut Writer<'_, Item<S>, R, A>,
    world: &mut World,
    index: Index,
    budget: Option<usize>,
    alone: bool,
) {
    let (min, max, value) = world.oracle.at(index);
    match with_budget(budget, || writer.erase(index)) {
        Err(error) => assert!(budget.is_some() && error == Error::OutOfMemory, "{error}"),
        Ok(None) => assert_eq!(value, None),
        Ok(Some((range, erased))) => {
            assert_eq!((range, Some(erased.get().value())), (min..=max, value));
            // The entry itself is available only if no reader can be using it.
            match erased.into_inner() {
                Ok(item) => assert!(alone && Some(item.value()) == value),
                Err(erased) => assert!(!alone && Some(erased.get().value()) == value),
            }
            world.oracle.set(min, max, None);
        }
    }
}

fn set_end<const S: bool, R: Reclaim, A: NodeAlloc>(
    writer: &mut Writer<'_, Item<S>, R, A>,
    world: &mut World,
    index: Index,
    end: Index,
    budget: Option<usize>,
) {
    let outcome = with_budget(budget, || writer.set_end(index, end));
    let (min, max, value) = world.oracle.at(index);
    let in_the_way = (end > max).then(|| world.oracle.overlapping(max + 1, end).next()).flatten();
    match (value, in_the_way) {
        (None, _) => assert_eq!(outcome, Ok(None)),
        _ if end < min => assert_eq!(outcome, Err(Error::EmptyRange)),
        (_, Some((range, _))) => {
            let (start, end) = range.into_inner();
            assert_eq!(outcome, Err(Error::Occupied { start, end }));
        }
        (value, None) => match outcome {
            Ok(range) => {
                assert_eq!(range, Some(min..=end));
                world.oracle.set(min, max, None);
                world.oracle.set(min, end, value);
            }
            Err(error) => assert!(budget.is_some() && error == Error::OutOfMemory, "{error}"),
        },
    }
}

fn erase_range<const S: bool, R: Reclaim, A: NodeAlloc>(
    writer: &mut Writer<'_, Item<S>, R, A>,
    world: &mut World,
    (first, last): (Index, Index),
    budget: Option<usize>,
) {
    if done(with_budget(budget, || writer.erase_range(first..=last)), budget.is_some()) {
        world.oracle.set(first, last, None);
    }
}

/// Runs one operation. `alone`: the writer came from `get_mut`.
pub(crate) fn play<const S: bool, R: Reclaim, A: NodeAlloc>(
    writer: &mut Writer<'_, Item<S>, R, A>,
    world: &mut World,
    op: &Op,
    alone: bool,
) {
    let scale = world.scale;
    match *op {
        Op::Store(cells) => store(writer, world, scale.range(cells), None),
        Op::Insert(cells) => insert(writer, world, scale.range(cells)),
        Op::Erase(cell) => erase(writer, world, scale.first(cell), None, alone),
        Op::SetEnd(cell, end, budget) => {
            // Ends also move within a cell, so that they move a little.
            let (index, end) =
                (scale.first(cell), scale.first(end).saturating_add(Index::from(end % 3)));
            set_end(writer, world, index, end, budget.map(usize::from));
        }
        Op::EraseRange(cells) => erase_range(writer, world, scale.range(cells), None),
        Op::InsertHole(cells, every, down) => fill(writer, world, cells, every, down),
        Op::Drain(cells, down) => {
            let (first, last) = scale.range(cells);
            loop {
                let mut entries = world.oracle.overlapping(first, last);
                let next = if down { entries.next_back() } else { entries.next() };
                let Some((range, _)) = next else { break };
                drop(entries);
                erase(writer, world, if down { *range.start() } else { *range.end() }, None, alone);
            }
        }
        Op::Clear => {
            with_budget(Some(0), || writer.clear());
            world.oracle.set(0, Index::MAX, None);
        }
        Op::Alloc(area) => alloc(writer, world, area),
        Op::Cyclic(cells) => cyclic(writer, world, scale.range(cells)),
        Op::Preallocate(cells) => {
            let (first, last) = scale.range(cells);
            writer.preallocate(first..=last).unwrap();
        }
        Op::Prepared(cells, hole) => {
            let (first, last) = scale.range(cells);
            writer.preallocate(first..=last).unwrap();
            let before = world.oracle.clone();
            if hole {
                erase_range(writer, world, (first, last), Some(0));
            } else {
                store(writer, world, (first, last), Some(0));
            }
            let hole = hole && before.overlapping(first, last).next().is_none();
            let changed = before.entries().ne(world.oracle.entries());
            assert!(hole || changed, "a prepared write failed");
        }
        Op::PreparedErase(cell) => {
            let (min, max, value) = world.oracle.at(scale.first(cell));
            writer.preallocate(min..=max).unwrap();
            erase(writer, world, max, Some(0), alone);
            let after = world.oracle.at(max).2;
            assert!(value.is_none() || after.is_none(), "a prepared erase failed");
        }
        Op::Failing(n, cells, hole) => {
            let budget = Some(usize::from(n % 16));
            if hole {
                erase_range(writer, world, scale.range(cells), budget);
            } else {
                store(writer, world, scale.range(cells), budget);
            }
        }
        Op::Duplicate(budget, cells) => duplicate(writer, world, budget, cells),
        Op::Look(cell) => look(writer, world, cell),
        Op::Iterate(cells, bits) => iterate(writer, world, scale.range(cells), bits),
        Op::Gap(area) => {
            gap(writer, world, area);
        }
        Op::Cursor(cell, ref moves) => cursor(writer, world, cell, moves, alone),
    }
    check(writer, &world.oracle);
    if world.exact {
        // One duplicate may be kept for the next try.
        let (live, held) = (world.ledger.live(), world.oracle.len());
        assert!(live == held || live == held + 1, "{live} entries alive, {held} in the tree");
    }
}

fn fill<const S: bool, R: Reclaim, A: NodeAlloc>(
    writer: &mut Writer<'_, Item<S>, R, A>,
    world: &mut World,
    cells: Cells,
    every: u8,
    down: bool,
) {
    let (from, to) = cells.ends();
    let every = u16::from(every % 4) + 1;
    for i in 0..=(to - from) / every {
        let cell = if down { to - i * every } else { from + i * every };
        let one = Cells { from: cell, more: 0, trim: cells.trim };
        store(writer, world, world.scale.range(one), None);
    }
}

fn alloc<const S: bool, R: Reclaim, A: NodeAlloc>(
    writer: &mut Writer<'_, Item<S>, R, A>,
    world: &mut World,
    area: Area,
) {
    let ((first, last), size, align) = world.area(area);
    let (item, value) = world.item();
    let outcome = if area.high {
        writer.alloc_rrange(first..=last, size, align, item)
    } else {
        writer.alloc_range(first..=last, size, align, item)
    };
    let outcome = outcome.map_err(|refused| given_back(refused, value));
    let place = world.oracle.fits((first, last), size, align, area.high, outcome);
    if let Some(place) = place {
        world.oracle.set(place, place + (size - 1), Some(value));
    }
}

fn cyclic<const S: bool, R: Reclaim, A: NodeAlloc>(
    writer: &mut Writer<'_, Item<S>, R, A>,
    world: &mut World,
    (first, last): (Index, Index),
) {
    let (item, value) = world.item();
    let from = world.cyclic.max(first);
    let ahead = if from <= last { world.oracle.fit((from, last), 1, 1, false) } else { None };
    let anew = world.wrapped && from == first;
    let again = || world.oracle.fit((first, last), 1, 1, false).map(|index| (index, true));
    let place = ahead.map(|index| (index, anew)).or_else(again);
    let mut next = world.cyclic;
    let outcome = writer.alloc_cyclic(first..=last, &mut next, item);
    assert_eq!(outcome.map_err(|refused| given_back(refused, value)), place.ok_or(Error::NoSpace));
    match place {
        Some((index, _)) => {
            assert_eq!(next, index.checked_add(1).unwrap_or(first));
            world.wrapped = index == Index::MAX || world.wrapped && !anew;
            world.oracle.set(index, index, Some(value));
        }
        None => assert_eq!(next, world.cyclic),
    }
    world.cyclic = next;
}

fn duplicate<const S: bool, R: Reclaim, A: NodeAlloc>(
    writer: &mut Writer<'_, Item<S>, R, A>,
    world: &mut World,
    budget: Option<u8>,
    cells: Cells,
) {
    let live = world.ledger.live();
    match with_budget(budget.map(usize::from), || writer.duplicate()) {
        Err(error) => {
            assert!(budget.is_some() && error == Error::OutOfMemory, "{error}");
            assert!(
                !world.exact || world.ledger.live() == live,
                "a copy that failed left something"
            );
        }
        Ok(mut copy) => {
            let mut oracle = world.oracle.clone();
            check(&mut copy.get_mut(), &oracle);
            let (first, last) = world.scale.range(cells);
            copy.get_mut().erase_range(first..=last).unwrap();
            oracle.set(first, last, None);
            check(&mut copy.get_mut(), &oracle);
            drop(copy);
            assert!(!world.exact || world.ledger.live() == live);
        }
    }
}

fn look<const S: bool, R: Reclaim, A: NodeAlloc>(
    writer: &mut Writer<'_, Item<S>, R, A>,
    world: &mut World,
    cell: u16,
) {
    for index in [world.scale.first(cell), world.scale.last(cell)] {
        let (min, max, value) = world.oracle.at(index);
        assert_eq!(writer.load(index).map(|item| item.value()), value);
        let held = value.map(|value| (min..=max, value));
        assert_eq!(writer.lookup(index).map(|(range, item)| (range, item.value())), held);
    }
}

fn iterate<const S: bool, R: Reclaim, A: NodeAlloc>(
    writer: &mut Writer<'_, Item<S>, R, A>,
    world: &mut World,
    (first, last): (Index, Index),
    mut bits: u64,
) {
    let read =
        |(range, item): (RangeInclusive<Index>, &crate::ledger::Content)| (range, item.value());
    let mut expected = world.oracle.overlapping(first, last);
    let mut iter = writer.iter(first..=last);
    assert_eq!(writer.find(first..=last).map(read), world.oracle.overlapping(first, last).next());
    assert_eq!(
        writer.find_rev(first..=last).map(read),
        world.oracle.overlapping(first, last).next_back()
    );
    loop {
        bits = bits.rotate_right(1);
        let (found, next) = if bits & 1 == 0 {
            (iter.next(), expected.next())
        } else {
            (iter.next_back(), expected.next_back())
        };
        assert_eq!(found.map(read), next);
        if next.is_none() {
            // The iterator stays at its end.
            assert!(iter.next().is_none() && iter.next_back().is_none());
            return;
        }
    }
}

fn gap<const S: bool, R: Reclaim, A: NodeAlloc>(
    writer: &mut Writer<'_, Item<S>, R, A>,
    world: &mut World,
    area: Area,
) {
    let (bounds @ (first, last), size, align) = world.area(area);
    let low = writer.empty_area(first..=last, size, align);
    world.oracle.fits(bounds, size, align, false, low);
    let high = writer.empty_area_rev(first..=last, size, align);
    world.oracle.fits(bounds, size, align, true, high);
}
