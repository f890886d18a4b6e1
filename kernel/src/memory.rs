//! The division of memory at boot: the kernel's image and the loader's archive stay in place, a
//! quarter of the rest is the heap, the remainder are frames.

use crate::arch::place::MEMORY;
use crate::boot::{self, info::BootInfo};
use crate::layout::IMAGE;
use core::fmt;
use machine::{Frame, FrameRange, PhysAddr, PhysRange};

/// The first MiB belongs to firmware.
const LOW: u64 = 1 << 20;
/// The most ranges that are kept. If there are more, the smallest are left out.
const RANGES: usize = 16;
/// The least bytes of the heap, and of the frames.
const LEAST: u64 = 4 << 20;
const MIB: u64 = 1 << 20;
/// MiB of memory that a machine needs for an image that ends below 8 MiB. `samara
/// boot` refuses less.
pub(crate) const LEAST_MIB: u64 = 16;

unsafe extern "C" {
    static image_start: u8;
    static image_end: u8;
    static text_start: u8;
    static text_end: u8;
    static rodata_start: u8;
    static rodata_end: u8;
    static data_start: u8;
    static data_end: u8;
}

/// A part of the kernel's image: its linked addresses, in whole pages.
pub(crate) struct Part {
    pub(crate) start: u64,
    pub(crate) bytes: u64,
    pub(crate) write: bool,
    pub(crate) execute: bool,
}

impl Part {
    /// The frame to which it was loaded.
    pub(crate) fn frame(&self) -> Frame {
        Frame::containing(PhysAddr::new(self.start - IMAGE))
    }
}

/// The parts of the image that stay: text, constants, data.
pub(crate) fn parts() -> [Part; 3] {
    let part = |start: *const u8, end: *const u8, write, execute| Part {
        start: start.addr() as u64,
        bytes: (end.addr() - start.addr()) as u64,
        write,
        execute,
    };
    [
        part(&raw const text_start, &raw const text_end, false, true),
        part(&raw const rodata_start, &raw const rodata_end, false, false),
        part(&raw const data_start, &raw const data_end, true, false),
    ]
}

/// The reason why memory cannot be divided.
#[derive(Debug)]
pub(crate) enum Refused {
    /// No range is free.
    None,
    /// The largest range has `free` bytes, and the machine needs `least` MiB.
    TooLittle { free: u64, least: u64 },
    /// A range ends above the last address.
    Beyond,
    /// The loader put the archive over the kernel's image.
    Overlap,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refused::None => f.write_str("the loader tells of no memory beyond the first MiB"),
            Refused::TooLittle { free, least } => write!(
                f,
                "too little memory: {} KiB are free apart from the kernel's image; give the \
                 machine {least} MiB at least (QEMU: -m {least}M)",
                free >> 10
            ),
            Refused::Beyond => f.write_str("memory beyond all addresses"),
            Refused::Overlap => f.write_str(
                "the archive lies on the kernel's image: give the machine more memory (QEMU: -m)",
            ),
        }
    }
}

/// The divided memory.
pub(crate) struct Memory {
    ranges: [Option<FrameRange>; RANGES],
    /// The heap.
    pub(crate) heap: FrameRange,
    /// The frames of the archive, if there is one. No other range has them.
    pub(crate) archive: Option<FrameRange>,
    /// MiB that the boot tables do not map. They are not used.
    pub(crate) beyond: u64,
}

impl Memory {
    /// Divides the memory of the boot information.
    pub(crate) fn divide(info: &BootInfo) -> Result<Memory, Refused> {
        let mut ranges = [None; RANGES];
        let image = PhysAddr::new((&raw const image_start).addr() as u64 - IMAGE);
        let end = PhysAddr::new((&raw const image_end).addr() as u64 - IMAGE);
        let archive = info.archive().map(|archive| covering(&archive).ok_or(Refused::Beyond));
        let archive = archive.transpose()?;
        let (top, mut beyond) = (boot::mapped(), 0);
        for range in info.memory() {
            let last = range.last().map_or(0, PhysAddr::get);
            beyond += (last + 1).saturating_sub(top.max(range.start().get())) / MIB;
            for part in unused((image, end), archive, top)? {
                let Some(part) = part.and_then(|part| part.intersection(&range)) else { continue };
                add(&mut ranges, part.whole_frames());
            }
        }
        let total: u64 = ranges.iter().flatten().map(FrameRange::len).sum();
        // The heap is the end of the largest range.
        let largest = ranges.iter_mut().max_by_key(|range| range.map_or(0, |range| range.len()));
        let largest = largest.ok_or(Refused::None)?;
        let range = largest.ok_or(Refused::None)?;
        let heap = (total / 4).max(LEAST >> 12).min(range.len() / 2);
        if heap < LEAST >> 12 {
            let archive = archive.map_or(0, |archive| archive.len() << 12);
            let least = (end.get() - MEMORY + 2 * LEAST).max(LEAST_MIB * MIB) + archive;
            let least = least.div_ceil(MIB);
            return Err(Refused::TooLittle { free: range.len() << 12, least });
        }
        let rest = range.len() - heap;
        let cut = range.start().checked_add(rest).ok_or(Refused::Beyond)?;
        *largest = FrameRange::new(range.start(), rest);
        let heap = FrameRange::new(cut, heap).ok_or(Refused::Beyond)?;
        Ok(Memory { ranges, heap, archive, beyond })
    }

    /// The ranges that become frames.
    pub(crate) fn frames(&self) -> impl Iterator<Item = FrameRange> + '_ {
        self.ranges.iter().copied().flatten()
    }
}

/// The whole frames that contain a range.
fn covering(range: &PhysRange) -> Option<FrameRange> {
    let first = Frame::containing(range.start());
    let last = Frame::containing(range.last()?);
    FrameRange::new(first, last.number() - first.number() + 1)
}

/// The addresses below, between and above the image and the archive.
fn unused(
    image: (PhysAddr, PhysAddr),
    archive: Option<FrameRange>,
    top: u64,
) -> Result<[Option<PhysRange>; 3], Refused> {
    let (low, top) = (PhysAddr::new(LOW), PhysAddr::new(top));
    let (mut first, mut second) = (image, (top, top));
    if let Some(archive) = archive {
        second = (archive.start().start(), archive.end().ok_or(Refused::Beyond)?.start());
        if second.0 < first.0 {
            (first, second) = (second, first);
        }
        if second.0 < first.1 {
            return Err(Refused::Overlap);
        }
    }
    let between = |from, to| PhysRange::between(from, to);
    Ok([between(low, first.0), between(first.1, second.0), between(second.1, top)])
}

/// Adds a range. If there is no room, it replaces the smallest range, unless it is smaller.
fn add(ranges: &mut [Option<FrameRange>; RANGES], range: FrameRange) {
    let len = |range: &Option<FrameRange>| range.map_or(0, |range| range.len());
    if let Some(smallest) = ranges.iter_mut().min_by_key(|range| len(range))
        && len(smallest) < range.len()
    {
        *smallest = Some(range);
    }
}
