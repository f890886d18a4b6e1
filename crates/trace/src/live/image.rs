//! Reads `/proc/PID/smaps`, which lists every VMA with its flags: for the image after execve, for
//! the last listing, and for flags that only a driver knows.
//!
//! Cost: the kernel walks the page tables, at least some microseconds per VMA. So the tracer reads
//! smaps only where the listing does not suffice.

use std::{fs, io, ops::Range, str::FromStr};

use vma::VmFlags;

use super::sys::Tid;
use crate::listing::Line;

/// One VMA, as in smaps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Area {
    /// Its addresses.
    pub(super) range: Range<usize>,
    /// All flags that this crate knows.
    pub(super) flags: VmFlags,
    /// The offset in its file, in bytes.
    pub(super) offset: usize,
    /// Major and minor number of its file's device.
    pub(super) dev: (u32, u32),
    /// Its file's inode; 0 without a file.
    pub(super) inode: u64,
    /// The path or name in the listing; empty without one.
    pub(super) name: String,
}

/// The VMA with this line in the listing, which is its first one in smaps. Its flags are not known.
pub(super) fn head(line: &str) -> Option<Area> {
    let Line { range, offset, dev, inode, name, .. } = Line::parse(line)?;
    Some(Area { range, flags: VmFlags::empty(), offset, dev, inode, name: name.to_owned() })
}

/// The flags in a `VmFlags:` line, and the number of unknown names.
fn flags(names: &str) -> (VmFlags, usize) {
    let mut known = VmFlags::empty();
    let mut unknown = 0;
    for name in names.split_ascii_whitespace() {
        match name.parse::<VmFlags>() {
            Ok(flag) => known |= flag,
            Err(_) => unknown += 1,
        }
    }
    (known, unknown)
}

/// Whether a line of smaps is the first one of a VMA. It begins with an address in lower case, the
/// fields that follow with a capital letter.
pub(super) fn is_head(line: &str) -> bool {
    line.starts_with(|c: char| c.is_ascii_digit() || c.is_ascii_lowercase())
}

/// Every VMA of user space in the text of smaps, and the number of unknown flags.
pub(super) fn parse(smaps: &str) -> (Vec<Area>, usize) {
    let mut areas: Vec<Area> = Vec::new();
    let mut unknown = 0;
    for line in smaps.lines() {
        if is_head(line) {
            areas.extend(head(line));
        } else if let (Some(area), Some((key, value))) = (areas.last_mut(), line.split_once(':')) {
            match key {
                "VmFlags" => {
                    let (known, strange) = flags(value);
                    area.flags |= known;
                    unknown += strange;
                }
                "ProtectionKey" => {
                    area.flags = area.flags.with_pkey(value.trim().parse().unwrap_or(0));
                }
                _ => {}
            }
        }
    }
    // The [vsyscall] page belongs to the kernel's half.
    areas.retain(|area| area.range.start <= isize::MAX as usize);
    (areas, unknown)
}

/// Every VMA of the address space of `tid`, and the number of unknown flags.
pub(super) fn read(tid: Tid) -> io::Result<(Vec<Area>, usize)> {
    Ok(parse(&smaps(tid)?))
}

/// The text of smaps.
pub(super) fn smaps(tid: Tid) -> io::Result<String> {
    proc_text(tid, "smaps")
}

/// The text of a file of a thread in `/proc`.
pub(super) fn proc_text(tid: Tid, name: &str) -> io::Result<String> {
    fs::read(format!("/proc/{tid}/{name}")).map(text)
}

/// Converts bytes to text. Names are arbitrary bytes, and mostly UTF-8. Other bytes become `\377`,
/// as a listing shows a newline as `\012`.
pub(super) fn text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).unwrap_or_else(|error| {
        let mut text = String::with_capacity(error.as_bytes().len() + 3);
        for chunk in error.as_bytes().utf8_chunks() {
            text.push_str(chunk.valid());
            for byte in chunk.invalid() {
                text.push_str(&format!("\\{byte:03o}"));
            }
        }
        text
    })
}

/// The marks of an address space in `/proc/PID/stat`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SegmentStarts {
    /// The start of the heap.
    pub(super) start_brk: usize,
    /// The start of the main stack.
    pub(super) start_stack: usize,
}

/// Field `n` in the text of stat, counted from 1, from the third on. The name before it may contain
/// anything, but ends at the last parenthesis.
pub(super) fn stat_field<T: FromStr>(stat: &str, n: usize) -> Option<T> {
    let (_, tail) = stat.rsplit_once(") ")?;
    tail.split_ascii_whitespace().nth(n - 3)?.parse().ok()
}

/// The marks in the text of stat.
fn marks_in(stat: &str) -> Option<SegmentStarts> {
    Some(SegmentStarts { start_stack: stat_field(stat, 28)?, start_brk: stat_field(stat, 47)? })
}

/// The marks of the address space of `tid`.
pub(super) fn marks(tid: Tid) -> io::Result<SegmentStarts> {
    let stat = proc_text(tid, "stat")?;
    marks_in(&stat).ok_or_else(|| io::Error::other("/proc/PID/stat has too few fields"))
}

/// The address at which the downward search for free addresses began. Right after execve it is the
/// higher of the ends of the program interpreter and the vdso. A position-independent program
/// without interpreter is placed there itself. `program` is the inode of the file that was
/// executed.
pub(super) fn mmap_base(areas: &[Area], program: u64, start_stack: usize) -> usize {
    let stack = areas.iter().find(|a| a.range.contains(&start_stack)).map(|a| a.range.start);
    let below = stack.unwrap_or(start_stack);
    let has_interpreter = areas.iter().any(|a| a.inode != 0 && a.inode != program);
    let candidates = areas.iter().filter(|a| match a.inode {
        // Without a file, only the vdso counts. The program's zeroed part lies with the program.
        0 => a.name == "[vdso]",
        inode => inode != program || !has_interpreter,
    });
    candidates.map(|a| a.range.end).filter(|&end| end <= below).max().unwrap_or(below)
}

/// Whether addresses are chosen bottom-up for `tid`, because its personality says so.
pub(super) fn is_bottom_up(tid: Tid) -> bool {
    const ADDR_COMPAT_LAYOUT: u32 = 0x20_0000;
    proc_text(tid, "personality")
        .ok()
        .and_then(|text| u32::from_str_radix(text.trim(), 16).ok())
        .is_some_and(|personality| personality & ADDR_COMPAT_LAYOUT != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMAPS: &str = "\
55584e305000-55584e306000 rw-p 00001000 fe:00 10002497                   /usr/bin/a b
Size:                  4 kB
ProtectionKey:         3
VmFlags: rd wr mr mw me ac zz 
7f9c468e0000-7f9c468e2000 r-xp 00000000 00:00 0                          [vdso]
VmFlags: rd ex mr mw me de 
7fff2961d000-7fff2963e000 rw-p 00000000 00:00 0                          [stack]
VmFlags: rd wr mr mw me gd ac 
ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0                  [vsyscall]
VmFlags: ex 
";

    #[test]
    fn smaps_is_read() {
        let (areas, unknown) = parse(SMAPS);
        assert_eq!((areas.len(), unknown), (3, 1));
        assert_eq!(areas[0].range, 0x55584e305000..0x55584e306000);
        assert_eq!(areas[0].name, "/usr/bin/a b");
        assert_eq!((areas[0].dev, areas[0].inode, areas[0].offset), ((0xfe, 0), 10002497, 0x1000));
        assert_eq!(areas[0].flags.to_string(), "rd,wr,mr,mw,me,ac,k3");
        assert_eq!(areas[0].flags.pkey(), 3);
        // A static program: the end of the vdso, or of the program if that lies above.
        assert_eq!(mmap_base(&areas, 10002497, 0x7fff2963c2f0), 0x7f9c468e2000);
        let mut high = areas.clone();
        high[0].range = 0x7f9c468e2000..0x7f9c468f0000;
        assert_eq!(mmap_base(&high, 10002497, 0x7fff2963c2f0), 0x7f9c468f0000);
        // The interpreter lies below the program, as with an unlimited stack.
        let interpreter = Area { inode: 7, range: 0x1000..0x9000, ..areas[0].clone() };
        let vdso = Area { range: 0x9000..0xb000, ..areas[1].clone() };
        let low = [areas[0].clone(), interpreter, vdso, areas[2].clone()];
        assert_eq!(mmap_base(&low, 10002497, 0x7fff2963c2f0), 0xb000);
    }

    #[test]
    fn stat_is_read_past_any_name() {
        let fields: Vec<String> = (3..=52).map(|n| (n * 10).to_string()).collect();
        let stat = format!("7 (a) b) {}", fields.join(" "));
        assert_eq!(marks_in(&stat), Some(SegmentStarts { start_brk: 470, start_stack: 280 }));
        assert_eq!(marks_in("7 (a) 1 2"), None);
    }
}
