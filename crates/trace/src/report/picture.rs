//! Draws an address space in the terminal.
//!
//! 128 TiB do not fit on a line, and most of them are free. So each of the widest gaps becomes a
//! line of text. Between the gaps, mapped regions form a band. The length of a region grows with
//! the logarithm of its size, so both a page and a gigabyte are visible.

use std::ops::Range;

use serde_json::{Value, json};

use super::{
    SpaceSnapshot,
    style::{Style, bytes, count},
    usage,
};
use crate::listing::Line;

/// The purpose of a region, derived from its line in the listing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum VmaKind {
    /// An executable file.
    Text,
    /// A private, writable file.
    Data,
    /// The heap of brk.
    Heap,
    /// Anonymous memory.
    Anon,
    /// Any other file.
    File,
    /// The main stack.
    Stack,
    /// Shared memory.
    Shared,
    /// Pages of the kernel, such as `[vdso]`.
    Special,
    /// Memory without access: guards and reservations.
    Guard,
}

impl VmaKind {
    /// The letter, the name, and the colour as parameters of an SGR sequence, in the order of the
    /// legend.
    const LOOKS: [(VmaKind, char, &str, &str); 9] = [
        (VmaKind::Text, 'T', "text", "30;42"),
        (VmaKind::Data, 'D', "data", "30;43"),
        (VmaKind::Heap, 'H', "heap", "30;41"),
        (VmaKind::Anon, 'A', "anon", "30;46"),
        (VmaKind::File, 'F', "file", "30;47"),
        (VmaKind::Stack, 'S', "stack", "30;45"),
        (VmaKind::Shared, 'M', "shared", "37;44"),
        (VmaKind::Special, 'X', "special", "37;100"),
        (VmaKind::Guard, 'g', "guard", "90"),
    ];

    /// Its name, as in the picture.
    pub(crate) fn name(self) -> &'static str {
        self.look().1
    }

    /// That of the VMA with this line in the listing.
    pub(crate) fn of_line(line: &str) -> Option<VmaKind> {
        Region::parse(line).map(|region| region.kind)
    }

    fn look(self) -> (char, &'static str, &'static str) {
        let (_, letter, name, colour) = Self::LOOKS[self as usize];
        (letter, name, colour)
    }
}

/// The table has the order of the kinds.
const _: () = {
    let mut at = 0;
    while at < VmaKind::LOOKS.len() {
        assert!(VmaKind::LOOKS[at].0 as usize == at);
        at += 1;
    }
};

/// The parts of a listing's line that the picture needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Region {
    start: usize,
    end: usize,
    kind: VmaKind,
    /// Its resident bytes, if they are known.
    resident: Option<usize>,
}

impl Region {
    fn parse(line: &str) -> Option<Region> {
        let Line { range: Range { start, end }, rights, name, .. } = Line::parse(line)?;
        let access = rights.as_bytes();
        let kind = match name {
            "[heap]" => VmaKind::Heap,
            "[stack]" => VmaKind::Stack,
            _ if name.starts_with("[v") => VmaKind::Special,
            _ if access.starts_with(b"---") => VmaKind::Guard,
            _ if access.get(3) == Some(&b's') => VmaKind::Shared,
            _ if !name.starts_with('/') => VmaKind::Anon,
            _ if access.get(2) == Some(&b'x') => VmaKind::Text,
            _ if access.get(1) == Some(&b'w') => VmaKind::Data,
            _ => VmaKind::File,
        };
        (start < end).then_some(Region { start, end, kind, resident: None })
    }
}

/// The largest number of gaps with their own line, and the smallest such gap in bytes.
const FOLDS: usize = 12;
const LEAST_FOLD: usize = 16 << 20;

/// About so many lines of bands fit a screen.
const ROWS: usize = 16;

/// The picture, with a newline at the end. Empty for an empty listing. Cost grows with the length
/// of the listing.
///
/// ```
/// use trace::report::{SpaceSnapshot, Style, picture};
///
/// let listing = "\
/// 00001000-00003000 rw-p 00000000 00:00 0
/// 7ff000000000-7ff000001000 r-xp 00000000 fe:00 9    /bin/x
/// ";
/// let (exe, listing) = ("/bin/x".into(), listing.into());
/// let portrait = SpaceSnapshot { mm: 1, exe, vmas: 2, listing, moment: None };
/// let text = picture::render(&portrait, Style::PLAIN);
/// assert!(text.contains("0000000000001000  A") && text.contains("127.94 TiB free"));
/// ```
pub fn render(portrait: &SpaceSnapshot, style: Style) -> String {
    let regions: Vec<Region> = regions(portrait).map(|(region, _)| region).collect();
    if regions.is_empty() {
        return String::new();
    }
    let mapped: usize = regions.iter().map(|r| r.end - r.start).fold(0, usize::saturating_add);
    let SpaceSnapshot { mm, exe, vmas, moment, .. } = portrait;
    let resident = moment.as_ref().map(|moment| {
        let (resident, at) = (bytes(moment.bytes as usize), moment.at.as_secs_f64());
        format!(", {resident} resident at the peak, {at:.2} s after the start")
    });
    let (mapped, resident) = (bytes(mapped), resident.unwrap_or_default());
    let mut out = format!("address space {mm} ({exe}): {vmas} VMAs, {mapped} mapped{resident}\n");
    let clusters = cluster(&regions);
    let bands: Vec<Vec<Cell>> = clusters.iter().map(|cluster| band(cluster)).collect();
    let rows: usize = bands.iter().map(|band| band.len().div_ceil(columns(style))).sum();
    for (i, cluster) in clusters.iter().enumerate() {
        if let Some(before) = i.checked_sub(1).and_then(|i| clusters[i].last()) {
            out += &format!("{:>16}  {} free\n", ":", bytes(cluster[0].start - before.end));
        }
        let share = ROWS * bands[i].len().div_ceil(columns(style)) / rows.max(1);
        let most = if style.full || rows <= ROWS { usize::MAX } else { share.max(2) };
        draw(&mut out, cluster[0].start, &bands[i], style, most);
    }
    out + &legend(&regions, style)
}

/// The regions with their lines, in order.
fn regions(portrait: &SpaceSnapshot) -> impl Iterator<Item = (Region, &str)> {
    // The vsyscall page belongs to the kernel. The addresses below it are not free.
    let lines = portrait.listing.lines().filter(|line| !Line::is_vsyscall(line));
    let ranges = portrait.moment.as_ref().and_then(|moment| moment.resident.as_deref());
    lines.filter_map(move |line| {
        let region = Region::parse(line)?;
        let resident = ranges.map(|all| within(all, &region));
        Some((Region { resident, ..region }, line))
    })
}

/// The bytes of ordered ranges that lie in a region. O(log ranges) and their number in it.
fn within(ranges: &[Range<usize>], region: &Region) -> usize {
    let first = ranges.partition_point(|range| range.end <= region.start);
    let inside = ranges[first..].iter().take_while(|range| range.start < region.end);
    inside.map(|range| range.end.min(region.end) - range.start.max(region.start)).sum()
}

/// The address space as data: an object for each VMA. `resident` is null if it is not known.
pub(super) fn object(portrait: &SpaceSnapshot) -> Value {
    let region = |(Region { start, end, kind, resident }, line): (Region, &str)| {
        let name = line.splitn(6, ' ').nth(5).unwrap_or("").trim();
        json!({
            "start": format!("{start:x}"), "bytes": end - start, "resident": resident,
            "kind": kind.name(), "name": name,
        })
    };
    let SpaceSnapshot { mm, exe, vmas, moment, .. } = portrait;
    let moment = moment.as_ref();
    let regions: Vec<Value> = regions(portrait).map(region).collect();
    json!({
        "mm": mm, "exe": exe, "vmas": vmas, "regions": regions,
        "at_us": moment.map(|moment| moment.at.as_micros() as u64),
        "resident": moment.map(|moment| moment.bytes),
        "kinds": moment.map(|moment| usage::kinds(&moment.kinds)),
    })
}

/// The regions between the widest gaps.
fn cluster(regions: &[Region]) -> Vec<&[Region]> {
    let mut gaps: Vec<(usize, usize)> = regions
        .windows(2)
        .enumerate()
        .map(|(i, pair)| (pair[1].start.saturating_sub(pair[0].end), i + 1))
        .filter(|(size, _)| *size >= LEAST_FOLD)
        .collect();
    gaps.sort_unstable_by(|a, b| b.cmp(a));
    gaps.truncate(FOLDS);
    let mut cuts: Vec<usize> = gaps.into_iter().map(|(_, at)| at).collect();
    cuts.sort_unstable();
    let mut clusters = Vec::new();
    let mut rest = 0;
    for cut in cuts {
        clusters.push(&regions[rest..cut]);
        rest = cut;
    }
    clusters.push(&regions[rest..]);
    clusters
}

/// A cell of a band: its character and colour.
type Cell = (char, &'static str);

/// The cells on a line.
fn columns(style: Style) -> usize {
    style.width.saturating_sub(18).max(20)
}

/// One cell for each factor of four above a page: 1 for a page, 5 for 1 MiB, 10 for 1 GiB.
fn cells(size: usize) -> usize {
    1 + (size / 4096).max(1).ilog2() as usize / 2
}

/// The band of one cluster.
fn band(cluster: &[Region]) -> Vec<Cell> {
    let mut band: Vec<Cell> = Vec::new();
    let mut previous: Option<Region> = None;
    for region in cluster {
        if let Some(gap) =
            previous.map(|p| region.start.saturating_sub(p.end)).filter(|gap| *gap > 0)
        {
            band.extend(std::iter::repeat_n(('.', "2"), cells(gap)));
        }
        let (letter, _, colour) = region.kind.look();
        let (size, more) = (region.end - region.start, cells(region.end - region.start) - 1);
        let resident = region.resident.unwrap_or(0).min(size);
        let empty = region.resident == Some(0);
        band.push((if empty { letter.to_ascii_lowercase() } else { letter }, colour));
        // In proportion, and none only for nothing.
        let filled = (more as u128 * resident as u128).div_ceil(size as u128) as usize;
        band.extend(std::iter::repeat_n(('=', colour), filled));
        band.extend(std::iter::repeat_n(('-', colour), more - filled));
        previous = Some(*region);
    }
    band
}

/// Draws a band of a cluster that begins at `start`: the address, then the cells, on so many lines
/// at most. The lines in the middle are left out if there are more.
fn draw(out: &mut String, start: usize, band: &[Cell], style: Style, most: usize) {
    let lines: Vec<&[Cell]> = band.chunks(columns(style)).collect();
    let head = if lines.len() > most { most / 2 } else { lines.len() };
    let tail = if lines.len() > most { lines.len() - (most - head) } else { head };
    for (i, line) in lines.iter().enumerate() {
        if (head..tail).contains(&i) {
            if i == head {
                let left_out = lines[head..tail].concat();
                let regions = left_out.iter().filter(|cell| cell.0.is_ascii_alphabetic()).count();
                let text =
                    format!("{} VMAs are left out; --full shows them", count(regions as u64));
                out.push_str(&format!("{:>16}  {text}\n", ":"));
            }
            continue;
        }
        let label = if i == 0 { format!("{start:016x}") } else { String::new() };
        out.push_str(&format!("{label:>16}  "));
        for run in line.chunk_by(|a, b| a.1 == b.1) {
            let text: String = run.iter().map(|(character, _)| character).collect();
            out.push_str(&style.paint(run[0].1, &text));
        }
        out.push('\n');
    }
}

/// The kinds that occur, each with its total size, and its resident size.
fn legend(regions: &[Region], style: Style) -> String {
    let known = regions.iter().any(|region| region.resident.is_some());
    let mut lines = vec![String::new()];
    let mut column = 0;
    for (kind, letter, name, colour) in VmaKind::LOOKS {
        let of_kind = || regions.iter().filter(|region| region.kind == kind);
        let (count, size) =
            (of_kind().count(), of_kind().map(|r| r.end - r.start).fold(0, usize::saturating_add));
        if count == 0 {
            continue;
        }
        let resident = of_kind().filter_map(|region| region.resident).sum();
        let resident =
            if known { format!(", {} resident", bytes(resident)) } else { String::new() };
        let text = format!(" {name} {count} ({}{resident})   ", bytes(size));
        if column + text.len() + 1 > style.width && column > 0 {
            lines.push(String::new());
            column = 0;
        }
        column += text.len() + 1;
        if let Some(line) = lines.last_mut() {
            *line += &style.paint(colour, &letter.to_string());
            *line += &text;
        }
    }
    let notes = if known { "small letter: nothing resident; = resident, - not\n" } else { "" };
    lines.iter().map(|line| format!("{}\n", line.trim_end())).collect::<String>() + notes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::ResidentSet;

    const LISTING: &str = "\
55584e305000-55584e306000 r--p 00000000 fe:00 10002497                   /usr/local/bin/fuzz2
55584e306000-55584e307000 r-xp 00001000 fe:00 10002497                   /usr/local/bin/fuzz2
55584e308000-55584e30a000 rw-p 00002000 fe:00 10002497                   /usr/local/bin/fuzz2
55586ac47000-55586ac68000 rw-p 00000000 00:00 0                          [heap]
7f9c466e7000-7f9c466ea000 rw-s 00000000 00:01 5                          /dev/zero (deleted)
7f9c466ea000-7f9c866ea000 rw-p 00000000 00:00 0 
7f9c866ea000-7f9c866eb000 ---p 00000000 00:00 0 
7fff2961d000-7fff2963e000 rw-p 00000000 00:00 0                          [stack]
7fffa0000000-7fffa0002000 r-xp 00000000 00:00 0                          [vdso]
ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0                  [vsyscall]
";

    fn portrait(listing: &str) -> SpaceSnapshot {
        let (exe, listing) = ("/usr/local/bin/fuzz2".into(), listing.into());
        SpaceSnapshot { mm: 2, exe, vmas: 9, listing, moment: None }
    }

    #[test]
    fn regions_by_kind_and_gaps_folded() {
        let text = render(&portrait(LISTING), Style { width: 80, ..Style::PLAIN });
        assert!(
            text.starts_with("address space 2 (/usr/local/bin/fuzz2): 9 VMAs, 1.00 GiB mapped\n"),
            "{text}"
        );
        let bands: Vec<&str> =
            text.lines().filter(|line| line.starts_with('0')).map(|line| &line[18..]).collect();
        assert_eq!(bands, ["FT.D", "H--", "MA---------g", "S--", "X"], "{text}");
        assert!(text.contains("T text 1 (4.00 KiB)") && text.contains("M shared 1"), "{text}");
        assert_eq!(text.lines().filter(|line| line.ends_with(" free")).count(), 4, "{text}");
    }

    #[test]
    fn regions_as_data() {
        let object = object(&portrait(LISTING));
        let regions = object["regions"].as_array().unwrap();
        assert_eq!((object["vmas"].as_u64(), regions.len()), (Some(9), 9));
        let expected = json!({
            "start": "7f9c466e7000", "bytes": 0x3000, "resident": null, "kind": "shared",
            "name": "/dev/zero (deleted)",
        });
        assert_eq!(regions[4], expected);
        assert_eq!((&regions[5]["kind"], &regions[5]["name"]), (&json!("anon"), &json!("")));
    }

    #[test]
    fn resident_parts_are_drawn() {
        let resident = vec![
            0x55584e305000..0x55584e307000,
            // Half of the anonymous gigabyte, across the end of the shared memory.
            0x7f9c466e9000..0x7f9c666ea000,
            0x7fffa0001000..0x7fffa0002000,
        ];
        let moment = ResidentSet::new(0, Some(resident), []);
        let portrait = SpaceSnapshot { moment: Some(moment), ..portrait(LISTING) };
        let text = render(&portrait, Style { width: 80, ..Style::PLAIN });
        let bands: Vec<&str> =
            text.lines().filter(|line| line.starts_with('0')).map(|line| &line[18..]).collect();
        assert_eq!(bands, ["FT.d", "h--", "MA=====----g", "s--", "X"], "{text}");
        assert!(text.contains("A anon 1 (1.00 GiB, 512.00 MiB resident)"), "{text}");
        assert!(text.ends_with("nothing resident; = resident, - not\n"), "{text}");
        let object = object(&portrait);
        let of = |at: usize| object["regions"][at]["resident"].as_u64();
        assert_eq!((of(1), of(2), of(4), of(8)), (Some(4096), Some(0), Some(4096), Some(4096)));
    }

    #[test]
    fn no_line_is_wider_than_the_terminal() {
        let many: String = (0..500)
            .map(|i| format!("{:x}-{:x} rw-p 0 0:0 0\n", i * 0x3000, i * 0x3000 + 0x1000))
            .collect();
        for width in [40, 80, 200] {
            let text = render(&portrait(&many), Style { width, full: true, ..Style::PLAIN });
            assert!(
                text.lines().skip(1).all(|line| line.chars().count() <= width),
                "{width}\n{text}"
            );
            assert_eq!(text.matches('A').count(), 502, "500 regions, the legend and the title");
        }
    }

    #[test]
    fn a_picture_fits_a_screen() {
        let many: String = (0..5000)
            .map(|i| format!("{:x}-{:x} rw-p 0 0:0 0\n", i * 0x3000, i * 0x3000 + 0x1000))
            .collect();
        let text = render(&portrait(&many), Style { width: 80, ..Style::PLAIN });
        assert!((12..24).contains(&text.lines().count()), "{text}");
        // 18 columns are the address; a VMA and a gap take two or three cells.
        let drawn: usize = text.lines().skip(1).map(|line| line.matches("A").count()).sum();
        let left_out = text.lines().find(|line| line.contains("VMAs are left out")).unwrap();
        let number = left_out.split_whitespace().nth(1).unwrap().replace(',', "");
        // The legend has one A, and the line of left-out VMAs another one.
        assert_eq!(drawn - 2 + number.parse::<usize>().unwrap(), 5000, "{text}");
    }

    #[test]
    fn colours_only_where_wanted_and_nonsense_is_no_picture() {
        assert!(!render(&portrait(LISTING), Style::PLAIN).contains('\x1b'));
        assert!(
            render(&portrait(LISTING), Style { width: 80, colour: true, full: false })
                .contains("\x1b[30;41mH--\x1b[0m")
        );
        assert_eq!(render(&portrait("5-3 rw-p\nx\n\n"), Style::PLAIN), "");
    }
}
