//! Lifetimes of maps: when each was mapped, and when it was unmapped.
//!
//! A map is what one mmap has mapped. Where a call unmaps or replaces a part of it, that part has
//! ended, and the rest lives on. A map that moves keeps its age. Copies by a fork, the heap, and
//! System V memory do not count.
//!
//! Cost: a few steps in a B-tree for each mmap, munmap and mremap; 40 bytes for each map.

use std::{collections::BTreeMap, ops::Range};

use crate::{
    record::{Call, Op, StackId},
    span::Span,
};

/// The maps of an address space, by their starts.
#[derive(Debug, Default)]
pub(super) struct Lifetimes(BTreeMap<usize, LiveMap>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct LiveMap {
    end: usize,
    /// In nanoseconds since the run began.
    born: u64,
    stack: StackId,
}

/// A map, or a part of one, that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct EndedMap {
    pub(super) bytes: usize,
    /// The time since its call, in nanoseconds; `None` if it was mapped until the end.
    pub(super) lived: Option<u64>,
    /// The stack of its call.
    pub(super) stack: StackId,
}

impl Lifetimes {
    /// A call has changed the address space. Returns what has ended by it.
    pub(super) fn call(&mut self, call: &Call) -> Vec<EndedMap> {
        let Some(at) = call.at.filter(|_| !call.failed()) else { return Vec::new() };
        let (args, result) = (call.args, call.result as usize);
        match call.op {
            Op::Mmap => {
                let range = Span::of(result, args[1]).range();
                let ended = self.end(range.clone(), at);
                self.0.insert(range.start, LiveMap { end: range.end, born: at, stack: call.stack });
                ended
            }
            Op::Munmap => self.end(Span::of(args[0], args[1]).range(), at),
            Op::Mremap => {
                let [old, new] = [(args[0], args[1]), (result, args[2])]
                    .map(|(start, length)| Span::of(start, length).range());
                let first = self.cut(old).into_iter().next();
                let ended = self.end(new.clone(), at);
                let (born, stack) =
                    first.map_or((at, call.stack), |(_, map)| (map.born, map.stack));
                self.0.insert(new.start, LiveMap { end: new.end, born, stack });
                ended
            }
            _ => Vec::new(),
        }
    }

    /// The maps that are left when the address space ends.
    pub(super) fn left(&self) -> impl Iterator<Item = EndedMap> + '_ {
        self.0.iter().map(|(start, map)| EndedMap {
            bytes: map.end - start,
            lived: None,
            stack: map.stack,
        })
    }

    fn end(&mut self, range: Range<usize>, at: u64) -> Vec<EndedMap> {
        let life = |(bytes, map): (usize, LiveMap)| EndedMap {
            bytes,
            lived: Some(at.saturating_sub(map.born)),
            stack: map.stack,
        };
        self.cut(range).into_iter().map(life).collect()
    }

    /// Removes a range. Returns the removed parts, each with the map that it was of.
    fn cut(&mut self, range: Range<usize>) -> Vec<(usize, LiveMap)> {
        let before = self.0.range(..range.start).next_back().map(|(&start, _)| start);
        let within = self.0.range(range.clone()).map(|(&start, _)| start);
        let starts: Vec<usize> = before.into_iter().chain(within).collect();
        let mut parts = Vec::new();
        for start in starts {
            let Some(map) = self.0.get(&start).copied().filter(|map| range.start < map.end) else {
                continue;
            };
            self.0.remove(&start);
            if start < range.start {
                self.0.insert(start, LiveMap { end: range.start, ..map });
            }
            if range.end < map.end {
                self.0.insert(range.end, map);
            }
            parts.push((map.end.min(range.end) - start.max(range.start), map));
        }
        parts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(at: u64, op: Op, args: &[usize], result: isize) -> Call {
        Call { at: Some(at), stack: at as StackId, ..Call::new(1, 1, op, args, result) }
    }

    const K: usize = 4096;

    #[test]
    fn parts_end_and_the_rest_lives_on() {
        let mut lives = Lifetimes::default();
        let mut does = |at, op, args: &[usize], result: usize| {
            let ended = lives.call(&call(at, op, args, result as isize));
            let life = |one: EndedMap| (one.bytes / K, one.lived.unwrap(), one.stack);
            ended.into_iter().map(life).collect::<Vec<_>>()
        };
        assert_eq!(does(1, Op::Mmap, &[0, 10 * K - 1], 100 * K), []);
        // A hole in the middle, then the last page.
        assert_eq!(does(5, Op::Munmap, &[103 * K, 2 * K], 0), [(2, 4, 1)]);
        assert_eq!(does(7, Op::Munmap, &[109 * K, 9 * K], 0), [(1, 6, 1)]);
        // A map over the end of the first part and the hole.
        assert_eq!(does(9, Op::Mmap, &[102 * K, 3 * K], 102 * K), [(1, 8, 1)]);
        // The rest moves, and keeps its age.
        assert_eq!(does(11, Op::Mremap, &[105 * K, 4 * K, 8 * K], 200 * K), []);
        assert_eq!(does(20, Op::Munmap, &[200 * K, 8 * K], 0), [(8, 19, 1)]);
        assert_eq!(does(21, Op::Munmap, &[0, K], usize::MAX - 21), []);
        let left: Vec<_> = lives.left().map(|one| (one.bytes / K, one.lived, one.stack)).collect();
        assert_eq!(left, [(2, None, 1), (3, None, 9)]);
    }
}
