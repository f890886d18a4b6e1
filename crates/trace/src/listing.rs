//! A line of `/proc/PID/maps`: `start-end perms offset major:minor inode name`.

use std::ops::Range;

/// Its fields.
pub(crate) struct Line<'t> {
    pub(crate) range: Range<usize>,
    /// Such as `rw-p`.
    pub(crate) rights: &'t str,
    /// The offset in its file, in bytes.
    pub(crate) offset: usize,
    /// Major and minor number of its file's device.
    pub(crate) dev: (u32, u32),
    /// Its file's inode; 0 without a file.
    pub(crate) inode: u64,
    /// The path or name; empty without one.
    pub(crate) name: &'t str,
}

impl<'t> Line<'t> {
    /// Parses a line; `None` if it is none.
    pub(crate) fn parse(line: &'t str) -> Option<Line<'t>> {
        let mut rest = line;
        let mut field = || {
            let (field, tail) = rest.split_once(' ').unwrap_or((rest, ""));
            rest = tail;
            field
        };
        let hex = |text| usize::from_str_radix(text, 16).ok();
        let number = |text| u32::from_str_radix(text, 16).ok();
        let (start, end) = field().split_once('-')?;
        let range = hex(start)?..hex(end)?;
        let (rights, offset) = (field(), hex(field())?);
        let (major, minor) = field().split_once(':')?;
        let dev = (number(major)?, number(minor)?);
        let inode = field().parse().ok()?;
        Some(Line { range, rights, offset, dev, inode, name: rest.trim_start_matches(' ') })
    }

    /// Whether it is the line of the vsyscall page, which belongs to the kernel's half.
    pub(crate) fn is_vsyscall(line: &str) -> bool {
        line.ends_with("[vsyscall]")
    }
}
