//! The record of one run, and the sum over runs.

use std::{collections::HashMap, ops::Range};

use super::code::Decoded;
use crate::{Area, Counts, Figure, LINE, Region};

/// The lines accessed in one part of memory, and whether each was written.
#[derive(Default)]
struct Touched {
    lines: HashMap<u64, bool>,
    atomics: u64,
}

impl Touched {
    fn note(&mut self, line: u64, written: bool, atomic: bool) {
        *self.lines.entry(line).or_default() |= written;
        self.atomics += u64::from(atomic);
    }

    fn written(&self) -> u64 {
        self.lines.values().filter(|written| **written).count() as u64
    }

    fn lines(&self) -> u64 {
        self.lines.len() as u64
    }
}

/// The record of one run.
pub(super) struct Tally<'a> {
    regions: &'a [Region],
    stack_range: Range<u64>,
    instructions: u64,
    atomics: u64,
    fences: u64,
    branches: u64,
    syscalls: u64,
    stack: Touched,
    data: Touched,
    /// One entry for each region name, in the order of [`names`].
    named: HashMap<&'a str, Touched>,
    other: Touched,
}

impl<'a> Tally<'a> {
    /// An empty record. The upper end of the stack is known when the run begins.
    pub(super) fn new(regions: &'a [Region], stack_low: u64) -> Self {
        Self {
            regions,
            stack_range: stack_low..stack_low,
            instructions: 0,
            atomics: 0,
            fences: 0,
            branches: 0,
            syscalls: 0,
            stack: Touched::default(),
            data: Touched::default(),
            named: HashMap::new(),
            other: Touched::default(),
        }
    }

    /// Begins a run with this stack pointer. The memory below it is the operation's own stack.
    pub(super) fn begin(&mut self, stack_pointer: u64) {
        self.stack_range.end = stack_pointer;
    }

    /// Records an executed instruction.
    pub(super) fn instruction(&mut self, decoded: &Decoded) {
        self.instructions += 1;
        self.atomics += u64::from(decoded.atomic);
        self.fences += u64::from(decoded.fence);
        self.branches += u64::from(decoded.branch);
        self.syscalls += u64::from(decoded.syscall);
    }

    /// Records an access to bytes. An atomic is attributed to the address of its first byte.
    pub(super) fn touch(&mut self, bytes: Range<u64>, written: bool, atomic: bool) {
        let mut start = bytes.start;
        while start < bytes.end {
            let line = start / LINE;
            let end = bytes.end.min((line + 1).saturating_mul(LINE));
            self.piece(line, start..end, written, atomic && start == bytes.start);
            start = end;
        }
    }

    /// Records the part of an access that lies within one line.
    fn piece(&mut self, line: u64, piece: Range<u64>, written: bool, atomic: bool) {
        if self.stack_range.contains(&piece.start) {
            return self.stack.note(line, written, atomic);
        }
        self.data.note(line, written, atomic);
        let mut names: Vec<&str> = Vec::new();
        for region in self.regions {
            let range = region.addresses();
            let meets = (range.start as u64) < piece.end && piece.start < range.end as u64;
            // Once for each name, even if two regions of that name overlap here.
            if meets && !range.is_empty() && !names.contains(&region.name()) {
                names.push(region.name());
                self.named.entry(region.name()).or_default().note(line, written, atomic);
            }
        }
        if names.is_empty() {
            self.other.note(line, written, atomic);
        }
    }
}

/// The names of regions, each once, in the order in which they first appear.
fn names(regions: &[Region]) -> Vec<&str> {
    let mut names = Vec::new();
    for region in regions {
        if !names.contains(&region.name()) {
            names.push(region.name());
        }
    }
    names
}

/// The figure over these runs. Zero if there are none.
fn figure_of(values: impl Iterator<Item = u64>) -> Figure {
    let (mut sum, mut runs, mut least, mut largest) = (0u64, 0u64, u64::MAX, 0);
    for value in values {
        (sum, runs) = (sum + value, runs + 1);
        (least, largest) = (value.min(least), value.max(largest));
    }
    if runs == 0 {
        return Figure::default();
    }
    Figure { mean: sum as f64 / runs as f64, least, largest }
}

/// The figures over all runs.
pub(super) fn sum_up(regions: &[Region], runs: &[Tally<'_>]) -> Counts {
    let figure = |of: &dyn Fn(&Tally<'_>) -> u64| figure_of(runs.iter().map(of));
    let area = |of: &dyn for<'t> Fn(&'t Tally<'_>) -> Option<&'t Touched>| Area {
        read: figure(&|run| of(run).map_or(0, |touched| touched.lines() - touched.written())),
        written: figure(&|run| of(run).map_or(0, Touched::written)),
        lines: figure(&|run| of(run).map_or(0, Touched::lines)),
        atomics: figure(&|run| of(run).map_or(0, |touched| touched.atomics)),
    };
    Counts {
        runs: runs.len(),
        instructions: figure(&|run| run.instructions),
        atomics: figure(&|run| run.atomics),
        fences: figure(&|run| run.fences),
        branches: figure(&|run| run.branches),
        syscalls: figure(&|run| run.syscalls),
        stack: area(&|run| Some(&run.stack)),
        data: area(&|run| Some(&run.data)),
        regions: names(regions)
            .into_iter()
            .map(|name| (name.to_owned(), area(&|run| run.named.get(name))))
            .collect(),
        other: area(&|run| Some(&run.other)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_knows_its_spread() {
        assert_eq!(figure_of([].into_iter()), Figure::default());
        let figure = figure_of([2, 5, 2].into_iter());
        assert_eq!(figure, Figure { mean: 3.0, least: 2, largest: 5 });
    }

    #[test]
    fn pieces_go_where_they_belong() {
        let regions = [
            Region::new("a", 0x1000..0x1020),
            Region::new("b", 0x1020..0x1080),
            Region::new("a", 0x1010..0x1040),
        ];
        let mut tally = Tally::new(&regions, 0x8000);
        tally.begin(0x9000);
        // Three lines: one in both regions, one in b, one in neither.
        tally.touch(0x1018..0x1090, false, false);
        tally.touch(0x1070..0x1071, true, true);
        tally.touch(0x8ff8..0x9008, true, false);
        let counts = sum_up(&regions, &[tally]);
        let lines = |area: &Area| (area.read.largest, area.written.largest, area.atomics.largest);
        assert_eq!(lines(counts.region("a").unwrap()), (1, 0, 0));
        assert_eq!(lines(counts.region("b").unwrap()), (1, 1, 1));
        assert_eq!(lines(&counts.other), (1, 1, 0));
        assert_eq!(lines(&counts.data), (2, 2, 1));
        assert_eq!(lines(&counts.stack), (0, 1, 0));
        assert_eq!(counts.regions.len(), 2);
    }
}
