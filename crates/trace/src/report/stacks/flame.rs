//! A flame graph as SVG.
//!
//! Each function is a box as wide as its value, below the function that called it: stacks may be
//! deep, and the top of a file is seen first. Boxes side by side are in order of names, so that two
//! graphs of a program can be compared. A click on a box shows it and its callees in the full
//! width. The file needs no network and no other file, and is legible without its script.

use std::collections::BTreeMap;

use super::{
    Stacks,
    folded::{Chain, Measure},
};
use crate::report::style::{bytes, count};

// Sizes in pixels.
const WIDTH: f64 = 1200.0;
const ROW: f64 = 18.0;
const MARGIN: f64 = 10.0;
/// Title and total.
const HEAD: f64 = 58.0;
/// Of a character of the font. Fonts differ a little, and a name must not leave its box.
const CHARACTER: f64 = 7.5;
/// A narrower box is not drawn.
const NARROWEST: f64 = 0.3;

/// A function with what it called.
#[derive(Default)]
struct Node {
    value: u64,
    callees: BTreeMap<String, Node>,
}

impl Node {
    fn of(chains: BTreeMap<Chain, u64>) -> Node {
        let mut root = Node::default();
        for (chain, value) in chains {
            let mut at = &mut root;
            at.value = at.value.saturating_add(value);
            for name in chain {
                at = at.callees.entry(name).or_default();
                at.value = at.value.saturating_add(value);
            }
        }
        root
    }
}

/// The boxes of a graph, as SVG.
struct Drawing {
    measure: Measure,
    total: u64,
    rows: usize,
    svg: String,
}

impl Stacks {
    /// A flame graph of a run of `program`: a whole SVG file.
    ///
    /// ```
    /// use trace::report::{Summary, stacks::Measure};
    /// let svg = Summary::default().stacks.flame_graph(Measure::Mapped, "true");
    /// assert!(svg.starts_with("<svg") && svg.contains("Nothing to show"));
    /// ```
    pub fn flame_graph(&self, measure: Measure, program: &str) -> String {
        let root = Node::of(self.chains(measure));
        let total = root.value;
        let mut drawing = Drawing { measure, total, rows: 0, svg: String::new() };
        let title = format!("{}: {program}", measure.title());
        let note = match total {
            0 => "Nothing to show".to_owned(),
            _ => format!("{} in all; a click on a box enlarges it", drawing.amount(total)),
        };
        if total > 0 {
            drawing.node("all", &root, 0.0, 0);
        }
        let height = HEAD + ROW * drawing.rows as f64 + MARGIN;
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" \
             width=\"{WIDTH}\" height=\"{height}\" class=\"flame\" role=\"img\">\n\
             <title>{title}</title>\n{STYLE}\
             <rect class=\"ground\" width=\"100%\" height=\"100%\"/>\n\
             <text class=\"head\" x=\"{MARGIN}\" y=\"24\">{title}</text>\n\
             <text class=\"note\" x=\"{MARGIN}\" y=\"44\">{note}</text>\n\
             <g class=\"boxes\">\n{}</g>\n{SCRIPT}</svg>\n",
            drawing.svg,
            title = escape(&title),
            note = escape(&note),
        )
    }
}

impl Drawing {
    fn amount(&self, value: u64) -> String {
        match self.measure {
            Measure::Calls if value == 1 => "1 call".into(),
            Measure::Calls => format!("{} calls", count(value)),
            Measure::Mapped | Measure::AtPeak | Measure::AtEnd => bytes(value as usize),
        }
    }

    /// Draws a function whose box begins at `start` of the total, in row `row` from the top.
    fn node(&mut self, name: &str, node: &Node, start: f64, row: usize) {
        let scale = (WIDTH - 2.0 * MARGIN) / self.total as f64;
        let (x, width) = (MARGIN + start * scale, node.value as f64 * scale);
        if width < NARROWEST {
            return;
        }
        self.rows = self.rows.max(row + 1);
        let y = HEAD + ROW * row as f64;
        let share = 100.0 * node.value as f64 / self.total as f64;
        let title = format!("{name}: {}, {share:.1} %", self.amount(node.value));
        self.svg += &format!(
            "<g data-name=\"{name}\" data-row=\"{row}\"><title>{title}</title>\
             <rect x=\"{x:.2}\" y=\"{y:.2}\" width=\"{width:.2}\" height=\"{:.2}\" \
             fill=\"{colour}\"/><text x=\"{:.2}\" y=\"{:.2}\">{label}</text></g>\n",
            ROW - 1.0,
            x + 3.0,
            y + ROW - 5.5,
            name = escape(name),
            title = escape(&title),
            colour = colour(name),
            label = escape(&label(name, width)),
        );
        let mut at = start;
        for (name, callee) in &node.callees {
            self.node(name, callee, at, row + 1);
            at += callee.value as f64;
        }
    }
}

/// As much of a name as fits a box; the script does the same.
pub(super) fn label(name: &str, width: f64) -> String {
    let most = ((width - 6.0) / CHARACTER).max(0.0) as usize;
    match name.chars().count() {
        _ if most < 3 => String::new(),
        length if length <= most => name.to_owned(),
        _ => name.chars().take(most - 2).chain("..".chars()).collect(),
    }
}

/// A colour that depends on the name alone: warm for functions, grey for words in brackets.
fn colour(name: &str) -> String {
    let hash = crate::text::fnv1a64(name.as_bytes());
    let part = |shift: u32, most: u64| (hash >> shift) % most;
    if name.starts_with('[') || name == "all" {
        return format!("hsl(210,12%,{}%)", 74 + part(0, 8));
    }
    format!("hsl({},{}%,{}%)", 12 + part(0, 40), 72 + part(16, 20), 62 + part(32, 12))
}

fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped += "&amp;",
            '<' => escaped += "&lt;",
            '>' => escaped += "&gt;",
            '"' => escaped += "&quot;",
            // Others are not allowed in XML.
            c if c.is_control() => escaped.push(' '),
            c => escaped.push(c),
        }
    }
    escaped
}

const STYLE: &str = "<style>\
.flame text{font:12px monospace;fill:#111}\
.flame .head{font:bold 16px sans-serif;fill:#111}\
.flame .note{font:12px sans-serif;fill:#444}\
.flame .ground{fill:#fff}\
.flame g g{cursor:pointer}\
.flame g g:hover rect{stroke:#000;stroke-width:1}\
@media (prefers-color-scheme:dark){\
.flame .ground{fill:#16181c}.flame .head{fill:#eee}.flame .note{fill:#bbb}\
.flame g g:hover rect{stroke:#fff}}\
@media print{.flame .ground{fill:#fff}.flame .head,.flame .note{fill:#000}}\
</style>\n";

/// Enlarges a box that is clicked. Boxes above it, its callers, get the full width, too.
const SCRIPT: &str = "<script><![CDATA[\n\
(function (svg) {\n\
  const left = 10, full = 1180, character = 7.5;\n\
  const boxes = [...svg.querySelectorAll('.boxes > g')].map(g => {\n\
    const [rect, text] = [g.querySelector('rect'), g.querySelector('text')];\n\
    const [x, w] = [+rect.getAttribute('x'), +rect.getAttribute('width')];\n\
    return {g, rect, text, x, w, row: +g.dataset.row, name: g.dataset.name};\n\
  });\n\
  function show(box, x, w) {\n\
    const most = Math.floor((w - 6) / character), name = [...box.name];\n\
    box.rect.setAttribute('x', x); box.rect.setAttribute('width', w);\n\
    box.text.setAttribute('x', x + 3);\n\
    box.text.textContent = most < 3 ? '' : name.length <= most ? box.name\n\
      : name.slice(0, most - 2).join('') + '..';\n\
  }\n\
  function enlarge(to) {\n\
    const scale = full / to.w, slack = 0.02;\n\
    for (const box of boxes) {\n\
      const within = box.x >= to.x - slack && box.x + box.w <= to.x + to.w + slack;\n\
      const around = box.x <= to.x + slack && box.x + box.w >= to.x + to.w - slack;\n\
      const shown = box.row >= to.row ? within : around;\n\
      box.g.style.display = shown ? '' : 'none';\n\
      if (shown && box.row >= to.row) show(box, left + (box.x - to.x) * scale, box.w * scale);\n\
      else if (shown) show(box, left, full);\n\
    }\n\
  }\n\
  for (const box of boxes) box.g.addEventListener('click', () => enlarge(box));\n\
})(document.currentScript.closest('svg'));\n\
]]></script>\n";
