//! The style of a report: the terminal's width, and whether to use colours.

use std::io::IsTerminal;

/// The layout of a report.
///
/// ```
/// use trace::report::Style;
///
/// let style = Style { width: 80, ..Style::of_stderr() };
/// assert!(!Style::PLAIN.colour && style.width == 80);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Style {
    /// The width in columns.
    pub width: usize,
    /// Whether to use colours.
    pub colour: bool,
    /// Whether to show everything, however long it is. Otherwise a picture fits a screen, and only
    /// the busiest address spaces are shown.
    pub full: bool,
}

impl Style {
    /// The style for files and pipes.
    pub const PLAIN: Style = Style { width: 100, colour: false, full: false };

    /// The style for standard error. Colours need a terminal that is not dumb, and no `NO_COLOR`.
    pub fn of_stderr() -> Style {
        if !std::io::stderr().is_terminal() {
            return Style::PLAIN;
        }
        let refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
        let width =
            console::Term::stderr().size_checked().map_or(80, |(_, columns)| usize::from(columns));
        Style { width: width.clamp(40, 250), colour: !refused && !dumb, full: false }
    }

    /// `text` in an ANSI colour: the parameters of an SGR sequence.
    pub(super) fn paint(self, parameters: &str, text: &str) -> String {
        if self.colour { format!("\x1b[{parameters}m{text}\x1b[0m") } else { text.to_string() }
    }
}

/// A number of bytes for people: `1.5 MiB`.
pub(super) fn bytes(n: usize) -> String {
    indicatif::BinaryBytes(n as u64).to_string()
}

/// A count for people: `207,481`.
pub(super) fn count(n: u64) -> String {
    indicatif::HumanCount(n).to_string()
}

/// As [`bytes`], or a dash for nothing.
pub(super) fn bytes_or_dash(n: u64) -> String {
    if n == 0 { "-".into() } else { bytes(n as usize) }
}

/// As [`count`], or a dash for nothing.
pub(super) fn count_or_dash(n: u64) -> String {
    if n == 0 { "-".into() } else { count(n) }
}
