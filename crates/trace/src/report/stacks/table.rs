//! The call sites as a table for people.

use std::cmp::Reverse;

use super::{SiteCounts, Stacks, site::Site};
use crate::{
    record::StackEnd,
    report::{
        Summary,
        style::{Style, bytes_or_dash, count, count_or_dash},
        tables::table,
    },
};

/// The number of sites shown one by one.
const SHOWN: usize = 20;

/// The sites, those that have mapped most first, with a newline at the end.
pub(crate) fn render(summary: &Summary, style: Style) -> String {
    let stacks = &summary.stacks;
    let mut sites: Vec<(Site, SiteCounts)> =
        stacks.sites().into_iter().filter(|(site, _)| summary.shows(site.op)).collect();
    // The map is sorted by name, and the sort keeps that order among equals.
    sites.sort_by_key(|(_, count)| {
        Reverse((count.at_peak, count.mapped, count.at_end, count.calls))
    });
    let shown = if style.full { sites.len() } else { SHOWN.min(sites.len()) };
    let (shown, rest) = sites.split_at(shown);
    // A recording has no peak.
    let moments =
        MomentColumns { peak: stacks.has_peak(), end: summary.shows_end || !stacks.has_peak() };
    let row = |op: &str, one: SiteCounts, site: &str| moments.row(op, one, site);
    let mut rows: Vec<Vec<String>> =
        shown.iter().map(|(site, count)| row(site.op.name(), *count, &text(site))).collect();
    let sum = |sites: &[(Site, SiteCounts)]| {
        let mut sum = SiteCounts::default();
        sites.iter().for_each(|(_, count)| sum.add(*count));
        sum
    };
    if !rest.is_empty() {
        rows.push(row("", sum(rest), &format!("{} other sites", count(rest.len() as u64))));
    }
    let mut all = sum(&sites);
    for (other, what) in stacks.others().into_iter().zip(["execve", "(unknown)"]) {
        if other != SiteCounts::default() {
            all.add(other);
            rows.push(row("", other, what));
        }
    }
    rows.push(row("", all, "all"));
    let head = moments.head();
    let last = head.len() - 1;
    let widths: Vec<usize> = (0..last)
        .map(|i| {
            rows.iter().map(|row| row[i].chars().count()).max().unwrap_or(0).max(head[i].len())
        })
        .collect();
    let room = style.width.saturating_sub(widths.iter().map(|width| width + 1).sum::<usize>() + 1);
    let mut out = table(&head, &[0, last]);
    for mut row in rows {
        if !style.full {
            row[last] = shorten(&row[last], room.max(20));
        }
        out.add_row(row);
    }
    format!("{}\n{}", out.trim_fmt(), notes(stacks))
}

/// The moments that have a column.
struct MomentColumns {
    peak: bool,
    end: bool,
}

impl MomentColumns {
    fn head(&self) -> Vec<&'static str> {
        let columns = [
            (true, "call"),
            (true, "calls"),
            (self.peak, "at the peak"),
            (true, "mapped"),
            (self.end, "at the end"),
            (true, "site"),
        ];
        columns.into_iter().filter_map(|(shown, name)| shown.then_some(name)).collect()
    }

    fn row(&self, op: &str, one: SiteCounts, site: &str) -> Vec<String> {
        let mut row = vec![op.to_owned(), count_or_dash(one.calls)];
        row.extend(self.peak.then(|| bytes_or_dash(one.at_peak)));
        row.push(bytes_or_dash(one.mapped));
        row.extend(self.end.then(|| bytes_or_dash(one.at_end)));
        row.push(site.to_owned());
        row
    }
}

fn text(site: &Site) -> String {
    match &site.via {
        Some(via) => format!("{}, by {via}", site.place),
        None => site.place.clone(),
    }
}

/// The text with at most so many characters.
fn shorten(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        Some(_) => text.chars().take(most.saturating_sub(3)).chain("...".chars()).collect(),
        None => text.to_owned(),
    }
}

/// How many stacks there are, and how many are not whole.
fn notes(stacks: &Stacks) -> String {
    let mut text = format!("{} different stacks", count(stacks.len() as u64));
    for (end, what) in [
        (StackEnd::Cut, "cut: --stack-depth shows more"),
        (StackEnd::Lost, "not followed to the first function"),
    ] {
        if let some @ 1.. = stacks.ends(end) {
            text += &format!("; {} {what}", count(some as u64));
        }
    }
    text + "\n"
}
