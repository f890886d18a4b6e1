//! fork: the child's VMAs (rule 3).
//!
//! The child's tree is a duplicate that shares the nodes and the VMAs of the parent's tree. Private
//! pages make no difference: see [`anon_vma`](crate::anon_vma). Then only the VMAs that differ in
//! the child ([`Vma::changes_at_fork`]) are stored or erased in it. The address space counts these
//! VMAs, so without any of them it forks in constant time.

use core::ops::Range;

use crate::{
    AddressSpace, Area, Error, MappedFile, Profile, RefCounted, Uffd, VmFlags, Vma, host::Host,
    space::Writer, tree::TreeWrite, tree::Vmas, vma_counts::VmaCounts,
};

impl<F: MappedFile, R: grace::Reclaim, H: Host<F, R>> Writer<'_, F, R, H> {
    /// The address space of a forked child: every VMA without MADV_DONTFORK, at the same addresses.
    /// Locks stay with the parent, and so do userfaultfds that do not follow fork. Nothing merges.
    ///
    /// Constant time if no VMA is locked, registered with a userfaultfd, under MADV_DONTFORK, or
    /// under MADV_WIPEONFORK with private pages. Otherwise O(VMAs), with one store for each such
    /// VMA. May allocate; on failure the parent is unchanged.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    pub fn fork(&mut self) -> Result<AddressSpace<F, R>, Error> {
        self.fork_with(|uffd| Ok(uffd.follows_fork.then_some(uffd)))
    }

    /// As [`fork`](Self::fork), with the child's registrations: `child_uffd` gets that of each
    /// registered VMA, and returns the one of the child's VMA, if it stays registered.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`]; those of `child_uffd`.
    pub fn fork_with(
        &mut self,
        mut child_uffd: impl FnMut(Uffd) -> Result<Option<Uffd>, Error>,
    ) -> Result<AddressSpace<F, R>, Error> {
        let tree = self.vmas.tree.duplicate()?;
        let mut child = AddressSpace::from_parts(*self.vmas.profile, tree, self.vmas.state.fork());
        if self.vmas.state.counts().unshared > 0 {
            self.unshare(&mut child.get_mut().vmas, &mut child_uffd)?;
        }
        Ok(child)
    }

    /// An equal address space under other rules, to ask what a call would do there. It has the same
    /// files, locks and registrations, which a forked child has not: drop it before its answers
    /// have an effect on files.
    ///
    /// Constant time. Shares all VMAs, copy-on-write. May allocate; on failure nothing has changed.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    ///
    /// ```
    /// use vma::{AddressSpace, Layout, MapFlags, MapRequest, Profile};
    /// # #[derive(Clone, PartialEq)]
    /// # struct File;
    /// # impl vma::MappedFile for File {
    /// #     fn writable(&self) -> bool { true }
    /// #     fn device(&self) -> (u32, u32) { (8, 1) }
    /// #     fn inode(&self) -> u64 { 1 }
    /// #     fn write_path(&self, _: &mut dyn core::fmt::Write) -> core::fmt::Result { Ok(()) }
    /// # }
    /// let layout = Layout { mmap_base: 0x7000_0000_1000, ..Layout::default() };
    /// let profile = Profile::LINUX_6_18;
    /// let mut space: AddressSpace<File, grace::Single> = AddressSpace::new(profile, layout);
    /// let old = Profile { huge_aligned_anon: false, ..profile };
    /// let mut other = space.get_mut().duplicate(old)?;
    /// let flags = MapFlags::PRIVATE | MapFlags::ANONYMOUS;
    /// let request = MapRequest {
    ///     addr: 0, len: 2 << 20, prot: 3, flags, file: None, offset: 0, driver_flags: None,
    /// };
    /// assert_eq!(other.get_mut().mmap(request.clone()), Ok(0x6fff_ffe0_1000));
    /// assert_eq!(space.get_mut().mmap(request), Ok(0x6fff_ffe0_0000));
    /// # Ok::<(), vma::Error>(())
    /// ```
    pub fn duplicate(&mut self, profile: Profile) -> Result<AddressSpace<F, R>, Error> {
        let tree = self.vmas.tree.duplicate()?;
        Ok(AddressSpace::from_parts(profile, tree, self.vmas.state.duplicate()))
    }

    /// The ranges whose pages a forked child does not get: those of VMAs under MADV_DONTFORK or
    /// MADV_WIPEONFORK. Cost: as that of [`fork`](Self::fork).
    pub fn not_inherited(&self) -> impl Iterator<Item = Range<usize>> + '_ {
        let any = self.vmas.state.counts().unshared > 0;
        let all = any.then(|| self.vmas.tree.iter(0..=usize::MAX)).into_iter().flatten();
        let own = VmFlags::DONTCOPY | VmFlags::WIPEONFORK;
        all.filter(move |(_, vma)| vma.get().flags.intersects(own))
            .map(|(range, _)| *range.start()..range.end() + 1)
    }

    /// Gives the child its own VMAs where they differ from the parent's.
    fn unshare(
        &self,
        child: &mut Vmas<'_, F, R>,
        child_uffd: &mut impl FnMut(Uffd) -> Result<Option<Uffd>, Error>,
    ) -> Result<(), Error> {
        let all = self.vmas.tree.iter(0..=usize::MAX);
        for (range, vma) in all.filter(|(_, vma)| vma.get().changes_at_fork()) {
            let range = *range.start()..range.end() + 1;
            child.unshare_one(range, vma.get(), child_uffd)?;
        }
        Ok(())
    }
}

impl<F: MappedFile, R: grace::Reclaim> Vmas<'_, F, R> {
    /// Stores or erases one VMA of the child.
    fn unshare_one(
        &mut self,
        range: Range<usize>,
        parents: &Vma<F>,
        child_uffd: &mut impl FnMut(Uffd) -> Result<Option<Uffd>, Error>,
    ) -> Result<(), Error> {
        let Range { start, end } = range;
        let mut gone = VmaCounts::default();
        gone.count(parents, -1);
        let gone = gone.size(parents.flags, end - start, -1);
        if parents.flags.contains(VmFlags::DONTCOPY) {
            return self.write_known(TreeWrite::hole(start, end), gone);
        }
        let mut vma = Vma::clone(parents);
        vma.flags -= VmFlags::LOCKED_MASK;
        if let Some(uffd) = vma.uffd {
            vma.uffd = child_uffd(uffd)?;
            if vma.uffd.is_none() {
                vma.flags -= VmFlags::UFFD;
            }
        }
        if vma.flags.contains(VmFlags::WIPEONFORK) {
            vma.anon = Default::default();
        }
        let vma = RefCounted::new(vma)?;
        self.write_known(Area { start, end, vma }.into(), gone)
    }
}
