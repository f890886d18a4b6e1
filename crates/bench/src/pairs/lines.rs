//! The least that a writer and a reader can share: a word for each range.

use crate::workload::{BASE, PAGE, Workload};
use std::hint::black_box;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Pages from the start of one range to that of the next, on average.
const PITCH: usize = 13;

/// A word on a pair of lines of its own, because processors fetch two lines at once.
#[repr(align(128))]
struct Line(AtomicUsize);

/// A word for every stretch of the index space that has about one range.
pub(super) struct Lines(Vec<Line>);

impl Lines {
    pub(super) fn new(work: &Workload) -> Lines {
        let places = work.moves.iter().flat_map(|step| [step.from.end, step.to.end]);
        let last = places.chain(work.keys.iter().copied()).max().map_or(0, place);
        Lines((0..=last).map(|_| Line(AtomicUsize::new(0))).collect())
    }

    /// Reads the word of an index.
    pub(super) fn read(&self, index: usize) {
        // Acquire: every reader of a map needs it; pairs with `write`.
        black_box(self.0[place(index)].0.load(Ordering::Acquire));
    }

    /// Writes the word of an index.
    pub(super) fn write(&self, index: usize) {
        // Release: every writer of a map needs it; pairs with `read`.
        self.0[place(index)].0.store(index, Ordering::Release);
    }
}

fn place(index: usize) -> usize {
    (index - BASE) / (PITCH * PAGE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn about_a_line_for_each_range() {
        let work = Workload::new(1000);
        let lines = Lines::new(&work);
        assert!((1000..2000).contains(&lines.0.len()), "{}", lines.0.len());
        for span in &work.spans {
            lines.write(span.start);
            assert_eq!(lines.0[place(span.start)].0.load(Ordering::Relaxed), span.start);
        }
    }
}
