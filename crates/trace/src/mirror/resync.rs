//! Continues from the kernel's listing after a mismatch.
//!
//! VMAs that agree are kept, with the state that listings do not show. All others are mapped anew
//! from the kernel's description. The address space stays tainted, because its hidden state may be
//! wrong from here on.

use std::ops::Range;

use vma::{AddressSpace, Area, VmFlags, WholeVma};

use super::{Expected, Mirror, file::File};
use crate::{
    listing::Line,
    record::{FileDesc, FileKind, MmId},
};

impl Mirror {
    /// Makes our side equal to the kernel's listing `maps`, with the flags that smaps shows.
    ///
    /// # Errors
    /// A description of what was expected, if the listing cannot be parsed.
    pub fn take_over(
        &mut self,
        mm: MmId,
        maps: &str,
        flags: &[(usize, VmFlags)],
    ) -> Result<(), Expected> {
        let mut kernel = Vec::new();
        for text in maps.lines().filter(|line| !Line::is_vsyscall(line)) {
            let line = Line::parse(text).ok_or_else(|| format!("a line of maps, not {text:?}"))?;
            let flags = flags.iter().find(|(start, _)| *start == line.range.start);
            let flags = flags.map(|&(_, flags)| flags);
            kernel.push((line, flags.ok_or_else(|| format!("flags for the VMA at {text:?}"))?));
        }
        let files: Vec<Option<File>> = kernel.iter().map(|(line, _)| self.file_of(line)).collect();
        let profile = self.profile;
        let mirrored = self.known(mm)?;
        mirrored.tainted = true;
        // A sealed VMA cannot be unmapped. If one differs, nothing is kept.
        let stays = |area: &Area<File>| {
            kernel.iter().any(|(line, flags)| {
                line.range == (area.start..area.end) && *flags == area.vma.flags
            })
        };
        let stuck = |area: Area<File>| area.vma.flags.contains(VmFlags::SEALED) && !stays(&area);
        let mut space = mirrored.space.get_mut();
        if space.areas().any(stuck) {
            let layout = space.layout();
            drop(space);
            mirrored.space = AddressSpace::new(profile, layout);
            space = mirrored.space.get_mut();
        }
        for area in space.areas().collect::<Vec<_>>() {
            if !stays(&area) {
                space
                    .munmap(area.start, area.end - area.start)
                    .map_err(|error| error.to_string())?;
            }
        }
        for ((line, flags), file) in kernel.iter().zip(files) {
            let Range { start, end } = line.range;
            if space.area_at(start).is_some() {
                continue;
            }
            let special = file.is_none() && !matches!(line.name, "" | "[heap]" | "[stack]");
            let whole = WholeVma {
                start,
                end,
                flags: *flags,
                pgoff: if file.is_some() { line.offset } else { start } / vma::PAGE_SIZE,
                file,
                name: special.then(|| line.name.into()),
            };
            space.adopt(whole).map_err(|error| error.to_string())?;
        }
        if let Some(owners) = &mut mirrored.owners {
            owners.take_over(&space);
        }
        Ok(())
    }

    /// The file of a line: a known one, or a new one from the line's fields.
    fn file_of(&self, line: &Line<'_>) -> Option<File> {
        if line.inode == 0 && line.dev == (0, 0) {
            return None;
        }
        let known = self.files.values().find(|file| file.is(line.dev, line.inode)).cloned();
        known.or_else(|| {
            Some(File::new(FileDesc {
                id: 0,
                dev: line.dev,
                inode: line.inode,
                kind: FileKind::Regular,
                writable: true,
                noexec: false,
                path: line.name.to_string(),
            }))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mirror::Verdict;

    /// A sealed VMA cannot be unmapped, so a new address space takes over the whole listing.
    #[test]
    fn a_sealed_vma_that_differs_is_replaced() {
        let flags: VmFlags = "rd,mr,mw,me,sl".parse().unwrap();
        let mut mirror = Mirror::of_vmas(&[(0x1000..0x4000, flags)]);
        let space = " 00000000 00:00 0 ";
        let maps = format!("00001000-00002000 r--p{space}\n00002000-00004000 rw-p{space}\n");
        assert_eq!(mirror.compare(1, &maps), Ok(Verdict::Differs));
        let writable = (flags - VmFlags::SEALED) | VmFlags::WRITE;
        mirror.take_over(1, &maps, &[(0x1000, flags), (0x2000, writable)]).unwrap();
        assert_eq!(mirror.compare(1, &maps), Ok(Verdict::Agrees));
        assert_eq!(mirror.finish().total.mismatches, 1);
    }
}
