//! ELF files: static programs of x86-64, at their own addresses or anywhere (static-pie).

use crate::call::Errno;
use crate::machine::Kernel;
use crate::random;
use crate::task::Space;
use crate::user::END;
use alloc::vec;
use elf::abi::{EM_X86_64, ET_DYN, ET_EXEC, PF_R, PF_W, PF_X, PT_INTERP, PT_LOAD};
use elf::endian::LittleEndian;
use elf::file::{Class, FileHeader};
use elf::segment::ProgramHeader;
use linux_raw_sys::errno::{EACCES, ENOEXEC, ENOMEM};
use mm::{Backing, MapFlags, Shared, Shmem};

const PAGE: usize = 4096;
/// The bytes of a header, and of a segment's header.
const HEADER: usize = 64;
const SEGMENT: usize = 56;
/// The most segments of a program.
const SEGMENTS: usize = 64;
/// Where programs that may lie anywhere begin, before some random pages are added.
const ANYWHERE: usize = 0x5555_5555_4000;

/// A program in memory.
pub(super) struct Image {
    pub(super) entry: usize,
    /// The end of its last segment, rounded up.
    pub(super) end: usize,
    /// The address of its segments' headers, and their number.
    pub(super) headers: usize,
    pub(super) segments: usize,
}

/// Maps the segments of a file.
pub(super) fn map(space: &Space, file: &Shared<Shmem<Kernel>>) -> Result<Image, Errno> {
    let refused = |_| Errno(ENOEXEC);
    let mut bytes = [0; HEADER];
    if file.read(0, &mut bytes) < HEADER {
        return Err(Errno(ENOEXEC));
    }
    let (ident, tail) = bytes.split_at(16);
    let ident = elf::file::parse_ident::<LittleEndian>(ident).map_err(refused)?;
    let header = FileHeader::parse_tail(ident, tail).map_err(refused)?;
    let count = usize::from(header.e_phnum);
    if header.class != Class::ELF64
        || header.e_machine != EM_X86_64
        || usize::from(header.e_phentsize) != SEGMENT
        || !(1..=SEGMENTS).contains(&count)
    {
        return Err(Errno(ENOEXEC));
    }
    let mut bytes = vec![0; count * SEGMENT];
    if file.read(header.e_phoff, &mut bytes) < bytes.len() {
        return Err(Errno(ENOEXEC));
    }
    let segments: elf::segment::SegmentTable<'_, _> =
        elf::parse::ParsingTable::new(LittleEndian, Class::ELF64, &bytes);
    if segments.iter().any(|segment| segment.p_type == PT_INTERP) {
        // It needs a loader of its own.
        return Err(Errno(ENOEXEC));
    }
    let is_loaded = |one: &ProgramHeader| one.p_type == PT_LOAD && one.p_memsz > 0;
    let loads = || segments.iter().filter(is_loaded);
    let first = loads().map(|segment| segment.p_vaddr).min().ok_or(Errno(ENOEXEC))?;
    let base = match header.e_type {
        ET_EXEC => 0,
        ET_DYN => {
            let start = ANYWHERE + ((random::word() as usize & 0xffff) << 12);
            start.checked_sub(first as usize & !(PAGE - 1)).ok_or(Errno(ENOEXEC))?
        }
        _ => return Err(Errno(ENOEXEC)),
    };
    let backing = Backing::open(file.clone(), false).map_err(|_| Errno(ENOMEM))?;
    let (mut end, mut headers) = (0, 0);
    for segment in loads() {
        let here = map_segment(space, &backing, &segment, base)?;
        end = end.max(here);
        if (segment.p_offset..segment.p_offset + segment.p_filesz).contains(&header.e_phoff) {
            headers = base + (header.e_phoff - segment.p_offset + segment.p_vaddr) as usize;
        }
    }
    let entry = (header.e_entry as usize).checked_add(base).ok_or(Errno(ENOEXEC))?;
    Ok(Image { entry, end, headers, segments: count })
}

/// Maps one segment, and returns its end.
fn map_segment(
    space: &Space,
    file: &Backing<Kernel>,
    segment: &ProgramHeader,
    base: usize,
) -> Result<usize, Errno> {
    let bad = Errno(ENOEXEC);
    let start = base.checked_add(segment.p_vaddr as usize).ok_or(bad)?;
    let (in_file, in_memory) = (segment.p_filesz as usize, segment.p_memsz as usize);
    let before = start % PAGE;
    let end = start.checked_add(in_memory).ok_or(bad)?.checked_next_multiple_of(PAGE).ok_or(bad)?;
    if in_file > in_memory
        || before != segment.p_offset as usize % PAGE
        || end > END as usize
        || segment.p_offset.checked_add(segment.p_filesz).is_none()
    {
        return Err(bad);
    }
    let mut rights = 0;
    for (flag, right) in [(PF_R, 1), (PF_W, 2), (PF_X, 4)] {
        rights |= if segment.p_flags & flag != 0 { right } else { 0 };
    }
    let at = start - before;
    let from_file = (before + in_file).next_multiple_of(PAGE).min(end - at);
    if in_file > 0 {
        let flags = MapFlags::PRIVATE | MapFlags::FIXED_NOREPLACE;
        let offset = segment.p_offset as usize - before;
        space.mmap_object(at, before + in_file, rights, flags, file.clone(), offset)?;
    }
    let zeros = start + in_file;
    let rest = if in_file > 0 { at + from_file } else { at };
    if rest < end {
        let flags = MapFlags::PRIVATE | MapFlags::ANONYMOUS | MapFlags::FIXED_NOREPLACE;
        space.mmap(rest, end - rest, rights, flags)?;
    }
    // The rest of the last page of the file is zeros, too.
    if in_memory > in_file && in_file > 0 && zeros < rest {
        if rights & 2 == 0 {
            return Err(Errno(EACCES));
        }
        space.write(zeros, &[0; PAGE][..rest - zeros]).map_err(|_| Errno(ENOMEM))?;
    }
    Ok(end)
}
