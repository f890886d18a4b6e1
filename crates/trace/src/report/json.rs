//! A summary as one JSON object.

use serde_json::{Map, Value, json};

use super::{SpaceReport, SpaceStats, Style, Summary, Timing, mismatch, picture, stacks};

/// The whole summary. The keys `calls`, `listings`, `mismatches`, `cannot_tell`, `predicted`,
/// `predictable`, `address_spaces`, `unfollowed` and `vmas_peak` are always present, as numbers.
/// `peak` is the moment with most resident memory; in a recording, the address space with the most
/// VMAs. It has a region for each VMA: its start (hexadecimal), size, kind and name.
/// `lives` has the maps by size and lifetime.
/// `stacks` is there if calls have stacks: `sites`, `stacks`, `at_end` and `folded` lines.
pub fn object(summary: &Summary) -> Value {
    let mut object = stats(&summary.total);
    object.insert("address_spaces".into(), json!(summary.address_spaces));
    object.insert("elapsed_ms".into(), json!(summary.elapsed.as_millis() as u64));
    object.insert("kinds".into(), kinds(summary));
    object.insert("notices".into(), notices(summary));
    object.insert("unfollowed".into(), json!(summary.unfollowed));
    object.insert("timeline".into(), summary.timeline.object());
    object.insert("lives".into(), summary.lives.object());
    object.insert("peak".into(), json!(summary.largest.as_ref().map(picture::object)));
    object.insert("spaces".into(), summary.spaces().into_iter().map(space).collect());
    if !summary.stacks.is_empty() {
        object.insert("stacks".into(), stacks::object::object(&summary.stacks));
    }
    if let Some(first) = &summary.first_mismatch {
        object.insert("first_mismatch".into(), json!(mismatch::render(first, Style::PLAIN)));
    }
    object.into()
}

/// The notices, each with its count if it came more than once.
fn notices(summary: &Summary) -> Value {
    summary.notices.iter().map(|notice| json!(notice.to_string())).collect()
}

fn stats(stats: &SpaceStats) -> Map<String, Value> {
    let object = json!({
        "calls": stats.calls(),
        "refused": stats.refused,
        "listings": stats.listings,
        "neighbourhoods": stats.neighbourhoods,
        "mismatches": stats.mismatches,
        "cannot_tell": stats.cannot_tell,
        "predicted": stats.predicted,
        "predictable": stats.predictable,
        "vmas_peak": stats.vmas_peak,
        "usage": stats.usage.object(),
        "tree": {
            "height": stats.tree.height,
            "nodes": stats.tree.nodes,
            "bytes": stats.tree.bytes,
        },
    });
    match object {
        Value::Object(map) => map,
        _ => Map::new(),
    }
}

fn kinds(summary: &Summary) -> Value {
    let one = |(op, calls): (&crate::record::Op, &u64)| {
        let timing = summary.timing.get(op);
        let ours = timing.and_then(|timing| timing.ours.median());
        let kernel = timing.and_then(Timing::kernel_median);
        let time = timing.and_then(|timing| timing.kernel_time(*calls));
        let outcome = summary.outcomes.get(op).cloned().unwrap_or_default();
        let errors = outcome.named().map(|(name, count)| (name, json!(count)));
        let value = json!({
            "calls": calls,
            "bytes": outcome.bytes,
            "failed": outcome.failed(),
            "errors": errors.collect::<Map<_, _>>(),
            "kernel_ns": time.map(|time| time.as_nanos() as u64),
            "kernel_median_ns": kernel,
            "ours_median_ns": ours,
        });
        (op.name().to_string(), value)
    };
    Value::Object(summary.total.by_kind.iter().map(one).collect())
}

fn space(space: &SpaceReport) -> Value {
    let mut object = stats(&space.stats);
    object.insert("mm".into(), json!(space.mm));
    object.insert("pid".into(), json!(space.pid));
    object.insert("exe".into(), json!(space.exe));
    let kinds = space.stats.by_kind.iter().map(|(op, calls)| (op.name().to_string(), json!(calls)));
    object.insert("kinds".into(), Value::Object(kinds.collect()));
    object.into()
}
