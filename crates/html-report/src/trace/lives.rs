//! Maps by size and lifetime: a histogram of each, as bars of the page.

use crate::table::{grouped, size};
use maud::{Markup, html};
use serde::Deserialize;
use std::collections::BTreeMap;

/// The maps of one class.
#[derive(Clone, Copy, Debug, Deserialize)]
pub(crate) struct Maps {
    /// Of at least 2 to the power of this, in bytes.
    #[serde(rename = "size_log2")]
    size: u64,
    /// They lived at least 10 to the power of this, in nanoseconds; none: until the end.
    #[serde(rename = "lived_log10")]
    lived: Option<u64>,
    maps: u64,
    bytes: u64,
}

/// Both histograms. Maps that lived until the end have another colour.
pub(super) fn lives(all: &[Maps]) -> Markup {
    html! {
        ul.legend {
            li { span class="swatch ended" {} " unmapped" }
            li { span class="swatch left" {} " mapped until the end" }
        }
        div.plots {
            (bars("Size", all, |maps| (maps.size, size_class(maps.size))))
            (bars("Lifetime", all, |maps| match maps.lived {
                Some(lived) => (lived, lifetime(lived)),
                None => (u64::MAX, "until the end".into()),
            }))
        }
    }
}

/// The number of maps in each class, in order of the key.
fn bars(title: &str, all: &[Maps], class: impl Fn(&Maps) -> (u64, String)) -> Markup {
    let mut classes = BTreeMap::<(u64, String), [u64; 3]>::new();
    for maps in all {
        let [ended, left, bytes] = classes.entry(class(maps)).or_default();
        let count = if maps.lived.is_some() { ended } else { left };
        *count = count.saturating_add(maps.maps);
        *bytes = bytes.saturating_add(maps.bytes);
    }
    let sum = |[ended, left, _]: &[u64; 3]| ended.saturating_add(*left);
    let most = classes.values().map(sum).max().unwrap_or(0).max(1);
    let width = |count: u64| format!("width:{:.1}%", 100.0 * count as f64 / most as f64);
    html! {
        table.bars {
            thead { tr { th { (title) } th { "maps" } th { "bytes" } th {} } }
            tbody {
                @for ((_, name), counts) in &classes {
                    tr {
                        td { (name) }
                        td.number { (grouped(sum(counts))) }
                        td.number { (size(counts[2])) }
                        td.bar {
                            @if counts[0] > 0 {
                                span.ended style=(width(counts[0])) title="unmapped" {}
                            }
                            @if counts[1] > 0 {
                                span.left style=(width(counts[1])) title="mapped until the end" {}
                            }
                        }
                    }
                }
            }
        }
    }
}

/// A file may claim any power.
fn size_class(log2: u64) -> String {
    let from = |log2: u64| size(1u64.checked_shl(log2 as u32).unwrap_or(u64::MAX));
    format!("from {}", from(log2.min(63)))
}

fn lifetime(log10: u64) -> String {
    const NAMES: [&str; 13] = [
        "1 ns", "10 ns", "100 ns", "1 µs", "10 µs", "100 µs", "1 ms", "10 ms", "100 ms", "1 s",
        "10 s", "100 s", "1,000 s",
    ];
    format!("from {}", NAMES[(log10 as usize).min(NAMES.len() - 1)])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json::parsed;
    use serde_json::json;

    #[test]
    fn bars_are_in_proportion_and_the_last_ones_lived_until_the_end() {
        let one = |size: u64, lived: Option<u64>, maps: u64| {
            let value = json!({
                "size_log2": size, "lived_log10": lived, "maps": maps, "bytes": maps << 10,
            });
            parsed::<Maps>(&value).unwrap()
        };
        let all = [one(20, None, 1), one(12, Some(6), 3), one(12, None, 1), one(99, Some(99), 1)];
        let html = lives(&all).into_string();
        let at = |text: &str| html.find(text).unwrap_or_else(|| panic!("{text}: {html}"));
        assert!(at("from 4.0 KiB") < at("from 1.0 MiB") && at("from 1 ms") < at(">until the end<"));
        assert!(html.contains("class=\"ended\" style=\"width:75.0%\""), "{html}");
        assert!(html.contains("class=\"left\" style=\"width:25.0%\""), "{html}");
        assert!(parsed::<Maps>(&json!({ "maps": 1 })).is_err());
    }
}
