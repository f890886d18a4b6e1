//! Single calls compared with Linux, in the same emulator.

use super::{Drawing, PlotPart, Section, Shown, lines};
use crate::data::Results;
use report::Row;

pub(super) fn section(results: &Results) -> Section {
    // A value of 0 has no place on a logarithmic axis, and no call has one.
    let is = |row: &Row, metric: &str| {
        row.experiment == "calls" && row.metric == metric && row.value > 0.0
    };
    let (mut counted, mut timed) = (Vec::new(), Vec::new());
    if let Some((run, rows)) = results.best(|row| is(row, "instructions") && row.cpus == 1) {
        let lines = lines("Calls, one CPU".into(), "instructions".into(), &rows, name);
        counted.push(Shown { run, drawing: Drawing::Lines(lines) });
    }
    let time = |row: &Row| is(row, "time");
    for cpus in super::distinct(results, time, |row| row.cpus) {
        // Linux's times are no instructions.
        let Some((run, rows)) = results.best_timed(|row| time(row) && row.cpus == cpus) else {
            continue;
        };
        let compared = rows.iter().any(|row| row.implementation != "ours");
        if compared {
            let title =
                if cpus == 1 { "Calls, one CPU".into() } else { format!("Calls, {cpus} CPUs") };
            let lines = lines(title, results.unit(run, rows[0]), &rows, name);
            timed.push(Shown { run, drawing: Drawing::Lines(lines) });
        }
    }
    Section {
        title: "Calls compared with Linux",
        about: "Ours in the kernel of this project. Linux was measured by a module in the same \
            emulator: Debian's kernel, and a lean build without hardening. Instructions do not \
            depend on the host.",
        parts: vec![
            PlotPart::new("instructions", "samara boot bench --count --json FILE calls", counted),
            PlotPart::new("times", "samara boot bench --json FILE calls", timed),
        ],
    }
}

/// The call in short, with its pages: the room for names is narrow.
fn name(row: &Row) -> String {
    let short = match row.case.as_str() {
        "vm_map_ram, touch, vm_unmap_ram" => "vm_map_ram",
        "vm_map_ram, touch, vm_unmap_ram, purge" => "vm_map_ram, purged",
        "vmap, vunmap" => "vmap",
        "vmalloc, vfree" => "vmalloc",
        "get_user_pages, under the lock" => "pin under the lock",
        "a frame taken and given back" => "a frame",
        other => other,
    };
    let pages = if row.size == 1 { "page" } else { "pages" };
    format!("{short}, {} {pages}", row.size).replace("get_user_pages_fast", "pin fast")
}
