//! The figures of the page as one text in Markdown.
//!
//! It has the same figures as the page, because it is made from the same cards, plots, targets and
//! runs. Traces are on the page alone. A plot over sizes or CPUs becomes a line of its part's
//! table, with a column for each implementation. A cell then has a figure for each place on the
//! axis.

use crate::data::{Of, Results};
use crate::plot::{Lines, Plot, Series, X, short};
use crate::plots::{self, Drawing, PlotPart, Section};
use crate::sources::{self, rounded};
use crate::table::{Cell, markdown as table};
use crate::{NOTES, RUN_HEAD, run_lines, targets};
use std::fmt::{Display, Write};

/// The text.
pub(crate) fn text(results: &Results) -> String {
    let mut text = String::from("# Results\n\n");
    text.push_str(&wrapped(
        "The command `docs/make` writes this file from the runs in `docs/results`. A ratio is of \
         two figures of one run.",
        100,
    ));
    let sources = sources::lines(results);
    if !sources.is_empty() {
        text.push_str("\n## Five sources\n\n");
        let head = ["source", "measured", "before", "after", "ratio", "run"];
        text.push_str(&table(&head, &sources.iter().map(source).collect::<Vec<_>>()));
        text.push_str("\nBeware:\n\n");
        let caveats = sources.iter().map(|line| format!("{}: {}", line.name, line.caveat));
        caveats.for_each(|caveat| text.push_str(&item(&caveat)));
    }
    for section in plots::all(results) {
        add_section(&mut text, &section);
    }
    let missed = targets::missed(results);
    if !results.targets.is_empty() {
        let sum = targets::sum(results);
        let _ = write!(text, "\n## Missed targets\n\n{}", wrapped(&sum, 100));
    }
    if !missed.is_empty() {
        text.push('\n');
        text.push_str(&table(&targets::HEAD, &texts(&missed)));
    }
    add_list(&mut text, "Not measured in these runs", &targets::unmeasured(results));
    if !results.runs.is_empty() {
        text.push_str("\n## Runs\n\n");
        text.push_str(&table(&RUN_HEAD, &texts(&run_lines(results))));
    }
    add_list(&mut text, NOTES, &results.notes);
    text
}

fn texts(lines: &[Vec<Cell>]) -> Vec<Vec<String>> {
    lines.iter().map(|line| line.iter().map(|cell| cell.text().into()).collect()).collect()
}

fn source(line: &sources::SourceLine) -> Vec<String> {
    let ratio = line.ratio.clone().unwrap_or_else(|| "nothing is left".into());
    let (before, after) = (line.before.clone(), line.after.clone());
    let what = format!("{}, {}", line.what, line.unit);
    vec![line.name.into(), what, before, after, ratio, (line.run + 1).to_string()]
}

/// A list of things of runs, if there are any.
fn add_list<T: Display>(text: &mut String, title: &str, items: &[Of<T>]) {
    if !items.is_empty() {
        let _ = write!(text, "\n### {title}\n\n");
        items
            .iter()
            .for_each(|of| text.push_str(&item(&format!("{} (run {})", of.item, of.run + 1))));
    }
}

/// An item of a list.
fn item(text: &str) -> String {
    let lines = wrapped(&text.replace('<', "\\<"), 98);
    format!("- {}\n", lines.trim_end().replace('\n', "\n  "))
}

/// A section, if it has plots.
fn add_section(text: &mut String, section: &Section) {
    let parts: Vec<&PlotPart> =
        section.parts.iter().filter(|part| !part.plots.is_empty()).collect();
    if parts.is_empty() {
        return;
    }
    let _ = write!(text, "\n## {}\n\n{}", section.title, wrapped(section.about, 100));
    for part in parts {
        let mut plots = Vec::new();
        for shown in &part.plots {
            match &shown.drawing {
                Drawing::Plot(plot) => plots.push((shown.run, plot)),
                Drawing::Lines(lines) => add_lines(text, shown.run, lines),
            }
        }
        // Those of one axis share a table.
        while let Some((_, first)) = plots.first() {
            let name = axis(first);
            let is_same = |(_, plot): &(usize, &Plot)| axis(plot) == name;
            let (same, others): (Vec<_>, Vec<_>) = plots.into_iter().partition(is_same);
            add_plots(text, part.what, &same);
            plots = others;
        }
    }
}

/// A table with a line for each name.
fn add_lines(text: &mut String, run: usize, lines: &Lines) {
    let _ = write!(text, "\n### {}, {} (run {})\n\n", lines.title, lines.unit, run + 1);
    let mut head = vec![""];
    head.extend(lines.series.iter().map(|series| series.name.as_str()));
    let line = |(at, name): (usize, &String)| {
        let values = lines.series.iter().map(|series| value(series, at as f64));
        std::iter::once(name.clone()).chain(values).collect()
    };
    text.push_str(&table(&head, &lines.names.iter().enumerate().map(line).collect::<Vec<_>>()));
}

/// The name of the axis; empty if its places have names.
fn axis(plot: &Plot) -> &'static str {
    match plot.x {
        X::Twice(axis) | X::Tenfold(axis) | X::Linear(axis) => axis,
        X::Names(_) => "",
    }
}

/// A table with a line for each plot. All have the same axis.
fn add_plots(text: &mut String, what: &str, plots: &[(usize, &Plot)]) {
    let Some((_, first)) = plots.first() else { return };
    let (mut names, mut places): (Vec<&str>, Vec<f64>) = (Vec::new(), Vec::new());
    for series in plots.iter().flat_map(|(_, plot)| &plot.series) {
        if !names.contains(&series.name.as_str()) {
            names.push(&series.name);
        }
        places.extend(series.points.iter().map(|point| point.0));
    }
    places.sort_by(f64::total_cmp);
    places.dedup();
    let label = |place: &f64| match &first.x {
        X::Names(names) => names.get(*place as usize).cloned().unwrap_or_default(),
        X::Twice(_) | X::Tenfold(_) | X::Linear(_) => short(*place),
    };
    let at = places.iter().map(label).collect::<Vec<_>>().join(" / ");
    let heading = format!("For {what}, at {at} {}", axis(first));
    let _ = write!(text, "\n### {}\n\n", heading.trim_end());
    let cell = |plot: &Plot, name: &str| {
        let series = plot.series.iter().find(|series| series.name == name);
        series.map_or("-".into(), |series| {
            places.iter().map(|&place| value(series, place)).collect::<Vec<_>>().join(" / ")
        })
    };
    let line = |(run, plot): &(usize, &Plot)| {
        let mut line = vec![format!("{}, {}", plot.title, plot.unit)];
        line.extend(names.iter().map(|name| cell(plot, name)));
        line.push((run + 1).to_string());
        line
    };
    let lines: Vec<Vec<String>> = plots.iter().map(line).collect();
    let mut head = vec!["figure"];
    head.extend(names.iter().copied());
    head.push("run");
    text.push_str(&table(&head, &lines));
}

/// The figure of a series at a place, to three digits at most.
fn value(series: &Series, place: f64) -> String {
    let Some((_, value)) = series.points.iter().find(|point| point.0 == place) else {
        return "-".into();
    };
    let unit = match value.abs() {
        1e3.. => 10f64.powf(value.abs().log10().floor() - 2.0),
        _ => 1.0,
    };
    short(rounded(value / unit) * unit)
}

/// A paragraph with lines of at most so many columns.
fn wrapped(text: &str, columns: usize) -> String {
    let (mut lines, mut width) = (String::new(), 0);
    for word in text.split_whitespace() {
        let length = word.chars().count();
        if width > 0 && width + 1 + length > columns {
            lines.push('\n');
            width = 0;
        } else if width > 0 {
            lines.push(' ');
            width += 1;
        }
        lines.push_str(word);
        width += length;
    }
    lines + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use report::{Clock, Note, Report, Row, Run, Target};

    #[test]
    fn the_text_has_the_figures_of_the_page() {
        let gup = |name: &str, size, value| {
            Row::new("gup", "alone", name, 1, size).with("time", value, "ns/page")
        };
        let brk = |system: &str, value| {
            let row = Row::new("programs", "brk1, processes", system, 1, 0);
            row.with("instructions of all CPUs", value, "/operation")
        };
        let rows = vec![
            gup("fast", 1, 20.0),
            gup("fast", 16, 9.0),
            gup("address-space lock", 1, 200.0),
            brk("Samara", 2432.0),
            brk("Linux", 3313.0),
        ];
        let run = Some(Run { clock: Clock::Time, ..Run::default() });
        let targets = vec![
            Target::at_least("gup", "kept", 0.5, 1.0),
            Target::at_most("gup", "lines", f64::NAN, 1.0),
        ];
        let notes = vec![Note::new("gup", "alone", 1, 16, "cut <after> 3 of 9 batches")];
        let report = Report { run, rows, targets, notes };
        let mut results = Results::default();
        results.read("a", &report.json_lines()).unwrap();
        let text = text(&results);
        assert!(text.contains("| Pin pages, one CPU, ns/page | 20 / 9 | 200 / - | 1 |"), "{text}");
        assert!(text.contains("at 1 / 16 pages of a call\n"), "{text}");
        assert!(text.contains("| brk1 | 2.43k | 3.31k |"), "{text}");
        assert!(text.contains("0 of 2 targets are met, 1 are missed, 1 were not"), "{text}");
        assert!(text.contains("| gup | kept | 0.5 | ≥ 1 | 2 times | 1 |"), "{text}");
        assert!(text.contains("\n- gup: lines (run 1)\n"), "{text}");
        assert!(text.contains("\n- get_user_pages_fast: On one CPU"), "{text}");
        let note = "\n- gup, alone, 16 on 1 CPUs: cut \\<after> 3 of 9 batches (run 1)\n";
        assert!(text.ends_with(note), "{text}");
    }

    #[test]
    fn paragraphs_are_wrapped() {
        let text = wrapped(&"word ".repeat(21), 100);
        assert_eq!(text, format!("{}\nword\n", "word ".repeat(20).trim_end()));
    }

    #[test]
    fn without_figures_there_is_no_section() {
        assert_eq!(text(&Results::default()).matches('#').count(), 1);
    }
}
