//! The results: JSON lines as they come, and tables in Markdown at the end.

use super::Row;
use crate::peer::Case;
use crate::statistics::{median, spread};
use serde_json::json;
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

/// One table: its title, and for each map a figure by size.
struct Table {
    title: String,
    sizes: Vec<usize>,
    lines: Vec<(String, Vec<(usize, String)>)>,
}

pub(super) struct Output {
    json: Option<File>,
    memory: Table,
    cases: Vec<(Case, Table)>,
    /// Of every row, by size.
    spreads: Vec<(usize, f64)>,
}

impl Output {
    pub(super) fn new(json: Option<&Path>) -> io::Result<Self> {
        let json = json.map(File::create).transpose()?;
        let memory = Table::new("memory: bytes for each range, built in random order".into());
        Ok(Output { json, memory, cases: Vec::new(), spreads: Vec::new() })
    }

    pub(super) fn memory(&mut self, map: &str, size: usize, bytes: f64) -> io::Result<()> {
        self.memory.put(map, size, format!("{bytes:.1}"));
        self.line("memory", map, size, "bytes_per_entry", bytes, "B")
    }

    pub(super) fn row(&mut self, row: Row) -> io::Result<()> {
        let Row { case, size, cells } = row;
        let name = case.name();
        let base = cells.first().map(|cell| (cell.map, cell.times.clone()));
        for cell in &cells {
            let (time, apart) = (median(&cell.times), spread(&cell.times));
            self.spreads.push((size, apart));
            self.line(name, cell.map, size, "time", time, "ns/op")?;
            self.line(name, cell.map, size, "time_spread", apart, "%")?;
            let mut text = figure(time);
            if let Some((map, times)) = &base
                && *map != cell.map
            {
                let ratios: Vec<f64> =
                    cell.times.iter().zip(times).map(|(time, base)| time / base).collect();
                let ratio = median(&ratios);
                self.line(name, cell.map, size, "ratio_to_btreemap", ratio, "1")?;
                text += &format!(" ({ratio:.2})");
            }
            let map =
                if cell.scan { format!("{} *(scan)*", cell.map) } else { cell.map.to_string() };
            if !self.cases.iter().any(|(other, _)| *other == case) {
                let title = format!("{name}: {}", case.about());
                self.cases.push((case, Table::new(title)));
            }
            if let Some((_, table)) = self.cases.iter_mut().find(|(other, _)| *other == case) {
                table.put(&map, size, text);
            }
        }
        Ok(())
    }

    /// Prints the tables.
    pub(super) fn finish(self) -> io::Result<()> {
        let mut out = io::stdout().lock();
        writeln!(out, "ns an operation (ratio to the first line), by number of ranges")?;
        for (_, table) in &self.cases {
            table.print(&mut out)?;
        }
        self.memory.print(&mut out)?;
        writeln!(out, "\nspread, half the distance between the quartiles, % of the median:")?;
        for &size in &self.memory.sizes {
            let of_size: Vec<f64> =
                self.spreads.iter().filter(|row| row.0 == size).map(|row| row.1).collect();
            if !of_size.is_empty() {
                let most = of_size.iter().copied().fold(0.0, f64::max);
                writeln!(out, "- {size}: median {:.1}, most {most:.1}", median(&of_size))?;
            }
        }
        Ok(())
    }

    fn line(
        &mut self,
        case: &str,
        map: &str,
        size: usize,
        metric: &str,
        value: f64,
        unit: &str,
    ) -> io::Result<()> {
        let Some(file) = &mut self.json else { return Ok(()) };
        let line = json!({
            "experiment": "range-tree", "case": case, "implementation": map, "cpus": 1, "size": size,
            "metric": metric, "value": value, "unit": unit,
        });
        writeln!(file, "{line}")
    }
}

impl Table {
    fn new(title: String) -> Self {
        Table { title, sizes: Vec::new(), lines: Vec::new() }
    }

    fn put(&mut self, map: &str, size: usize, text: String) {
        if !self.sizes.contains(&size) {
            self.sizes.push(size);
        }
        match self.lines.iter_mut().find(|(name, _)| name == map) {
            Some((_, figures)) => figures.push((size, text)),
            None => self.lines.push((map.into(), vec![(size, text)])),
        }
    }

    fn print(&self, out: &mut impl Write) -> io::Result<()> {
        writeln!(out, "\n**{}**\n", self.title)?;
        write!(out, "| {:32} |", "")?;
        for size in &self.sizes {
            write!(out, " {size:>14} |")?;
        }
        write!(out, "\n|{:-<34}|", "")?;
        for _ in &self.sizes {
            write!(out, "{:->15}:|", "")?;
        }
        writeln!(out)?;
        for (map, figures) in &self.lines {
            write!(out, "| {map:32} |")?;
            for size in &self.sizes {
                let text = figures.iter().find(|figure| figure.0 == *size);
                write!(out, " {:>14} |", text.map_or("", |figure| &figure.1))?;
            }
            writeln!(out)?;
        }
        Ok(())
    }
}

/// Three digits.
fn figure(value: f64) -> String {
    let decimals = if value < 10.0 { 2 } else { usize::from(value < 100.0) };
    format!("{value:.decimals$}")
}
