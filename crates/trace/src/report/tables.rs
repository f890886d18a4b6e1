//! A summary as tables for people.

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};

use super::{Counts, Summary, style::Style, style::bytes, style::count};

/// Address spaces shown one by one; the busiest, if there are more.
const SHOWN: usize = 20;

/// Calls by kind with their cost, then the address spaces, then the total in a few lines.
/// Ends with a line end.
pub fn render(summary: &Summary, style: Style) -> String {
    let mut out = String::new();
    if summary.total.calls() > 0 {
        out += &format!("{}\n\n", kinds(summary, style).trim_fmt());
    }
    if summary.address_spaces > 1 {
        out += &spaces(summary, style);
        out.push('\n');
    }
    out += &total(summary, style);
    out
}

fn table(style: Style, head: &[&str], left: &[usize]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Dynamic);
    table.set_width(u16::try_from(style.width).unwrap_or(u16::MAX)).set_header(head);
    for (i, column) in table.column_iter_mut().enumerate() {
        if !left.contains(&i) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

fn kinds(summary: &Summary, style: Style) -> Table {
    let mut table = table(style, &["call", "count", "ours, median ns", "kernel, median ns"], &[0]);
    for (op, &calls) in &summary.total.by_kind {
        let timing = summary.timing.get(op);
        let median = |ns: Option<u64>| ns.map_or_else(|| "-".into(), count);
        let ours = median(timing.and_then(|timing| timing.ours.median()));
        let kernel = median(timing.and_then(|timing| timing.kernel.median()));
        table.add_row([op.name().to_string(), count(calls), ours, kernel]);
    }
    table
}

fn spaces(summary: &Summary, style: Style) -> String {
    let head = [
        "mm",
        "program",
        "calls",
        "listings",
        "mismatches",
        "predicted",
        "VMAs",
        "height",
        "nodes",
        "bytes",
    ];
    let mut table = table(style, &head, &[1]);
    let mut spaces = summary.spaces();
    if spaces.len() > SHOWN {
        spaces.sort_by_key(|space| {
            std::cmp::Reverse((space.counts.mismatches, space.counts.calls()))
        });
        spaces.truncate(SHOWN);
        spaces.sort_by_key(|space| space.mm);
    }
    for space in &spaces {
        let Counts { tree, vmas_peak, .. } = space.counts;
        let name = space.exe.rsplit('/').next().unwrap_or_default();
        table.add_row([
            space.mm.to_string(),
            space.pid.to_string(),
            name.to_string(),
            count(space.counts.calls()),
            count(space.counts.listings),
            count(space.counts.mismatches),
            predicted(&space.counts),
            vmas_peak.to_string(),
            tree.height.to_string(),
            tree.nodes.to_string(),
            bytes(tree.bytes),
        ]);
    }
    let mut out = format!("{}\n", table.trim_fmt());
    if let more @ 1.. = summary.address_spaces - spaces.len() as u64 {
        out += &format!("and {} address spaces with fewer calls\n", count(more));
    }
    out
}

fn predicted(counts: &Counts) -> String {
    format!("{}/{}", count(counts.predicted), count(counts.predictable))
}

fn total(summary: &Summary, style: Style) -> String {
    let total = &summary.total;
    let mismatches = format!("{} mismatches", count(total.mismatches));
    let mismatches = style.paint(if total.mismatches == 0 { "32" } else { "1;31" }, &mismatches);
    format!(
        "{} memory calls ({} refused) in {} address spaces, {} listings compared, {mismatches}\n\
         {} addresses predicted; most VMAs {}; tree: height {}, {} nodes, {}; {:.2} s\n",
        count(total.calls()),
        count(total.refused),
        count(summary.address_spaces),
        count(total.listings),
        predicted(total),
        count(total.vmas_peak as u64),
        total.tree.height,
        count(total.tree.nodes as u64),
        bytes(total.tree.bytes),
        summary.elapsed.as_secs_f64(),
    )
}
