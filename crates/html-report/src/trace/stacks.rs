//! The call stacks of memory calls: a flame graph of each measure, and a table of call sites.
//!
//! A graph is made of nested boxes of the page, as wide as their share, callers above their
//! callees. So it fits a phone as well as a wide screen, and is legible without the script, which
//! searches, enlarges, and lists callers and callees. A colour is a file: those with the widest
//! boxes have one each. A box below a thousandth, or deeper than 64 callers, is left out: it would
//! be narrower than a line.

use crate::json::{empty_if_null, parsed};
use crate::table::{bytes, grouped, size, table, time};
use maud::{Markup, html};
use serde::Deserialize;
use serde_json::Value;
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// The measures, by their keys, and whether they are bytes.
const MEASURES: [(&str, &str, bool); 4] = [
    ("at_peak", "Bytes resident at the peak", true),
    ("mapped", "Bytes mapped", true),
    ("calls", "Calls", false),
    ("at_end", "Bytes still mapped at the end", true),
];
const DEEPEST: usize = 64;
/// The narrowest box, as a share of all.
const NARROWEST: f64 = 0.001;
/// The files that have a colour of their own.
const COLOURS: usize = 7;

/// The stacks of a trace.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stacks {
    sites: Vec<Site>,
    /// A graph for each measure that the file has.
    graphs: Vec<Graph>,
}

#[derive(Clone, Debug)]
struct Graph {
    title: &'static str,
    of_bytes: bool,
    root: Node,
}

/// A place in a program that makes memory calls.
#[derive(Clone, Debug, Deserialize)]
struct Site {
    call: String,
    site: String,
    #[serde(default, deserialize_with = "empty_if_null")]
    by: String,
    calls: u64,
    mapped: u64,
    /// None in a recording.
    at_peak: Option<u64>,
    at_end: u64,
    /// The maps that were unmapped, and how long they lived on average, in nanoseconds.
    #[serde(default)]
    unmapped: u64,
    #[serde(rename = "lived_ns")]
    lived: Option<u64>,
}

/// The stacks in the object of a trace.
#[derive(Deserialize)]
struct Object {
    #[serde(default)]
    sites: Vec<Site>,
    #[serde(default)]
    stacks: Vec<Stack>,
    /// By measure, in older files.
    #[serde(default)]
    folded: BTreeMap<String, Vec<String>>,
}

/// A stack, with the measures of each call that it made.
#[derive(Deserialize)]
struct Stack {
    /// The reason for which there are no more frames.
    end: Option<String>,
    /// The innermost first.
    #[serde(default)]
    frames: Vec<StackFrame>,
    #[serde(default)]
    counts: BTreeMap<String, BTreeMap<String, Value>>,
}

#[derive(Deserialize)]
struct StackFrame {
    #[serde(default, deserialize_with = "empty_if_null")]
    image: String,
    address: Option<u64>,
    function: Option<String>,
}

/// A function: its name, and the file that it is in, if that is known.
type Function = (String, String);

/// A name in the place of a function that is none of the program's.
fn bracketed(name: &str) -> Function {
    (format!("[{name}]"), String::new())
}

/// A function with its callees.
#[derive(Clone, Debug, Default)]
struct Node {
    value: u64,
    callees: BTreeMap<Function, Node>,
}

impl Stacks {
    /// The stacks in the object of a trace. `None` if it has none.
    ///
    /// # Errors
    /// A part is missing, or a line is not a stack and a number.
    pub(super) fn of(value: &Value) -> Result<Option<Stacks>, String> {
        let value = &value["stacks"];
        if !value.is_object() {
            return Ok(None);
        }
        let mut object: Object = parsed(value)?;
        object.sites.sort_by_key(|site| Reverse((site.at_peak, site.mapped, site.calls)));
        let mut stacks = Stacks { sites: object.sites, graphs: Vec::new() };
        for (key, title, of_bytes) in MEASURES {
            let mut root = Node::default();
            if object.stacks.is_empty() {
                let mut lines = object.folded.iter().filter(|(of, _)| *of == key);
                lines.try_for_each(|(_, lines)| {
                    lines.iter().try_for_each(|line| root.add_line(line))
                })?;
            } else {
                object.stacks.iter().try_for_each(|stack| root.add_stack(stack, key))?;
                // Bytes that belong to no stack.
                for (name, bytes) in value[key].as_object().into_iter().flatten() {
                    root.insert([bracketed(name)], bytes.as_u64().unwrap_or(0));
                }
            }
            if root.value > 0 {
                stacks.graphs.push(Graph { title, of_bytes, root });
            }
        }
        Ok(Some(stacks))
    }

    /// The stacks of calls, each with its functions, the outermost first, and its calls.
    pub(super) fn of_calls(stacks: impl Iterator<Item = (Vec<Function>, u64)>) -> Stacks {
        let mut root = Node::default();
        stacks.for_each(|(functions, calls)| root.insert(functions, calls));
        Stacks { sites: Vec::new(), graphs: vec![Graph { title: "Calls", of_bytes: false, root }] }
    }

    pub(super) fn show(&self) -> Markup {
        let peak = self.sites.iter().any(|site| site.at_peak.is_some());
        let line = |site: &Site| {
            let mut line = vec![site.site.as_str().into(), site.by.as_str().into()];
            line.extend([site.call.as_str().into(), site.calls.into()]);
            line.extend(peak.then(|| bytes(site.at_peak.unwrap_or(0))));
            line.extend([bytes(site.mapped), bytes(site.at_end), site.unmapped.into()]);
            line.push(time(site.lived));
            line
        };
        let mut head = vec!["site", "by", "call", "count"];
        head.extend(peak.then_some("resident at the peak"));
        head.extend(["mapped", "still mapped at the end", "maps unmapped", "after, mean"]);
        html! {
            @for (at, graph) in self.graphs.iter().filter(|graph| graph.root.value > 0).enumerate() {
                details.graph open[at == 0] {
                    summary { b { (graph.title) } ", " (graph.amount(graph.root.value)) " in all" }
                    (graph.show())
                }
            }
            @if !self.sites.is_empty() {
                h5 { "Call sites" }
                (table("Call sites", &head, self.sites.iter().map(line).collect()))
            }
        }
    }
}

impl Node {
    /// Adds a stack of the object, with its value of a measure.
    fn add_stack(&mut self, stack: &Stack, measure: &str) -> Result<(), String> {
        let function = |frame: &StackFrame| -> Result<Function, String> {
            let file = frame.image.rsplit('/').next().unwrap_or("");
            let name = match (&frame.function, frame.address) {
                (Some(name), _) => name.clone(),
                (None, Some(address)) => format!("{file}+{address:#x}"),
                (None, None) => return Err("a frame has neither function nor address".into()),
            };
            Ok((name, file.into()))
        };
        let end = stack.end.as_ref().filter(|end| *end != "root").map(|end| Ok(bracketed(end)));
        let frames = end.into_iter().chain(stack.frames.iter().rev().map(function));
        let functions = frames.collect::<Result<Vec<_>, _>>()?;
        for (call, counts) in &stack.counts {
            let value = counts.get(measure).and_then(Value::as_u64).unwrap_or(0);
            self.insert(functions.iter().cloned().chain([bracketed(call)]), value);
        }
        Ok(())
    }

    /// Adds a folded line: functions between semicolons, a space, and a number.
    fn add_line(&mut self, line: &str) -> Result<(), String> {
        let split = line.rsplit_once(' ').and_then(|(at, value)| Some((at, value.parse().ok()?)));
        let (functions, value): (&str, u64) =
            split.ok_or_else(|| format!("its folded line \"{line}\" is no stack and number"))?;
        self.insert(functions.split(';').map(|name| (name.into(), String::new())), value);
        Ok(())
    }

    fn insert(&mut self, functions: impl IntoIterator<Item = Function>, value: u64) {
        if value == 0 {
            return;
        }
        self.value = self.value.saturating_add(value);
        let mut at = self;
        for function in functions.into_iter().take(DEEPEST) {
            at = at.callees.entry(function).or_default();
            at.value = at.value.saturating_add(value);
        }
    }

    /// Adds the widths of the boxes of each file.
    fn widths<'a>(&'a self, sums: &mut BTreeMap<&'a str, u64>) {
        for ((_, file), callee) in &self.callees {
            if !file.is_empty() {
                let sum = sums.entry(file).or_default();
                *sum = sum.saturating_add(callee.value);
            }
            callee.widths(sums);
        }
    }
}

impl Graph {
    fn amount(&self, value: u64) -> String {
        if self.of_bytes { size(value) } else { grouped(value) }
    }

    fn show(&self) -> Markup {
        let mut sums = BTreeMap::new();
        self.root.widths(&mut sums);
        let mut files: Vec<&str> = sums.keys().copied().collect();
        files.sort_by_key(|file| Reverse(sums[file]));
        files.truncate(COLOURS);
        html! {
            @if !files.is_empty() {
                ul.legend {
                    @for (at, file) in files.iter().enumerate() {
                        li { span class={ "swatch f" (at + 1) } {} " " (file) }
                    }
                    li { span class="swatch f0" {} " other files, and calls of the kernel" }
                }
            }
            div.flame data-bytes=(self.of_bytes) {
                (self.boxes(&("all".into(), String::new()), &self.root, &files, 0))
            }
        }
    }

    /// The box of a function, above those of its callees.
    fn boxes(&self, (name, file): &Function, node: &Node, files: &[&str], deep: usize) -> Markup {
        let share = |node: &Node, of: u64| node.value as f64 / of.max(1) as f64;
        let total = self.root.value;
        let wide = node.callees.iter().filter(|(_, callee)| share(callee, total) >= NARROWEST);
        let percent = 100.0 * share(node, total);
        let colour = files.iter().position(|known| known == file).map_or(0, |at| at + 1);
        let place = if file.is_empty() { String::new() } else { format!(" ({file})") };
        let title = format!("{name}{place}: {}, {percent:.1} %", self.amount(node.value));
        html! {
            div.frame data-value=(node.value) title=(title) {
                div class={ "name f" (colour) } { (name) }
                @if deep < DEEPEST {
                    div.callees {
                        @for (function, callee) in wide {
                            div style=(format!("width:{:.2}%", 100.0 * share(callee, node.value))) {
                                (self.boxes(function, callee, files, deep + 1))
                            }
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

    /// A colour is a file, and the sum is that of all stacks and of maps that no call has made.
    #[test]
    fn boxes_have_the_colour_of_their_file() {
        let frame = |name: &str, image: &str| json!({ "function": name, "image": image });
        let frames = [
            frame("mmap", "/lib/libc.so.6"),
            frame("run", "/home/a.py"),
            json!({
                "function": null, "image": "/bin/x", "address": 16,
            }),
        ];
        let counts =
            json!({ "mmap": { "calls": 1, "mapped": 8192, "at_peak": 4096, "at_end": 0 } });
        let value = json!({ "stacks": {
            "sites": [], "stacks": [{ "id": 1, "end": "cut", "frames": frames, "counts": counts }],
            "at_peak": { "execve": 4096, "unknown": 0 },
        } });
        let html = Stacks::of(&value).unwrap().unwrap().show().into_string();
        for expected in [
            "Bytes resident at the peak</b>, 8.0 KiB in all",
            "title=\"run (a.py): 4.0 KiB, 50.0 %\"><div class=\"name f1\">run",
            "x+0x10 (x): 4.0 KiB",
            "[execve]: 4.0 KiB",
            "[cut]: 4.0 KiB",
            "Bytes mapped</b>, 8.0 KiB in all",
        ] {
            assert!(html.contains(expected), "{expected}: {html}");
        }
        assert!(!html.contains("still mapped at the end</b>"), "{html}");
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
        assert_eq!(html.matches("class=\"name ").count(), DEEPEST + 1);
    }
}
