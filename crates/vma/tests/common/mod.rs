//! A small host for the tests: files, an address space, and its listing with flags.
#![allow(dead_code)] // each test binary uses a part of it

use std::{fmt, sync::Arc};

use vma::{
    AddressSpace, Layout, MapFlags, MapRequest, MappedFile, PAGE_SIZE, Placement, Profile, Writer,
};

pub(crate) const PAGE: usize = PAGE_SIZE;
pub(crate) const BASE: usize = 0x7fff_0000_0000;
pub(crate) const HEAP: usize = 0x5555_0000_0000;

/// An open file description. Two opens of one file are different.
#[derive(Clone)]
pub(crate) struct File(Arc<Open>);

struct Open {
    writable: bool,
    placement: Placement,
    /// The size of a SysV segment in bytes.
    segment: Option<usize>,
}

impl File {
    pub(crate) fn regular() -> Self {
        Self::open(true, Placement::Pages, None)
    }

    pub(crate) fn read_only() -> Self {
        Self::open(false, Placement::Pages, None)
    }

    pub(crate) fn huge_aligned() -> Self {
        Self::open(true, Placement::HugeAligned, None)
    }

    pub(crate) fn segment(bytes: usize) -> Self {
        Self::open(true, Placement::Pages, Some(bytes))
    }

    fn open(writable: bool, placement: Placement, segment: Option<usize>) -> Self {
        File(Arc::new(Open { writable, placement, segment }))
    }
}

impl PartialEq for File {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl MappedFile for File {
    fn writable(&self) -> bool {
        self.0.writable
    }
    fn placement(&self) -> Placement {
        self.0.placement
    }
    fn has_close_hook(&self) -> bool {
        self.0.segment.is_some()
    }
    fn segment_size(&self) -> Option<usize> {
        self.0.segment
    }
    fn device(&self) -> (u32, u32) {
        (8, 1)
    }
    fn inode(&self) -> u64 {
        42
    }
    fn write_path(&self, out: &mut dyn fmt::Write) -> fmt::Result {
        out.write_str("/file")
    }
}

pub(crate) type Space = AddressSpace<File, grace::Single>;
pub(crate) type Calls<'a> = Writer<'a, File, grace::Single>;

pub(crate) fn space() -> Space {
    let layout =
        Layout { start_brk: HEAP, brk: HEAP, start_stack: BASE + 8 * PAGE, mmap_base: BASE };
    Space::new(Profile { guard_flag: true, ..Profile::LINUX_6_18 }, layout)
}

pub(crate) fn anonymous(addr: usize, pages: usize, prot: u32) -> MapRequest<File> {
    let fixed = if addr == 0 { MapFlags::empty() } else { MapFlags::FIXED };
    MapRequest {
        addr,
        flags: MapFlags::PRIVATE | MapFlags::ANONYMOUS | fixed,
        ..MapRequest::anonymous(pages * PAGE, prot)
    }
}

pub(crate) fn of_file(
    file: &File,
    addr: usize,
    pages: usize,
    prot: u32,
    offset: usize,
) -> MapRequest<File> {
    let mut request = anonymous(addr, pages, prot);
    request.flags -= MapFlags::ANONYMOUS;
    request.file = Some(file.clone());
    request.offset = offset * PAGE;
    request
}

/// Each VMA from `at` on, in order: its distance from `at` in pages, its length in pages, and its
/// flags.
pub(crate) fn vmas(space: &Calls<'_>, at: usize) -> Vec<(usize, usize, String)> {
    space
        .areas_from(at)
        .map(|area| {
            let first = area.start.wrapping_sub(at) / PAGE;
            (first, (area.end - area.start) / PAGE, area.vma.flags.to_string())
        })
        .collect()
}

/// All visible state.
pub(crate) fn picture(space: &Calls<'_>) -> (String, Vec<(usize, usize, String)>, usize) {
    let mut text = String::new();
    space.write_maps(&mut text).unwrap();
    (text, vmas(space, 0), space.count())
}
