//! The aio rings of an address space. io_destroy unmaps the range at which io_setup mapped the
//! ring, or to which mremap moved it, even if something else is mapped there now.

use std::collections::HashMap;

use super::{MirroredSpace, file::File};
use crate::record::{Call, FileId, InitialVma, Op};

/// The address and the size of each ring, by its file. Its address names the context.
#[derive(Debug, Default)]
pub(super) struct Rings(HashMap<FileId, (usize, usize)>);

impl MirroredSpace {
    /// A call mapped `file` at `vma`. If that is a ring, remembers its place.
    pub(super) fn keep_ring(&mut self, file: Option<&File>, vma: &InitialVma) {
        if let Some(file) = file
            && let Some(size) = file.ring_size()
        {
            self.rings.0.insert(file.id(), (vma.start, size));
        }
    }

    /// The size of the ring that a successful io_destroy unmaps. It is forgotten.
    pub(super) fn destroyed_ring(&mut self, call: &Call) -> Option<usize> {
        if call.op != Op::IoDestroy || call.result != 0 {
            return None;
        }
        let named = |&(_, &(addr, _)): &(&FileId, &(usize, usize))| addr == call.args[0];
        let file = self.rings.0.iter().find(named).map(|(&file, _)| file)?;
        self.rings.0.remove(&file).map(|(_, size)| size)
    }

    /// A successful mremap may have moved a ring.
    pub(super) fn move_ring(&mut self, call: &Call) {
        if call.op != Op::Mremap || self.rings.0.is_empty() || call.result <= 0 {
            return;
        }
        let to = call.result as usize;
        let area = self.space.get_mut().area_at(to);
        let file = area.and_then(|area| area.vma.file.as_ref().map(File::id));
        if let Some((addr, _)) = file.and_then(|file| self.rings.0.get_mut(&file)) {
            *addr = to;
        }
    }
}
