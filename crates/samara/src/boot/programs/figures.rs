//! The lines that the loops write, as rows and targets.
//!
//! A line of JSON begins a loop, another one has its result, and a last one says that all are done.
//! A kernel may print on the same serial port: a line is looked for from its first brace, and all
//! that follows it is ignored.

use super::verdict::Verdict;
use crate::bench::PROGRAMS;
use crate::boot::ending::Failure;
use report::{Note, Report, Row, Table, Target, figure, median, spread};
use serde_json::{Deserializer, Value};

pub(super) const OURS: &str = "Samara";
pub(super) const GRACE: &str = "Samara, grace periods";
pub(super) const LINUX: &str = "Linux";

/// The unit of all figures.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Unit {
    /// Operations a second, of all workers.
    Rate,
    /// Instructions of all CPUs for an operation, each of which takes two to this power of
    /// nanoseconds.
    Instructions(u8),
}

/// A figure of one round.
struct Sample {
    system: &'static str,
    case: String,
    cpus: usize,
    value: f64,
}

/// The end of one run, by its lines.
#[derive(Debug, Default, PartialEq)]
pub(super) struct RunEnd {
    /// The loop that began and has no result.
    pub(super) begun: Option<String>,
    /// Whether the last line is there.
    done: bool,
    /// Whether there is a figure.
    any: bool,
}

impl RunEnd {
    /// # Errors
    /// A loop has no figure.
    pub(super) fn finished(&self) -> Result<(), Failure> {
        let what = match self {
            RunEnd { done: false, .. } => "the program ended before all loops were done",
            RunEnd { begun: Some(_), .. } => "the line of its result was lost",
            RunEnd { any: false, .. } => "the program measured nothing",
            _ => return Ok(()),
        };
        Err(what.to_string().into())
    }
}

/// A line of the loops.
enum LoopLine {
    Begins(String),
    Figure(String, f64),
    Done,
}

/// The median of a case on a system, with its spread in per cent, from so many rounds.
#[derive(Clone, Copy)]
struct Median {
    value: f64,
    spread: f64,
    rounds: usize,
}

/// A system compared with Linux.
struct Comparison {
    ours: Median,
    linux: Median,
    /// The ratio by which the system is better.
    times: f64,
    /// The sum of both spreads.
    spreads: f64,
    /// The smaller number of rounds.
    rounds: usize,
    verdict: Verdict,
}

/// All figures so far.
pub(super) struct Figures {
    unit: Unit,
    samples: Vec<Sample>,
}

impl Figures {
    pub(super) fn new(unit: Unit) -> Figures {
        Figures { unit, samples: Vec::new() }
    }

    /// Adds the figures among the lines of one run.
    pub(super) fn add(&mut self, system: &'static str, cpus: usize, text: &str) -> RunEnd {
        let mut told = RunEnd::default();
        for line in text.lines().filter_map(|line| read(line, self.unit)) {
            match line {
                LoopLine::Begins(case) => told.begun = Some(case),
                LoopLine::Figure(case, value) => {
                    if told.begun.as_ref() == Some(&case) {
                        told.begun = None;
                    }
                    told.any = true;
                    self.samples.push(Sample { system, case, cpus, value });
                }
                LoopLine::Done => told.done = true,
            }
        }
        told
    }

    /// The rounds of a case on a system. `None` if it was not measured.
    fn median_of(&self, system: &str, case: &str, cpus: usize) -> Option<Median> {
        let of = |one: &&Sample| one.system == system && one.case == case && one.cpus == cpus;
        let values: Vec<f64> = self.samples.iter().filter(of).map(|one| one.value).collect();
        let (value, spread) = (median(&values), spread(&values));
        (!values.is_empty()).then_some(Median { value, spread, rounds: values.len() })
    }

    /// The median of a case on a system. NaN if it was not measured.
    fn value(&self, system: &str, case: &str, cpus: usize) -> f64 {
        self.median_of(system, case, cpus).map_or(f64::NAN, |median| median.value)
    }

    /// The cases with their numbers of CPUs, in the order in which they were measured.
    fn cases(&self) -> Vec<(&str, usize)> {
        let mut cases: Vec<(&str, usize)> = Vec::new();
        for one in &self.samples {
            if !cases.contains(&(&one.case, one.cpus)) {
                cases.push((&one.case, one.cpus));
            }
        }
        cases
    }

    /// The name of a figure, and its unit.
    fn metric(&self) -> (&'static str, &'static str) {
        match self.unit {
            Unit::Rate => ("rate", "/s"),
            Unit::Instructions(_) => ("instructions of all CPUs", "/operation"),
        }
    }

    /// The ratio by which the first value is better.
    fn times(&self, ours: f64, other: f64) -> f64 {
        match self.unit {
            Unit::Rate => ours / other,
            Unit::Instructions(_) => other / ours,
        }
    }

    /// Rows for each case and system, the targets, and a note for each tie with Linux.
    pub(super) fn report(&self) -> Report {
        let mut report = Report::default();
        let (metric, unit) = self.metric();
        for (case, cpus) in self.cases() {
            for system in [OURS, GRACE, LINUX] {
                if let Some(Median { value, spread, rounds }) = self.median_of(system, case, cpus) {
                    let row = Row::new(PROGRAMS, case, system, cpus, 0);
                    report.rows.push(row.with(metric, value, unit));
                    report.rows.push(row.with("spread", spread, "%"));
                    report.rows.push(row.with("rounds", rounds as f64, ""));
                }
            }
            report.targets.extend(self.targets(case, cpus));
            let compared = self.compared(OURS, case, cpus);
            if let Some(Comparison { times, spreads, verdict: Verdict::Tie, .. }) = compared {
                let note = format!(
                    "a tie with Linux: {times:.3} times, with spreads of {spreads:.1} % together"
                );
                report.notes.push(Note::new(PROGRAMS, case, cpus, 0, note));
            }
        }
        report
    }

    /// A system compared with Linux, if both have run the case.
    fn compared(&self, system: &str, case: &str, cpus: usize) -> Option<Comparison> {
        let ours = self.median_of(system, case, cpus)?;
        let linux = self.median_of(LINUX, case, cpus)?;
        let times = self.times(ours.value, linux.value);
        let spreads = ours.spread + linux.spread;
        let rounds = ours.rounds.min(linux.rounds);
        let verdict = Verdict::new(times, spreads, rounds);
        Some(Comparison { ours, linux, times, spreads, rounds, verdict })
    }

    /// A table of the loops that both kernels ran, with the verdicts. Empty if there are none.
    pub(super) fn comparisons(&self) -> String {
        let (metric, unit) = self.metric();
        let head =
            ["loop", "CPUs", "system", metric, "spread", LINUX, "spread", "times", "rounds", ""];
        let mut lines = vec![head.map(String::from).to_vec()];
        let mut counts = [0; 4];
        for (case, cpus) in self.cases() {
            let systems = if waits(case) { &[OURS, GRACE][..] } else { &[OURS] };
            for system in systems {
                let Some(compared) = self.compared(system, case, cpus) else { continue };
                let Comparison { ours, linux, times, rounds, verdict, .. } = compared;
                counts[verdict as usize] += usize::from(*system == OURS);
                lines.push(vec![
                    case.into(),
                    cpus.to_string(),
                    system.to_string(),
                    format!("{} {unit}", figure(ours.value)),
                    format!("{:.1} %", ours.spread),
                    format!("{} {unit}", figure(linux.value)),
                    format!("{:.1} %", linux.spread),
                    format!("{times:.2}"),
                    rounds.to_string(),
                    verdict.to_string(),
                ]);
            }
        }
        if lines.len() == 1 {
            return String::new();
        }
        let [ahead, behind, ties, open] = counts;
        let table = Table(lines);
        let sum =
            format!("{OURS} is ahead in {ahead} loops and behind in {behind}; {ties} are ties");
        let open =
            if open > 0 { format!(", and {open} have too few rounds") } else { String::new() };
        format!("\n**{PROGRAMS}: compared with {LINUX}**\n\n{table}\n{sum}{open}.\n")
    }

    /// The targets of a case: compared with Linux, if it was measured; and of threads that map and
    /// unmap, compared with processes.
    fn targets(&self, case: &str, cpus: usize) -> Vec<Target> {
        let mut targets = Vec::new();
        let value = |system| self.value(system, case, cpus);
        let linux = value(LINUX);
        if !linux.is_nan() {
            let bound = times_of_linux(case, cpus);
            let mut compare = |system: &'static str, bound: f64| {
                let name = format!("{case}, {cpus} CPUs: {system}, times Linux");
                let times = self.times(value(system), linux);
                targets.push(Target::at_least(PROGRAMS, name, times, bound));
            };
            compare(OURS, bound);
            if bound > 1.0 && waits(case) {
                compare(GRACE, bound);
            }
        }
        if case == "malloc1, threads" {
            for system in [OURS, GRACE] {
                let processes = self.value(system, "malloc1, processes", cpus);
                let name = format!("{case}, {cpus} CPUs: {system}, times processes");
                let times = self.times(value(system), processes);
                targets.push(Target::at_least(PROGRAMS, name, times, 0.5));
            }
        }
        targets
    }
}

/// The line of a loop within a line of the serial port.
fn read(line: &str, unit: Unit) -> Option<LoopLine> {
    let start = line.find('{')?;
    let line = Deserializer::from_str(&line[start..]).into_iter::<Value>().next()?.ok()?;
    if line["done"].is_u64() {
        return Some(LoopLine::Done);
    }
    let begins = line["begins"].as_str();
    let name = begins.or_else(|| line["loop"].as_str())?;
    let case = match line["mib"].as_u64() {
        Some(mib) => format!("fork and exit of {mib} MiB"),
        None => format!("{name}, {}", line["kind"].as_str()?),
    };
    if begins.is_some() {
        return Some(LoopLine::Begins(case));
    }
    let operations = line["operations"].as_u64()? as f64;
    let seconds = line["seconds"].as_f64()?;
    let value = match unit {
        Unit::Rate => operations / seconds,
        Unit::Instructions(shift) => seconds * 1e9 / f64::from(1u32 << shift) / operations,
    };
    // No clock was read, or no operation was made: that is no figure.
    (value.is_finite() && value > 0.0).then_some(LoopLine::Figure(case, value))
}

/// Whether munmaps of the case wait for grace periods, if they may.
fn waits(case: &str) -> bool {
    case.starts_with("malloc1") || case.starts_with("map_touch_unmap")
}

/// The least ratio to Linux. Threads on one CPU send no interrupts.
fn times_of_linux(case: &str, cpus: usize) -> f64 {
    match case {
        "malloc1, threads" if cpus > 1 => 5.0,
        "map_touch_unmap, threads" if cpus > 1 => 4.0,
        "map_touch_unmap, processes" | "page_fault1, processes" | "page_fault1, threads" => 1.5,
        _ if case.starts_with("fork and exit") => 10.0,
        _ => 1.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(malloc: [u32; 2]) -> String {
        let line = |kind, operations| {
            format!(
                "{{\"loop\": \"malloc1\", \"kind\": \"{kind}\", \"workers\": 2, \"operations\": \
                 {operations}, \"seconds\": 0.5, \"per_second\": 0}}\n"
            )
        };
        let fork = "{\"loop\": \"forkexit\", \"mib\": 256, \"operations\": 20, \"seconds\": 2}\n";
        let [processes, threads] = malloc.map(|value| value.to_string());
        format!("booted\n{}{}{fork}", line("processes", processes), line("threads", threads))
    }

    fn target(report: &Report, name: &str) -> f64 {
        report.targets.iter().find(|one| one.target == name).map_or(f64::NAN, |one| one.value)
    }

    #[test]
    fn figures_are_medians_compared_with_linux() {
        let mut figures = Figures::new(Unit::Rate);
        for threads in [10, 600, 500] {
            figures.add(OURS, 2, &lines([1000, threads]));
        }
        figures.add(LINUX, 2, &lines([1000, 100]));
        let report = figures.report();
        let row = &report.rows[0];
        assert_eq!((row.case.as_str(), row.cpus, row.value), ("malloc1, processes", 2, 2000.0));
        assert_eq!(target(&report, "malloc1, threads, 2 CPUs: Samara, times Linux"), 5.0);
        assert_eq!(target(&report, "malloc1, threads, 2 CPUs: Samara, times processes"), 0.5);
        assert_eq!(target(&report, "fork and exit of 256 MiB, 2 CPUs: Samara, times Linux"), 1.0);
    }

    #[test]
    fn fewer_instructions_are_better() {
        let mut figures = Figures::new(Unit::Instructions(4));
        figures.add(OURS, 8, &lines([1000, 500]));
        figures.add(GRACE, 8, &lines([1000, 1000]));
        let report = figures.report();
        // Half a second of instructions that take 16 ns.
        assert_eq!(report.rows[0].value, 31_250.0);
        assert_eq!(target(&report, "malloc1, threads, 8 CPUs: Samara, times processes"), 0.5);
        let grace = "malloc1, threads, 8 CPUs: Samara, grace periods, times processes";
        assert_eq!(target(&report, grace), 1.0);
        assert_eq!(report.targets.len(), 2, "without Linux: {:?}", report.targets);
    }

    #[test]
    fn a_line_within_other_text_is_found() {
        let mut figures = Figures::new(Unit::Rate);
        let begins = "[    1.5] tsc: x{\"begins\": \"brk1\", \"kind\": \"processes\"}\r\n";
        let line = "{\"loop\": \"brk1\", \"kind\": \"processes\", \"operations\": 7, \
                    \"seconds\": 2}[    2.5] Kernel panic - not syncing: {";
        let told = figures.add(LINUX, 1, &format!("{begins}{line}\n{{\"done\": 1}} reboot: {{\n"));
        assert_eq!(told, RunEnd { begun: None, done: true, any: true });
        assert!(told.finished().is_ok());
        assert_eq!(figures.value(LINUX, "brk1, processes", 1), 3.5);
    }

    #[test]
    fn a_loop_without_a_line_is_named_and_the_figures_before_it_are_kept() {
        let begins = "{\"begins\": \"fork1\", \"kind\": \"threads\"}\n";
        for (rest, what) in [
            ("Kernel panic\n", "before all loops"),
            ("{\"loop\": \"fork1\", \"ki[ 1.0] Kernel\n{\"done\": 3}\n", "was lost"),
            (
                "{\"loop\": \"fork1\", \"kind\": \"threads\", \"operations\": 0, \"seconds\": 0}\n\
              {\"done\": 1}\n",
                "was lost",
            ),
        ] {
            let mut figures = Figures::new(Unit::Rate);
            let told = figures.add(LINUX, 2, &format!("{}{begins}{rest}", lines([10, 20])));
            assert_eq!(told.begun.as_deref(), Some("fork1, threads"), "{rest}");
            let failure = told.finished().unwrap_err();
            assert!(failure.what.contains(what) && failure.code != 0, "{failure:?}");
            assert_eq!(figures.report().rows.len(), 9, "three figures, with spread and rounds");
        }
        let told = Figures::new(Unit::Rate).add(LINUX, 1, "{}\n{\"done\": 0}\n");
        assert!(told.finished().unwrap_err().what.contains("nothing"));
    }

    #[test]
    fn verdicts_are_of_all_rounds() {
        let mut figures = Figures::new(Unit::Rate);
        for round in 0..5 {
            figures.add(OURS, 2, &lines([1000 + 20 * round, 300]));
            figures.add(LINUX, 2, &lines([1010 + 20 * round, 200]));
        }
        let report = figures.report();
        let rows = |metric: &str| report.rows.iter().filter(|row| row.metric == metric).count();
        assert_eq!((rows("rate"), rows("spread"), rows("rounds")), (6, 6, 6));
        let notes: Vec<_> = report.notes.iter().map(|note| note.to_string()).collect();
        assert_eq!(notes.len(), 2, "{notes:?}");
        assert!(notes[0].contains("malloc1, processes") && notes[0].contains("a tie"), "{notes:?}");
        let table = figures.comparisons();
        let line = table.lines().find(|line| line.starts_with("| malloc1, threads")).unwrap();
        let words: Vec<_> = line.split_whitespace().collect();
        let expected = "| malloc1, threads | 2 | Samara | 600 /s | 0.0 % | 400 /s | 0.0 % | 1.50 | 5 \
                        | ahead |";
        assert_eq!(words.join(" "), expected);
        assert!(table.contains("ahead in 1 loops and behind in 0; 2 are ties."), "{table}");
        assert_eq!(Figures::new(Unit::Rate).comparisons(), "");
    }

    #[test]
    fn one_round_is_no_verdict() {
        let mut figures = Figures::new(Unit::Rate);
        figures.add(OURS, 2, &lines([1000, 300]));
        figures.add(LINUX, 2, &lines([100, 200]));
        let table = figures.comparisons();
        assert!(table.contains("3 have too few rounds") && !table.contains("| ahead"), "{table}");
        assert!(figures.report().notes.is_empty());
    }
}
