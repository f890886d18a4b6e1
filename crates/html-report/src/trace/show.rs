//! Shows traces.

use super::{Bin, CallKind, Memory, Peak, Region, Space, Trace, lives::lives, map::map};
use crate::data::Results;
use crate::plot::{Plot, Series, X};
use crate::table::{bytes, grouped, number, table, time};
use maud::{Markup, html};

/// The command that makes a trace.
const COMMAND: &str = "samara trace --json FILE -- COMMAND";

const STACKS: &str = "samara trace --stacks --json FILE -- COMMAND";

/// A section for each trace. Without any, a sentence names the command.
pub(crate) fn traces(results: &Results) -> Markup {
    html! {
        @if results.traces.is_empty() {
            section {
                h2 { "Traces" }
                p.missing { "These files have no trace: " code { (COMMAND) } " makes one." }
            }
        }
        @for of in &results.traces {
            section.trace {
                h2 { (of.item.title) }
                (trace(&of.item))
                p.run { "Run " (of.run + 1) }
            }
        }
    }
}

/// The parts that the trace has, those that tell most first.
fn trace(trace: &Trace) -> Markup {
    let peak = trace.peak.as_ref().filter(|peak| !peak.regions.is_empty());
    html! {
        p.sum {
            @for (at, (name, value)) in trace.facts.iter().enumerate() {
                @if at > 0 { ", " } (grouped(*value)) " " (name)
            }
            "."
        }
        @if !trace.memory.is_empty() {
            h3 { (trace.moment) }
            (memory(trace))
        }
        @match &trace.stacks {
            Some(stacks) => { h3 { "Functions that map" } (stacks.show()) },
            None => p.missing { code { (STACKS) } " also shows which functions map." },
        }
        @if let Some(peak) = peak { h3 { "The address space" } (map(peak)) }
        @if !trace.lives.is_empty() { h3 { "Maps by size and lifetime" } (lives(&trace.lives)) }
        @if trace.bins.len() > 1 { h3 { "The course" } div.plots { (course(&trace.bins)) } }
        @if !trace.kinds.is_empty() { h3 { "Calls" } (kinds(trace)) }
        @if trace.spaces.len() > 1 { h3 { "Address spaces" } (spaces(trace)) }
        @if let Some(peak) = peak { h3 { "VMAs" } (vmas(peak)) }
    }
}

/// Calls a second, mapped and resident bytes, and VMAs over time.
fn course(bins: &[Bin]) -> Markup {
    // Bins are of one length.
    let length = bins[1].at.saturating_sub(bins[0].at).max(1) as f64 / 1e6;
    let plot = |title: &str, unit: &str, of: &dyn Fn(&Bin) -> f64| {
        let points = bins.iter().map(|bin| (bin.at as f64 / 1000.0, of(bin))).collect();
        let series = vec![Series { name: title.into(), points }];
        let x = X::Linear("ms since the start");
        Plot { title: title.into(), x, unit: unit.into(), log: false, series }.figure()
    };
    html! {
        (plot("Memory calls", "calls a second", &|bin| bin.calls as f64 / length))
        (plot("Mapped", "MiB", &|bin| bin.mapped as f64 / f64::from(1 << 20)))
        @if bins.iter().any(|bin| bin.resident.is_some()) {
            (plot("Resident", "MiB", &|bin| {
                bin.resident.unwrap_or(0) as f64 / f64::from(1 << 20)
            }))
        }
        (plot("VMAs", "VMAs", &|bin| bin.vmas as f64))
    }
}

fn kinds(trace: &Trace) -> Markup {
    let line = |(name, kind): &(String, CallKind)| {
        let errors = kind.errors.iter().map(|(name, count)| format!("{count} {name}"));
        vec![
            name.as_str().into(),
            kind.calls.into(),
            bytes(kind.bytes),
            kind.failed.into(),
            errors.collect::<Vec<_>>().join(", ").into(),
            time(kind.kernel_ns),
            kind.kernel_median_ns.into(),
            kind.ours_median_ns.into(),
        ]
    };
    let head =
        ["call", "calls", "bytes", "failed", "errors", "time", "median ns", "Samara's, median ns"];
    table("Calls", &head, trace.kinds.iter().map(line).collect())
}

fn memory(trace: &Trace) -> Markup {
    let head = ["kind", "VMAs", "mapped", "resident", "private dirty", "shared", "swapped", "huge"];
    let line = |(kind, of): &(String, Memory)| {
        let all = [of.mapped, of.resident, of.private_dirty, of.shared, of.swapped, of.huge];
        [kind.as_str().into(), of.vmas.into()].into_iter().chain(all.map(bytes)).collect()
    };
    table("Memory", &head, trace.memory.iter().map(line).collect())
}

fn spaces(trace: &Trace) -> Markup {
    let head = [
        "number",
        "process",
        "program",
        "calls",
        "most VMAs",
        "most resident",
        "minor faults",
        "major faults",
    ];
    let line = |space: &Space| {
        let id = |value: u64| number(value as f64, value.to_string());
        let usage = space.usage();
        vec![
            id(space.mm),
            id(space.pid),
            space.exe.as_str().into(),
            space.calls.into(),
            space.vmas_peak.into(),
            bytes(usage.resident_peak),
            usage.minor_faults.into(),
            usage.major_faults.into(),
        ]
    };
    table("Address spaces", &head, trace.spaces.iter().map(line).collect())
}

/// The most VMAs in the table.
const MOST: usize = 1000;

fn vmas(peak: &Peak) -> Markup {
    let line = |region: &Region| {
        vec![
            number(region.start as f64, format!("{:x}", region.start)),
            bytes(region.bytes),
            region.kind.as_str().into(),
            region.name.as_str().into(),
        ]
    };
    let head = ["start", "size", "kind", "name"];
    html! {
        (table("VMAs", &head, peak.regions.iter().take(MOST).map(line).collect()))
        @if peak.regions.len() > MOST {
            p { "The table has the first " (grouped(MOST as u64)) " of "
                (grouped(peak.regions.len() as u64)) " VMAs." }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRACE: &str = r#"{"run":{"run":"samara trace -- <ls>","version":"0.1.0","machine":"","processor":"x","processors":2,"system":"Linux","clock":"time","date":"2026-11-25","load":0.5},"calls":3,"refused":0,"address_spaces":1,"mismatches":0,"vmas_peak":2,"kinds":{"mmap":{"calls":1200,"ours_median_ns":700,"kernel_median_ns":null}},"timeline":[{"at_us":0,"calls":2,"mapped":4096,"vmas":1},{"at_us":100,"calls":1,"mapped":8192,"vmas":2}],"spaces":[{"mm":1,"pid":7,"exe":"/bin/ls","calls":3,"vmas_peak":2,"usage":{"resident_peak":4096,"minor_faults":5,"major_faults":0,"kinds":{"heap":{"vmas":1,"mapped":8192,"resident":4096,"private_dirty":4096,"shared":0,"swapped":0,"huge":0}}}}],"peak":{"mm":1,"exe":"/bin/ls","vmas":1,"regions":[{"start":"7f0000001000","bytes":8192,"kind":"heap","name":"[heap]"}]},"stacks":{"sites":[],"folded":{"calls":["main;<b> 3"]}}}"#;

    #[test]
    fn a_trace_has_its_parts() {
        let mut results = Results::default();
        results.read("a.json", TRACE).unwrap();
        let html = traces(&results).into_string();
        for expected in [
            "samara trace -- &lt;ls&gt;",
            "Memory calls",
            ">20k<",
            "7f0000001000",
            ">1,200<",
            "&lt;b&gt;: 3, 100.0 %",
            "class=\"k-heap\"",
            "8.0 KiB",
        ] {
            assert!(html.contains(expected), "{expected}: {html}");
        }
        assert!(!html.contains("class=\"missing\"") && !html.contains("<script"), "{html}");
    }

    /// Results of older versions lack parts.
    #[test]
    fn parts_without_data_are_left_out() {
        let old =
            r#"{"calls":0,"refused":0,"address_spaces":0,"mismatches":0,"vmas_peak":0,"kinds":{}}"#;
        let mut results = Results::default();
        assert!(traces(&results).into_string().contains("These files have no trace"));
        results.read("a.json", old).unwrap();
        let html = traces(&results).into_string();
        assert_eq!(html.matches("class=\"missing\"").count(), 1, "{html}");
        assert!(html.contains("samara trace --stacks") && !html.contains("<h3"), "{html}");
        assert!(!html.contains("<svg") && !html.contains("<table"), "{html}");
    }
}
