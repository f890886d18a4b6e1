//! The call stacks of memory calls: a flame graph of each measure, and a table of call sites.
//!
//! A graph is made of nested boxes of the page, as wide as their share, callers above what they
//! call. So it fits a phone as well as a wide screen, and needs no script. A box below half a per
//! cent, or deeper than 64 callers, is left out: it would be narrower than a line.

use super::{entries, list};
use crate::read::{text, whole};
use crate::table::{bytes, grouped, size, table};
use maud::{Markup, html};
use serde_json::Value;
use std::collections::BTreeMap;

/// The measures, by their keys, and whether they are bytes.
const MEASURES: [(&str, &str, bool); 3] = [
    ("mapped", "Bytes mapped", true),
    ("calls", "Calls", false),
    ("at_end", "Bytes still mapped at the end", true),
];
const DEEPEST: usize = 64;
/// The narrowest box, as a share of all.
const NARROWEST: f64 = 0.005;

/// The stacks of a trace.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stacks {
    sites: Vec<Site>,
    /// A graph for each measure that the file has.
    graphs: Vec<(&'static str, bool, Node)>,
}

/// A place in a program that makes memory calls.
#[derive(Clone, Debug)]
struct Site {
    call: String,
    place: String,
    calls: u64,
    mapped: u64,
    at_end: u64,
}

/// A function with what it called.
#[derive(Clone, Debug, Default)]
struct Node {
    value: u64,
    callees: BTreeMap<String, Node>,
}

impl Stacks {
    /// The stacks in the object of a trace. `None` if it has none.
    ///
    /// # Errors
    /// A line is not a stack and a number.
    pub(super) fn of(value: &Value) -> Result<Option<Stacks>, String> {
        let value = &value["stacks"];
        if !value.is_object() {
            return Ok(None);
        }
        let site = |value: &Value| -> Result<Site, String> {
            Ok(Site {
                call: text(value, "call")?,
                place: text(value, "site")?,
                calls: whole(value, "calls")?,
                mapped: whole(value, "mapped")?,
                at_end: whole(value, "at_end")?,
            })
        };
        let mut stacks = Stacks {
            sites: list(value, "sites").map(site).collect::<Result<_, _>>()?,
            graphs: Vec::new(),
        };
        for (key, title, of_bytes) in MEASURES {
            if let Some((_, lines)) = entries(&value["folded"]).find(|(name, _)| *name == key) {
                let mut root = Node::default();
                for line in lines.as_array().into_iter().flatten() {
                    root.add(line.as_str().unwrap_or(""))?;
                }
                stacks.graphs.push((title, of_bytes, root));
            }
        }
        Ok(Some(stacks))
    }

    /// The stacks of calls, each with its functions, the outermost first, and its calls.
    pub(super) fn of_calls(stacks: impl Iterator<Item = (Vec<String>, u64)>) -> Stacks {
        let mut root = Node::default();
        for (functions, calls) in stacks {
            root.insert(functions.iter().map(String::as_str), calls);
        }
        Stacks { sites: Vec::new(), graphs: vec![("Calls", false, root)] }
    }

    pub(super) fn show(&self) -> Markup {
        let line = |site: &Site| {
            vec![
                site.place.as_str().into(),
                site.call.as_str().into(),
                site.calls.into(),
                bytes(site.mapped),
                bytes(site.at_end),
            ]
        };
        let head = ["site", "call", "count", "mapped", "still mapped at the end"];
        html! {
            @for (title, of_bytes, root) in &self.graphs {
                @if root.value > 0 {
                    p { b { (title) } ", " (amount(root.value, *of_bytes)) " in all" }
                    div.flame { (boxes("all", root, root.value, *of_bytes, 0)) }
                }
            }
            @if !self.sites.is_empty() {
                (table("Call sites", &head, self.sites.iter().map(line).collect()))
            }
        }
    }
}

impl Node {
    /// Adds a folded line: functions between semicolons, a space, and a number.
    fn add(&mut self, line: &str) -> Result<(), String> {
        let split = line.rsplit_once(' ').and_then(|(at, value)| Some((at, value.parse().ok()?)));
        let (functions, value): (&str, u64) =
            split.ok_or_else(|| format!("its folded line \"{line}\" is no stack and number"))?;
        self.insert(functions.split(';'), value);
        Ok(())
    }

    fn insert<'a>(&mut self, functions: impl Iterator<Item = &'a str>, value: u64) {
        self.value = self.value.saturating_add(value);
        let mut at = self;
        for function in functions.take(DEEPEST) {
            at = at.callees.entry(function.into()).or_default();
            at.value = at.value.saturating_add(value);
        }
    }
}

fn amount(value: u64, of_bytes: bool) -> String {
    if of_bytes { size(value) } else { grouped(value) }
}

/// The box of a function, above those of its callees.
fn boxes(name: &str, node: &Node, total: u64, of_bytes: bool, deep: usize) -> Markup {
    let share = |node: &Node, of: u64| node.value as f64 / of.max(1) as f64;
    let wide = node.callees.iter().filter(|(_, callee)| share(callee, total) >= NARROWEST);
    let percent = 100.0 * share(node, total);
    html! {
        div.frame title={ (name) ": " (amount(node.value, of_bytes)) ", " (format!("{percent:.1}")) " %" } {
            div.name { (name) }
            @if deep < DEEPEST {
                div.callees {
                    @for (name, callee) in wide {
                        div style=(format!("width:{:.2}%", 100.0 * share(callee, node.value))) {
                            (boxes(name, callee, total, of_bytes, deep + 1))
                        }
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn value(lines: &[&str]) -> Value {
        let site =
            json!({ "call": "mmap", "site": "<f>", "calls": 2, "mapped": 8192, "at_end": 0 });
        json!({ "stacks": { "sites": [site], "folded": { "mapped": lines, "calls": [] } } })
    }

    #[test]
    fn boxes_are_as_wide_as_their_share() {
        let stacks = Stacks::of(&value(&["main;a b 6144", "main;<c> 2048", "main;d 1"]));
        let html = stacks.unwrap().unwrap().show().into_string();
        assert!(html.contains("main: 8.0 KiB, 100.0 %"), "{html}");
        assert!(html.contains("width:74.99%") && html.contains("width:25.00%"), "{html}");
        assert!(html.contains("&lt;c&gt;: 2.0 KiB") && !html.contains(">d<"), "{html}");
        assert!(html.contains("<td>&lt;f&gt;</td>"), "{html}");
        // Nothing is shown of the calls, which have no stack.
        assert_eq!(html.matches("class=\"flame\"").count(), 1, "{html}");
    }

    #[test]
    fn other_lines_are_refused() {
        assert!(Stacks::of(&json!({})).unwrap().is_none());
        for line in ["", "main", "main x", "main -1"] {
            let error = Stacks::of(&value(&[line])).unwrap_err();
            assert!(error.contains(&format!("\"{line}\"")), "{error}");
        }
    }

    /// A stack as deep as its program recursed makes a page of bounded depth.
    #[test]
    fn depth_is_bounded() {
        let line = format!("{} 4096", vec!["f"; 5000].join(";"));
        let html = Stacks::of(&value(&[&line])).unwrap().unwrap().show().into_string();
        assert_eq!(html.matches("class=\"name\"").count(), DEEPEST + 1);
    }
}
