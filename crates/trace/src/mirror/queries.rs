//! The tracer's questions about VMAs, which tell it where to look.

use std::ops::Range;

use vma::{MappedFile, VmFlags, Vma};

use super::{Mirror, file::File};
use crate::{
    observer::{Code, CodeSource, Wanted},
    record::{FileId, MmId},
    report::Usage,
};

impl Mirror {
    /// The VMAs that are wanted, and that overlap `around` or lie next to it.
    pub fn ranges(&self, mm: MmId, around: Range<usize>, wanted: Wanted) -> Vec<Range<usize>> {
        self.vmas_near(mm, around, |vma| {
            let untouched = vma.is_private() && !vma.is_faulted();
            match wanted {
                Wanted::Untouched => untouched,
                Wanted::Touchable => untouched && vma.flags.contains(VmFlags::WRITE),
                Wanted::Growing => vma.flags.contains(VmFlags::GROWSDOWN),
            }
        })
    }

    /// The place of a map of `length` bytes if it were private and anonymous.
    pub fn likely_place(&mut self, mm: MmId, length: usize) -> Option<Range<usize>> {
        let space = self.spaces.get_mut(&mm)?.space.get_mut();
        let start = space.likely_place(length).ok()?;
        Some(start..start.saturating_add(length))
    }

    pub(super) fn vmas_near(
        &self,
        mm: MmId,
        around: Range<usize>,
        wanted: impl Fn(&Vma<File>) -> bool,
    ) -> Vec<Range<usize>> {
        let Some(mirrored) = self.spaces.get(&mm) else { return Vec::new() };
        let guard = mirrored.space.pin();
        let near = mirrored.space.iter(&guard, around.start.saturating_sub(1));
        near.take_while(|(range, _)| range.start <= around.end)
            .filter(|(_, vma)| wanted(vma))
            .map(|(range, _)| range)
            .collect()
    }

    /// The number of VMAs and of mapped bytes (Linux: `map_count`, and `total_vm` in bytes).
    /// Constant time.
    pub fn size(&mut self, mm: MmId) -> Option<(usize, usize)> {
        Some(self.spaces.get_mut(&mm)?.size())
    }

    /// The memory of the machine that an address space used.
    pub fn used(&mut self, mm: MmId, usage: Usage) {
        if let Some(mirrored) = self.spaces.get_mut(&mm) {
            mirrored.figures.stats.usage = usage;
        }
    }

    /// The executable VMA at `addr`. O(log VMAs).
    pub fn code_at(&self, mm: MmId, addr: usize) -> Option<Code> {
        let mirrored = self.spaces.get(&mm)?;
        let guard = mirrored.space.pin();
        let (range, vma) = mirrored.space.find(&guard, addr)?;
        if !range.contains(&addr) || !vma.flags.contains(VmFlags::EXEC) {
            return None;
        }
        let (offset, source) = match &vma.file {
            Some(file) => {
                let source = CodeSource::File(file.device(), file.inode());
                (vma.offset_at(range.start) << 12, source)
            }
            None if vma.name() == Some("[vdso]") => (0, CodeSource::Vdso),
            None => (0, CodeSource::Memory),
        };
        Some(Code { range, offset, source })
    }

    /// The file behind the VMA at `addr`, and its current path; 0 and no path if there is none.
    pub fn file_at(&self, mm: MmId, addr: usize) -> (FileId, String) {
        let Some(mirrored) = self.spaces.get(&mm) else { return (0, String::new()) };
        let guard = mirrored.space.pin();
        let found = mirrored.space.find(&guard, addr).filter(|(range, _)| range.contains(&addr));
        let file = found.and_then(|(_, vma)| vma.file.as_ref());
        file.map_or((0, String::new()), |file| (file.id(), file.path()))
    }
}
