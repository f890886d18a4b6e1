//! fork: the child's VMAs (rule 3).
//!
//! The child's tree is a duplicate that shares the nodes and the VMAs of the parent's tree. Then
//! only the VMAs that differ in the child ([`Vma::changes_at_fork`]) are stored or erased in it.
//! The address space counts these VMAs, so without any of them it forks in constant time.

use crate::{
    AddressSpace, Error, MappedFile, RefCounted, VmFlags, Vma,
    space::{VmaCounts, Writer},
};

impl<F: MappedFile, R: grace::Reclaim, A: maple::NodeAlloc> Writer<'_, F, R, A> {
    /// The address space of a forked child: every VMA without MADV_DONTFORK, at the same addresses.
    /// Locks stay with the parent, and so do userfaultfds that do not follow fork. VMAs with
    /// private pages get an anon_vma below the parent's. Nothing merges.
    ///
    /// Constant time if no VMA is locked, registered with a userfaultfd, under MADV_DONTFORK or has
    /// private pages. Otherwise O(VMAs), with one store for each such VMA. May allocate; on failure
    /// the parent is unchanged.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    pub fn fork(&mut self) -> Result<AddressSpace<F, R, A>, Error> {
        let mut state = self.state().clone();
        state.default_flags &= VmFlags::NOHUGEPAGE;
        let counts = self.counts();
        let tree = self.with_tree(|tree| tree.duplicate_with_token())?;
        // `unshare` counts the VMAs that are not shared.
        let shared = VmaCounts { unshared: 0, ..counts };
        let mut child = AddressSpace::from_parts(*self.profile, state, tree, shared);
        if counts.unshared > 0 {
            self.unshare(&mut child.get_mut())?;
        }
        Ok(child)
    }

    /// Gives the child its own VMAs where they differ from the parent's.
    fn unshare(&self, child: &mut Writer<'_, F, R, A>) -> Result<(), Error> {
        let all = self.tree().iter(self.guard(), 0..=usize::MAX);
        for (range, vma) in all.filter(|(_, vma)| vma.get().changes_at_fork()) {
            if let Err(error) = child.unshare_one(*range.start(), range.end() + 1, vma.get()) {
                // From here on the chains are still the parent's. The child's drop must not unlink
                // them.
                child.unlink_below(*range.start());
                return Err(error);
            }
        }
        Ok(())
    }

    /// Stores or erases one VMA of the child. It does not use [`store`](Self::store), because the
    /// anon_vma links of the replaced VMA belong to the parent.
    fn unshare_one(&mut self, start: usize, end: usize, parents: &Vma<F>) -> Result<(), Error> {
        let range = start..=end - 1;
        if parents.flags.contains(VmFlags::DONTCOPY) {
            self.with_tree(|tree| tree.erase_range(range))?;
            self.count_more(VmaCounts { vmas: -1, unshared: 0 });
            return Ok(());
        }
        let mut vma = Vma::clone(parents);
        vma.flags -= VmFlags::LOCKED_MASK;
        if vma.uffd.is_some_and(|uffd| !uffd.follows_fork) {
            vma.flags -= VmFlags::UFFD;
            vma.uffd = None;
        }
        vma.anon = match vma.flags.contains(VmFlags::WIPEONFORK) {
            true => Default::default(),
            false => vma.anon.fork()?,
        };
        let vma = RefCounted::new(vma)?;
        self.with_tree(|tree| tree.store_range(range, vma.clone()))?;
        vma.anon.link();
        self.count_more(VmaCounts { vmas: 0, unshared: isize::from(vma.changes_at_fork()) });
        Ok(())
    }

    /// Unlinks the VMAs below `end` from their anon_vmas, as dropping the address space would.
    fn unlink_below(&mut self, end: usize) {
        for (_, vma) in self
            .tree()
            .iter(self.guard(), 0..=usize::MAX)
            .take_while(|(range, _)| *range.start() < end)
        {
            vma.get().anon.unlink();
        }
        let unshared = self.counts().unshared;
        self.count_more(VmaCounts { vmas: 0, unshared: -unshared });
    }
}
