//! fork: the child's VMAs (rule 3).

use crate::{AddressSpace, Error, MappedFile, VmFlags, space::Writer};

impl<F: MappedFile, R: grace::Reclaim> Writer<'_, F, R> {
    /// The address space of a forked child: every VMA but those under MADV_DONTFORK, in the same places. Locks
    /// and userfaultfds stay with the parent; VMAs with private pages get a place in the family of anon_vmas; nothing merges.
    ///
    /// O(VMAs). May allocate; on failure the parent is as it was.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    pub fn fork(&self) -> Result<AddressSpace<F, R>, Error> {
        let mut state = self.state().clone();
        state.default_flags &= VmFlags::NOHUGEPAGE;
        let child = AddressSpace::with_state(*self.profile, state);
        {
            let mut writer = child.write();
            let mut at = 0;
            while let Some(area) = self.tree().at_or_after(at) {
                at = area.end;
                let mut vma = area.vma;
                if vma.flags.contains(VmFlags::DONTCOPY) {
                    continue;
                }
                vma.flags -= VmFlags::LOCKED_MASK;
                if vma.uffd.is_some_and(|uffd| !uffd.follows_fork) {
                    vma.flags -= VmFlags::UFFD;
                    vma.uffd = None;
                }
                vma.anon = if vma.flags.contains(VmFlags::WIPEONFORK) {
                    Default::default()
                } else {
                    vma.anon.fork()
                };
                writer.tree_mut().store(area.start, area.end, vma)?;
            }
        }
        Ok(child)
    }
}
