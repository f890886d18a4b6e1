//! The result: figures over all measured runs.

use std::fmt;

/// One number over all measured runs.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Figure {
    /// The mean over the runs.
    pub mean: f64,
    /// The least of any run. It equals `largest` if all runs did the same.
    pub least: u64,
    /// The largest of any run.
    pub largest: u64,
}

/// The mean, and the range if the runs differ.
impl fmt::Display for Figure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.least == self.largest {
            return write!(f, "{}", self.largest);
        }
        write!(f, "{:.2} ({}..{})", self.mean, self.least, self.largest)
    }
}

/// The accesses of an operation to one part of memory. Lines have 64 bytes and are counted once for
/// each run.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Area {
    /// Lines that were read and not written.
    pub read: Figure,
    /// Lines that were written, whether or not they were read.
    pub written: Figure,
    /// All lines that were accessed: the sum of the two above, for each run.
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

/// The instructions and memory accesses of one operation.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Counts {
    /// The number of measured runs.
    pub runs: usize,
    /// Executed instructions. A repeating string instruction counts once.
    pub instructions: Figure,
    /// Locked read-modify-writes: a `lock` prefix, or `xchg` with memory.
    pub atomics: Figure,
    /// `mfence`, `lfence`, `sfence`. A locked instruction is also a fence, but counts as an atomic
    /// only.
    pub fences: Figure,
    /// Conditional branches, whether taken or not.
    pub branches: Figure,
    /// System calls. The kernel's own accesses are in no figure.
    pub syscalls: Figure,
    /// The operation's own stack, below the frame that called it. Frames above count as data, if
    /// the operation has a reference to them.
    pub stack: Area,
    /// All memory except the stack.
    pub data: Area,
    /// The data in each named region, in the order in which the names first appear. A line at the
    /// border of two regions is in both.
    pub regions: Vec<(String, Area)>,
    /// The data outside all regions.
    pub other: Area,
}

impl Counts {
    /// The figures of the region with this name.
    pub fn region(&self, name: &str) -> Option<&Area> {
        self.regions.iter().find(|(own, _)| own == name).map(|(_, area)| area)
    }
}

/// One line for the totals, and one for each part of memory.
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
