//! The results as tables in Markdown.

use crate::case::Case;
use crate::published;
use crate::results::{Results, Series};
use report::{Table, figure, median, spread};
use std::io::{self, Write};

/// One table of everything: a line for each case, a column for each map, a figure for each size.
/// The published figures are of dense ranges.
pub(crate) fn overview(out: &mut impl Write, results: &Results, dense: bool) -> io::Result<()> {
    let sizes = &results.sizes[..];
    let list: Vec<String> = sizes.iter().map(usize::to_string).collect();
    writeln!(
        out,
        "\nns an operation (k: thousands, M: millions) at {} ranges\n",
        list.join(" / ")
    )?;
    let names = results.series.iter().map(|one| &one.map);
    let maps = distinct(names.chain(results.memory.iter().map(|one| &one.map)));
    let mut lines = vec![vec!["operation".to_string()]];
    lines[0].extend(maps.iter().map(|map| map.to_string()));
    if dense {
        lines[0].extend(["Linux maple tree, published".into(), "rbtree, published".into()]);
    }
    let columns = lines[0].len();
    for case in Case::ALL.iter().copied() {
        let of_case = |one: &&Series| one.case == case;
        if results.series.iter().any(|one| of_case(&one)) {
            lines.push(line(results, case, &maps, sizes, &|time, _| time));
            if case == Case::Duplicate {
                let per_entry = |time, size: usize| time / size as f64;
                let mut more = line(results, case, &maps, sizes, &per_entry);
                more[0] += ", per entry";
                lines.push(more);
            }
        }
    }
    for (touching, name) in [(false, "bytes per entry, with holes"), (true, "touching")] {
        if !results.memory.is_empty() {
            let mut line = vec![name.to_string()];
            for map in &maps {
                line.push(row(sizes, |size| results.bytes(map, touching, size)));
            }
            let pick = |pair: (&str, &str)| (if touching { pair.1 } else { pair.0 }).to_string();
            line.extend([pick(published::LINUX_BYTES), pick(published::RBTREE_BYTES)]);
            lines.push(line);
        }
    }
    // Without published figures their columns are left out.
    lines.iter_mut().for_each(|line| line.truncate(columns));
    write!(out, "{}", Table(lines))
}

fn line(
    results: &Results,
    case: Case,
    maps: &[&str],
    sizes: &[usize],
    of: &dyn Fn(f64, usize) -> f64,
) -> Vec<String> {
    let mut line = vec![case.name().to_string()];
    for map in maps {
        let scan =
            sizes.iter().filter_map(|&size| results.find(case, map, size)).any(|one| one.scan);
        let text = row(sizes, |size| Some(of(results.time(case, map, size)?, size)));
        line.push(if scan { format!("{text} *(scan)*") } else { text });
    }
    // The published copies are for each entry.
    let row_of_others =
        published::find(case).filter(|_| case != Case::Duplicate || of(1.0, 2) == 0.5);
    for other in [row_of_others.map(|row| &row.linux), row_of_others.map(|row| &row.rbtree)] {
        line.push(row(sizes, |size| published::at(other?, size)));
    }
    line
}

/// The names, each once.
fn distinct<'a>(names: impl Iterator<Item = &'a String>) -> Vec<&'a str> {
    let mut all: Vec<&str> = Vec::new();
    for name in names {
        if !all.contains(&name.as_str()) {
            all.push(name);
        }
    }
    all
}

/// The figures of one cell; empty if there is none.
fn row(sizes: &[usize], figure_at: impl Fn(usize) -> Option<f64>) -> String {
    let figures: Vec<Option<f64>> = sizes.iter().map(|&size| figure_at(size)).collect();
    if figures.iter().all(Option::is_none) {
        return "-".into();
    }
    let texts: Vec<String> =
        figures.into_iter().map(|value| value.map_or("-".into(), figure)).collect();
    texts.join(" / ")
}

/// A table for each case: a line for each map, with its ratio to the first map.
pub(crate) fn by_case(out: &mut impl Write, results: &Results) -> io::Result<()> {
    let sizes = &results.sizes[..];
    writeln!(out, "\nns an operation (ratio to the first line), by number of ranges")?;
    let first = results.series.first().map_or("", |one| &one.map);
    for case in Case::ALL.iter().copied() {
        let of_case = results.series.iter().filter(|one| one.case == case);
        let maps = distinct(of_case.map(|one| &one.map));
        if maps.is_empty() {
            continue;
        }
        writeln!(out, "\n**{}: {}**\n", case.name(), case.about())?;
        let mut lines = vec![vec![String::new()]];
        lines[0].extend(sizes.iter().map(usize::to_string));
        for map in maps {
            let mut line = vec![map.to_string()];
            for &size in sizes {
                let Some(series) = results.find(case, map, size) else {
                    line.push(String::new());
                    continue;
                };
                let mut text = figure(median(&series.times));
                if let Some(ratio) = results.ratio((case, map), (case, first), size)
                    && map != first
                {
                    text += &format!(" ({ratio:.2})");
                }
                if series.scan {
                    text += " *(scan)*";
                }
                line.push(text);
            }
            lines.push(line);
        }
        write!(out, "{}", Table(lines))?;
    }
    Ok(())
}

/// The spread of the rounds, by size.
pub(crate) fn spreads(out: &mut impl Write, results: &Results) -> io::Result<()> {
    writeln!(
        out,
        "\nspread of the rounds, half the distance between the quartiles, % of the median:"
    )?;
    for &size in &results.sizes {
        let of_size = results.series.iter().filter(|one| one.size == size);
        let spreads: Vec<f64> = of_size.map(|one| spread(&one.times)).collect();
        if !spreads.is_empty() {
            let most = spreads.iter().copied().fold(0.0, f64::max);
            writeln!(out, "- {size}: median {:.1}, most {most:.1}", median(&spreads))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn published_figures_stand_at_their_sizes() {
        let of_case = |case, of: &dyn Fn(f64, usize) -> f64| {
            line(&Results::default(), case, &["none"], &[1_000, 12], of)
        };
        assert_eq!(of_case(Case::Load, &|time, _| time), ["load", "-", "37 / -", "37 / -"]);
        assert_eq!(of_case(Case::Duplicate, &|time, _| time)[2], "-");
        assert_eq!(of_case(Case::Duplicate, &|time, size| time / size as f64)[2], "3.2 / -");
    }
}
