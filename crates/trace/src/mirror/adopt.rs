//! VMAs that a record describes, taken over as they are: of a new program, and of calls whose
//! result the rules do not determine.

use std::sync::Arc;

use vma::{VmFlags, WholeVma};

use super::{
    Expected, Mirror, Shadow, SpaceChange, SpaceWriter,
    calls::{adopt_pkey, attach, bottom_up},
    file::File,
};
use crate::{
    record::{Call, FileId, InitialVma, MmId, Op},
    report::Difference,
};

impl<B: Shadow> Mirror<B> {
    pub(super) fn file(&self, id: FileId) -> Result<Option<File>, Expected> {
        match id {
            0 => Ok(None),
            _ => match self.files.get(&id) {
                Some(file) => Ok(Some(file.clone())),
                None => Err(format!("a file that a D line introduced, not {id}")),
            },
        }
    }

    /// The flags that the recorded kernel does not show.
    pub(super) fn unseen(&self) -> VmFlags {
        if self.profile.protection_keys { VmFlags::empty() } else { VmFlags::PKEY }
    }

    pub(super) fn adopt(&mut self, mm: MmId, vma: &InitialVma) -> Result<(), Expected> {
        let file = self.file(vma.file)?;
        if let Some(file) = &file {
            file.set_whole(vma.end.wrapping_sub(vma.start));
        }
        let whole = WholeVma {
            start: vma.start,
            end: vma.end,
            flags: vma.flags,
            pgoff: vma.pgoff,
            file,
            name: vma.name.as_deref().map(Arc::from),
        };
        let merges = vma.flags.contains(VmFlags::MERGEABLE);
        let (pkey, exec_only) = (vma.flags.pkey(), vma.flags & VmFlags::ACCESS == VmFlags::EXEC);
        let adopt = |space: &mut SpaceWriter<'_>| {
            let adopted = space.change(SpaceChange::Adopt(whole));
            adopted.map_err(|error| format!("a VMA that can be mapped: {error}"))?;
            if pkey != 0 {
                adopt_pkey(space, pkey, exec_only);
            }
            if merges {
                // A new program has mergeable VMAs only if it inherited PR_SET_MEMORY_MERGE through
                // execve.
                space
                    .change(SpaceChange::SetMemoryMerge(true))
                    .map_err(|error| error.to_string())?;
            }
            Ok(())
        };
        self.change_space(mm, adopt)?.1
    }

    /// A VMA that a call made. The arguments of shmat determine its VMA once the segment is known.
    /// So shmat is carried out here, and its address is predicted, too.
    pub(super) fn adopted_by_call(
        &mut self,
        mm: MmId,
        vma: &InitialVma,
    ) -> Result<Option<(MmId, Difference)>, Expected> {
        let segment = self.file(vma.file)?;
        let mirrored = self.known(mm)?;
        let (Some(Call { op: Op::Shmat, args, .. }), Some(segment)) =
            (mirrored.last_call.clone(), segment)
        else {
            self.adopt(mm, vma)?;
            let file = self.file(vma.file)?;
            self.known(mm)?.keep_ring(file.as_ref(), vma);
            return Ok(None);
        };
        let (mirrored, (predictable, chosen)) = self.change_space(mm, |space| {
            let predictable = args[1] == 0 && !bottom_up(space);
            (predictable, attach(space, &args, vma, segment))
        })?;
        if predictable {
            mirrored.figures.stats.predictable += 1;
            mirrored.figures.stats.predicted += u64::from(chosen == vma.start as isize);
        }
        if chosen == vma.start as isize {
            return Ok(None);
        }
        self.adopt(mm, vma)?;
        Ok(Some((mm, Difference::Result { ours: chosen, kernel: vma.start as isize })))
    }
}
