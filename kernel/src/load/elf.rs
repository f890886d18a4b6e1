//! ELF files of x86-64: programs at their own addresses, programs that may lie anywhere, and the
//! interpreter that a dynamic program names.
//!
//! A file comes from a program, so [`Headers::read`] checks it before anything is mapped: each
//! segment lies in the file and below the end of user memory. Where segments overlap, the later one
//! wins, as in Linux. A program's segments replace nothing else, because its space is empty.
//!
//! An interpreter gets the place that mmap would choose for all of it, as in Linux. One that has
//! an address of its own is refused if anything is there. Its own `PT_INTERP` is ignored.

use crate::errno::Errno;
use crate::machine::Kernel;
use crate::random;
use crate::task::Space;
use crate::user::{END, copy::PATH_MAX};
use alloc::vec;
use alloc::vec::Vec;
use elf::abi::{EM_X86_64, ET_DYN, ET_EXEC, PF_R, PF_W, PF_X, PT_GNU_STACK, PT_INTERP, PT_LOAD};
use elf::endian::LittleEndian;
use elf::file::{Class, FileHeader};
use elf::segment::ProgramHeader;
use linux_raw_sys::errno::{EACCES, EIO, ENOEXEC, ENOMEM};
use mm::{Backing, MapFlags, Shared, Shmem};

const PAGE: usize = 4096;
/// The bytes of a header, and of a segment's header.
pub(super) const HEADER: usize = 64;
const SEGMENT: usize = 56;
/// The most segments of a program.
const SEGMENTS: usize = 64;
/// The start of programs that may lie anywhere, before some random pages are added.
const ANYWHERE: usize = 0x5555_5555_4000;
/// The largest alignment that is heeded.
const ALIGNMENT: u64 = 1 << 30;

type File = Shared<Shmem<Kernel>>;

/// A program or an interpreter in memory.
pub(super) struct Image {
    pub(super) entry: usize,
    /// The distance of its addresses from those in the file.
    pub(super) base: usize,
    /// The end of its last segment, rounded up.
    pub(super) end: usize,
    /// The address of its segments' headers, and their number.
    pub(super) headers: usize,
    pub(super) segments: usize,
}

/// The headers of a file.
pub(super) struct Headers {
    kind: u16,
    entry: usize,
    /// The place of the segments' headers in the file.
    at: u64,
    segments: Vec<ProgramHeader>,
    /// The first address and the end of all segments, in whole pages.
    range: core::ops::Range<usize>,
}

/// The role of a file in a new space, which decides on its place.
pub(super) enum Role {
    Program,
    Interpreter,
}

impl Headers {
    /// Reads and checks the headers.
    ///
    /// # Errors
    /// ENOEXEC: it is no ELF file of x86-64, or it contradicts itself.
    pub(super) fn read(file: &File) -> Result<Headers, Errno> {
        let bad = Errno(ENOEXEC);
        let mut bytes = [0; HEADER];
        // The rest of a file that is too short is zeros, which are no header.
        file.read(0, &mut bytes);
        let (ident, tail) = bytes.split_at(16);
        let ident = elf::file::parse_ident::<LittleEndian>(ident).map_err(|_| bad)?;
        let header = FileHeader::parse_tail(ident, tail).map_err(|_| bad)?;
        let count = usize::from(header.e_phnum);
        if header.class != Class::ELF64
            || header.e_machine != EM_X86_64
            || !matches!(header.e_type, ET_EXEC | ET_DYN)
            || usize::from(header.e_phentsize) != SEGMENT
            || !(1..=SEGMENTS).contains(&count)
        {
            return Err(bad);
        }
        let mut bytes = vec![0; count * SEGMENT];
        if file.read(header.e_phoff, &mut bytes) < bytes.len() {
            return Err(bad);
        }
        let table: elf::segment::SegmentTable<'_, _> =
            elf::parse::ParsingTable::new(LittleEndian, Class::ELF64, &bytes);
        let segments: Vec<_> = table.iter().collect();
        let (mut start, mut end) = (usize::MAX, 0);
        for segment in segments.iter().filter(|segment| is_loaded(segment)) {
            let pages = pages(segment, file.size())?;
            (start, end) = (start.min(pages.start), end.max(pages.end));
        }
        if start >= end {
            return Err(bad);
        }
        let range = start..end;
        let (kind, entry, at) = (header.e_type, header.e_entry as usize, header.e_phoff);
        Ok(Headers { kind, entry, at, segments, range })
    }

    fn find(&self, kind: u32) -> Option<&ProgramHeader> {
        self.segments.iter().find(|segment| segment.p_type == kind)
    }

    /// The path of the interpreter, if the program names one.
    ///
    /// # Errors
    /// ENOEXEC: the path has no end, or is empty or too long. EIO: it is not in the file.
    pub(super) fn interpreter(&self, file: &File) -> Result<Option<Vec<u8>>, Errno> {
        let Some(segment) = self.find(PT_INTERP) else { return Ok(None) };
        let bad = Errno(ENOEXEC);
        let len = usize::try_from(segment.p_filesz).map_err(|_| bad)?;
        if !(2..=PATH_MAX).contains(&len) {
            return Err(bad);
        }
        let mut path = vec![0; len];
        if file.read(segment.p_offset, &mut path) < len {
            return Err(Errno(EIO));
        }
        if path.pop() != Some(0) {
            return Err(bad);
        }
        path.truncate(path.iter().position(|byte| *byte == 0).unwrap_or(path.len()));
        Ok(Some(path))
    }

    /// Whether the program wants a stack whose contents can be executed.
    pub(super) fn executes_stack(&self) -> bool {
        self.find(PT_GNU_STACK).is_some_and(|segment| segment.p_flags & PF_X != 0)
    }

    /// The distance of the addresses from those in the file.
    fn base(&self, space: &Space, role: &Role) -> Result<usize, Errno> {
        let first = self.range.start;
        let private = MapFlags::PRIVATE | MapFlags::ANONYMOUS;
        if self.kind == ET_EXEC {
            if let Role::Interpreter = role {
                space.mmap(first, self.range.len(), 0, private | MapFlags::FIXED_NOREPLACE)?;
                space.munmap(first, self.range.len())?;
            }
            return Ok(0);
        }
        let loaded = self.segments.iter().filter(|segment| is_loaded(segment));
        let powers = loaded.map(|segment| segment.p_align).filter(|align| align.is_power_of_two());
        let align = powers.max().unwrap_or(0).clamp(PAGE as u64, ALIGNMENT) as usize;
        let start = match role {
            Role::Program => (ANYWHERE + ((random::word() as usize & 0xffff) << 12)) & !(align - 1),
            Role::Interpreter => {
                // The place is free until the space has a thread.
                let more = align - PAGE + first % align;
                let len = self.range.len().checked_add(more).ok_or(Errno(ENOEXEC))?;
                let found = space.mmap(0, len, 0, private)?;
                space.munmap(found, len)?;
                found.next_multiple_of(align)
            }
        };
        // The first segment keeps its place within the alignment.
        (start + first % align).checked_sub(first).ok_or(Errno(ENOEXEC))
    }

    /// Maps the segments.
    ///
    /// # Errors
    /// ENOEXEC: segments do not fit. EEXIST: an interpreter's address is taken. ENOMEM. Some may be
    /// mapped.
    pub(super) fn map(&self, space: &Space, file: &File, role: Role) -> Result<Image, Errno> {
        let bad = Errno(ENOEXEC);
        let base = self.base(space, &role)?;
        let backing = Backing::open(file.clone(), false).map_err(|_| Errno(ENOMEM))?;
        let mut headers = 0;
        for segment in self.segments.iter().filter(|segment| is_loaded(segment)) {
            map_segment(space, &backing, segment, base)?;
            if (segment.p_offset..segment.p_offset + segment.p_filesz).contains(&self.at) {
                let within = (self.at - segment.p_offset) as usize;
                headers = base + segment.p_vaddr as usize + within;
            }
        }
        let entry = self.entry.checked_add(base).ok_or(bad)?;
        let (end, segments) = (base + self.range.end, self.segments.len());
        Ok(Image { entry, base, end, headers, segments })
    }
}

fn is_loaded(segment: &ProgramHeader) -> bool {
    segment.p_type == PT_LOAD && segment.p_memsz > 0
}

/// The pages of a segment, before the file has a place. `size`: the bytes of the file.
///
/// # Errors
/// ENOEXEC: they are too many, or do not fit the file.
fn pages(segment: &ProgramHeader, size: u64) -> Result<core::ops::Range<usize>, Errno> {
    let bad = Errno(ENOEXEC);
    let start = segment.p_vaddr as usize;
    let end = start.checked_add(segment.p_memsz as usize).ok_or(bad)?;
    let end = end.checked_next_multiple_of(PAGE).filter(|end| *end <= END as usize).ok_or(bad)?;
    let in_file = segment.p_offset.checked_add(segment.p_filesz).ok_or(bad)?;
    if segment.p_filesz > segment.p_memsz
        || start % PAGE != segment.p_offset as usize % PAGE
        || segment.p_filesz > 0 && in_file > size
    {
        return Err(bad);
    }
    Ok(start & !(PAGE - 1)..end)
}

/// Maps a segment that [`pages`] has checked.
fn map_segment(
    space: &Space,
    file: &Backing<Kernel>,
    segment: &ProgramHeader,
    base: usize,
) -> Result<(), Errno> {
    let bad = Errno(ENOEXEC);
    let start = base.checked_add(segment.p_vaddr as usize).ok_or(bad)?;
    let (in_file, in_memory) = (segment.p_filesz as usize, segment.p_memsz as usize);
    let before = start % PAGE;
    let end = start.checked_add(in_memory).ok_or(bad)?.checked_next_multiple_of(PAGE).ok_or(bad)?;
    if end > END as usize {
        return Err(bad);
    }
    let mut rights = 0;
    for (flag, right) in [(PF_R, 1), (PF_W, 2), (PF_X, 4)] {
        rights |= if segment.p_flags & flag != 0 { right } else { 0 };
    }
    let at = start - before;
    let from_file = (before + in_file).next_multiple_of(PAGE).min(end - at);
    if in_file > 0 {
        let flags = MapFlags::PRIVATE | MapFlags::FIXED;
        let offset = segment.p_offset as usize - before;
        space.mmap_object(at, before + in_file, rights, flags, file.clone(), offset)?;
    }
    let zeros = start + in_file;
    let rest = if in_file > 0 { at + from_file } else { at };
    if rest < end {
        let flags = MapFlags::PRIVATE | MapFlags::ANONYMOUS | MapFlags::FIXED;
        space.mmap(rest, end - rest, rights, flags)?;
    }
    // The rest of the last page of the file is zeros, too.
    if in_memory > in_file && in_file > 0 && zeros < rest {
        if rights & 2 == 0 {
            return Err(Errno(EACCES));
        }
        space.write(zeros, &[0; PAGE][..rest - zeros]).map_err(|_| Errno(ENOMEM))?;
    }
    Ok(())
}
