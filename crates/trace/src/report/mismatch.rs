//! A mismatch between us and the kernel, shown side by side with the previous call.

use vma::VmFlags;

use super::{call, style::Style};
use crate::record::{Call, MmId};

/// A failed comparison.
///
/// ```
/// use trace::report::{Difference, Mismatch, Style, mismatch};
///
/// let difference = Difference::Result { ours: -12, kernel: 0 };
/// let exe = "/bin/x".into();
/// let place = Some("a.vmtrace:9".into());
/// let mismatch = Mismatch { mm: 1, pid: 7, exe, call: None, path: None, place, difference };
/// let text = mismatch::render(&mismatch, Style::PLAIN);
/// assert!(text.starts_with("a.vmtrace:9: mismatch in address space 1"));
/// assert!(text.contains("ours    -ENOMEM"));
/// ```
#[derive(Clone, Debug)]
pub struct Mismatch {
    /// The address space.
    pub mm: MmId,
    /// The process that made it.
    pub pid: u32,
    /// The program it runs.
    pub exe: String,
    /// The newest call on the address space, if any.
    pub call: Option<Call>,
    /// The path of the file that the call maps.
    pub path: Option<String>,
    /// The place in a replayed trace: `file:line`.
    pub place: Option<String>,
    /// The difference.
    pub difference: Difference,
}

/// The difference between the two sides.
///
/// ```
/// use trace::report::*;
/// let difference = Difference::Result { ours: -12, kernel: 0 };
/// assert!(matches!(difference, Difference::Result { kernel: 0, .. }));
/// ```
#[derive(Clone, Debug)]
pub enum Difference {
    /// Two listings in full.
    Listing {
        /// Ours.
        ours: String,
        /// The kernel's.
        kernel: String,
    },
    /// Our listing and the digest of the kernel's. A recorded check has no more.
    Digest {
        /// Ours.
        ours: String,
        /// The number of lines in the kernel's.
        lines: usize,
        /// FNV-1a 64 of the kernel's.
        hash: u64,
    },
    /// The flags of the VMA that starts at an address; `None` if no VMA starts there.
    Flags {
        /// The address.
        start: usize,
        /// Ours.
        ours: Option<VmFlags>,
        /// The kernel's.
        kernel: Option<VmFlags>,
    },
    /// The result of the call: an address, a number, or -errno.
    Result {
        /// Ours.
        ours: isize,
        /// The kernel's.
        kernel: isize,
    },
}

/// The number of lines shown before the first difference, and from there on.
const BEFORE: usize = 2;
const AFTER: usize = 4;

/// The mismatch as text, with a newline at the end.
pub fn render(mismatch: &Mismatch, style: Style) -> String {
    let Mismatch { mm, pid, exe, .. } = mismatch;
    let mut out = match &mismatch.place {
        Some(place) => format!("{place}: "),
        None => String::new(),
    };
    out += &style.paint("1;31", "mismatch");
    out += &format!(" in address space {mm} ({exe}, process {pid})\n");
    match &mismatch.call {
        Some(last) => {
            out += &format!("  after {}\n", call::describe(last, mismatch.path.as_deref()))
        }
        None => out += "  before its first memory call\n",
    }
    match &mismatch.difference {
        Difference::Listing { ours, kernel } => listings(&mut out, ours, kernel, style),
        Difference::Digest { ours, lines, hash } => {
            let range = mismatch.call.as_ref().map_or(0, touched);
            digest(&mut out, ours, *lines, *hash, range, style);
        }
        Difference::Flags { start, ours, kernel } => {
            let text = |flags: &Option<VmFlags>| {
                flags.map_or("no VMA starts there".to_string(), |f| f.to_string())
            };
            out += &format!(
                "  VmFlags at {start:x}\n    ours    {}\n    kernel  {}\n",
                text(ours),
                text(kernel)
            );
        }
        Difference::Result { ours, kernel } => {
            let (ours, kernel) = (call::result(*ours), call::result(*kernel));
            out += &format!("  result\n    ours    {ours}\n    kernel  {kernel}\n");
        }
    }
    out
}

/// The address that a call concerns. Our listing is shown around it.
fn touched(call: &Call) -> usize {
    match call.result {
        4096.. => call.result as usize,
        _ => call.args[0],
    }
}

fn listings(out: &mut String, ours: &str, kernel: &str, style: Style) {
    let (left, right): (Vec<&str>, Vec<&str>) =
        (ours.split('\n').collect(), kernel.split('\n').collect());
    let Some(first) = (0..left.len().max(right.len())).find(|&i| left.get(i) != right.get(i))
    else {
        out.push_str("  the listings are equal\n");
        return;
    };
    let half = (style.width.saturating_sub(7) / 2).max(20);
    out.push_str(&format!(
        "  {:half$} | kernel, line {}\n",
        format!("ours, {} lines", ours.lines().count()),
        first + 1
    ));
    let mut cut = false;
    for i in first.saturating_sub(BEFORE)..(first + AFTER).min(left.len().max(right.len())) {
        let [a, b] = [&left, &right].map(|side| squeeze(side.get(i).copied().unwrap_or("")));
        cut |= a.chars().count() > half
            || b.chars().count() > half
            || (a == b && left.get(i) != right.get(i));
        let mark = if left.get(i) == right.get(i) { " " } else { "!" };
        let line = format!("{mark} {:half$} | {}", fit(&a, half), fit(&b, half));
        let line = line.trim_end();
        out.push_str(&if mark == "!" { style.paint("31", line) } else { line.to_string() });
        out.push('\n');
    }
    if cut {
        let line = |side: &[&str]| {
            side.get(first).map_or("(no line)".to_string(), |line| format!("{line:?}"))
        };
        out.push_str(&format!(
            "  the first in full\n    ours    {}\n    kernel  {}\n",
            line(&left),
            line(&right)
        ));
    }
}

/// A recorded check does not have the kernel's text, so ours is shown around the address.
fn digest(out: &mut String, ours: &str, lines: usize, hash: u64, address: usize, style: Style) {
    let our_hash = crate::text::fnv1a64(ours.as_bytes());
    out.push_str(&format!(
        "  ours    {} lines, FNV-1a 64 {our_hash:016x}\n\
        \x20 kernel  {lines} lines, FNV-1a 64 {hash:016x}\n",
        ours.lines().count()
    ));
    let listing: Vec<&str> = ours.lines().collect();
    let end = |line: &&str| {
        line.split(['-', ' ']).nth(1).and_then(|word| usize::from_str_radix(word, 16).ok())
    };
    let near =
        listing.iter().position(|line| end(line).is_some_and(|end| end >= address)).unwrap_or(0);
    out.push_str("  ours, near the call\n");
    for line in listing.iter().skip(near.saturating_sub(BEFORE)).take(BEFORE + AFTER) {
        out.push_str(&format!("    {}\n", fit(&squeeze(line), style.width.saturating_sub(4))));
    }
}

/// Replaces runs of spaces by one space, because the columns of a listing are too wide.
fn squeeze(line: &str) -> String {
    line.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Shortens text to `width` columns by cutting the middle, because the end of a path says most.
fn fit(text: &str, width: usize) -> String {
    let length = text.chars().count();
    if length <= width {
        return text.to_string();
    }
    let tail = width / 4;
    let head: String = text.chars().take(width - tail - 2).collect();
    let end: String = text.chars().skip(length - tail).collect();
    format!("{head}..{end}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Op;

    fn mismatch(difference: Difference) -> Mismatch {
        let call = Call::new(2, 7, Op::Mprotect, &[0x1000, 0x1000, 1], 0);
        let (exe, place) = ("/bin/x".into(), Some("t:9".into()));
        Mismatch { mm: 2, pid: 7, exe, call: Some(call), path: None, place, difference }
    }

    const A: &str =
        "00001000-00003000 rw-p 00000000 00:00 0 \n00005000-00006000 r--p 00000000 00:00 0 \n";
    const B: &str =
        "00001000-00002000 r--p 00000000 00:00 0 \n00002000-00003000 rw-p 00000000 00:00 0 \n";

    #[test]
    fn the_first_differing_lines_stand_side_by_side() {
        let text = render(
            &mismatch(Difference::Listing { ours: A.into(), kernel: B.into() }),
            Style::PLAIN,
        );
        assert!(
            text.starts_with("t:9: mismatch in address space 2 (/bin/x, process 7)\n"),
            "{text}"
        );
        assert!(text.contains("after mprotect(0x1000, 4096, PROT_READ) = 0\n"), "{text}");
        let row = text.lines().find(|line| line.starts_with('!')).unwrap();
        let (ours, kernel) = row.split_once('|').unwrap();
        assert!(
            ours.contains("00001000-00003000 rw-p") && kernel.contains("00001000-00002000 r--p"),
            "{text}"
        );
        assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
    }

    #[test]
    fn a_difference_in_spaces_is_shown_in_full() {
        let ours = A.replace("0 \n", "0\n");
        let text = render(&mismatch(Difference::Listing { ours, kernel: A.into() }), Style::PLAIN);
        assert!(text.contains("kernel  \"00001000-00003000 rw-p 00000000 00:00 0 \""), "{text}");
    }

    #[test]
    fn a_listing_that_ends_early_differs() {
        let kernel = format!("{A}0000f000-00010000 rw-p 00000000 00:00 0 \n");
        let text = render(&mismatch(Difference::Listing { ours: A.into(), kernel }), Style::PLAIN);
        assert!(
            text.lines().any(|line| line.starts_with("! ") && line.contains("| 0000f000")),
            "{text}"
        );
    }

    #[test]
    fn digests_flags_and_results_name_both_sides() {
        let text = render(
            &mismatch(Difference::Digest { ours: A.into(), lines: 3, hash: 0xabc }),
            Style::PLAIN,
        );
        assert!(
            text.contains("ours    2 lines")
                && text.contains("kernel  3 lines, FNV-1a 64 0000000000000abc")
        );
        assert!(text.contains("    00001000-00003000 rw-p"), "{text}");
        let flags = Difference::Flags { start: 0x1000, ours: Some(VmFlags::READ), kernel: None };
        assert!(
            render(&mismatch(flags), Style::PLAIN)
                .contains("ours    rd\n    kernel  no VMA starts there\n")
        );
        let result = Difference::Result { ours: 0x7f00_0000, kernel: -12 };
        assert!(
            render(&mismatch(result), Style::PLAIN)
                .contains("ours    0x7f000000\n    kernel  -ENOMEM\n")
        );
    }
}
