//! The files that show call stacks: a flame graph, folded lines, and a profile for speedscope.

use trace::report::stacks::{Measure, Stacks};

use crate::{
    cli,
    output::{self, Lines},
};

/// Their destinations, and the measure that they show.
pub(crate) struct Flame<'a> {
    graph: Lines<'a>,
    folded: Lines<'a>,
    speedscope: Lines<'a>,
    measure: Measure,
}

impl<'a> Flame<'a> {
    /// Opens the files, before the run.
    pub(crate) fn open(options: &'a cli::Flame) -> Result<Flame<'a>, String> {
        Ok(Flame {
            graph: output::open(options.flame.as_deref())?,
            folded: output::open(options.folded.as_deref())?,
            speedscope: output::open(options.speedscope.as_deref())?,
            measure: match options.flame_of {
                cli::Measure::Mapped => Measure::Mapped,
                cli::Measure::Calls => Measure::Calls,
                cli::Measure::AtPeak => Measure::AtPeak,
                cli::Measure::AtEnd => Measure::AtEnd,
            },
        })
    }

    /// Whether there is such a file, so that stacks are needed.
    pub(crate) fn is_wanted(&self) -> bool {
        let all = [&self.graph, &self.folded, &self.speedscope];
        all.iter().any(|lines| lines.is_wanted())
    }

    /// Writes them, for a run of `what`.
    pub(crate) fn write(self, stacks: &Stacks, what: &str) -> Result<(), String> {
        if self.is_wanted() && self.measure == Measure::AtPeak && !stacks.has_peak() {
            let cure = "--flame-of at-end shows what is still mapped at the end";
            return Err(format!("the resident memory at the peak is not known: {cure}"));
        }
        if !matches!(self.graph, Lines::Nowhere) {
            self.graph.write(&stacks.flame_graph(self.measure, what))?;
        }
        if !matches!(self.folded, Lines::Nowhere) {
            self.folded.write(&stacks.folded(self.measure))?;
        }
        if !matches!(self.speedscope, Lines::Nowhere) {
            self.speedscope.write(&stacks.speedscope(self.measure, what))?;
        }
        Ok(())
    }
}
