//! Reads /proc/PID/smaps: every VMA with its flags, for the image after execve, for the last
//! listing, and for flags that only a driver knows.
//!
//! Costs a walk over the page tables in the kernel, some microseconds a VMA at least; the tracer
//! asks only where the listing alone cannot tell.

use std::{fs, io, ops::Range};

use vma::VmFlags;

use super::sys::Tid;

/// One VMA as smaps shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Area {
    /// Its addresses.
    pub(super) range: Range<usize>,
    /// All flags that this crate knows.
    pub(super) flags: VmFlags,
    /// Offset in its file, bytes.
    pub(super) offset: usize,
    /// Major and minor number of its file's device.
    pub(super) dev: (u32, u32),
    /// Its file's inode, 0 without one.
    pub(super) inode: u64,
    /// Path or name, as listed; empty without one.
    pub(super) name: String,
}

/// The first line of a VMA, which is also its line in the listing.
/// `start-end perms offset major:minor inode   name`.
pub(super) fn head(line: &str) -> Option<Area> {
    let mut rest = line;
    let mut field = || {
        let (field, tail) = rest.split_once(' ').unwrap_or((rest, ""));
        rest = tail;
        field
    };
    let hex = |text: &str| usize::from_str_radix(text, 16).ok();
    let (start, end) = field().split_once('-')?;
    let range = hex(start)?..hex(end)?;
    let _permissions = field();
    let offset = hex(field())?;
    let (major, minor) = field().split_once(':')?;
    let dev = (u32::from_str_radix(major, 16).ok()?, u32::from_str_radix(minor, 16).ok()?);
    let inode = field().parse().ok()?;
    let name = rest.trim_start_matches(' ').to_owned();
    Some(Area { range, flags: VmFlags::empty(), offset, dev, inode, name })
}

/// The flags in a `VmFlags:` line; names that this crate does not know are counted, not guessed.
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

/// Every VMA of user space in a text of smaps, and how many flags had unknown names.
pub(super) fn parse(smaps: &str) -> (Vec<Area>, usize) {
    let mut areas: Vec<Area> = Vec::new();
    let mut unknown = 0;
    for line in smaps.lines() {
        // Heads begin with an address in lower case, the fields with a capital letter.
        if line.starts_with(|c: char| c.is_ascii_digit() || c.is_ascii_lowercase()) {
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

/// Every VMA of the address space of `tid`, and how many flags had unknown names.
pub(super) fn read(tid: Tid) -> io::Result<(Vec<Area>, usize)> {
    Ok(parse(&text(fs::read(format!("/proc/{tid}/smaps"))?)))
}

/// Bytes as text: names are bytes to the kernel and mostly UTF-8.
pub(super) fn text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes)
        .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
}

/// What /proc/PID/stat knows of an address space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Marks {
    /// Where the heap starts.
    pub(super) start_brk: usize,
    /// Where the main stack started.
    pub(super) start_stack: usize,
}

/// The marks in a text of stat: the fields after the name, which may itself hold anything but
/// ends at the last parenthesis.
fn marks_in(stat: &str) -> Option<Marks> {
    let (_, tail) = stat.rsplit_once(") ")?;
    let fields: Vec<&str> = tail.split_ascii_whitespace().collect();
    // Fields count from 1 and the first after the name is the third.
    let field = |n: usize| fields.get(n - 3)?.parse().ok();
    Some(Marks { start_stack: field(28)?, start_brk: field(47)? })
}

/// The marks of the address space of `tid`.
pub(super) fn marks(tid: Tid) -> io::Result<Marks> {
    let stat = text(fs::read(format!("/proc/{tid}/stat"))?);
    marks_in(&stat).ok_or_else(|| io::Error::other("/proc/PID/stat has too few fields"))
}

/// Where the downward search for free addresses began: right after execve the program interpreter
/// or the vdso ends there. A program without interpreter that may lie anywhere is put there itself.
/// `program` is the inode of the file that execve was given.
pub(super) fn mmap_base(areas: &[Area], program: u64, start_stack: usize) -> usize {
    let stack = areas.iter().find(|a| a.range.contains(&start_stack)).map(|a| a.range.start);
    let below = stack.unwrap_or(start_stack);
    let has_interpreter = areas.iter().any(|a| a.inode != 0 && a.inode != program);
    let candidates = areas.iter().filter(|a| match a.inode {
        // Of what has no file, the vdso; the program's own zeroed part lies with the program.
        0 => a.name == "[vdso]",
        inode => inode != program || !has_interpreter,
    });
    candidates.map(|a| a.range.end).filter(|&end| end <= below).max().unwrap_or(below)
}

/// Whether addresses are chosen bottom-up for `tid`, which its personality can ask for.
pub(super) fn is_bottom_up(tid: Tid) -> bool {
    const ADDR_COMPAT_LAYOUT: u32 = 0x20_0000;
    fs::read_to_string(format!("/proc/{tid}/personality"))
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
        assert_eq!(areas[0].flags.to_string(), "rd,wr,mr,mw,me,ac");
        assert_eq!(areas[0].flags.pkey(), 3);
        // Static: the vdso alone, unless the program lies above it.
        assert_eq!(mmap_base(&areas, 10002497, 0x7fff2963c2f0), 0x7f9c468e2000);
        let mut high = areas.clone();
        high[0].range = 0x7f9c468e2000..0x7f9c468f0000;
        assert_eq!(mmap_base(&high, 10002497, 0x7fff2963c2f0), 0x7f9c468f0000);
        // With an interpreter below the program, as with an unlimited stack.
        let interpreter = Area { inode: 7, range: 0x1000..0x9000, ..areas[0].clone() };
        let vdso = Area { range: 0x9000..0xb000, ..areas[1].clone() };
        let low = [areas[0].clone(), interpreter, vdso, areas[2].clone()];
        assert_eq!(mmap_base(&low, 10002497, 0x7fff2963c2f0), 0xb000);
    }

    #[test]
    fn stat_is_read_past_any_name() {
        let fields: Vec<String> = (3..=52).map(|n| (n * 10).to_string()).collect();
        let stat = format!("7 (a) b) {}", fields.join(" "));
        assert_eq!(marks_in(&stat), Some(Marks { start_brk: 470, start_stack: 280 }));
        assert_eq!(marks_in("7 (a) 1 2"), None);
    }
}
