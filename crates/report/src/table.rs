//! Markdown tables with aligned columns.

use crate::Row;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;

/// Writes a table for each experiment and metric: a line for each case, size and number of CPUs,
/// and a column for each implementation.
pub(crate) fn rows(f: &mut fmt::Formatter<'_>, rows: &[Row]) -> fmt::Result {
    let mut tables: Vec<(&str, &str)> = Vec::new();
    for row in rows {
        add(&mut tables, (row.experiment.as_str(), row.metric.as_str()));
    }
    for (experiment, metric) in tables {
        let own = rows.iter().filter(|row| row.experiment == experiment && row.metric == metric);
        let own: Vec<&Row> = own.collect();
        let (mut columns, mut keys) = (Vec::new(), Vec::new());
        for row in &own {
            add(&mut columns, row.implementation.as_str());
            add(&mut keys, (row.case.as_str(), row.size, row.cpus));
        }
        let mut lines = Vec::from([Vec::from(["case".into(), "size".into(), "CPUs".to_string()])]);
        lines[0].extend(columns.iter().map(|name| name.to_string()));
        for key in keys {
            let mut line = Vec::from([key.0.into(), key.1.to_string(), key.2.to_string()]);
            for column in &columns {
                let cell = own.iter().find(|row| {
                    row.implementation == *column && (row.case.as_str(), row.size, row.cpus) == key
                });
                let text = |row: &&Row| format!("{} {}", figure(row.value), row.unit);
                line.push(cell.map_or("-".into(), |row| text(row).trim_end().into()));
            }
            lines.push(line);
        }
        write!(f, "\n**{experiment}: {metric}**\n\n{}", Table(lines))?;
    }
    Ok(())
}

fn add<T: PartialEq>(list: &mut Vec<T>, one: T) {
    if !list.contains(&one) {
        list.push(one);
    }
}

/// A Markdown table: lines of cells. The first line is the head. `Display` aligns the columns.
///
/// ```
/// let table = report::Table(vec![vec!["a".into(), "long".into()], vec!["b".into(), "c".into()]]);
/// assert_eq!(table.to_string(), "| a | long |\n| - | ---- |\n| b | c    |\n");
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Table(pub Vec<Vec<String>>);

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        print(f, &self.0)
    }
}

fn print(f: &mut fmt::Formatter<'_>, lines: &[Vec<String>]) -> fmt::Result {
    let columns = lines.iter().map(Vec::len).max().unwrap_or(0);
    let width = |at: usize| {
        lines.iter().filter_map(|line| line.get(at)).map(|text| text.chars().count()).max()
    };
    let widths: Vec<usize> = (0..columns).map(|at| width(at).unwrap_or(0)).collect();
    for (number, line) in lines.iter().enumerate() {
        f.write_str("|")?;
        for (text, width) in line.iter().zip(&widths) {
            write!(f, " {text:width$} |")?;
        }
        writeln!(f)?;
        if number == 0 {
            f.write_str("|")?;
            widths.iter().try_for_each(|width| write!(f, " {:-<width$} |", ""))?;
            writeln!(f)?;
        }
    }
    Ok(())
}

/// Formats a value for people: two or three digits, with k, M and G for larger numbers. A value
/// that is not finite is a dash.
///
/// ```
/// let figures = [0.0, 0.5, 7.04, 3329.0, 4.1e7].map(report::figure);
/// assert_eq!(figures, ["0", "0.50", "7.0", "3329", "41M"]);
/// ```
pub fn figure(value: f64) -> String {
    let size = value.abs();
    match value {
        _ if !value.is_finite() => "-".into(),
        _ if value == 0.0 => "0".into(),
        _ if size >= 1e10 => format!("{:.0}G", value / 1e9),
        _ if size >= 1e7 => format!("{:.0}M", value / 1e6),
        _ if size >= 1e4 => format!("{:.0}k", value / 1e3),
        _ if size >= 9.95 => format!("{value:.0}"),
        _ if size >= 0.995 => format!("{value:.1}"),
        _ if size >= 0.095 => format!("{value:.2}"),
        _ => format!("{value:.4}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Note, Report, Target};

    #[test]
    fn figures_are_short() {
        assert_eq!([-0.5, -7.04, -4.1e7].map(figure), ["-0.50", "-7.0", "-41M"]);
        let texts = [0.0, 0.0021, 0.1, 7.04, 9.96, 3329.0, 21_300.0, 4.1e7, f64::NAN].map(figure);
        assert_eq!([f64::INFINITY, f64::NEG_INFINITY].map(figure), ["-", "-"]);
        assert_eq!(texts, ["0", "0.0021", "0.10", "7.0", "10", "3329", "21k", "41M", "-"]);
    }

    #[test]
    fn missing_values_are_dashes_and_missed_targets_are_listed() {
        let row = |implementation: &str, cpus, value| Row {
            experiment: "e".into(),
            case: "c".into(),
            implementation: implementation.into(),
            cpus,
            size: 0,
            metric: "m".into(),
            value,
            unit: "ns".into(),
        };
        let report = Report {
            run: None,
            rows: Vec::from([row("old", 1, 44.0), row("new", 1, 11.0), row("new", 2, 12.0)]),
            targets: Vec::from([
                Target::at_least("e", "twice", 1.0, 2.0),
                Target::at_most("e", "once", 1.0, 1.0),
            ]),
            notes: Vec::from([Note::new("e", "c", 2, 0, "cut")]),
        };
        let text = report.to_string();
        assert!(text.contains("**e: m**"), "{text}");
        assert!(text.contains("| c    | 0    | 2    | -     | 12 ns |"), "{text}");
        assert!(text.contains("MISSED by 2.00") && text.contains("1 of 2 targets met"), "{text}");
        assert!(!report.all_met());
        let lines = report.json_lines();
        assert!(text.contains("- e, c, 0 on 2 CPUs: cut\n"), "{text}");
        assert!(lines.contains(r#""cpus":2,"size":0,"note":"cut""#), "{lines}");
        assert_eq!(lines.lines().count(), 6);
        assert!(lines.contains(r#""target":"twice","value":1.0,"bound":2.0"#), "{lines}");
    }
}
