//! fork: the child's VMAs (rule 3).

use crate::{AddressSpace, Counted, Error, MappedFile, VmFlags, Vma, space::Writer};

impl<F: MappedFile, R: grace::Reclaim, A: maple::NodeAlloc> Writer<'_, F, R, A> {
    /// The address space of a forked child: every VMA but those under MADV_DONTFORK, in the same places. Locks
    /// and userfaultfds stay with the parent; VMAs with private pages get a place in the family of anon_vmas; nothing merges.
    ///
    /// O(VMAs). May allocate; on failure the parent is as it was.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    pub fn fork(&self) -> Result<AddressSpace<F, R, A>, Error> {
        let mut state = self.state().clone();
        state.default_flags &= VmFlags::NOHUGEPAGE;
        let mut child = AddressSpace::with_state(*self.profile, state);
        {
            let mut writer = child.get_mut();
            for area in self.areas() {
                let mut vma = Vma::clone(&area.vma);
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
                    vma.anon.fork()?
                };
                writer.store(area.start, area.end, Counted::new(vma)?)?;
            }
        }
        Ok(child)
    }
}
