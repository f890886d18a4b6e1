//! Tables that a reader can sort.
//!
//! The script of the page makes the head's cells buttons. Without it the table is a plain one. A
//! wide table scrolls within its own box, so that the page never does.

use maud::{Markup, html};
use std::time::Duration;

/// A cell: its text, and the number it is sorted by, if it has one.
pub(crate) struct Cell {
    text: String,
    number: Option<f64>,
}

impl From<String> for Cell {
    fn from(text: String) -> Cell {
        Cell { text, number: None }
    }
}

impl From<&str> for Cell {
    fn from(text: &str) -> Cell {
        Cell { text: text.into(), number: None }
    }
}

impl From<u64> for Cell {
    fn from(number: u64) -> Cell {
        Cell { text: grouped(number), number: Some(number as f64) }
    }
}

/// A number that is not measured has a dash, and is sorted last.
impl From<Option<u64>> for Cell {
    fn from(number: Option<u64>) -> Cell {
        number.map_or(Cell { text: "-".into(), number: Some(f64::MIN) }, Cell::from)
    }
}

impl Cell {
    pub(crate) fn text(&self) -> &str {
        &self.text
    }
}

/// The same table in Markdown. A bar or the end of a line would end a cell, and `<` begins a tag.
pub(crate) fn markdown(head: &[&str], lines: &[Vec<String>]) -> String {
    let escaped =
        |cell: &str| cell.replace(['\n', '\r'], " ").replace('|', "\\|").replace('<', "\\<");
    let line = |cells: &mut dyn Iterator<Item = &str>| {
        cells.map(|cell| format!("| {} ", escaped(cell))).collect::<String>() + "|\n"
    };
    let rule = "| --- ".repeat(head.len()) + "|\n";
    let lines = lines.iter().map(|cells| line(&mut cells.iter().map(String::as_str)));
    line(&mut head.iter().copied()) + &rule + &lines.collect::<String>()
}

/// A value, shown as this text.
pub(crate) fn number(value: f64, text: String) -> Cell {
    Cell { text, number: Some(if value.is_finite() { value } else { f64::MIN }) }
}

/// Bytes.
pub(crate) fn bytes(bytes: u64) -> Cell {
    let text = match bytes {
        0 => "-".into(),
        _ => size(bytes),
    };
    Cell { text, number: Some(bytes as f64) }
}

/// A time in nanoseconds, if it is known.
pub(crate) fn time(ns: Option<u64>) -> Cell {
    let text = |ns| format!("{:.1?}", Duration::from_nanos(ns));
    ns.map_or(Cell::from(None), |ns| number(ns as f64, text(ns)))
}

/// Bytes as text, in the largest unit of which there is at least one.
pub fn size(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let (mut value, mut unit) = (bytes as f64, "B");
    for larger in UNITS {
        if value < 1024.0 {
            break;
        }
        (value, unit) = (value / 1024.0, larger);
    }
    if unit == "B" { format!("{bytes} B") } else { format!("{value:.1} {unit}") }
}

/// A number with a comma after each three digits.
pub(crate) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// The table. `label` names it for readers that do not see it.
pub(crate) fn table(label: &str, head: &[&str], lines: Vec<Vec<Cell>>) -> Markup {
    html! {
        div.wide tabindex="0" role="region" aria-label=(label) {
            table.sorts {
                thead { tr { @for name in head { th scope="col" { (name) } } } }
                tbody {
                    @for line in lines {
                        tr {
                            @for cell in line {
                                @if let Some(number) = cell.number {
                                    td.number data-value=(number) { (cell.text) }
                                } @else {
                                    td { (cell.text) }
                                }
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

    #[test]
    fn numbers_are_readable_and_sorted_by_value() {
        assert_eq!([0, 999, 1000, 1_234_567].map(grouped), ["0", "999", "1,000", "1,234,567"]);
        assert_eq!([7, 4096, 3 << 29].map(size), ["7 B", "4.0 KiB", "1.5 GiB"]);
        let line = vec!["<a>".into(), Cell::from(12_000), bytes(0), number(f64::NAN, "-".into())];
        let text = table("x", &["a", "b", "c", "d"], vec![line]).into_string();
        assert!(text.contains("<td>&lt;a&gt;</td>"), "{text}");
        assert!(text.contains("data-value=\"12000\">12,000<"), "{text}");
        assert!(text.contains("data-value=\"0\">-<"), "{text}");
        let plain = markdown(&["a", "b"], &[vec!["x|y".into(), "Vec<u8>\n1".into()]]);
        assert_eq!(plain, "| a | b |\n| --- | --- |\n| x\\|y | Vec\\<u8> 1 |\n");
    }
}
