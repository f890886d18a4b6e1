//! The lines that the loops write, as rows and targets.

use crate::bench::PROGRAMS;
use report::{Report, Row, Target, median};
use serde_json::Value;

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
    ///
    /// # Errors
    /// There is none.
    pub(super) fn add(
        &mut self,
        system: &'static str,
        cpus: usize,
        lines: &str,
    ) -> Result<(), String> {
        let before = self.samples.len();
        let lines = lines.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let samples = lines.filter_map(|line| {
            let name = line["loop"].as_str()?;
            let case = match line["mib"].as_u64() {
                Some(mib) => format!("fork and exit of {mib} MiB"),
                None => format!("{name}, {}", line["kind"].as_str()?),
            };
            let operations = line["operations"].as_u64()? as f64;
            let seconds = line["seconds"].as_f64()?;
            let value = match self.unit {
                Unit::Rate => operations / seconds,
                Unit::Instructions(shift) => seconds * 1e9 / f64::from(1u32 << shift) / operations,
            };
            Some(Sample { system, case, cpus, value })
        });
        self.samples.extend(samples);
        match self.samples.len() > before {
            true => Ok(()),
            false => Err(format!("{system} has told no figure")),
        }
    }

    /// The median of a case on a system. NaN if it was not measured.
    fn value(&self, system: &str, case: &str, cpus: usize) -> f64 {
        let of = |one: &&Sample| one.system == system && one.case == case && one.cpus == cpus;
        let values: Vec<f64> = self.samples.iter().filter(of).map(|one| one.value).collect();
        median(&values)
    }

    /// How many times better the first value is.
    fn times(&self, ours: f64, other: f64) -> f64 {
        match self.unit {
            Unit::Rate => ours / other,
            Unit::Instructions(_) => other / ours,
        }
    }

    /// A row for each case and system, and the targets.
    pub(super) fn report(&self) -> Report {
        let mut report = Report::default();
        let (metric, unit) = match self.unit {
            Unit::Rate => ("rate", "/s"),
            Unit::Instructions(_) => ("instructions of all CPUs", "/operation"),
        };
        let mut keys: Vec<(&str, usize)> = Vec::new();
        for one in &self.samples {
            if !keys.contains(&(&one.case, one.cpus)) {
                keys.push((&one.case, one.cpus));
            }
        }
        for (case, cpus) in keys {
            for system in [OURS, GRACE, LINUX] {
                let value = self.value(system, case, cpus);
                if !value.is_nan() {
                    let row = Row::new(PROGRAMS, case, system, cpus, 0);
                    report.rows.push(row.with(metric, value, unit));
                }
            }
            report.targets.extend(self.targets(case, cpus));
        }
        report
    }

    /// The targets of a case: beside Linux, if it was measured; and of threads that map and unmap,
    /// beside processes.
    fn targets(&self, case: &str, cpus: usize) -> Vec<Target> {
        let mut targets = Vec::new();
        let value = |system| self.value(system, case, cpus);
        let linux = value(LINUX);
        if !linux.is_nan() {
            let bound = times_of_linux(case, cpus);
            let mut beside = |system: &'static str, bound: f64| {
                let name = format!("{case}, {cpus} CPUs: {system}, times Linux");
                let times = self.times(value(system), linux);
                targets.push(Target::at_least(PROGRAMS, name, times, bound));
            };
            beside(OURS, bound);
            if bound > 1.0 && waits(case) {
                beside(GRACE, bound);
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
    fn figures_are_medians_beside_linux() {
        let mut figures = Figures::new(Unit::Rate);
        for threads in [10, 600, 500] {
            figures.add(OURS, 2, &lines([1000, threads])).unwrap();
        }
        figures.add(LINUX, 2, &lines([1000, 100])).unwrap();
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
        figures.add(OURS, 8, &lines([1000, 500])).unwrap();
        figures.add(GRACE, 8, &lines([1000, 1000])).unwrap();
        let report = figures.report();
        // Half a second of instructions that take 16 ns.
        assert_eq!(report.rows[0].value, 31_250.0);
        assert_eq!(target(&report, "malloc1, threads, 8 CPUs: Samara, times processes"), 0.5);
        let grace = "malloc1, threads, 8 CPUs: Samara, grace periods, times processes";
        assert_eq!(target(&report, grace), 1.0);
        assert_eq!(report.targets.len(), 2, "without Linux: {:?}", report.targets);
    }

    #[test]
    fn a_run_without_figures_is_an_error() {
        let error = Figures::new(Unit::Rate).add(LINUX, 1, "{}\nKernel panic\n").unwrap_err();
        assert!(error.contains("Linux"), "{error}");
    }
}
