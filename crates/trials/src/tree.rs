//! The `tree` trial: writers of the range tree take turns, readers take no lock.
//!
//! The indices are divided into spans. In each span, an entry stays throughout, a range stays free
//! throughout, and writers store and erase in the rest. An entry encodes the range of its store. So
//! a reader can check that an entry it finds is a whole piece of a store (I1).

use crate::environment::Environment;
use crate::worker::{Context, Outcome, Worker, fail};
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;
use core::ops::RangeInclusive;
use grace::Concurrent;
use machine::{Machine, Translated, lock};
use maple::{Error, Index, MapleTree, Nodes, OwnerLock, Refused, WriteToken, Writer};
use paging::Format;
use spin::mutex::SpinMutex;

/// The number of spans, the units of each, and the indices of a unit.
const SPANS: Index = 24;
const SPAN: Index = 256;
const UNIT: Index = 4096;
/// The units of a span: below `STAYS` an entry stays, below `FREE` the range stays free, and
/// writers use the rest.
const STAYS: Index = 8;
const FREE: Index = 24;
/// Steps of each CPU in a round.
const STEPS: usize = 4000;
/// Steps between two quiescent states.
const QUIET: usize = 32;

type Tree<G> = MapleTree<u32, G, Nodes, OwnerLock>;

/// Held by the writer: the token to write, and the model of the tree.
struct Right {
    token: WriteToken,
    model: Model,
    stored: u32,
}

struct Shared<'g, 'a, M: Machine, F: Format, G: Concurrent> {
    env: &'g Environment<'a, M, F, G>,
    tree: Tree<G>,
    right: SpinMutex<Right>,
}

pub(crate) fn tree<M: Machine + Translated, F: Format, G: Concurrent>(
    env: &Environment<'_, M, F, G>,
) -> Result<(), String> {
    env.whole(|| {
        let (tree, token) = Tree::<G>::with_token_in();
        let right = SpinMutex::new(Right { token, model: Model::default(), stored: 0 });
        let shared = Shared { env, tree, right };
        let result = env.on_first(|| shared.begin()).and_then(|()| {
            env.at_once(|worker| {
                env.steps(STEPS, QUIET, |_| {
                    if below(worker, 3) == 0 { shared.write(worker) } else { shared.read(worker) }
                })
            })
        });
        let ended = env.on_first(move || {
            let compared = shared.compare();
            drop(shared.tree);
            compared
        });
        result.and(ended)
    })
}

/// The entry of a store to units `first` to `last`.
fn entry(first: Index, last: Index, serial: u32) -> u32 {
    first as u32 | (last as u32) << 13 | serial << 26
}

/// A random number below `n`, which is small.
#[allow(clippy::unnecessary_cast, reason = "an index may have more bits than `usize`")]
fn below<M: Machine>(worker: &mut Worker<'_, M>, n: Index) -> Index {
    worker.below(n as usize) as Index
}

/// The indices of units.
fn indices(first: Index, last: Index) -> RangeInclusive<Index> {
    first * UNIT..=last * UNIT + (UNIT - 1)
}

/// The range of the store that an entry encodes.
fn stored(entry: u32) -> RangeInclusive<Index> {
    indices(entry as Index & 0x1fff, (entry >> 13) as Index & 0x1fff)
}

/// The entry that stays in a span.
fn stays(span: Index) -> (RangeInclusive<Index>, u32) {
    let (first, last) = (span * SPAN, span * SPAN + STAYS - 1);
    (indices(first, last), entry(first, last, 0))
}

impl<M: Machine, F: Format, G: Concurrent> Shared<'_, '_, M, F, G> {
    /// Stores the entries that stay.
    fn begin(&self) -> Outcome {
        (0..SPANS).try_for_each(|span| {
            let (range, entry) = stays(span);
            self.change(|writer, model, _| {
                model.store(&range, entry);
                writer.store_range(range, entry).of("could not store what stays")
            })
        })
    }

    /// Runs a change of the tree and its model, as the only writer.
    fn change(
        &self,
        write: impl FnOnce(&mut Writer<'_, u32, G, Nodes>, &mut Model, u32) -> Outcome,
    ) -> Outcome {
        let mut right = lock(self.env.host.machine, &self.right);
        let Right { token, model, stored } = &mut *right;
        // As many as fit into an entry next to the range. 0 is for the entries that stay.
        *stored = *stored % 63 + 1;
        write(&mut self.tree.writer(token).of("could not write")?, model, *stored)
    }

    /// Stores, erases, inserts or searches at a random place of a span.
    fn write(&self, worker: &mut Worker<'_, M>) -> Outcome {
        let span = below(worker, SPANS) * SPAN;
        let first = FREE + below(worker, SPAN - FREE);
        let last = (first + below(worker, 24)).min(SPAN - 1);
        let (first, last) = (span + first, span + last);
        let (range, how) = (indices(first, last), below(worker, 10));
        let wanted = (1 + below(worker, 24)) * UNIT;
        self.change(|writer, model, serial| match how {
            0..4 => {
                let entry = entry(first, last, serial);
                model.store(&range, entry);
                writer.store_range(range, entry).of("could not store")
            }
            4 | 5 => {
                model.clear(&range);
                writer.erase_range(range).of("could not erase a range")
            }
            6 => {
                let erased = writer.erase(*range.start()).of("could not erase an entry")?;
                let found = erased.map(|(range, _)| range);
                let expected = model.remove(*range.start());
                if found == expected {
                    return Ok(());
                }
                fail(format!("the entry that was erased was {found:x?}, expected {expected:x?}"))
            }
            7 | 8 => {
                // Room between here and the end of the next span.
                let bounds = first * UNIT..=(span + 2 * SPAN) * UNIT - 1;
                let found = writer.empty_area(bounds.clone(), wanted, UNIT);
                let expected = model.room(&bounds, wanted).ok_or(Error::NoSpace);
                if found == expected {
                    return Ok(());
                }
                fail(format!(
                    "room for {wanted:#x} in {bounds:x?} is {found:x?}, expected {expected:x?}"
                ))
            }
            _ => {
                let entry = entry(first, last, serial);
                let expected = model.first(&range);
                match (writer.insert_range(range.clone(), entry), expected) {
                    (Ok(()), None) => {
                        model.store(&range, entry);
                        Ok(())
                    }
                    (Err(Refused { error: Error::Occupied { start, end }, .. }), Some(way))
                        if (start..=end) == way =>
                    {
                        Ok(())
                    }
                    (done, expected) => {
                        let done = done.map_err(|refused| refused.error);
                        fail(format!(
                            "insert at {range:x?}: {done:x?}, in the way is {expected:x?}"
                        ))
                    }
                }
            }
        })
    }

    /// Reads the tree, perhaps while another CPU writes.
    fn read(&self, worker: &mut Worker<'_, M>) -> Outcome {
        let guard = G::pin();
        let (tree, number) = (&self.tree, below(worker, SPANS));
        let span = number * SPAN;
        let (fixed, expected) = stays(number);
        match below(worker, 6) {
            0 => {
                let at = fixed.start() + below(worker, STAYS * UNIT);
                let found = tree.lookup(&guard, at);
                if found != Some((fixed.clone(), expected)) {
                    return fail(format!(
                        "at {at:#x} is {found:x?}, expected {fixed:x?}, which is there throughout"
                    ));
                }
            }
            1 => {
                let at = (span + STAYS) * UNIT + below(worker, (FREE - STAYS) * UNIT);
                if let Some(found) = tree.load(&guard, at) {
                    return fail(format!("at {at:#x}, which is free throughout, is {found:#x}"));
                }
            }
            2 => {
                let at = (span + FREE) * UNIT + below(worker, (SPAN - FREE) * UNIT);
                if let Some((range, entry)) = tree.lookup(&guard, at) {
                    if !range.contains(&at) {
                        return fail(format!("the entry at {at:#x} is said to be {range:x?}"));
                    }
                    is_piece(&range, entry)?;
                }
            }
            3 => {
                // The lowest room in the span is the range that stays free.
                let (bounds, size) = (indices(span, span + SPAN - 1), (FREE - STAYS) / 2 * UNIT);
                let found = tree.empty_area(&guard, bounds, size, UNIT);
                if found != Ok((span + STAYS) * UNIT) {
                    return fail(format!("room for {size:#x} in span {number} is at {found:x?}"));
                }
            }
            4 => {
                let found = tree.largest_gap(&guard);
                if found < Index::MAX - SPANS * SPAN * UNIT {
                    return fail(format!(
                        "behind all spans is room, and the largest gap is {found:#x}"
                    ));
                }
            }
            _ => return self.read_all(&guard, number),
        }
        Ok(())
    }

    /// Checks all entries of a span: they are ordered, whole pieces, and include the one that
    /// stays.
    fn read_all(&self, guard: &G::Guard, number: Index) -> Outcome {
        let bounds = indices(number * SPAN, number * SPAN + SPAN - 1);
        let mut next = *bounds.start();
        let mut pieces = self.tree.iter(guard, bounds.clone());
        if pieces.next() != Some(stays(number)) {
            return fail(format!("span {number} does not begin with what stays there"));
        }
        for (range, entry) in pieces {
            if *range.start() < next || range.is_empty() || !bounds.contains(range.end()) {
                return fail(format!("an iterator is at {next:#x} and finds {range:x?}"));
            }
            is_piece(&range, entry)?;
            next = range.end() + 1;
        }
        Ok(())
    }

    /// Compares the tree with the model, when there is no writer any more.
    fn compare(&self) -> Outcome {
        let mut right = lock(self.env.host.machine, &self.right);
        let writer =
            self.tree.writer(&mut right.token).of("could not look at the tree as its writer")?;
        writer.validate().of("the tree at the end")?;
        drop(writer);
        let guard = G::pin();
        let mut model = right.model.0.iter().map(|(first, (last, entry))| (*first..=*last, *entry));
        let mut tree = self.tree.iter(&guard, 0..=Index::MAX);
        loop {
            match (tree.next(), model.next()) {
                (None, None) => return Ok(()),
                (found, expected) if found == expected => {}
                (found, expected) => {
                    return fail(format!("at the end is {found:x?}, expected {expected:x?}"));
                }
            }
        }
    }
}

/// Checks that an entry that a reader found is a whole piece of its store.
fn is_piece(range: &RangeInclusive<Index>, entry: u32) -> Outcome {
    let whole = stored(entry);
    let units = range.start().is_multiple_of(UNIT) && (range.end() + 1).is_multiple_of(UNIT);
    if units && whole.contains(range.start()) && whole.contains(range.end()) {
        return Ok(());
    }
    fail(format!("at {range:x?} is {entry:#x}, which was stored at {whole:x?}"))
}

/// The model of the tree: the last index and the entry, by the first index.
#[derive(Default)]
struct Model(BTreeMap<Index, (Index, u32)>);

impl Model {
    fn store(&mut self, range: &RangeInclusive<Index>, entry: u32) {
        self.clear(range);
        self.0.insert(*range.start(), (*range.end(), entry));
    }

    /// The lowest entry that overlaps a range.
    fn first(&self, range: &RangeInclusive<Index>) -> Option<RangeInclusive<Index>> {
        let before = self.0.range(..range.start()).next_back();
        let before = before.filter(|(_, (last, _))| last >= range.start());
        let found = before.or_else(|| self.0.range(range.clone()).next());
        found.map(|(first, (last, _))| *first..=*last)
    }

    /// The lowest room for so many indices.
    fn room(&self, bounds: &RangeInclusive<Index>, size: Index) -> Option<Index> {
        let mut next = *bounds.start();
        while next <= *bounds.end()
            && let Some(way) = self.first(&(next..=*bounds.end()))
        {
            if way.start().saturating_sub(next) >= size {
                break;
            }
            next = way.end() + 1;
        }
        (next + (size - 1) <= *bounds.end()).then_some(next)
    }

    /// Removes the entry at an index.
    fn remove(&mut self, at: Index) -> Option<RangeInclusive<Index>> {
        let found = self.first(&(at..=at))?;
        self.0.remove(found.start());
        Some(found)
    }

    /// Removes a range. The parts of entries outside of it stay.
    fn clear(&mut self, range: &RangeInclusive<Index>) {
        while let Some(found) = self.first(range) {
            let Some((last, entry)) = self.0.remove(found.start()) else { return };
            if found.start() < range.start() {
                self.0.insert(*found.start(), (range.start() - 1, entry));
            }
            if last > *range.end() {
                self.0.insert(range.end() + 1, (last, entry));
            }
        }
    }
}
