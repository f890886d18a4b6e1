//! The map of an address space: a strip of boxes for each cluster of VMAs, with the free space
//! between clusters in words.
//!
//! The width of a box grows with the logarithm of the VMA's size, so both a page and a gigabyte are
//! visible. Boxes are elements of the page, not of a drawing, so strips wrap on a narrow screen.

use super::{Peak, Region};
use crate::table::{grouped, size};
use maud::{Markup, html};

/// The smallest gap that separates clusters, in bytes.
const GAP: u64 = 16 << 20;
/// The most VMAs that are drawn.
const MOST: usize = 2000;

pub(super) fn map(peak: &Peak) -> Markup {
    let drawn = &peak.regions[..peak.regions.len().min(MOST)];
    let clusters: Vec<&[Region]> =
        drawn.chunk_by(|a, b| b.start.saturating_sub(end(a)) < GAP).collect();
    html! {
        p { (peak.exe) ": " (grouped(peak.vmas)) " VMAs, "
            (size(sum(peak.regions.iter().map(|region| region.bytes)))) " mapped" }
        div.map role="img" aria-label="The map of the address space" {
            @for (at, cluster) in clusters.iter().enumerate() {
                @if let Some(before) = at.checked_sub(1).and_then(|at| clusters[at].last()) {
                    div.free { (size(cluster[0].start.saturating_sub(end(before)))) " free" }
                }
                div.address { (format!("{:x}", cluster[0].start)) }
                div.strip { @for region in *cluster { (box_of(region)) } }
            }
        }
        @if peak.regions.len() > MOST {
            p { "The map shows the first " (grouped(MOST as u64)) " VMAs." }
        }
        (legend(&peak.regions))
    }
}

/// The end of a region. A file may claim anything.
fn end(region: &Region) -> u64 {
    region.start.saturating_add(region.bytes)
}

fn sum(values: impl Iterator<Item = u64>) -> u64 {
    values.fold(0, u64::saturating_add)
}

fn box_of(region: &Region) -> Markup {
    // 6 pixels for a page, 3 more for each doubling.
    let width = 6 + 3 * (region.bytes / 4096).max(1).ilog2();
    let resident = region.resident.map(|bytes| format!(" ({} resident)", size(bytes)));
    let resident = resident.unwrap_or_default();
    let title = format!(
        "{:x}, {}{resident}: {} {}",
        region.start,
        size(region.bytes),
        region.kind,
        region.name
    );
    html! { span class={ "k-" (class(&region.kind)) } style={ "width:" (width) "px" } title=(title) {} }
}

/// The kind as the name of a class: letters only.
fn class(kind: &str) -> String {
    kind.chars().filter(char::is_ascii_lowercase).collect()
}

/// The kinds that occur, each with its number of VMAs and its size.
fn legend(regions: &[Region]) -> Markup {
    let known = regions.iter().any(|region| region.resident.is_some());
    let mut kinds: Vec<(&str, u64, u64, u64)> = Vec::new();
    for region in regions {
        let resident = region.resident.unwrap_or(0);
        match kinds.iter_mut().find(|kind| kind.0 == region.kind) {
            Some((_, count, bytes, all)) => {
                *count += 1;
                *bytes = bytes.saturating_add(region.bytes);
                *all = all.saturating_add(resident);
            }
            None => kinds.push((&region.kind, 1, region.bytes, resident)),
        }
    }
    html! {
        ul.legend {
            @for (kind, count, bytes, resident) in kinds {
                li { span class={ "swatch k-" (class(kind)) } {} " " (kind) " " (grouped(count))
                    " (" (size(bytes)) @if known { ", " (size(resident)) " resident" } ")" }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clusters_are_apart_and_names_are_escaped() {
        let region = |start, name: &str| Region {
            start,
            bytes: 0x2000,
            resident: Some(0x1000),
            kind: "anon".into(),
            name: name.into(),
        };
        let regions = vec![region(0x1000, "<x>"), region(0x3000, ""), region(1 << 30, "")];
        let peak = Peak {
            exe: "/bin/x".into(),
            vmas: 3,
            regions,
            resident: None,
            at_us: None,
            kinds: Default::default(),
        };
        let html = map(&peak).into_string();
        assert_eq!(html.matches("class=\"strip\"").count(), 2, "{html}");
        assert!(html.contains("1024.0 MiB free") && html.contains("&lt;x&gt;"), "{html}");
        assert!(html.contains("anon 3 (24.0 KiB, 12.0 KiB resident)"), "{html}");
        assert!(html.contains("1000, 8.0 KiB (4.0 KiB resident): anon"), "{html}");
    }
}
