//! fork: the child's VMAs (rule 3).
//!
//! The child's tree is a duplicate that shares the nodes of the parent's, VMAs included. Only the
//! VMAs that a child has otherwise are then stored or erased in it ([`Vma::changes_at_fork`]): they
//! are counted, so an address space without any forks in constant time.

use crate::{
    AddressSpace, Counted, Error, MappedFile, VmFlags, Vma,
    space::{Counts, Writer},
};

impl<F: MappedFile, R: grace::Reclaim, A: maple::NodeAlloc> Writer<'_, F, R, A> {
    /// The address space of a forked child: every VMA but those under MADV_DONTFORK, in the same
    /// places. Locks and userfaultfds stay with the parent; VMAs with private pages get a place in
    /// the family of anon_vmas; nothing merges.
    ///
    /// Constant time if no VMA is locked, watched, under MADV_DONTFORK or has private pages.
    /// Otherwise O(VMAs), with one store for each of these. May allocate; on failure the parent is
    /// as it was.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    pub fn fork(&mut self) -> Result<AddressSpace<F, R, A>, Error> {
        let mut state = self.state().clone();
        state.default_flags &= VmFlags::NOHUGEPAGE;
        let counts = self.counts();
        let tree = self.with_tree(|tree| tree.duplicate_with_token())?;
        // The VMAs that are not shared are counted when the child has its own.
        let shared = Counts { unshared: 0, ..counts };
        let mut child = AddressSpace::from_parts(*self.profile, state, tree, shared);
        if counts.unshared > 0 {
            self.unshare(&mut child.get_mut())?;
        }
        Ok(child)
    }

    /// Gives the child its own VMAs where it does not have the parent's.
    fn unshare(&self, child: &mut Writer<'_, F, R, A>) -> Result<(), Error> {
        let all = self.tree().iter(self.guard(), 0..=usize::MAX);
        for (range, vma) in all.filter(|(_, vma)| vma.get().changes_at_fork()) {
            if let Err(error) = child.unshare_one(*range.start(), range.end() + 1, vma.get()) {
                // The chains from here on are the parent's still, which the child's end must not
                // unlink.
                child.unlink_below(*range.start());
                return Err(error);
            }
        }
        Ok(())
    }

    /// The child's contents of one VMA. Not by [`store`](Self::store): the links to anon_vmas of
    /// what is replaced are the parent's.
    fn unshare_one(&mut self, start: usize, end: usize, parents: &Vma<F>) -> Result<(), Error> {
        let range = start..=end - 1;
        if parents.flags.contains(VmFlags::DONTCOPY) {
            self.with_tree(|tree| tree.erase_range(range))?;
            self.count_more(Counts { vmas: -1, unshared: 0 });
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
        let vma = Counted::new(vma)?;
        self.with_tree(|tree| tree.store_range(range, vma.clone()))?;
        vma.anon.link();
        self.count_more(Counts { vmas: 0, unshared: isize::from(vma.changes_at_fork()) });
        Ok(())
    }

    /// Takes the VMAs below `end` out of the counts of their anon_vmas, as the address space's end
    /// would.
    fn unlink_below(&mut self, end: usize) {
        for (_, vma) in self
            .tree()
            .iter(self.guard(), 0..=usize::MAX)
            .take_while(|(range, _)| *range.start() < end)
        {
            vma.get().anon.unlink();
        }
        let unshared = self.counts().unshared;
        self.count_more(Counts { vmas: 0, unshared: -unshared });
    }
}
