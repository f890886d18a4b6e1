//! The call sites as a table for people.

use std::cmp::Reverse;

use super::{Count, Stacks, site::Site};
use crate::{
    record::StackEnd,
    report::{
        Summary,
        style::{Style, bytes, count},
        tables::table,
    },
};

/// The number of sites shown one by one.
const SHOWN: usize = 20;

/// The sites, those that have mapped most first, with a newline at the end.
pub(crate) fn render(summary: &Summary, style: Style) -> String {
    let stacks = &summary.stacks;
    let mut sites: Vec<(Site, Count)> =
        stacks.sites().into_iter().filter(|(site, _)| summary.shows(site.op)).collect();
    // The map is sorted by name, and the sort keeps that order among equals.
    sites.sort_by_key(|(_, count)| Reverse((count.mapped, count.at_end, count.calls)));
    let shown = if style.full { sites.len() } else { SHOWN.min(sites.len()) };
    let (shown, rest) = sites.split_at(shown);
    let mut rows: Vec<[String; 5]> =
        shown.iter().map(|(site, count)| row(site.op.name(), *count, &text(site))).collect();
    let sum = |sites: &[(Site, Count)]| {
        let mut sum = Count::default();
        sites.iter().for_each(|(_, count)| sum.add(*count));
        sum
    };
    if !rest.is_empty() {
        rows.push(row("", sum(rest), &format!("{} other sites", count(rest.len() as u64))));
    }
    let mut all = sum(&sites);
    for (at_end, what) in
        stacks.others_at_end().into_iter().zip(["execve", "(unknown, after a mismatch)"])
    {
        if at_end > 0 {
            let other = Count { at_end, ..Count::default() };
            all.add(other);
            rows.push(row("", other, what));
        }
    }
    rows.push(row("", all, "all"));
    let head = ["call", "calls", "mapped", "at the end", "site"];
    let widths: Vec<usize> = (0..4)
        .map(|i| {
            rows.iter().map(|row| row[i].chars().count()).max().unwrap_or(0).max(head[i].len())
        })
        .collect();
    let room = style.width.saturating_sub(widths.iter().map(|width| width + 1).sum::<usize>() + 1);
    let mut out = table(&head, &[0, 4]);
    for mut row in rows {
        if !style.full {
            row[4] = shorten(&row[4], room.max(20));
        }
        out.add_row(row);
    }
    format!("{}\n{}", out.trim_fmt(), notes(stacks))
}

fn row(op: &str, one: Count, site: &str) -> [String; 5] {
    let size = |size: u64| if size == 0 { "-".into() } else { bytes(size as usize) };
    let calls = if one.calls == 0 { "-".into() } else { count(one.calls) };
    [op.to_owned(), calls, size(one.mapped), size(one.at_end), site.to_owned()]
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
