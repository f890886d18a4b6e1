//! The listing of an address space, as /proc/PID/maps has it, byte for byte.

use core::fmt::{self, Write};

use crate::{Area, Layout, MappedFile, VmFlags};

/// Column at which names start.
const NAME_COLUMN: usize = 73;

/// Counts what passes through, to know the column.
struct Columns<'w> {
    out: &'w mut dyn Write,
    column: usize,
}

impl Write for Columns<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.column += text.len();
        self.out.write_str(text)
    }
}

/// Writes one line, newline included. A line without a name ends in a space, as the kernel's does.
pub(crate) fn write_line<F: MappedFile>(
    out: &mut dyn Write,
    area: &Area<F>,
    layout: &Layout,
) -> fmt::Result {
    let mut out = Columns { out, column: 0 };
    let flags = area.vma.flags;
    let letter = |flag, letter| if flags.contains(flag) { letter } else { '-' };
    write!(
        out,
        "{:08x}-{:08x} {}{}{}{} ",
        area.start,
        area.end,
        letter(VmFlags::READ, 'r'),
        letter(VmFlags::WRITE, 'w'),
        letter(VmFlags::EXEC, 'x'),
        if flags.contains(VmFlags::MAYSHARE) { 's' } else { 'p' },
    )?;
    match &area.vma.file {
        Some(file) => {
            let (major, minor) = file.device();
            let offset = (area.vma.offset_at(area.start) as u64).wrapping_shl(12);
            write!(out, "{offset:08x} {major:02x}:{minor:02x} {} ", file.inode())?;
            pad(&mut out)?;
            file.write_path(&mut out)?;
        }
        None => {
            write!(out, "00000000 00:00 0 ")?;
            if let Some(name) = special_name(area, layout) {
                pad(&mut out)?;
                out.write_str(name)?;
            }
        }
    }
    out.write_char('\n')
}

fn pad(out: &mut Columns<'_>) -> fmt::Result {
    let blanks = NAME_COLUMN.saturating_sub(out.column);
    write!(out, "{:blanks$}", "")
}

fn special_name<'a, F>(area: &'a Area<F>, layout: &Layout) -> Option<&'a str> {
    if let Some(name) = area.vma.name() {
        Some(name)
    } else if area.start < layout.brk && area.end > layout.start_brk {
        Some("[heap]")
    } else if area.start <= layout.start_stack && area.end >= layout.start_stack {
        Some("[stack]")
    } else {
        None
    }
}
