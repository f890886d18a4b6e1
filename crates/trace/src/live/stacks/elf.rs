//! The parts of an ELF file for unwinding: its mapped ranges, and its unwind tables.
//!
//! Sections are copied, because a map of a file that becomes shorter would end the tracer.

use std::{ops::Deref, ops::Range, sync::Arc};

use framehop::ExplicitModuleSectionInfo;
use object::{
    Object, ObjectSection, ReadRef,
    elf::{FileHeader64, PF_X, PT_LOAD},
    endian::LittleEndian,
    read::elf::{ElfFile64, FileHeader, ProgramHeader},
};

/// The bytes of a section, which all address spaces with the file share.
#[derive(Clone, Default)]
pub(super) struct Section(Arc<[u8]>);

impl Deref for Section {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

/// An ELF file with code.
pub(super) struct Elf {
    /// The file offsets of its executable segments, with the address of each.
    segments: Vec<(Range<u64>, u64)>,
    info: ExplicitModuleSectionInfo<Section>,
}

impl Elf {
    /// Reads it; `None` if it is no x86-64 ELF file, or damaged.
    pub(super) fn read<'data, R: ReadRef<'data>>(data: R) -> Option<Elf> {
        let file = ElfFile64::<LittleEndian, R>::parse(data).ok()?;
        let headers = FileHeader64::<LittleEndian>::parse(data).ok()?;
        let headers = headers.program_headers(LittleEndian, data).ok()?;
        let loads = || headers.iter().filter(|header| header.p_type(LittleEndian) == PT_LOAD);
        let segments = loads()
            .filter(|header| header.p_flags(LittleEndian).0 & PF_X.0 != 0)
            .map(|header| {
                let (start, length) = header.file_range(LittleEndian);
                // The pages at both ends are mapped whole.
                let within = start % 4096;
                let end = start.saturating_add(length).next_multiple_of(4096);
                (start - within..end, header.p_vaddr(LittleEndian).wrapping_sub(within))
            })
            .collect();
        let base = loads().map(|header| header.p_vaddr(LittleEndian)).min().unwrap_or(0);
        let section = |name| file.section_by_name(name);
        let range = |name| {
            let section = section(name)?;
            Some(section.address()..section.address().checked_add(section.size())?)
        };
        let bytes = |name| {
            let bytes = section(name)?.uncompressed_data().ok()?;
            (!bytes.is_empty()).then(|| Section(bytes.into_owned().into()))
        };
        let eh_frame = bytes(".eh_frame");
        let info = ExplicitModuleSectionInfo {
            base_svma: base & !4095,
            text_svma: range(".text"),
            got_svma: range(".got"),
            eh_frame_svma: range(".eh_frame"),
            eh_frame_hdr_svma: range(".eh_frame_hdr"),
            eh_frame_hdr: bytes(".eh_frame_hdr"),
            debug_frame: if eh_frame.is_none() { bytes(".debug_frame") } else { None },
            eh_frame,
            ..ExplicitModuleSectionInfo::default()
        };
        Some(Elf { segments, info })
    }

    /// The address of the code at this offset in the file.
    pub(super) fn address_at(&self, offset: u64) -> Option<u64> {
        let found = self.segments.iter().find(|(segment, _)| segment.contains(&offset));
        found.map(|(segment, address)| address.wrapping_add(offset - segment.start))
    }

    /// A module for the unwinder: the code of this file at `range`, whose addresses are by `bias`
    /// above those in the file.
    pub(super) fn module(&self, range: &Range<usize>, bias: u64) -> framehop::Module<Section> {
        let base = self.info.base_svma.wrapping_add(bias);
        let range = range.start as u64..range.end as u64;
        framehop::Module::new(String::new(), range, base, self.info.clone())
    }
}
