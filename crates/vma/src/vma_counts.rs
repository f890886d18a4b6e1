//! Counts of VMAs and of their sizes, which each write to the tree changes.

use core::ops::Add;

use crate::{VmFlags, Vma, sizes::SizeChange};

/// Counts of VMAs, or the change of these counts by one write.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(crate) struct VmaCounts {
    /// VMAs in the tree.
    pub(crate) vmas: isize,
    /// VMAs that fork drops or changes ([`Vma::changes_at_fork`]).
    pub(crate) unshared: isize,
    /// Their sizes.
    pub(crate) sizes: SizeChange,
}

impl VmaCounts {
    /// One VMA with these contents, without its size.
    pub(crate) fn of<F>(vma: &Vma<F>) -> Self {
        VmaCounts { vmas: 1, unshared: vma.changes_at_fork().into(), ..VmaCounts::default() }
    }

    /// Counts `sign` times a VMA with these contents, without its size.
    pub(crate) fn count<F>(&mut self, vma: &Vma<F>, sign: isize) {
        *self = *self + VmaCounts::of(vma).times(sign);
    }

    /// Counts `sign` times the size of `len` bytes of a VMA with these flags.
    pub(crate) fn size(mut self, flags: VmFlags, len: usize, sign: isize) -> Self {
        self.sizes = self.sizes + SizeChange::of(flags, len as isize * sign);
        self
    }

    pub(crate) fn times(self, sign: isize) -> Self {
        let sizes = SizeChange(self.sizes.0.map(|bytes| sign * bytes));
        VmaCounts { vmas: sign * self.vmas, unshared: sign * self.unshared, sizes }
    }
}

impl Add for VmaCounts {
    type Output = VmaCounts;

    fn add(self, more: VmaCounts) -> VmaCounts {
        let (vmas, unshared) = (self.vmas + more.vmas, self.unshared + more.unshared);
        VmaCounts { vmas, unshared, sizes: self.sizes + more.sizes }
    }
}
