//! A summary as tables for people.

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};

use super::{
    SpaceReport, SpaceStats, Summary, Timing, stacks,
    style::{Style, bytes, bytes_or_dash, count, count_or_dash},
    usage::ResidencyByKind,
};

/// The number of address spaces shown one by one. If there are more, the busiest are shown.
const SHOWN: usize = 20;

/// The calls by kind with their cost, then the address spaces, then the totals, with a newline at
/// the end.
pub fn render(summary: &Summary, style: Style) -> String {
    let mut out = String::new();
    if summary.total.by_kind.keys().any(|&op| summary.shows(op)) {
        out += &format!("{}\n\n", kinds(summary).trim_fmt());
    }
    if summary.address_spaces > 1 {
        let shown = shown(summary, style);
        out += &format!("{}\n\n", spaces(&shown).trim_fmt());
        out += &format!("{}\n", calls(summary, &shown, style).trim_fmt());
        if let more @ 1.. = summary.address_spaces - shown.len() as u64 {
            out += &format!("and {} address spaces with fewer calls\n", count(more));
        }
        out.push('\n');
    }
    if !summary.stacks.is_empty() {
        out += &format!("{}\n", stacks::table::render(summary, style));
    }
    let moment = summary.largest.as_ref().and_then(|largest| largest.moment.as_ref());
    if let Some(moment) = moment {
        out += &format!("{}\n\n", memory("at the peak", &moment.kinds).trim_fmt());
    }
    if summary.total.usage.is_known() && (summary.shows_end || moment.is_none()) {
        out += &format!("{}\n\n", memory("at the end", &summary.total.usage.kinds).trim_fmt());
    }
    if !summary.timeline.is_empty() {
        out += &format!("{}\n", summary.timeline.render(summary.total.usage.resident_peak, style));
    }
    out += &total(summary, style);
    out
}

/// A table with columns of minimal width and right-aligned numbers.
pub(super) fn table(head: &[&str], left: &[usize]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(head);
    for (i, column) in table.column_iter_mut().enumerate() {
        column.set_padding((1, 0));
        if !left.contains(&i) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

fn kinds(summary: &Summary) -> Table {
    let outcome = |op| summary.outcomes.get(op).cloned().unwrap_or_default();
    let failed = summary.total.by_kind.keys().any(|op| outcome(op).failed() > 0);
    // The cost of a call in Samara comes last.
    let mut head = vec!["call", "calls", "bytes", "failed"];
    head.extend(failed.then_some("errors"));
    head.extend(["time", "median ns", "Samara's, median ns"]);
    let mut table = table(&head, &[0]);
    for (op, &calls) in summary.total.by_kind.iter().filter(|(op, _)| summary.shows(**op)) {
        let timing = summary.timing.get(op);
        let median = |ns: Option<u64>| ns.map_or_else(|| "-".into(), count);
        let ours = median(timing.and_then(|timing| timing.ours.median()));
        let kernel = median(timing.and_then(Timing::kernel_median));
        let time = timing.and_then(|timing| timing.kernel_time(calls));
        let outcome = outcome(op);
        let mut row = vec![op.name().to_string(), count(calls)];
        row.push(bytes_or_dash(outcome.bytes));
        row.push(count_or_dash(outcome.failed()));
        row.extend(failed.then(|| outcome.errors()));
        row.push(time.map_or_else(|| "-".into(), |time| format!("{time:.1?}")));
        row.extend([kernel, ours]);
        table.add_row(row);
    }
    table
}

/// The address spaces that get a line: all, or the busiest and those with mismatches.
fn shown(summary: &Summary, style: Style) -> Vec<&SpaceReport> {
    let mut spaces = summary.spaces();
    if !style.full && spaces.len() > SHOWN {
        spaces
            .sort_by_key(|space| std::cmp::Reverse((space.stats.mismatches, space.stats.calls())));
        spaces.truncate(SHOWN);
        spaces.sort_by_key(|space| space.mm);
    }
    spaces
}

/// The last part of the program's path.
fn name(space: &SpaceReport) -> String {
    let name = space.exe.rsplit('/').next().unwrap_or_default();
    name.chars().take(15).collect()
}

fn spaces(shown: &[&SpaceReport]) -> Table {
    let before = ["mm", "pid", "program", "calls", "listings", "wrong"];
    let after = ["predicted", "VMAs", "height", "nodes", "bytes"];
    // This column is nearly always empty, so it is shown only if needed.
    let unsure = shown.iter().any(|space| space.stats.cannot_tell > 0);
    let used = shown.iter().any(|space| space.stats.usage.is_known());
    let used = used.then_some(["resident", "faults"]);
    let head: Vec<&str> = before
        .into_iter()
        .chain(unsure.then_some("uncertain"))
        .chain(after)
        .chain(used.into_iter().flatten())
        .collect();
    let mut table = table(&head, &[2]);
    for space in shown {
        let SpaceStats { tree, vmas_peak, .. } = space.stats;
        let mut row = vec![
            space.mm.to_string(),
            space.pid.to_string(),
            name(space),
            count(space.stats.calls()),
            count(space.stats.listings),
            count(space.stats.mismatches),
        ];
        row.extend(unsure.then(|| count(space.stats.cannot_tell)));
        row.extend([
            predicted(&space.stats),
            vmas_peak.to_string(),
            tree.height.to_string(),
            tree.nodes.to_string(),
            tree.bytes.to_string(),
        ]);
        if used.is_some() {
            let usage = &space.stats.usage;
            let faults = count(usage.minor_faults + usage.major_faults);
            match usage.is_known() {
                true => row.extend([bytes(usage.resident_peak as usize), faults]),
                false => row.extend(["-".into(), "-".into()]),
            }
        }
        table.add_row(row);
    }
    table
}

/// The calls by kind, one line per address space. Kinds that do not fit are counted together.
fn calls(summary: &Summary, shown: &[&SpaceReport], style: Style) -> Table {
    let all = summary.total.by_kind.iter();
    let mut kinds: Vec<_> =
        all.filter(|(op, _)| summary.shows(**op)).map(|(&op, &calls)| (calls, op)).collect();
    kinds.sort_unstable_by(|a, b| b.cmp(a));
    let fit = style.width.saturating_sub(30) / 10;
    let rest = kinds.split_off(fit.clamp(1, kinds.len().max(1)).min(kinds.len()));
    let mut head = vec!["mm", "program"];
    head.extend(kinds.iter().map(|(_, op)| op.name()));
    if !rest.is_empty() {
        head.push("others");
    }
    let mut table = table(&head, &[1]);
    for space in shown {
        let of = |op| space.stats.by_kind.get(op).copied().unwrap_or(0);
        let mut row = vec![space.mm.to_string(), name(space)];
        row.extend(kinds.iter().map(|(_, op)| count(of(op))));
        if !rest.is_empty() {
            row.push(count(rest.iter().map(|(_, op)| of(op)).sum()));
        }
        table.add_row(row);
    }
    table
}

/// The resident bytes at a moment, by kind, in the address space with the highest peak.
fn memory(moment: &str, kinds: &ResidencyByKind) -> Table {
    let head = [moment, "VMAs", "mapped", "resident", "dirty", "shared", "swapped", "huge"];
    let mut table = table(&head, &[0]);
    for (kind, one) in kinds {
        let sizes =
            [one.mapped, one.resident, one.private_dirty, one.shared, one.swapped, one.huge];
        let numbers = [kind.name().to_owned(), count(one.vmas)];
        table.add_row(numbers.into_iter().chain(sizes.map(bytes_or_dash)));
    }
    table
}

fn predicted(stats: &SpaceStats) -> String {
    format!("{}/{}", count(stats.predicted), count(stats.predictable))
}

fn total(summary: &Summary, style: Style) -> String {
    let total = &summary.total;
    let unfollowed = match summary.unfollowed {
        0 => String::new(),
        1 => "1 process was not followed to its end\n".into(),
        more => format!("{} processes were not followed to their end\n", count(more)),
    };
    let mismatches = format!("{} mismatches", count(total.mismatches));
    let mismatches = style.paint(if total.mismatches == 0 { "32" } else { "1;31" }, &mismatches);
    let cannot_tell = match total.cannot_tell {
        0 => String::new(),
        some => style.paint("33", &format!(", {} uncertain", count(some))),
    };
    // The kernel's count lags behind by some pages on each CPU.
    let moment = summary.largest.as_ref().and_then(|largest| largest.moment.as_ref());
    let seen = moment.map_or(0, |moment| moment.bytes);
    let usage = match &total.usage {
        known if known.is_known() => format!(
            "resident at most {}; page faults: {} minor, {} major\n",
            bytes(known.resident_peak.max(seen) as usize),
            count(known.minor_faults),
            count(known.major_faults),
        ),
        _ => String::new(),
    };
    let around = match total.neighbourhoods {
        0 => String::new(),
        some => format!(" and {} neighbourhoods", count(some)),
    };
    format!(
        "{} memory calls ({} refused) in {} address spaces, {:.2} s\n\
         {} listings{around} compared, {mismatches}{cannot_tell}; {} addresses predicted\n\
         most VMAs {}; tree: height {}, {} nodes, {}\n{usage}{unfollowed}",
        count(total.calls()),
        count(total.refused),
        count(summary.address_spaces),
        summary.elapsed.as_secs_f64(),
        count(total.listings),
        predicted(total),
        count(total.vmas_peak as u64),
        total.tree.height,
        count(total.tree.nodes as u64),
        bytes(total.tree.bytes),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Op;

    #[test]
    fn every_address_space_has_its_calls_by_kind() {
        let mut summary = Summary::default();
        for (mm, kinds) in [(1, &Op::ALL[..9]), (2, &Op::ALL[..3])] {
            let mut space = SpaceReport {
                mm,
                pid: 70 + mm,
                exe: "/usr/bin/a-rather-long-name".into(),
                ..SpaceReport::default()
            };
            for &op in kinds {
                space.stats.call(op, false);
            }
            summary.add(space);
        }
        let text = render(&summary, Style { width: 80, ..Style::PLAIN });
        let words = |line: &str| line.split_whitespace().map(str::to_string).collect::<Vec<_>>();
        let lines: Vec<_> = text.lines().map(words).collect();
        let at =
            lines.iter().position(|line| line.last().is_some_and(|word| word == "others")).unwrap();
        assert_eq!(lines[at].len(), 2 + 5 + 1, "as many kinds as fit:\n{text}");
        assert_eq!(lines[at + 1][1..], ["a-rather-long-n", "1", "1", "1", "1", "1", "4"], "{text}");
        let sum =
            |row: &[String]| row[2..].iter().map(|word| word.parse::<u64>().unwrap()).sum::<u64>();
        assert_eq!((sum(&lines[at + 1]), sum(&lines[at + 2])), (9, 3), "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    }

    #[test]
    fn many_address_spaces_are_cut_to_the_busiest() {
        let mut summary = Summary::default();
        for mm in 0..100 {
            let mut space = SpaceReport { mm, ..SpaceReport::default() };
            for _ in 0..mm {
                space.stats.call(Op::Brk, true);
            }
            summary.add(space);
        }
        let text = render(&summary, Style::PLAIN);
        assert!(text.contains("and 80 address spaces with fewer calls"), "{text}");
        let full = render(&summary, Style { full: true, ..Style::PLAIN });
        assert!(!full.contains("with fewer calls") && full.lines().count() > 200, "{full}");
        assert!(
            text.contains("4,950 memory calls (4,950 refused) in 100 address spaces"),
            "{text}"
        );
    }
}
