//! Stacks as JSON.

use serde_json::{Map, Value, json};

use super::{Function, Stacks, folded::Measure, site::Site};
use crate::record::StackId;

/// The call sites, the stacks with their counts, and folded lines of each measure.
pub(crate) fn object(stacks: &Stacks) -> Value {
    let [execve, unknown] = stacks.others();
    let known = |bytes: u64| stacks.has_peak().then_some(bytes);
    let folded: Map<String, Value> = Measure::ALL
        .into_iter()
        .map(|measure| {
            let folded = stacks.folded(measure);
            (measure.key().to_owned(), folded.lines().collect())
        })
        .collect();
    json!({
        "sites": sites(stacks),
        "stacks": all(stacks),
        "at_peak": { "execve": known(execve.at_peak), "unknown": known(unknown.at_peak) },
        "at_end": { "execve": execve.at_end, "unknown": unknown.at_end },
        "folded": folded,
    })
}

fn sites(stacks: &Stacks) -> Value {
    let one = |(site, count): (Site, super::SiteCounts)| {
        json!({
            "call": site.op.name(),
            "site": site.place,
            "by": site.via,
            "calls": count.calls,
            "mapped": count.mapped,
            "unmapped": count.ended,
            "lived_ns": count.lived.checked_div(count.ended),
            "at_peak": stacks.has_peak().then_some(count.at_peak),
            "at_end": count.at_end,
        })
    };
    stacks.sites().into_iter().map(one).collect()
}

fn all(stacks: &Stacks) -> Value {
    let mut counts = std::collections::BTreeMap::<StackId, Map<String, Value>>::new();
    for (id, op, count) in stacks.counts() {
        let one = json!({
            "calls": count.calls,
            "mapped": count.mapped,
            "at_peak": stacks.has_peak().then_some(count.at_peak),
            "at_end": count.at_end,
        });
        counts.entry(id).or_default().insert(op.name().to_owned(), one);
    }
    let one = |(id, counts)| {
        let mut object = json!({ "id": id, "counts": Value::Object(counts) });
        if let Some(stack) = stacks.stack(id) {
            object["end"] = json!(stack.end.name());
            object["frames"] = stacks.functions(stack).map(function).collect();
        }
        object
    };
    counts.into_iter().map(one).collect()
}

fn function(function: Function<'_>) -> Value {
    let line = function.symbol.and_then(|symbol| symbol.line.as_ref());
    json!({
        "function": function.symbol.map(|symbol| &symbol.name),
        "file": line.map(|(file, _)| file),
        "line": line.map(|(_, line)| line),
        "image": function.image.map(|image| &image.path),
        "address": function.frame.address,
    })
}
