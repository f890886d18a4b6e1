//! Two queries of `/proc` without text: whether a range has anonymous pages (PAGEMAP_SCAN), and
//! which VMA covers an address (PROCMAP_QUERY).

use std::{
    fs::File,
    io,
    mem::size_of,
    ops::Range,
    os::{fd::AsRawFd, unix::fs::FileExt},
    sync::OnceLock,
};

use vma::VmFlags;

use super::check;
use crate::observer::KernelVma;

const PAGE: usize = 4096;

const PAGE_IS_FILE: u64 = 1 << 2;
const PAGE_IS_PRESENT: u64 = 1 << 3;
const PAGE_IS_SWAPPED: u64 = 1 << 4;
const PAGE_IS_PFNZERO: u64 = 1 << 5;
const PAGE_IS_HUGE: u64 = 1 << 6;
/// A guard page, which looks swapped out but is no page (Linux 6.15).
const PAGE_IS_GUARD: u64 = 1 << 8;

#[repr(C)]
#[derive(Default)]
struct ScanArg {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    vec: u64,
    vec_len: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_anyof_mask: u64,
    return_mask: u64,
}

#[repr(C)]
#[derive(Default)]
struct Region {
    start: u64,
    end: u64,
    categories: u64,
}

/// `_IOWR('f', 16, struct pm_scan_arg)`
const PAGEMAP_SCAN: libc::c_ulong = (3 << 30) | ((size_of::<ScanArg>() as u64) << 16) | 0x6610;
/// `_IOWR('f', 17, struct procmap_query)`
const PROCMAP_QUERY: libc::c_ulong = (3 << 30) | ((size_of::<QueryArg>() as u64) << 16) | 0x6611;

/// Bytes that one PMD entry maps.
const HUGE: usize = 2 << 20;

/// Whether `range` has an anonymous page: present or swapped, of no file, not the zero page, no
/// guard page. The huge zero page counts, because, unlike the small one, it exists only in a VMA
/// with an anon_vma. One call, or two if a huge page fits. The walk ends at the first such page and
/// skips empty tables.
pub(in crate::live) fn scan_anonymous(pagemap: &File, range: Range<usize>) -> io::Result<bool> {
    let huge = range.start.next_multiple_of(HUGE) < range.end & !(HUGE - 1);
    if scan_without(pagemap, range.clone(), PAGE_IS_FILE | PAGE_IS_PFNZERO | guards(pagemap))? {
        return Ok(true);
    }
    Ok(huge && scan(pagemap, range, 0, PAGE_IS_PRESENT | PAGE_IS_HUGE | PAGE_IS_PFNZERO)?)
}

/// The category of guard pages, or none if the kernel does not know it. Then it rejects it.
fn guards(pagemap: &File) -> u64 {
    static GUARDS: OnceLock<u64> = OnceLock::new();
    *GUARDS
        .get_or_init(|| scan_without(pagemap, 0..PAGE, PAGE_IS_GUARD).map_or(0, |_| PAGE_IS_GUARD))
}

/// The ranges of pages that [`scan_anonymous`] looks for, in order; `None` if there are too many.
/// One call for each 512 ranges.
pub(in crate::live) fn anonymous_ranges(pagemap: &File) -> io::Result<Option<Vec<Range<usize>>>> {
    let guards = guards(pagemap);
    let wanted = ScanArg {
        category_inverted: PAGE_IS_FILE | guards,
        category_mask: PAGE_IS_FILE | guards,
        category_anyof_mask: PAGE_IS_PRESENT | PAGE_IS_SWAPPED,
        return_mask: PAGE_IS_PFNZERO | PAGE_IS_HUGE,
        ..ScanArg::default()
    };
    let is_small_zero =
        |one: &Region| one.categories & (PAGE_IS_PFNZERO | PAGE_IS_HUGE) == PAGE_IS_PFNZERO;
    let found = regions(pagemap, &wanted, |one| !is_small_zero(one))?;
    Ok(Some(found).filter(|found| found.len() < RANGES))
}

/// Whether `range` has a page, present or swapped, in none of the categories `without`.
fn scan_without(pagemap: &File, range: Range<usize>, without: u64) -> io::Result<bool> {
    scan(pagemap, range, without, 0)
}

/// Whether `range` has a page, present or swapped, in all of the categories `with` and none of
/// `without`.
fn scan(pagemap: &File, range: Range<usize>, without: u64, with: u64) -> io::Result<bool> {
    let mut region = Region::default();
    let mut arg = ScanArg {
        size: size_of::<ScanArg>() as u64,
        start: range.start as u64,
        end: range.end as u64,
        vec: &raw mut region as u64,
        vec_len: 1,
        max_pages: 1,
        category_inverted: without,
        category_mask: without | with,
        category_anyof_mask: PAGE_IS_PRESENT | PAGE_IS_SWAPPED,
        return_mask: PAGE_IS_PRESENT | PAGE_IS_SWAPPED,
        ..ScanArg::default()
    };
    // SAFETY: `arg` and the `region` that it points to live during the call and have the kernel's
    // layout. `vec_len` is 1.
    let found =
        check(unsafe { libc::ioctl(pagemap.as_raw_fd(), PAGEMAP_SCAN as _, &raw mut arg) } as _)?;
    Ok(found > 0)
}

/// The most ranges that are read. There may be one for each page.
const RANGES: usize = 1 << 18;

/// The resident ranges, in order: present pages without the zero page. One call for each 512
/// ranges; the walk skips empty tables.
pub(in crate::live) fn scan_resident(pagemap: &File) -> io::Result<Vec<Range<usize>>> {
    let wanted = ScanArg {
        category_inverted: PAGE_IS_PFNZERO,
        category_mask: PAGE_IS_PFNZERO | PAGE_IS_PRESENT,
        return_mask: PAGE_IS_PRESENT,
        ..ScanArg::default()
    };
    regions(pagemap, &wanted, |_| true)
}

/// The ranges of an address space that have the categories of `wanted`, as far as `takes` says so.
fn regions(
    pagemap: &File,
    wanted: &ScanArg,
    takes: impl Fn(&Region) -> bool,
) -> io::Result<Vec<Range<usize>>> {
    const END: u64 = 0x7fff_ffff_f000;
    let mut found = Vec::new();
    let mut regions: Vec<Region> = Vec::new();
    regions.resize_with(512, Region::default);
    let mut start = 0;
    while start < END && found.len() < RANGES {
        let mut arg = ScanArg {
            size: size_of::<ScanArg>() as u64,
            start,
            end: END,
            vec: regions.as_mut_ptr() as u64,
            vec_len: regions.len() as u64,
            ..*wanted
        };
        // SAFETY: `arg` and the `regions` that it points to live during the call and have the
        // kernel's layout. `vec_len` is their number.
        let count =
            check(
                unsafe { libc::ioctl(pagemap.as_raw_fd(), PAGEMAP_SCAN as _, &raw mut arg) } as _
            )?;
        let filled = &regions[..(count as usize).min(regions.len())];
        let taken = filled.iter().filter(|one| takes(one));
        found.extend(taken.map(|one| one.start as usize..one.end as usize));
        if arg.walk_end <= start {
            break;
        }
        start = arg.walk_end;
    }
    Ok(found)
}

/// As [`scan_anonymous`], but with plain pagemap, which does not distinguish the zero page from an
/// anonymous page. Reads eight bytes for each page of the range.
pub(in crate::live) fn read_anonymous(pagemap: &File, range: Range<usize>) -> io::Result<bool> {
    const PRESENT_OR_SWAPPED: u64 = 3 << 62;
    const FILE_OR_GUARD: u64 = 1 << 61 | 1 << 58;
    let mut entries = vec![0u8; 512 * 8];
    let (mut page, last) = (range.start / PAGE, range.end.div_ceil(PAGE));
    while page < last {
        let bytes = (last - page).min(512) * 8;
        let got = pagemap.read_at(&mut entries[..bytes], page as u64 * 8)?;
        let whole = entries[..got].as_chunks::<8>().0;
        if whole.is_empty() {
            break;
        }
        if whole
            .iter()
            .map(|e| u64::from_ne_bytes(*e))
            .any(|e| e & PRESENT_OR_SWAPPED != 0 && e & FILE_OR_GUARD == 0)
        {
            return Ok(true);
        }
        page += whole.len();
    }
    Ok(false)
}

#[repr(C)]
#[derive(Default)]
struct QueryArg {
    size: u64,
    query_flags: u64,
    query_addr: u64,
    vma_start: u64,
    vma_end: u64,
    vma_flags: u64,
    vma_page_size: u64,
    vma_offset: u64,
    inode: u64,
    dev_major: u32,
    dev_minor: u32,
    vma_name_size: u32,
    build_id_size: u32,
    vma_name_addr: u64,
    build_id_addr: u64,
}

/// A VMA as the kernel describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::live) struct Covering {
    pub(in crate::live) vma: KernelVma,
    /// The path or name, not escaped. Empty without one, or if it was not requested.
    pub(in crate::live) name: Vec<u8>,
}

/// Asks for the VMA that covers `address` in the address space of `maps`, or with `next`, for the
/// next one if there is none. The kernel writes its name to `name`, unless that is empty.
fn ask(maps: &File, address: usize, next: bool, name: &mut [u8]) -> io::Result<Option<QueryArg>> {
    const COVERING_OR_NEXT_VMA: u64 = 0x10;
    let mut arg = QueryArg {
        size: size_of::<QueryArg>() as u64,
        query_flags: if next { COVERING_OR_NEXT_VMA } else { 0 },
        query_addr: address as u64,
        vma_name_size: name.len() as u32,
        vma_name_addr: if name.is_empty() { 0 } else { name.as_mut_ptr() as u64 },
        ..QueryArg::default()
    };
    // SAFETY: `arg` lives during the call and has the kernel's layout. Its only pointer is to
    // `name`, which is `vma_name_size` bytes long and also lives during the call.
    match check(unsafe { libc::ioctl(maps.as_raw_fd(), PROCMAP_QUERY as _, &raw mut arg) } as _) {
        Ok(_) => Ok(Some(arg)),
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(None),
        Err(error) => Err(error),
    }
}

/// The VMA that covers `address` in the address space of `maps`. One call without text. With
/// `named`, the kernel also returns the name, which costs about 1 µs.
pub(in crate::live) fn query(
    maps: &File,
    address: usize,
    named: bool,
) -> io::Result<Option<Covering>> {
    let mut name = vec![0u8; if named { libc::PATH_MAX as usize } else { 0 }];
    let found = ask(maps, address, false, &mut name)?;
    Ok(found.map(|arg| {
        // The kernel's size includes the final zero. It is 0 without a name.
        name.truncate((arg.vma_name_size as usize).saturating_sub(1));
        Covering { vma: arg.vma(), name }
    }))
}

/// The VMA that covers `address`, or the next one. One call without text.
pub(in crate::live) fn query_next(maps: &File, address: usize) -> io::Result<Option<KernelVma>> {
    Ok(ask(maps, address, true, &mut [])?.map(|arg| arg.vma()))
}

impl QueryArg {
    /// The answer.
    fn vma(&self) -> KernelVma {
        // In the order of the kernel's bits.
        const RIGHTS: [VmFlags; 4] =
            [VmFlags::READ, VmFlags::WRITE, VmFlags::EXEC, VmFlags::MAYSHARE];
        let set = RIGHTS.iter().enumerate().filter(|(bit, _)| self.vma_flags & 1 << bit != 0);
        KernelVma {
            range: self.vma_start as usize..self.vma_end as usize,
            rights: set.fold(VmFlags::empty(), |all, (_, one)| all | *one),
            offset: self.vma_offset as usize,
            dev: (self.dev_major, self.dev_minor),
            inode: self.inode,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_touched_page_is_seen_and_a_fresh_one_is_not() {
        let length = 64 * PAGE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new map at an address that the kernel chooses.
        let memory = unsafe { libc::mmap(std::ptr::null_mut(), length, prot, flags, -1, 0) };
        assert_ne!(memory, libc::MAP_FAILED);
        // SAFETY: the first byte is inside the map, and so is the other, which reads the zero page.
        unsafe {
            memory.cast::<u8>().write_volatile(1);
            memory.cast::<u8>().add(48 * PAGE).read_volatile();
        }
        let start = memory as usize;
        let pagemap = File::open("/proc/thread-self/pagemap").unwrap();
        assert!(read_anonymous(&pagemap, start..start + PAGE).unwrap());
        let fresh = start + 32 * PAGE..start + 33 * PAGE;
        assert!(!read_anonymous(&pagemap, fresh.clone()).unwrap());
        match scan_anonymous(&pagemap, start..start + PAGE) {
            Ok(found) => {
                assert!(found);
                assert!(!scan_anonymous(&pagemap, fresh).unwrap());
            }
            // A kernel without PAGEMAP_SCAN (before 6.7) returns ENOTTY.
            Err(error) => assert_eq!(error.raw_os_error(), Some(libc::ENOTTY)),
        }
        if let Ok(Some(found)) = anonymous_ranges(&pagemap) {
            let covers = |page: usize| found.iter().any(|range| range.contains(&page));
            assert!(covers(start) && !covers(start + PAGE) && !covers(start + 48 * PAGE));
            assert!(found.is_sorted_by(|a, b| a.end <= b.start));
        }
        if let Ok(resident) = scan_resident(&pagemap) {
            let covers = |page: usize| resident.iter().any(|range| range.contains(&page));
            assert!(covers(start) && !covers(start + PAGE) && !covers(start + 32 * PAGE));
            assert!(resident.is_sorted_by(|a, b| a.end <= b.start));
        }
        // SAFETY: mapped above, and no longer used.
        unsafe { libc::munmap(memory, length) };
    }
}
