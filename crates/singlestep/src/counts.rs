//! The result: figures over all measured runs.

use std::fmt;

/// One number over all measured runs.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Figure {
    /// Mean over the runs.
    pub mean: f64,
    /// The least of any run. Equal to `largest`: every run did the same.
    pub least: u64,
    /// The most of any run.
    pub largest: u64,
}

/// The mean, and the range where runs differ.
impl fmt::Display for Figure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.least == self.largest {
            return write!(f, "{}", self.largest);
        }
        write!(f, "{:.2} ({}..{})", self.mean, self.least, self.largest)
    }
}

/// What an operation did in one part of memory. Lines are of 64 bytes and counted once a run.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Area {
    /// Lines that were read and not written.
    pub read: Figure,
    /// Lines that were written, whether read or not.
    pub written: Figure,
    /// All lines touched: the two above together, run by run.
    pub lines: Figure,
    /// Locked read-modify-writes.
    pub atomics: Figure,
}

impl fmt::Display for Area {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { read, written, lines, atomics } = self;
        write!(f, "lines {lines} (read only {read}, written {written}), atomics {atomics}")
    }
}

/// What one operation does.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Counts {
    /// How many runs were measured.
    pub runs: usize,
    /// Instructions executed, each string instruction once.
    pub instructions: Figure,
    /// Locked read-modify-writes: a `lock` prefix, or `xchg` with memory.
    pub atomics: Figure,
    /// `mfence`, `lfence`, `sfence`. A locked instruction orders too, and counts as an atomic only.
    pub fences: Figure,
    /// Conditional branches, taken or not.
    pub branches: Figure,
    /// System calls. What the kernel touches is in no other figure.
    pub syscalls: Figure,
    /// The operation's own stack: what lies below the place that it was called from. Frames above
    /// are data, if it was given a reference to them.
    pub stack: Area,
    /// Everything but the stack.
    pub data: Area,
    /// The data in each region that was named, in the order of the first mention. A line on the
    /// border of two is in both.
    pub regions: Vec<(String, Area)>,
    /// The data in no region.
    pub other: Area,
}

impl Counts {
    /// The figures of the region of this name.
    pub fn region(&self, name: &str) -> Option<&Area> {
        self.regions.iter().find(|(own, _)| own == name).map(|(_, area)| area)
    }
}

/// A line for the whole, and one for each part of memory.
impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "instructions {}, atomics {}, fences {}, branches {}, system calls {} ({} runs)",
            self.instructions, self.atomics, self.fences, self.branches, self.syscalls, self.runs
        )?;
        writeln!(f, "stack: {}", self.stack)?;
        write!(f, "data: {}", self.data)?;
        for (name, area) in &self.regions {
            write!(f, "\n  {name}: {area}")?;
        }
        if !self.regions.is_empty() {
            write!(f, "\n  other: {}", self.other)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_shows_its_spread_if_there_is_one() {
        assert_eq!(Figure { mean: 3.0, least: 2, largest: 5 }.to_string(), "3.00 (2..5)");
        assert_eq!(Figure { mean: 4.0, least: 4, largest: 4 }.to_string(), "4");
    }
}
